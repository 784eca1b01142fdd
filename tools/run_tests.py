#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test of a build folder and sums up: skips with reasons, failures, then `N passed, N failed, N skipped`.

The C++ cases come from ctest, one each; the checks of tools/, of the documents and of the installed package are
unittest cases in tests/, several suites at a time. Those of the Python package, tests/python, run with each
interpreter that --package names, on the simulator; what one of them lacks is no skip if another has it. Those with
PyTorch, tests/torch and tests/torch_vpmm, run with the one that --torch names, on the simulated GPU; a few of them also
with --torch-newest. Suites that are named run alone. With VPMM_REQUIRE_GPU=1 a skipped case counts as failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_SUITES = ["tests/install", "tests/docs", "tests/cuda_mr", "tests/cli", "tests/tools"]  # the first is the longest
PACKAGE_SUITE = "tests/python"
TORCH_SUITE = "tests/torch"
TORCH_VPMM_SUITE = "tests/torch_vpmm"  # where PyTorch allocates through VPMM
# With the newest PyTorch, too.
TORCH_NEWEST_SUITES = [f"{TORCH_VPMM_SUITE}/{name}.py" for name in ("test_allocator", "test_history", "test_options")]
TORCH_LAUNCHER = (str(ROOT / TORCH_SUITE / "sim_gpu.py"), "--devices", "2")
SUITE_SECONDS = 1800  # of Python
CASE_SECONDS = 600  # of one case of it
DUMP_SECONDS = 30  # after that, for a case that no signal interrupts
WITHOUT_BUILD = "tests/tools"
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


@dataclass
class Choice:
    """What is to run: labels of ctest, and folders or files of Python's suites."""

    cpp: list[str]
    python: list[str]

    def python_in(self, folder: str) -> list[str]:
        return [suite for suite in self.python if suite == folder or suite.startswith(f"{folder}/")]

    def targets(self) -> list[str]:
        """What CMake must build for it."""
        targets = ["vpmm_bench" if suite == "bench" else f"vpmm_test_{suite}" for suite in self.cpp]
        if len(self.python) > len(self.python_in(WITHOUT_BUILD)):
            targets.append("vpmm_python_suites")
        return targets


def all_suites() -> Choice:
    """Those of C++ are named where CMake makes them."""
    named = re.findall(r"^ *vpmm_tests\((\w+)", (ROOT / "tests/CMakeLists.txt").read_text(), re.MULTILINE)
    return Choice([*named, "bench"], [*PYTHON_SUITES, PACKAGE_SUITE, TORCH_SUITE, TORCH_VPMM_SUITE])


def choose(names: Sequence[str]) -> Choice:
    """The suites of these names: `pool`, `tests/pool`, `docs`, `python/test_pool`. ValueError names them all."""
    every, chosen = all_suites(), Choice([], [])
    for name in names:
        suite = name.removeprefix("./").removeprefix("tests/").rstrip("/")
        file = ROOT / "tests" / f"{suite.removesuffix('.py')}.py"
        python = f"tests/{suite}"
        if python in every.python:
            chosen.python.append(python)
        elif file.name.startswith("test_") and file.is_file() and f"tests/{file.parent.name}" in every.python:
            chosen.python.append(str(file.relative_to(ROOT)))
        elif suite not in every.cpp:
            known = sorted({*every.cpp, *(suite.removeprefix("tests/") for suite in every.python)})
            raise ValueError(f"there is no suite '{name}'; there are: {' '.join(known)}")
        if suite in every.cpp:
            chosen.cpp.append(suite)
    return chosen


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


class CaseTimeout(BaseException):
    """No OSError, as a TimeoutError is: loops that try again would pass over it."""


def interrupt_case(_signal: int, _frame: object) -> None:
    signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)  # for what cleans up
    raise CaseTimeout(f"the case took more than {CASE_SECONDS} seconds")


class TallyResult(unittest.TextTestResult):
    """Sorts unittest's outcomes into a Tally; a failing subtest fails its test, and so does a time of CASE_SECONDS."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed on as they are
        self.tally = Tally()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - API
        super().startTest(test)
        signal.signal(signal.SIGALRM, interrupt_case)
        signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
        faulthandler.dump_traceback_later(CASE_SECONDS + DUMP_SECONDS, exit=True, file=sys.__stderr__)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - API
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

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
    """Folders, and files of such."""
    tally = Tally()
    for suite in suites:
        path = ROOT / suite
        folder, pattern = (path.parent, path.name) if path.suffix == ".py" else (path, "test_*.py")
        tests = unittest.TestLoader().discover(str(folder), pattern, top_level_dir=str(folder))
        runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=TallyResult)
        result = runner.run(tests)
        assert isinstance(result, TallyResult)
        tally.add(result.tally)
    return tally


@dataclass(frozen=True)
class Run:
    """One suite in a process of its own."""

    suite: str
    interpreter: Path
    launcher: Sequence[str] = ()
    needs_package: bool = True  # from the build folder, on the simulator

    def tally(self, build: Path) -> Tally:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tally.json")
            environment = dict(os.environ)
            if self.needs_package:
                environment = {"VPMM_DRIVER": "sim"} | environment | {"PYTHONPATH": str(build.resolve() / "python")}
            words = [str(self.interpreter), *self.launcher, __file__, "--only", self.suite, "--tally", str(path)]
            code, output = self.end_of(words, environment)
            if not path.exists():
                reason = f"{self.interpreter} ended with {code} and wrote no result"
                return Tally(failed={self.suite: f"{output.rstrip()}\n{reason}"})
            tally = Tally(**json.loads(path.read_text()))
            if code not in ("0", "1"):  # after the last case: how the interpreter ends is tested, too
                tally.failed[self.suite] = f"{self.interpreter} ended with {code}"
            return tally

    def end_of(self, words: list[str], environment: dict[str, str]) -> tuple[str, str]:
        """How the process ended, and what it printed. That is shown then, in one piece, for others run beside it."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            try:
                done = subprocess.run(
                    words, env=environment, stdout=output, stderr=output, timeout=SUITE_SECONDS, check=False
                )
                code = str(done.returncode)
            except subprocess.TimeoutExpired:
                code = f"more than {SUITE_SECONDS} seconds"
            output.seek(0)
            printed = output.read()
        print(f"\n{self.suite} with {self.interpreter}\n{printed}", end="", flush=True)
        return code, printed


def newest_suites(chosen: Choice) -> list[str]:
    """What runs with the newest PyTorch, too."""
    return [suite for suite in TORCH_NEWEST_SUITES if {suite, TORCH_VPMM_SUITE} & {*chosen.python}]


def python_runs(chosen: Choice, packages: list[Path], torch: Path | None, newest: Path | None = None) -> list[Run]:
    """The longest ones first."""
    here = Path(sys.executable)
    runs = [Run(suite, path) for path in packages for suite in chosen.python_in(PACKAGE_SUITE)]
    runs += [Run(suite, here, needs_package=False) for suite in chosen.python_in(PYTHON_SUITES[0])]
    if torch is not None:
        runs += [Run(suite, torch, (*TORCH_LAUNCHER, "--vpmm")) for suite in chosen.python_in(TORCH_VPMM_SUITE)]
        runs += [Run(suite, torch, TORCH_LAUNCHER) for suite in chosen.python_in(TORCH_SUITE)]
    if newest is not None:
        runs += [Run(suite, newest, (*TORCH_LAUNCHER, "--vpmm")) for suite in newest_suites(chosen)]
    for folder in PYTHON_SUITES[1:]:
        runs += [Run(suite, here, needs_package=False) for suite in chosen.python_in(folder)]
    return runs


def merge(tallies: dict[str, Tally]) -> Tally:
    """One tally of the same suite run in several ways, by name; a case that ran in one of them is no skip."""
    merged = Tally()
    ran = {case for tally in tallies.values() for case in [*tally.passed, *tally.failed]}
    for way, tally in tallies.items():
        merged.passed += [f"{way}: {case}" for case in tally.passed]
        merged.failed |= {f"{way}: {case}": output for case, output in tally.failed.items()}
        merged.skipped |= {case: reason for case, reason in tally.skipped.items() if case not in ran}
    return merged


def run_chosen(chosen: Choice, options: argparse.Namespace, ctest: list[str]) -> Tally:
    tally = run_ctest(options.build, options.jobs, ctest) if chosen.cpp else Tally()
    runs = python_runs(chosen, options.package, options.torch, options.torch_newest)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip(runs, pool.map(lambda run: run.tally(options.build), runs), strict=True))
    for suite in chosen.python:
        ways = ways_of(suite, results, options.torch_newest)
        tally.add(merge(ways) if len(ways) > 1 else next(iter(ways.values()), Tally()))
        if not ways:
            is_torch = suite.startswith((TORCH_SUITE, TORCH_VPMM_SUITE))
            tally.skipped[suite] = options.no_torch if is_torch else options.no_package
    if options.torch_newest is None and newest_suites(chosen):
        tally.skipped[f"{TORCH_VPMM_SUITE} with the newest PyTorch"] = options.no_torch_newest
    return tally


def ways_of(suite: str, results: dict[Run, Tally], newest: Path | None) -> dict[str, Tally]:
    """The results of a suite by environment; the newest PyTorch runs some files of a folder."""
    ways: dict[str, Tally] = {}
    for run, result in results.items():
        if run.suite == suite or (run.interpreter == newest and run.suite.startswith(f"{suite}/")):
            ways.setdefault(run.interpreter.parents[1].name, Tally()).add(result)
    return ways


def report(tally: Tally) -> None:
    if tally.skipped:
        print("\nSkipped:")
    for name, reason in tally.skipped.items():
        print(f"  {name}: {reason}")
    if tally.failed:
        print("\nFailed:")
    for name, output in tally.failed.items():
        lines = output.strip().splitlines()
        cut = len(lines) - MAX_FAILURE_LINES
        print(f"--- {name}")
        print("\n".join(([f"... {cut} lines left out ..."] if cut > 0 else []) + lines[-MAX_FAILURE_LINES:]))
    print()
    print(tally.last_line(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, help="build folder that holds the C++ tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-python", action="store_true", help="only the C++ tests")
    parser.add_argument("--package", type=Path, action="append", default=[], help="interpreter for tests/python")
    parser.add_argument("--no-package", metavar="REASON", default="no interpreter was named", help="why there is none")
    parser.add_argument("--torch", type=Path, help="interpreter with PyTorch, for tests/torch")
    parser.add_argument("--no-torch", metavar="REASON", default="no interpreter with PyTorch was named")
    parser.add_argument("--torch-newest", type=Path, help="interpreter with the newest PyTorch, for some of them")
    parser.add_argument("--no-torch-newest", metavar="REASON", default="no interpreter with it was named")
    parser.add_argument("--only", help="one folder of unittest cases, and nothing else")
    parser.add_argument("--tally", type=Path, help="with --only: file for the result, as JSON")
    parser.add_argument("--targets", action="store_true", help="only print what CMake must build for the suites")
    parser.add_argument("suites", nargs="*", help="what runs; all without one")
    options = parser.parse_args()
    try:
        chosen = choose(options.suites) if options.suites else all_suites()
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    if options.targets:
        print(*(chosen.targets() if options.suites else ["all"]))
        return 0
    if options.only:
        tally = run_python([options.only])
        if options.tally:
            options.tally.write_text(json.dumps(asdict(tally)))
        return 1 if tally.failed else 0
    if options.build is None:
        parser.error("--build is needed")
    if options.package:
        os.environ["VPMM_PACKAGE_PYTHON"] = str(options.package[0].absolute())
    os.environ["VPMM_BUILD_FOLDER"] = str(options.build.resolve())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file
    if options.no_python:
        chosen.python = []
    labels = ["--label-regex", f"^({'|'.join(chosen.cpp)})$"] if options.suites else []
    tally = run_chosen(chosen, options, labels)
    if os.environ.get("VPMM_REQUIRE_GPU") == "1":
        tally.skips_fail()
    report(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
