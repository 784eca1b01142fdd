# SPDX-License-Identifier: Apache-2.0
"""tests: what the comparison makes of results that differ, without running a program."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import test_equal


def verdict(native: list[float], ours: list[float], again: list[float], served: bool = True) -> unittest.TestResult:
    """What becomes of a case whose three processes find these losses."""
    outcomes = iter([(native, False), (ours, served), (again, False)])

    def run(name: str, folder: str, **more: str) -> dict[str, Any]:
        losses, by_vpmm = next(outcomes)
        return {"results": [[f"loss {step}", loss] for step, loss in enumerate(losses)], "served": by_vpmm}

    class Case(unittest.TestCase):
        def runTest(self) -> None:  # noqa: N802  unittest's name
            test_equal.check(self, "a_case")

    result = unittest.TestResult()
    with (
        mock.patch.object(test_equal, "run", run),
        mock.patch.object(test_equal, "missing", lambda name: None),
        mock.patch.object(test_equal.cases, "ON_GPU", True),
    ):
        Case().run(result)
    return result


class Verdicts(unittest.TestCase):
    def test_equal_results_pass(self) -> None:
        result = verdict([1.0, 2.0], [1.0, 2.0], [])
        self.assertTrue(result.wasSuccessful() and not result.skipped)

    def test_the_smallest_difference_fails(self) -> None:
        result = verdict([1.0, 2.0], [1.0, 2.0 + 2**-51], [1.0, 2.0])
        self.assertIn("1 of 2 results differ, the first is loss 1", result.failures[0][1])

    def test_a_missing_result_fails(self) -> None:
        self.assertEqual(len(verdict([1.0, 2.0], [1.0], [1.0, 2.0]).failures), 1)

    def test_where_pytorch_itself_differs_from_run_to_run_it_is_a_skip_that_says_so(self) -> None:
        self.assertIn("does not give the same twice", verdict([1.0], [2.0], [3.0]).skipped[0][1])

    def test_equal_results_without_vpmm_fail(self) -> None:
        self.assertIn("did not take VPMM", verdict([1.0], [1.0], [], served=False).failures[0][1])


if __name__ == "__main__":
    unittest.main()
