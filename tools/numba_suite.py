#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs numba-cuda's own tests on a GPU with Numba's memory manager and with ours, and compares them test by test.

Every difference is a row of a Markdown table with its reason, from tests/gpu_python/numba_suite_reasons.json; one
without a reason makes the exit code 1. Runs may be made one by one: those that are in the folder already are compared.
`vpmm` must be importable, as must numba-cuda, pytest, pytest-xdist, pytest-benchmark, filecheck, cffi, psutil and
ml_dtypes.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "gpu_python"
REASONS = FOLDER / "numba_suite_reasons.json"
# A run, what it is compared with, its variables and its options.
PARALLEL = ["-n", "8", "--dist", "loadscope", "--benchmark-disable"]
OURS = {"NUMBA_CUDA_MEMORY_MANAGER": "vpmm"}
RUNS: dict[str, tuple[str | None, dict[str, str], list[str]]] = {
    "default": (None, {}, []),
    "variable": ("default", OURS, []),
    "setter": ("default", {}, ["--vpmm-setter"]),
    "default-n8": (None, {}, PARALLEL),
    "variable-n8": ("default-n8", OURS, PARALLEL),
}
WORST_FIRST = "crashed failed passed xpassed xfailed skipped".split()
MOST_RESTARTS = 10
SECONDS_PER_TEST = 90
OUT_OF_TIME = "not finished in time"
# About a kernel of one block, which most of these tests launch: no warning of a memory manager.
QUIET = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}


@dataclass
class Outcomes:
    """What became of each test of a run, and the last text that goes with it."""

    by_test: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    def was_cut_off(self, test: str) -> bool:
        """Whether only a lack of time is why this test has no outcome."""
        if test in self.by_test:
            return self.text.get(test) == OUT_OF_TIME
        return OUT_OF_TIME in self.text.values()

    def counts(self) -> str:
        kinds = list(self.by_test.values())
        return ", ".join(f"{kinds.count(kind)} {kind}" for kind in WORST_FIRST if kind in kinds)


def worse(first: str | None, second: str) -> str:
    return second if first is None else min(first, second, key=WORST_FIRST.index)


def read_outcomes(path: Path) -> Outcomes:
    """A test's outcome is the worst of its phases and parts; one that started and was never torn down is unfinished."""
    found = Outcomes()
    started: dict[str, None] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        test = event["test"]
        if "start" in event:
            started[test] = None
            continue
        # Where a test is skipped, its other phases pass all the same.
        if event["outcome"] != "passed" or event["when"] == "call":
            known = found.by_test.get(test)
            skipped = event["outcome"] in ("skipped", "xfailed")
            found.by_test[test] = event["outcome"] if skipped and known == "passed" else worse(known, event["outcome"])
        if event["text"]:
            found.text[test] = event["text"]
        if event["when"] in ("teardown", "crash"):
            started.pop(test, None)
    found.unfinished = list(started)
    return found


def suite_folder() -> str:
    """Where numba-cuda's tests are: pytest names tests by their path from its root folder."""
    found = importlib.util.find_spec("numba.cuda.tests")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("numba-cuda is not installed, or without its tests")
    return found.submodule_search_locations[0]


def run_suite(name: str, out: Path, seconds: int, arguments: list[str], label: str = "") -> None:
    """One run, continued after each test that ends the process, until all tests have an outcome or time is over.

    Its files begin with `label`, which is its name unless given.
    """
    _, variables, options = RUNS[name]
    label = label or name
    outcomes, done, log = (out / f"{label}.{kind}" for kind in ("jsonl", "done", "log"))
    served = out / f"{label}.served"
    for path in (outcomes, log, served):
        path.write_text("")
    end = time.monotonic() + seconds
    for attempt in range(MOST_RESTARTS):
        done.write_text("\n".join(read_outcomes(outcomes).by_test))
        command = [sys.executable, "-m", "pytest", "-c", "numba_suite.ini", "--rootdir", suite_folder(), "-q"]
        command += ["-p", "numba_suite_plugin", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--junitxml={out}/{label}-{attempt}.xml", f"--vpmm-outcomes={outcomes}"]
        command += [
            f"--vpmm-served={served}",
            f"--vpmm-skip={done}",
            f"--vpmm-seconds={SECONDS_PER_TEST}",
            *options,
            *(arguments or ["--pyargs", "numba.cuda.tests"]),
        ]
        environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CUDA_MEMORY_MANAGER"}
        with log.open("a") as file:
            file.write(f"$ {' '.join(command)}\n")
            file.flush()
            child = subprocess.Popen(
                command, cwd=FOLDER, env=environment | QUIET | variables, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                code = child.wait(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                code = None
        unfinished = read_outcomes(outcomes).unfinished
        with outcomes.open("a") as file:
            for test in unfinished:
                text = OUT_OF_TIME if code is None else f"the process ended with {code}"
                line = {"test": test, "when": "crash", "outcome": "crashed", "text": text}
                file.write(json.dumps(line) + "\n")
        if code is None or not unfinished:
            break
    done.unlink()
    print(f"{label}: {read_outcomes(outcomes).counts() or 'no test ran, see ' + str(log)}", flush=True)


@dataclass
class Difference:
    run: str
    test: str
    before: str
    after: str
    reason: str | None


def reason_for(reasons: list[dict[str, object]], run: str, test: str, outcome: str) -> str | None:
    for entry in reasons:
        runs, patterns = entry["runs"], entry["tests"]
        assert isinstance(runs, list) and isinstance(patterns, list)
        if run in runs and outcome == entry["outcome"] and any(fnmatch.fnmatch(test, each) for each in patterns):
            return str(entry["reason"])
    return None


def differences(found: dict[str, Outcomes], reasons: list[dict[str, object]]) -> list[Difference]:
    rows = []
    for run, (base, _, _) in RUNS.items():
        if base is None or run not in found or base not in found:
            continue
        before, after = found[base].by_test, found[run].by_test
        for test in sorted(before.keys() | after.keys()):
            was, is_ = before.get(test, "not run"), after.get(test, "not run")
            if was != is_ and not (found[base].was_cut_off(test) or found[run].was_cut_off(test)):
                rows.append(Difference(run, test, was, is_, reason_for(reasons, run, test, is_)))
    return rows


def run_again(rows: list[Difference], out: Path, seconds: int) -> None:
    """Runs the tests that differ without a reason once more, alone, and gives those that agree then a reason."""
    for name in dict.fromkeys(row.run for row in rows if row.reason is None):
        alone = name.removesuffix("-n8")
        base = RUNS[alone][0]
        assert base is not None
        mine = [row for row in rows if row.run == name and row.reason is None]
        arguments = [f"{suite_folder()}/{row.test}" for row in mine]
        second: list[dict[str, str]] = []
        for run in (base, alone):
            label = f"{name}-again-{run}"
            run_suite(run, out, seconds, arguments, label)
            second.append(read_outcomes(out / f"{label}.jsonl").by_test)
        for row in mine:
            before, after = (outcomes.get(row.test) for outcomes in second)
            if before == after and before is not None:
                row.reason = f"Unstable: run again, alone, {before} with both."


def served_by_pool(out: Path, label: str) -> int:
    """Allocations, of all processes of a run that came to their end."""
    path = out / f"{label}.served"
    return sum(json.loads(line)["allocations"] for line in path.read_text().splitlines()) if path.exists() else 0


def cut_off(outcomes: Outcomes) -> list[str]:
    return [test for test in outcomes.text if outcomes.was_cut_off(test)]


def report(found: dict[str, Outcomes], rows: list[Difference], served: dict[str, int]) -> str:
    versions = []
    for package in "numba numba-cuda cuda-core cuda-bindings numpy".split():
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    lines = ["# numba-cuda's own tests", "", ", ".join(versions) + ".", ""]
    lines += [f"- {key}: {value}" for key, value in machine.describe().items()]
    lines += ["", "| run | outcome | allocations from the pool |", "|---|---|---:|"]
    cut = {run: cut_off(outcomes) for run, outcomes in found.items()}
    for run, outcomes in found.items():
        count = "not counted" if cut[run] and served[run] == 0 else f"{served[run]:,}"  # a process tells at its end
        lines.append(f"| {run} | {outcomes.counts()} | {count} |")
    for run, tests in cut.items():
        if tests:
            lines += ["", f"The time of {run} was over in `{tests[0]}`: it and what would follow are not compared."]
    lines += ["", "| run | test | Numba's manager | VPMM | reason |", "|---|---|---|---|---|"]
    for row in rows:
        reason = row.reason or "**none known**"
        lines.append(f"| {row.run} | `{row.test}` | {row.before} | {row.after} | {reason} |")
    if not rows:
        lines.append("| | no difference | | | |")
    for run, outcomes in found.items():
        failed = sorted(test for test, outcome in outcomes.by_test.items() if outcome in ("failed", "crashed"))
        if RUNS[run][0] is None and failed:
            lines += ["", f"Failed in {run}, by Numba's own manager:", "", *(f"- `{test}`" for test in failed)]
    for row in rows:
        if row.reason is not None:
            continue
        lines += ["", f"`{row.run}`, `{row.test}`:", "", "```"]
        lines += [found[row.run].text.get(row.test, "no text").strip()[-1500:], "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "numba-suite")))
    parser.add_argument("--runs", default=",".join(RUNS), help=f"of {', '.join(RUNS)}; empty: compare what is there")
    parser.add_argument("--seconds", type=int, default=900, help="most for one run")
    parser.add_argument("--again", action="store_true", help="run what differs without a reason once more, alone")
    parser.add_argument("arguments", nargs="*", help="for pytest, instead of --pyargs numba.cuda.tests")
    options = parser.parse_args()
    names = [name for name in options.runs.split(",") if name]
    if unknown := set(names) - RUNS.keys():
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        run_suite(name, out, options.seconds, options.arguments)
    found = {name: read_outcomes(out / f"{name}.jsonl") for name in RUNS if (out / f"{name}.jsonl").exists()}
    rows = differences(found, json.loads(REASONS.read_text()))
    if options.again:
        run_again(rows, out, options.seconds)
    served = {name: served_by_pool(out, name) for name in found}
    text = report(found, rows, served)
    (out / "numba-suite.md").write_text(text)
    print(text)
    empty = [name for name, outcomes in found.items() if not outcomes.by_test]
    empty += [name for name in found if RUNS[name][0] is not None and served[name] == 0 and not cut_off(found[name])]
    return 1 if empty or any(row.reason is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
