# SPDX-License-Identifier: Apache-2.0
"""tests: a case that runs where PyTorch allocates through VPMM, on the simulated GPU or on a real one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import vpmm.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
import sim_gpu

if TYPE_CHECKING:
    import torch


def _absent() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch not installed"
    import torch

    if not torch.cuda.is_available():
        return sim_gpu.missing() or "no GPU: start it with tests/torch/sim_gpu.py --devices 2"
    return "" if vpmm.torch.is_installed() else "VPMM_TORCH is not set"


ABSENT = _absent()
MIB = 1 << 20
VERSION = [] if ABSENT else [int(part) for part in sys.modules["torch"].__version__.split(".")[:2]]


@unittest.skipIf(ABSENT, ABSENT)
class VpmmCase(unittest.TestCase):
    def setUp(self) -> None:
        import torch

        gc.collect()
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()
        self.reserved_before = torch.cuda.memory_reserved()
        if sim_gpu.is_here():
            self.hazards_before, _ = sim_gpu.hazards()
            self.addCleanup(self.check_hazards)

    def allocated(self) -> int:
        """Bytes since the test began."""
        import torch

        return torch.cuda.memory_allocated() - self.before

    def reserved(self) -> int:
        """Bytes since the test began. A tensor that an earlier test sent to nobody lives on."""
        import torch

        return torch.cuda.memory_reserved() - self.reserved_before

    def limit(self, size: int, device: int = 0) -> None:
        """PyTorch has at most so many bytes of a device for the rest of the test."""
        import torch

        torch.cuda.set_per_process_memory_fraction(size / torch.cuda.mem_get_info(device)[1], device)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0, device)

    @contextlib.contextmanager
    def foreign_stream(self) -> Iterator[torch.cuda.ExternalStream]:
        """A stream that PyTorch has not made; it is destroyed with the block."""
        import torch

        runtime, handle = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
        self.assertEqual(runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1), 0)
        try:
            yield torch.cuda.ExternalStream(handle.value)
        finally:
            self.assertEqual(runtime.cudaStreamDestroy(handle), 0)

    def check_hazards(self) -> None:
        count, text = sim_gpu.hazards()
        self.assertEqual(count, self.hazards_before, text)
