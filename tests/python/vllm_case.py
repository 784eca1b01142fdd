# SPDX-License-Identifier: Apache-2.0
"""tests: a case with a stand-in for vLLM, in which VPMM's allocator has been installed."""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import vpmm
import vpmm.vllm

STAND_IN = str(Path(__file__).resolve().with_name("vllm_stand_in"))


class VllmCase(unittest.TestCase):
    """`part` is the newest part of vLLM that is there; of its own, every case has modules and an allocator."""

    part = "hooks"

    def setUp(self) -> None:
        super().setUp()
        self.allocator = vpmm.vllm.Allocator()
        ours = ("vllm", "vpmm.plugins.vllm_backend")
        kept = {name: module for name, module in sys.modules.items() if not name.startswith(ours)}
        for patch in (
            mock.patch.dict(sys.modules, kept, clear=True),
            mock.patch.dict(os.environ, {"STAND_IN_VLLM": self.part}),
            mock.patch.object(sys, "path", [STAND_IN, *sys.path]),
            mock.patch.object(vpmm.vllm, "allocator", self.allocator),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(self.end)

    def end(self) -> None:
        vpmm.resume()

    def worker(self, backend: str = "cumem") -> Any:  # noqa: ANN401
        """vLLM's worker, which knew vLLM's allocator before VPMM's was installed."""
        worker = importlib.import_module("vllm.worker").Worker(backend)
        vpmm.vllm.install()
        return worker

    def states(self, *tags: str) -> dict[str, str]:
        return {tag: vpmm.tag_info(f"vllm:{tag}").state for tag in tags}
