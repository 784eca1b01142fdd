# SPDX-License-Identifier: Apache-2.0
"""tests: blocks of code that need PyTorch, in the pages that users begin with."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

from vpmm_case import ABSENT

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
from pages import PageCase, add_tests  # after its folder is known


@unittest.skipIf(ABSENT, ABSENT)
class Pages(PageCase):
    pass


add_tests(Pages, of_torch=True)


if __name__ == "__main__":
    unittest.main()
