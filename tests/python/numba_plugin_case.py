# SPDX-License-Identifier: Apache-2.0
"""tests: a manager of Numba's plugin with everything around it that writes down what is asked of it."""

# ruff: noqa: ANN401  managers are made at run time

from __future__ import annotations

import contextlib
import sys
import unittest
import warnings
from typing import Any

from numba_stand_ins import Context, Pools, RecordingCuda, RecordingPool, attributes, missing, recording_cuda

ABSENT = missing("vpmm._vpmm", "numba", "numba_cuda", "cuda.core", "numpy")


@unittest.skipIf(ABSENT, ABSENT)
class PluginTest(unittest.TestCase):
    """A manager of one context, whose pool is `self.pool` once it is used."""

    def setUp(self) -> None:
        from numba import cuda

        import vpmm.plugins.cuda_core
        import vpmm.plugins.numba
        from vpmm.plugins._extents import Extents

        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        # An exception in a finalizer cannot be raised; it fails the test all the same.
        self.unraisable: list[Any] = []
        self.stack.enter_context(attributes(sys, unraisablehook=self.unraisable.append))
        self.stack.callback(lambda: self.assertEqual(self.unraisable, []))
        self.target: Any = cuda.cudadrv.driver
        self.pools = Pools()
        for module in (vpmm.plugins.numba, vpmm.plugins.cuda_core):
            self.stack.enter_context(attributes(module, Pool=self.pools))
        self.cuda: RecordingCuda = self.stack.enter_context(recording_cuda(self.target))
        self.manager_class = vpmm.plugins.numba.make_memory_manager(cuda)
        self.stack.enter_context(attributes(self.manager_class, _extents=Extents(self.target)))
        self.context = Context()
        self.manager: Any = self.manager_class(context=self.context)

    @property
    def pool(self) -> RecordingPool:
        return self.pools.default(0)

    def ready(self) -> Any:
        self.manager.initialize()
        self.cuda.calls.clear()
        self.pool.calls.clear()
        return self.manager
