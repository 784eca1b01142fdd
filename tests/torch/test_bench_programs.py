# SPDX-License-Identifier: Apache-2.0
"""tests: programs of bench/torch that need PyTorch alone run on the CPU, and two that load and unload on the GPU."""

from __future__ import annotations

import importlib
import sys
import unittest
from pathlib import Path

from sim_gpu_case import ABSENT, SimGpuCase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/torch"))

if not ABSENT:
    import torch
    from catalogue import PROGRAMS
    from programs import Machine

SCALE = 0.01


def losses(program: str, device: str, steps: int) -> list[float]:
    torch.manual_seed(1)
    step = getattr(importlib.import_module(PROGRAMS[program].module), program)(Machine(torch.device(device), SCALE))
    return [step(number).item() for number in range(steps)]


class Programs(SimGpuCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the tensors are tiny

    def test_each_runs_on_the_cpu_with_losses_that_are_numbers_and_change(self) -> None:
        for name, steps in PROGRAMS.items():
            if steps.module == "fresh_programs":
                with self.subTest(program=name):
                    found = torch.tensor(losses(name, "cpu", 3))
                    self.assertTrue(found.isfinite().all(), found)
                    self.assertEqual(len(found.unique()), 3, found)

    def test_layers_and_adapters_come_and_go_on_the_gpu(self) -> None:
        for name in ("offload", "adapters"):
            with self.subTest(program=name):
                self.assertEqual(len(losses(name, "cuda", 3)), 3)


if __name__ == "__main__":
    unittest.main()
