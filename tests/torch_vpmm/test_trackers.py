"""tests: what libraries add to PyTorch's allocator in C++, on VPMM: trackers of its events, callbacks for shortages.

A tracker is never taken away, so this file comes last in its process.
"""

from __future__ import annotations

import unittest

from vpmm_case import ABSENT, VpmmCase

if not ABSENT:
    import probe


class ProbeCase(VpmmCase):
    def setUp(self) -> None:
        self.probe = probe.load()
        self.addCleanup(self.probe.refuse_nothing)
        super().setUp()


class Compiling(ProbeCase):
    def test_the_end_of_a_context_that_never_began_does_nothing(self) -> None:
        self.probe.pop_compile_context()


if __name__ == "__main__":
    unittest.main()
