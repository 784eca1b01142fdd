# SPDX-License-Identifier: Apache-2.0
"""tests: how runs of numba-cuda's own suite are read and compared; the runs themselves need a GPU."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import numba_suite as suite  # noqa: E402 - needs the path above


def report(test: str, outcome: str, when: str = "call", text: str = "") -> dict[str, object]:
    return {"test": test, "when": when, "outcome": outcome, "text": text}


def outcomes(*events: dict[str, object]) -> suite.Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return suite.read_outcomes(path)


class Reading(unittest.TestCase):
    def test_a_test_is_as_bad_as_its_worst_phase(self) -> None:
        found = outcomes(
            report("a", "passed", "setup"),
            report("a", "passed"),
            report("a", "failed", "teardown", "a warning"),
            report("b", "passed"),
        )
        self.assertEqual(found.by_test, {"a": "failed", "b": "passed"})
        self.assertEqual(found.text, {"a": "a warning"})
        self.assertEqual(found.counts(), "1 failed, 1 passed")

    def test_a_failed_part_is_a_failed_test(self) -> None:
        found = outcomes(report("a", "failed"), report("a", "passed"))
        self.assertEqual(found.by_test, {"a": "failed"})

    def test_a_skipped_test_is_skipped_and_one_with_a_skipped_part_is_not(self) -> None:
        skipped = outcomes(report("a", "skipped", "setup"), report("a", "passed", "teardown"))
        self.assertEqual(skipped.by_test, {"a": "skipped"})
        part = outcomes(report("a", "skipped"), report("a", "passed"))
        self.assertEqual(part.by_test, {"a": "passed"})

    def test_one_that_began_and_never_ended_is_unfinished(self) -> None:
        begun = [{"test": "a", "start": True}, {"test": "b", "start": True}, report("b", "passed", "teardown")]
        self.assertEqual(outcomes(*begun).unfinished, ["a"])
        found = outcomes(*begun, report("a", "crashed", "crash"))
        self.assertEqual((found.unfinished, found.by_test["a"]), ([], "crashed"))


class Comparing(unittest.TestCase):
    REASONS = json.loads(suite.REASONS.read_text())

    def differences(self, run: str, base: str, before: dict[str, str], after: dict[str, str]) -> list[suite.Difference]:
        return suite.differences({base: suite.Outcomes(before), run: suite.Outcomes(after)}, self.REASONS)

    def test_what_is_the_same_is_no_row(self) -> None:
        same = {"a": "passed", "b": "failed"}
        self.assertEqual(self.differences("variable", "default", same, same), [])

    def test_a_known_difference_has_its_reason(self) -> None:
        test = "cudadrv/test_deallocations.py::TestDeallocation::test_max_pending_count"
        for run, base, outcome in (
            ("variable", "default", "skipped"),
            ("variable-n8", "default-n8", "skipped"),
            ("setter", "default", "failed"),
        ):
            (row,) = self.differences(run, base, {test: "passed"}, {test: outcome})
            self.assertIsNotNone(row.reason)

    def test_any_other_outcome_of_the_same_test_has_none(self) -> None:
        test = "cudadrv/test_deallocations.py::TestDeallocation::test_max_pending_count"
        (row,) = self.differences("variable", "default", {test: "passed"}, {test: "skipped"})
        self.assertIsNotNone(row.reason)
        (row,) = self.differences("variable", "default", {test: "passed"}, {test: "crashed"})
        self.assertIsNone(row.reason)

    def test_a_test_that_is_missing_in_one_run_is_a_row(self) -> None:
        (row,) = self.differences("variable", "default", {"a": "passed"}, {})
        self.assertEqual((row.before, row.after, row.reason), ("passed", "not run", None))

    def test_the_report_names_what_has_no_reason_with_its_text(self) -> None:
        found = {
            "default": suite.Outcomes({"a": "passed"}),
            "variable": suite.Outcomes({"a": "failed"}, {"a": "something is wrong"}),
        }
        text = suite.report(found, suite.differences(found, self.REASONS), {"default": 0, "variable": 1234})
        self.assertIn("| variable | `a` | passed | failed | **none known** |", text)
        self.assertIn("something is wrong", text)
        self.assertIn("| variable | 1 failed | 1,234 |", text)

    def test_what_a_run_had_no_time_for_is_not_compared_and_named(self) -> None:
        cut = suite.Outcomes({"a": "passed", "b": "crashed"}, {"b": suite.OUT_OF_TIME})
        found = {"default": suite.Outcomes(dict.fromkeys("abc", "passed")), "variable": cut}
        rows = suite.differences(found, self.REASONS)
        self.assertEqual(rows, [])
        text = suite.report(found, rows, {"default": 0, "variable": 0})
        self.assertIn("The time of variable was over in `b`", text)
        self.assertIn("| variable | 1 crashed, 1 passed | not counted |", text)

    def test_what_the_pool_served_is_summed_over_the_processes_of_a_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(suite.served_by_pool(Path(folder), "variable"), 0)
            lines = [json.dumps({"pid": pid, "allocations": 10 * pid}) for pid in (1, 2)]
            Path(folder, "variable.served").write_text("\n".join(lines) + "\n")
            self.assertEqual(suite.served_by_pool(Path(folder), "variable"), 30)


if __name__ == "__main__":
    unittest.main()
