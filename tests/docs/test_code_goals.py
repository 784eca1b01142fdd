# SPDX-License-Identifier: Apache-2.0
"""tests: docs/design/code-goals.md compares figures as the pages and results that it names have them."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = re.compile(r"^\| \*\*core\*\* \| [\d,]+ \| [\d,]+ \| ([\d,]+) \| ([\d.]+) \|", re.MULTILINE)
OVER = re.compile(r"^Core: (\d+) classes with more than 40 methods, (\d+) with more than 14 fields\.$", re.MULTILINE)
ENTERED = re.compile(r"(\d+) functions are entered.*?and ([\d,]+) instructions.*?enters (\d+) and executes ([\d,]+)")
RATIO = re.compile(r"^\| ((?:pair|random).*?) \| (vpmm(?:-bound)?) \|.*\| ([\d.]+) \|$", re.MULTILINE)


def read(path: str) -> str:
    return (ROOT / path).read_text()


def number(text: str) -> float:
    return float(text.replace(",", ""))


PAGE = read("docs/design/code-goals.md")
GOALS: dict[str, str] = dict(re.findall(r"^\| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE))
FIGURES = read("docs/design/code-figures.md")


class CodeGoals(unittest.TestCase):
    def cells(self, goal: str) -> list[str]:
        """83120d6, now, met."""
        return GOALS[goal].split(" | ")

    def test_tokens_are_those_of_the_figures(self) -> None:
        (then, dense_then), (now, dense_now) = CORE.findall(FIGURES)
        more = f"no: {100 * (number(now) / number(then) - 1):.0f} % more"
        self.assertEqual(self.cells("tokens of the core: 15 % fewer"), [then, now, more])
        self.assertIn(f"of the {number(now) - number(then):,.0f} tokens more", PAGE)
        self.assertEqual(self.cells("tokens a line of the core: at most 9"), [dense_then, dense_now, "no"])
        self.assertGreater(float(dense_now), 9)

    def test_rooms_of_which_the_page_speaks_are_as_it_says(self) -> None:
        def of(room: str) -> list[tuple[str, str]]:
            return re.findall(rf"^\| {room} \| [\d,]+ \| [\d,]+ \| ([\d,]+) \| ([\d.]+) \|", FIGURES, re.MULTILINE)

        (then, _), (now, _) = of("small")
        self.assertIn(f"made `small` {number(now) - number(then):,.0f} larger", PAGE)
        for room in ("base", "process", "vm"):
            self.assertLess(float(of(room)[-1][1]), 9, room)

    def test_large_classes_are_those_of_the_figures(self) -> None:
        then, now = OVER.findall(FIGURES)
        for index, kind in enumerate(("40 methods", "14 fields")):
            met = "no" if int(now[index]) else "yes"
            cells = self.cells(f"classes of the core with more than {kind}: none")
            self.assertEqual(cells, [then[index], now[index], met])

    def test_functions_entered_are_those_of_the_walk(self) -> None:
        found = ENTERED.search(" ".join(read("docs/walk-of-an-allocation.md").split()))
        assert found is not None
        now, instructions, then, instructions_then = found.groups()
        goal = f"functions entered by a request of 64 MiB: {int(then) // 2}, half as many"
        self.assertEqual(self.cells(goal), [then, now, "no"])
        self.assertIn(f"{instructions} instead of {instructions_then}", PAGE)

    def test_instructions_are_those_of_the_results(self) -> None:
        found = RATIO.findall(read("bench/results/instructions.md"))
        ratios = {(case, peer): float(ratio) for case, peer, ratio in found}
        for goal, case in (("a pair of 16 MiB", "pair 16 MiB"), ("random sizes up to 4 MiB", "random 1e3 <= 4 MiB")):
            said = f"{ratios[case, 'vpmm']:.1f}, bound {ratios[case, 'vpmm-bound']:.1f}"
            self.assertEqual(self.cells(f"instructions of {goal}: within 3 %"), ["1", said, "no"])
        warm = [ratio for (case, _), ratio in ratios.items() if case in ("pair 256 B", "pair 64 KiB", "pair 2 MiB")]
        self.assertEqual(len(warm), 6)
        said = f"{min(warm):.2f} to {max(warm):.2f}"
        self.assertEqual(self.cells("instructions of warm pairs up to 4 pages: within 3 %"), ["1", said, "yes"])
        self.assertLess(max(warm), 1.03)


if __name__ == "__main__":
    unittest.main()
