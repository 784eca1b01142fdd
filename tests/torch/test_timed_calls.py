# SPDX-License-Identifier: Apache-2.0
"""tests: bench/torch/timed_calls.cpp counts CUDA's calls of each of PyTorch's allocators, on the simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import sim_gpu
from sim_gpu_case import ABSENT

SOURCE = Path(__file__).resolve().parents[2] / "bench/torch/timed_calls.cpp"
PROGRAM = """
import ctypes, json, torch
report = ctypes.CDLL(None).vpmm_bench_timed_calls
def look():
    calls, ns = ctypes.c_uint64(), ctypes.c_uint64()
    report(ctypes.byref(calls), ctypes.byref(ns))
    return calls.value, ns.value
torch.empty(1, device="cuda")
seen = [look()]
tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
seen.append(look())
del tensor
torch.cuda.empty_cache()
seen.append(look())
print(json.dumps(seen))
"""
ALLOCATORS = {"native": "", "expandable": "expandable_segments:True", "cuda-async": "backend:cudaMallocAsync"}


@unittest.skipIf(ABSENT, ABSENT)
class TimedCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.library = str(Path(folder.name, "timed_calls.so"))
        command = ["g++", "-std=c++20", "-shared", "-fPIC", "-o", cls.library, str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def test_each_allocators_calls_count_and_take_time(self) -> None:
        preload = os.pathsep.join([self.library, sim_gpu.environment()["LD_PRELOAD"]])
        for name, setting in ALLOCATORS.items():
            with self.subTest(allocator=name):
                output = sim_gpu.output_of(PROGRAM, LD_PRELOAD=preload, PYTORCH_ALLOC_CONF=setting)
                before, allocated, freed = json.loads(output)
                self.assertGreater(allocated[0], before[0])
                self.assertGreater(allocated[1], before[1])
                self.assertGreater(freed[0], allocated[0])


if __name__ == "__main__":
    unittest.main()
