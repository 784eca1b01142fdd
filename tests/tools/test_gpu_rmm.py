# SPDX-License-Identifier: Apache-2.0
"""tests: how the results of RMM's own tests are told apart, from reports as GoogleTest and pytest write them."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "gpu_rmm/run.py"  # one of several programs of that name
SPEC = importlib.util.spec_from_file_location("gpu_rmm", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
gpu_rmm = sys.modules["gpu_rmm"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu_rmm)

REPORT = """<testsuites><testsuite>
<testcase name="a" classname="Suite" status="run"/>
<testcase name="b" classname="Suite" status="run"><failure message="expected 1&#10;found 2"/></testcase>
<testcase name="c" classname="Suite" status="notrun"/>
<testcase name="d" classname="Suite"><error message="no fixture"/></testcase>
<testcase name="e" classname="Suite"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def outcomes(**states: str) -> object:
    words = {test: f"{test} broke" for test, state in states.items() if state == "failed"}
    return gpu_rmm.Outcomes(dict(states), words)


class Report(unittest.TestCase):
    def test_each_case_is_passed_failed_or_skipped(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "report.xml")
            path.write_text(REPORT)
            read = gpu_rmm.read_junit(path)
        self.assertEqual([read.count(state) for state in ("passed", "failed", "skipped")], [1, 2, 2])
        self.assertEqual(read.words, {"Suite.b": "expected 1\nfound 2", "Suite.d": "no fixture"})

    def test_a_run_without_a_report_is_a_failure(self) -> None:
        read = gpu_rmm.died(Path("/no/such/report.xml"), 139)
        self.assertEqual(read.words, {"the whole run": "ended with 139 and wrote no report"})

    def test_what_fails_natively_too_is_no_difference(self) -> None:
        runs = {"python native": outcomes(a="failed", b="passed"), "python current": outcomes(a="failed", b="failed")}
        self.assertEqual(list(gpu_rmm.differences(runs)), [("python current", "b")])

    def test_a_difference_without_a_reason_is_unexpected(self) -> None:
        runs = {"python native": outcomes(b="passed"), "python current": outcomes(a="passed", b="failed")}
        text, is_good = gpu_rmm.report(runs, {})
        self.assertFalse(is_good)
        self.assertIn("**unexpected**: b broke", text)
        text, is_good = gpu_rmm.report(runs, {"python current: b": "as it should"})
        self.assertTrue(is_good, text)
        self.assertIn("| python current | b | as it should |", text)

    def test_a_run_that_passed_nothing_proves_nothing(self) -> None:
        _, is_good = gpu_rmm.report({"C++ legacy": outcomes(a="passed"), "python native": outcomes(a="failed")}, {})
        self.assertFalse(is_good)


if __name__ == "__main__":
    unittest.main()
