#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs CuPy's own suites where they lie, with CuPy's pool and on VPMM, and prints what differs. Needs a GPU and pytest.

    python3 tests/gpu_cupy/run.py --cupy-source DIR [--out FOLDER] [--jobs N] [--only WORDS]

DIR is CuPy's source, of the version that is installed; only its folder `tests` is used. Its cuda_tests
take most of the GPU's memory and run alone, the core_tests side by side. A test that fails on VPMM and not with CuPy's
pool is an error unless reasons.json names it with the reason. Ends with 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITES = [
    *(
        f"cupy_tests/cuda_tests/test_{name}.py"
        for name in ("memory", "memory_hook", "stream", "graph", "cufft", "device")
    ),
    "cupy_tests/core_tests",
]
ALONE = "cupy_tests/cuda_tests"  # take most of the GPU's memory, so nothing runs beside them
LONGEST = 300  # seconds of one suite in one way


def files_of(suite: Path) -> list[Path]:
    return [suite] if suite.is_file() else sorted(suite.rglob("test_*.py"))


def run_suite(tests: Path, suite: str, on_pool: bool, out: Path, until: float) -> dict[str, tuple[str, str]]:
    """Outcome and last words of each test; of `stopped` where time ran out."""
    found: dict[str, tuple[str, str]] = {}
    seconds = min(LONGEST, until - time.monotonic())
    if seconds <= 0:
        return {"stopped": ("", "")}
    name = f"{suite.replace('/', '.').removesuffix('.py')}.{'vpmm' if on_pool else 'cupy'}"
    outcomes = out / f"{name}.jsonl"
    outcomes.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider"]
    command += ["--vpmm-outcomes", str(outcomes), *(["--vpmm"] if on_pool else []), str(tests / suite)]
    path = os.pathsep.join([str(HERE), str(tests), os.environ.get("PYTHONPATH", "")])
    with (out / f"{name}.log").open("w") as log:
        try:
            subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                cwd=tests,
                env=os.environ | {"PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired:
            found["stopped"] = ("", "")
    for line in outcomes.read_text().splitlines() if outcomes.exists() else []:
        entry = json.loads(line)
        if "test" in entry and found.get(entry["test"], ("passed",))[0] != "failed":
            found[entry["test"]] = (entry["outcome"], " ".join(entry["words"]))
        elif "served" in entry:
            found["served"] = ("served", str(entry["served"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cupy-source", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="for raw results (default: a temporary folder)")
    parser.add_argument("--jobs", type=int, default=4, help="suites side by side (default: 4)")
    parser.add_argument("--only", default="", help="suites with this in their name")
    parser.add_argument("--seconds", type=float, default=3600, help="after which no more is run (default: 3600)")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    tests = options.cupy_source.resolve() / "tests"
    out = options.out or Path(tempfile.mkdtemp(prefix="vpmm-cupy-"))
    out.mkdir(parents=True, exist_ok=True)
    reasons: dict[str, str] = json.loads((HERE / "reasons.json").read_text())
    suites = [str(path.relative_to(tests)) for suite in SUITES for path in files_of(tests / suite)]
    suites = [suite for suite in suites if options.only in suite]
    results: dict[tuple[str, bool], dict[str, tuple[str, str]]] = {}
    for is_alone in (True, False):
        ways = [
            (suite, on_pool) for suite in suites if suite.startswith(ALONE) == is_alone for on_pool in (False, True)
        ]
        with ThreadPoolExecutor(1 if is_alone else options.jobs) as pool:
            found = pool.map(lambda way: run_suite(tests, *way, out, until), ways)
            results |= dict(zip(ways, found, strict=True))
    differences: list[tuple[str, str, str]] = []
    print(f"{'suite':<46}{'CuPy passed':>12}{'failed':>8}{'skipped':>9}{'VPMM passed':>13}{'failed':>8}{'skipped':>9}")
    for suite in suites:
        native, ours = results[suite, False], results[suite, True]
        is_whole = "stopped" not in native | ours
        for way in (native, ours):
            way.pop("stopped", None)
        served = ours.pop("served", ("", "0"))[1]
        cells = []
        for way in (native, ours):
            counts = Counter(outcome for outcome, _ in way.values())
            cells.append((counts["passed"], counts["failed"], counts["skipped"]))
        (np, nf, ns), (op, of, os_) = cells
        print(
            f"{suite:<46}{np:>12}{nf:>8}{ns:>9}{op:>13}{of:>8}{os_:>9}   "
            f"{int(served):,} served{'' if is_whole else '; stopped'}"
        )
        for test, (outcome, _) in native.items():
            mine, words = ours.get(test, ("did not run", ""))
            if mine != outcome and (is_whole or test in ours):
                differences.append((test, f"{outcome} -> {mine}", words))
        if is_whole and not native:
            differences.append((suite, "nothing ran with CuPy's pool", ""))
        if served == "0" and is_whole and "passed" in {outcome for outcome, _ in native.values()}:
            differences.append((suite, "the pool served nothing", ""))
    unexplained = 0
    for test, change, words in differences:
        short = test.rsplit("/", 1)[-1]
        reason = next((why for pattern, why in reasons.items() if pattern in test), "")
        unexplained += not reason
        print(f"{'differs' if reason else 'DIFFERS'}: {short}: {change}: {reason or words}")
    print(f"{len(differences)} differences, {unexplained} without a reason; raw results: {out}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
