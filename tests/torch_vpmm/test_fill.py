# SPDX-License-Identifier: Apache-2.0
"""tests: mistakes of programs of PyTorch that VPMM_FILL shows: memory that is read without a write, or after its free.

Each program ran with other values in the same memory before, as one does after a while. Its tensors are written and
read by copies, for kernels of the simulated GPU compute nothing.
"""

from __future__ import annotations

import unittest

from test_programs import run
from vpmm_case import VpmmCase

BEGIN = """
import torch

SIZES = (10, 100_000, 5_000_000)

def to_gpu(size, value):
    return torch.full((size,), value).cuda()

def left_behind(size, value):
    old = to_gpu(size, value)
    return old.data_ptr()
"""
# Views of memory that they do not keep, as another library has that got an address.
VIEWS = """
class View:
    def __init__(self, tensor):
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__

def view_of(tensor):
    view = torch.as_tensor(View(tensor), device="cuda")
    assert view.data_ptr() == tensor.data_ptr()
    return view
"""


class Fill(VpmmCase):
    def output_of(self, code: str, fill: str) -> str:
        done = run(BEGIN + code, VPMM_FILL=fill)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout


class New(Fill):
    def test_a_part_that_a_loop_forgot_is_nan_instead_of_what_was_there_before(self) -> None:
        code = """
left_behind(1000, 7.0)
result = torch.empty(1000, device="cuda")
parts = torch.arange(1000.0).split(100)
for i in range(9):
    result[100 * i : 100 * (i + 1)].copy_(parts[i])
seen = result.cpu()
print(seen.sum().item(), seen.isnan().nonzero().flatten().tolist()[:1])
"""
        self.assertEqual(self.output_of(code, "none"), f"{float(sum(range(900)) + 700)} []\n")
        self.assertEqual(self.output_of(code, "new"), "nan [900]\n")

    def test_what_is_not_written_is_nan_in_each_type_and_in_memory_of_each_size(self) -> None:
        code = """
for size in SIZES:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2):
        left_behind(size * dtype.itemsize // 4 + 1, 1.0)
        seen = torch.empty(size, dtype=dtype, device="cuda").cpu().float().isnan()
        print(seen.all().item(), seen.any().item())
"""
        self.assertEqual(set(self.output_of(code, "new").splitlines()), {"True True"})
        self.assertEqual(set(self.output_of(code, "none").splitlines()), {"False False"})

    def test_what_is_written_is_left_alone(self) -> None:
        code = """
for size in SIZES:
    left_behind(size, 1.0)
    tensors = [to_gpu(size, float(i)) for i in range(4)]
    print([(tensor.cpu() == i).all().item() for i, tensor in enumerate(tensors)])
"""
        self.assertEqual(set(self.output_of(code, "new,freed").splitlines()), {"[True, True, True, True]"})


class Freed(Fill):
    CODE = (
        VIEWS
        + """
for size in SIZES:
    tensor = to_gpu(size, 3.0)
    view = view_of(tensor)
    print((view.cpu() == 3).all().item(), end=" ")
    del tensor
    seen = view.cpu()
    print((seen == 3).all().item(), seen.isnan().all().item())
"""
    )

    def test_a_use_after_the_free_reads_nan_instead_of_the_old_values(self) -> None:
        for fill in ("none", "new"):
            self.assertEqual(set(self.output_of(self.CODE, fill).splitlines()), {"True True False"}, fill)
        for fill in ("freed", "new,freed"):
            self.assertEqual(set(self.output_of(self.CODE, fill).splitlines()), {"True False True"}, fill)


if __name__ == "__main__":
    unittest.main()
