#!/usr/bin/env python3
"""Runs every test of a build folder and sums up: skips with their reasons, then `N passed, N failed, N skipped`.

The C++ cases come from ctest, one each; the checks of tools/, of the documents and of the installed package are
unittest cases in tests/. With VPMM_REQUIRE_GPU=1 a skipped case counts as failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_SUITES = ["tests/tools", "tests/docs", "tests/install", "tests/cli"]
GTEST_SKIP = re.compile(r"^\S+:\d+: Skipped\n(.*?)(?=\n\n|\n\[|\Z)", re.DOTALL | re.MULTILINE)
MAX_FAILURE_LINES = 60


@dataclass
class Tally:
    """What was run, by outcome. Invariant: each case stands in exactly one list."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed |= other.failed
        self.skipped |= other.skipped

    def skips_fail(self) -> None:
        for name, reason in self.skipped.items():
            self.failed[name] = f"skipped although a GPU is required: {reason}"
        self.skipped = {}

    def last_line(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def skip_reason(output: str) -> str:
    found = GTEST_SKIP.search(output)
    return " ".join(found.group(1).split()) if found and found.group(1).strip() else "no reason given"


def read_junit(path: Path) -> Tally:
    """ctest's own report: a skipped case is `notrun` with a <skipped> element, one that never started is a failure."""
    tally = Tally()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name", "?"), case.get("status")
        output = case.findtext("system-out") or ""
        skipped = case.find("skipped")
        if status == "run":
            tally.passed.append(name)
        elif status == "disabled":
            tally.skipped[name] = "disabled"
        elif skipped is not None and "SKIP_REGULAR_EXPRESSION" in skipped.get("message", ""):
            tally.skipped[name] = skip_reason(output)
        else:
            reason = skipped.get("message", "") if skipped is not None else ""
            tally.failed[name] = output or reason or "did not run"
    return tally


def run_ctest(build: Path, jobs: int, arguments: list[str]) -> Tally:
    report = build.resolve() / "ctest.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(build), "-j", str(jobs), "--output-junit", str(report), *arguments]
    if sys.stdout.isatty():
        command.append("--progress")
    code = subprocess.run(command, check=False).returncode
    if not report.exists():
        return Tally(failed={"ctest": f"ended with {code} and wrote no report"})
    tally = read_junit(report)
    if code != 0 and not tally.failed:
        tally.failed["ctest"] = f"ended with {code} although no case failed"
    if not tally.passed and not tally.failed and not tally.skipped:
        tally.failed["ctest"] = "found no test"
    return tally


class TallyResult(unittest.TextTestResult):
    """Sorts unittest's outcomes into a Tally; a failing subtest fails its test."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed on as they are
        self.tally = Tally()

    def fail(self, test: unittest.TestCase, error: object) -> None:
        self.tally.failed[test.id()] = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]  # private

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - API
        super().addSuccess(test)
        if test.id() not in self.tally.failed:
            self.tally.passed.append(test.id())

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - API
        super().addSkip(test, reason)
        self.tally.skipped[test.id()] = reason

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802 - API
        super().addFailure(test, err)  # type: ignore[arg-type]  # its type is private
        self.fail(test, err)

    def addError(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802 - API
        super().addError(test, err)  # type: ignore[arg-type]  # its type is private
        self.fail(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: object) -> None:  # noqa: N802 - API
        super().addSubTest(test, subtest, err)  # type: ignore[arg-type]  # its type is private
        if err is not None:
            self.fail(test, err)


def run_python(suites: list[str]) -> Tally:
    tally = Tally()
    for folder in suites:
        if not any((ROOT / folder).glob("test_*.py")):
            continue
        tests = unittest.TestLoader().discover(str(ROOT / folder), top_level_dir=str(ROOT / folder))
        runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=TallyResult)
        result = runner.run(tests)
        assert isinstance(result, TallyResult)
        tally.add(result.tally)
    return tally


def report(tally: Tally) -> None:
    if tally.failed:
        print("\nFailed:")
    for name, output in tally.failed.items():
        lines = output.strip().splitlines()
        cut = len(lines) - MAX_FAILURE_LINES
        print(f"--- {name}")
        print("\n".join(([f"... {cut} lines left out ..."] if cut > 0 else []) + lines[-MAX_FAILURE_LINES:]))
    if tally.skipped:
        print("\nSkipped:")
    for name, reason in tally.skipped.items():
        print(f"  {name}: {reason}")
    print()
    print(tally.last_line(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="build folder that holds the C++ tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-python", action="store_true", help="only the C++ tests")
    parser.add_argument("ctest", nargs="*", help="arguments for ctest, after --")
    options = parser.parse_args()
    os.environ["VPMM_BUILD_FOLDER"] = str(options.build.resolve())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file
    tally = run_ctest(options.build, options.jobs, options.ctest)
    if not options.no_python:
        tally.add(run_python(PYTHON_SUITES))
    if os.environ.get("VPMM_REQUIRE_GPU") == "1":
        tally.skips_fail()
    report(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
