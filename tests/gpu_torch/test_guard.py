# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, with VPMM_GUARD=1 planted errors of kernels are caught under PyTorch, and named, and with VPMM_FILL
the sums of kernels that read what nobody wrote, or what was freed, are NaN.

Each program runs in a process of its own and prints what it finds; the test prints it again. Two programs plant each
error: one that does nothing else, and one that trains a small network meanwhile.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed")

# The kernel gets the address as a number in device memory, so that it may be of memory that is gone. 5000 bytes leave
# a margin of 120 behind.
LAUNCHER = """
import sys
import torch, vpmm
error, program = sys.argv[1:]
SOURCE = '''extern "C" __global__ void touch(const long long* where, int writes, char* out) {
  volatile char* at = (volatile char*)where[0];
  if (writes) *at = 1; else out[0] = *at;
}'''
def launcher():
    if hasattr(torch.cuda, "_compile_kernel"):
        kernel = torch.cuda._compile_kernel(SOURCE, "touch")
        return lambda where, writes, out: kernel((1, 1, 1), (1, 1, 1), (where, writes, out))
    import cupy
    kernel = cupy.RawKernel(SOURCE, "touch")
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    def launch(where, writes, out):
        with stream:
            kernel((1,), (1,), (where.data_ptr(), cupy.int32(writes), out.data_ptr()))
    return launch
launch = launcher()
"""
TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps if program == "training" else 0):
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
train(5)
"""
PLANTED = """
victim = torch.zeros(5000, dtype=torch.uint8, device="cuda")
out = torch.zeros(1, dtype=torch.uint8, device="cuda")
begin = victim.data_ptr()
offset, writes = {"none": (0, 1), "read": (5000 + 4096, 0), "write": (5000 + 4096, 1), "free": (17, 0),
                  "under": (-(2 << 20), 0), "short": (5003, 1)}[error]
where = torch.tensor([begin + offset], dtype=torch.int64, device="cuda")
torch.cuda.synchronize()
if error == "free":
    del victim
    torch.cuda.synchronize()
    vpmm.trim()
try:
    launch(where, writes, out)
    torch.cuda.synchronize()
    train(5)
    victim = None
    torch.cuda.synchronize()
    vpmm.trim()
    print("no fault; damaged", vpmm.stats()["damaged_allocations"], "guarded", vpmm.stats()["guarded_allocations"])
except Exception as fault:
    print("fault:", str(fault).splitlines()[0])
print(vpmm.explain(begin + offset))
"""
GUARDED = LAUNCHER + TRAINING + PLANTED
# The view does not keep the memory, as a library that has its address.
FILLED = f"""
import sys
import torch, vpmm
error, program = sys.argv[1:]
{TRAINING}
class View:
    def __init__(self, tensor):
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__
old = torch.ones(1000, device="cuda")
del old
sums = torch.empty(1000, device="cuda")
if error != "unwritten":
    sums.fill_(2)
view = torch.as_tensor(View(sums), device="cuda")
if error == "freed":
    del sums
print("sum", view.sum().item())
view = sums = None
train(5)
print("the model is finite:", all(each.isfinite().all().item() for each in model.parameters()))
"""


def run(source: str, error: str, program: str, **variables: str) -> tuple[str, int]:
    """What it said, and its exit status, which a kernel that faulted may change."""
    settings = os.environ | {"VPMM_TORCH": "1"} | variables
    command = [sys.executable, "-c", source, error, program]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
    print(
        f"--- {error} ({program}), {variables}: exit status {done.returncode}\n{done.stdout}{done.stderr[-1500:]}",
        flush=True,
    )
    return done.stdout + done.stderr, done.returncode


def has_gpu() -> bool:
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(has_gpu(), "there is no GPU")
class PlantedErrors(unittest.TestCase):
    def check(self, error: str, *expected: str) -> None:
        for program in ("alone", "training"):
            with self.subTest(program=program):
                said, status = run(GUARDED, error, program, VPMM_GUARD="1")
                for each in expected:
                    self.assertRegex(said, each)
                if "fault: " not in expected[0]:
                    self.assertEqual(status, 0)

    def test_without_an_error_nothing_is_reported(self) -> None:
        self.check("none", "no fault; damaged 0 guarded [1-9]", "is inside an? .*allocation")

    def test_a_read_beyond_the_end_faults(self) -> None:
        self.check("read", "fault: .*illegal memory access", "4096 bytes beyond the end of an allocation\n  5000 bytes")

    def test_a_write_beyond_the_end_faults(self) -> None:
        self.check(
            "write", "fault: .*illegal memory access", "4096 bytes beyond the end of an allocation\n  5000 bytes"
        )

    def test_a_use_after_its_free_faults(self) -> None:
        self.check("free", "fault: .*illegal memory access", "at byte 17: a use after its free\n  5000 bytes")

    def test_an_access_before_the_begin_faults(self) -> None:
        self.check("under", "fault: .*illegal memory access", "2097152 bytes before the begin of an allocation")

    def test_a_short_overrun_is_found_in_the_margin(self) -> None:
        self.check("short", "no fault; damaged 1", "1 bytes, the first 3 bytes beyond its end; 5000 bytes at")


@unittest.skipUnless(has_gpu(), "there is no GPU")
class FilledMemory(unittest.TestCase):
    def check(self, error: str, expected: str, fill: str) -> None:
        for program in ("alone", "training"):
            with self.subTest(program=program, fill=fill):
                said, status = run(FILLED, error, program, VPMM_FILL=fill)
                self.assertEqual(status, 0)
                self.assertIn(f"sum {expected}\nthe model is finite: True\n", said)

    def test_without_an_error_the_values_are_the_programs(self) -> None:
        self.check("none", "2000.0", "new,freed")

    def test_a_sum_of_memory_that_nobody_wrote_is_nan(self) -> None:
        self.check("unwritten", "nan", "new")

    def test_a_sum_of_memory_that_was_freed_is_nan(self) -> None:
        self.check("freed", "nan", "freed")


if __name__ == "__main__":
    unittest.main()
