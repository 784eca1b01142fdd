# SPDX-License-Identifier: Apache-2.0
"""tests: a case that runs in a process on the simulated GPU, and fails if the hazard checker found anything."""

from __future__ import annotations

import importlib.util
import unittest

import sim_gpu

ABSENT = (
    sim_gpu.missing()
    or ("" if importlib.util.find_spec("torch") else "torch not installed")
    or ("" if sim_gpu.is_here() else "not on the simulated GPU: start it with tests/torch/sim_gpu.py --devices 2")
)

MIB = 1 << 20
LONG = 10**12  # cycles for torch.cuda._sleep: no call's time comes near it, so it lasts until somebody waits


@unittest.skipIf(ABSENT, ABSENT)
class SimGpuCase(unittest.TestCase):
    expected_hazards = 0

    def setUp(self) -> None:
        import torch

        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        self.hazards_before, _ = sim_gpu.hazards()
        self.addCleanup(self.check_hazards)

    def check_hazards(self) -> None:
        count, text = sim_gpu.hazards()
        self.assertEqual(count - self.hazards_before, self.expected_hazards, text)
