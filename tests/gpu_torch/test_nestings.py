# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, graphs that were captured in random nestings of pools overwrite nothing when they are replayed.

Each program (tests/torch/nestings.py) fills its tensors, captures graphs that fill theirs, drops its pools, takes the
memory that is free, replays the graphs, and counts values that changed. VPMM_NESTINGS is the number of programs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "torch" / "nestings.py"
PROGRAMS = int(os.environ.get("VPMM_NESTINGS", "100"))
FIRST = int(os.environ.get("VPMM_SEED", "1"))
IN_A_PROCESS = 50  # each snapshot of PyTorch 2.11 drops references to True and False
SECONDS = 300

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed")


def overwritten(**variables: str) -> dict[int, int]:
    """The number of values that changed, by seed. Raises AssertionError if a process failed."""
    kept = {key: value for key, value in os.environ.items() if key not in ("VPMM_TORCH", "PYTORCH_ALLOC_CONF")}
    found = {}
    for first in range(FIRST, FIRST + PROGRAMS, IN_A_PROCESS):
        count = min(IN_A_PROCESS, FIRST + PROGRAMS - first)
        command = [sys.executable, str(PROGRAM), str(first), str(count), "--contents"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=kept | variables, timeout=SECONDS, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"seeds from {first}: ended with {done.returncode}\n{done.stderr[-2000:]}")
        found |= {line["seed"]: line["overwritten"] for line in map(json.loads, done.stdout.splitlines())}
    return found


class Nestings(unittest.TestCase):
    def setUp(self) -> None:
        import torch

        if not torch.cuda.is_available():
            self.skipTest("PyTorch sees no GPU")

    def test_no_replay_overwrites_a_value(self) -> None:
        found = overwritten(VPMM_TORCH="1")
        self.assertEqual(len(found), PROGRAMS)
        self.assertEqual({seed: count for seed, count in found.items() if count}, {})


if __name__ == "__main__":
    unittest.main()
