# SPDX-License-Identifier: Apache-2.0
"""tests: every test that a page names exists, so that a rule cannot lose its test silently."""

from __future__ import annotations

import ast
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = "docs/**/*.md"
# `Suite.a_sentence`: a suite is capitalised and a sentence has more than one word.
NAMED = re.compile(r"`([A-Z]\w*\.[a-z0-9]\w*_\w+)`")
DEFINED = re.compile(r"^TEST(?:_[FP])?\((\w+),\s+(\w+)\)", re.MULTILINE)


def defined_in_python(text: str) -> set[str]:
    suites = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {f"{suite.name}.{part.name}" for suite in suites for part in suite.body if isinstance(part, ast.FunctionDef)}


def defined_tests() -> set[str]:
    texts = (path.read_text() for path in ROOT.glob("tests/**/*.cpp"))
    found = {f"{suite}.{name}" for text in texts for suite, name in DEFINED.findall(text)}
    return found.union(*(defined_in_python(path.read_text()) for path in ROOT.glob("tests/**/test_*.py")))


class NamedTests(unittest.TestCase):
    def test_every_test_that_a_page_names_exists(self) -> None:
        defined = defined_tests()
        named = [(page.name, name) for page in sorted(ROOT.glob(PAGES)) for name in NAMED.findall(page.read_text())]
        self.assertGreater(len(named), 0)
        for page, name in named:
            with self.subTest(page=page, test=name):
                self.assertTrue(name in defined, f"{name} is no test")

    def test_every_rule_of_the_specification_has_a_row(self) -> None:
        rows = re.findall(r"^\| (V\d+) \|", (ROOT / "docs/spec.md").read_text(), re.MULTILINE)
        self.assertEqual(rows, [f"V{number}" for number in range(1, 67)])

    def test_every_rule_of_nbep_7_has_a_row_for_numba_and_one_for_c_and_cpp(self) -> None:
        expected = [f"N{number}" for number in range(1, 42)] + [f"D{number}" for number in range(1, 18)]
        for page in ("docs/nbep7.md", "docs/spec.md"):
            rows = re.findall(r"^\| ([ND]\d+) \|", (ROOT / page).read_text(), re.MULTILINE)
            self.assertEqual(rows, expected, page)


if __name__ == "__main__":
    unittest.main()
