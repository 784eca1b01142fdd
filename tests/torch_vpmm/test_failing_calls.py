# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch's plugin when calls of the library fail; each program preloads failing_calls.cpp."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from vpmm_case import ABSENT

import vpmm

SOURCE = Path(__file__).resolve().with_name("failing_calls.cpp")
PACKAGE = Path(vpmm.__file__).resolve().parent
BEGIN = """
import ctypes, torch, vpmm
between = ctypes.CDLL(None)
def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
"""


@unittest.skipIf(ABSENT, ABSENT)
class FailingCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.between = str(Path(folder.name, "failing_calls.so"))
        headers = f"-I{PACKAGE / 'include'}"
        command = ["g++", "-std=c++20", "-shared", "-fPIC", headers, "-o", cls.between, str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def output_of(self, code: str) -> str:
        preload = os.pathsep.join(filter(None, [self.between, os.environ.get("LD_PRELOAD")]))
        more = {"LD_PRELOAD": preload, "LIBRARY_OF_VPMM": str(PACKAGE / "libvpmm.so.0")}
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + code],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ | more,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def test_memory_that_is_freed_without_host_memory_goes_back_later(self) -> None:
        code = """
tensor, other = empty(30 << 20), empty(1 << 20)
name = b"vpmm_deallocate"
between.fail_next(name, 4)
del tensor
print(between.calls_failed(), torch.cuda.memory_allocated() >> 20)
del other
torch.cuda.empty_cache()
print(vpmm.stats()["live_bytes"])
"""
        self.assertEqual(self.output_of(code), "1 1\n0\n")

    def test_an_arena_that_is_not_whole_serves_no_request(self) -> None:
        code = """
pool = torch.cuda.MemPool()
names = (b"vpmm_arena_set_library", b"vpmm_arena_id")
for name in names:
    between.fail_next(name, 8)
    with torch.cuda.use_mem_pool(pool):
        try:
            empty(1 << 20)
        except RuntimeError as error:
            print(type(error) is RuntimeError, str(error).startswith("VPMM: in a memory pool"))
print(between.calls_failed(), torch.cuda.memory_allocated(), vpmm.stats()["live_bytes"])
with torch.cuda.use_mem_pool(pool):
    tensor = empty(1 << 20)
print(pool.snapshot()[0]["segment_pool_id"] == pool.id)
"""
        self.assertEqual(self.output_of(code), "True True\nTrue True\n2 0 0\nTrue\n")

    def test_what_others_map_while_the_pool_is_opened_is_counted(self) -> None:
        code = """
between.allocate_during_next_question(ctypes.c_size_t(100 << 20))
tensor = empty(1 << 20)
stats = vpmm.stats()
print(stats["live_bytes"] >> 20, torch.cuda.memory_reserved() == stats["mapped_bytes"])
"""
        self.assertEqual(self.output_of(code), "101 True\n")

    def test_figures_need_no_layout_while_events_tell_all(self) -> None:
        code = """
tensors = [empty(size) for size in (1000, 30 << 20)]
name = b"vpmm_layout_take"
between.fail_next(name, 4)
torch.cuda.memory_stats()
print(between.calls_failed())
"""
        self.assertEqual(self.output_of(code), "0\n")


if __name__ == "__main__":
    unittest.main()
