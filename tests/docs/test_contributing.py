# SPDX-License-Identifier: Apache-2.0
"""tests: CONTRIBUTING.md says how to work on the code; results of a day have pages of their own."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DIARY = re.compile(rf"\b(?:{MONTHS})\s+\d|\d\s+(?:{MONTHS})\b|\b20\d\d(?:-\d\d)?\b|\bso\s+far\b")


class Contributing(unittest.TestCase):
    def test_it_is_no_diary(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text()
        self.assertIn("## Building by hand", text)
        self.assertEqual(DIARY.findall(text), [])

    def test_a_diary_is_known_by_its_dates(self) -> None:
        for line in ("Six hunts so\nfar", "On 30 November 2026 it ran", "On May 3 it ran", "since 2026-11", "in 2026"):
            with self.subTest(line=line):
                self.assertIsNotNone(DIARY.search(line))
        for line in ("`./dev hunt --seed 20000001`", "It may run 3 times", "VPMM_STRESS_SECONDS=1800"):
            with self.subTest(line=line):
                self.assertIsNone(DIARY.search(line))


if __name__ == "__main__":
    unittest.main()
