# SPDX-License-Identifier: Apache-2.0
"""tests: random nestings of pools, captures, streams, threads and exceptions put each tensor into the same pool as
PyTorch's own allocator.

VPMM_NESTINGS is the number of programs, VPMM_SEED the first. tests/torch/nestings.py writes and runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from vpmm_case import ABSENT, sim_gpu

PROGRAM = str(Path(sim_gpu.__file__).with_name("nestings.py"))
PROGRAMS = int(os.environ.get("VPMM_NESTINGS", "40"))
FIRST = int(os.environ.get("VPMM_SEED", "1"))
IN_A_PROCESS = 40  # each snapshot of PyTorch 2.11 drops references to True and False, which ends a longer process


def run(first: int, count: int, **variables: str) -> list[dict[str, object]]:
    done = sim_gpu.run(PROGRAM, str(first), str(count), **variables)
    if done.returncode != 0:
        raise AssertionError(f"seeds from {first}: ended with {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def source(seed: object) -> str:
    command = [sys.executable, PROGRAM, str(seed), "1", "--show"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@unittest.skipIf(ABSENT, ABSENT)
@unittest.skipUnless(sim_gpu.is_here(), "the same on a GPU is tests/gpu_torch/test_nestings.py")
class Nestings(unittest.TestCase):
    def test_the_innermost_pool_serves_as_natively(self) -> None:
        ours = {"VPMM_TORCH": "1", "VPMM_CACHE_DIR": os.environ["VPMM_CACHE_DIR"]}
        captured = 0
        for first in range(FIRST, FIRST + PROGRAMS, IN_A_PROCESS):
            count = min(IN_A_PROCESS, FIRST + PROGRAMS - first)
            for native, vpmm in zip(run(first, count), run(first, count, **ours), strict=True):
                seed = native["seed"]
                self.assertEqual(vpmm, native, f"VPMM_SEED={seed} VPMM_NESTINGS=1:\n{source(seed)}")
                captured += json.dumps(native).count('"g')
        self.assertGreater(captured, PROGRAMS)


if __name__ == "__main__":
    unittest.main()
