#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the random tests of a real GPU for a given time, each time with new seeds; a short table comes last.

Every piece compares the contents of memory. A failure prints the seed that repeats it and ends the run. Raw results
land in one folder: gpu-soak.log with everything printed, gpu-soak.json with machine, seeds and counts, which is written
after each piece of each turn. SIGINT and SIGTERM end a run with its table. --sum FILE... prints that of such files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import machine
from gpu_tests import ROOT, run_logged

GRACE_SECONDS = 300  # beyond its time, before a piece counts as hanging


@dataclass
class Piece:
    """A random test, and what it did in this run."""

    name: str
    command: list[str]
    needs: str = ""  # a Python module
    share: int = 1  # of the time of a turn
    turns: int = 0
    seconds: float = 0.0
    rounds: int = 0
    allocations: int = 0
    outcome: str = "not run"

    def run(self, seconds: int, seed: int, log: TextIO) -> bool:
        """Returns whether it passed."""
        began = time.monotonic()
        self.turns += 1
        self.outcome = f"cut off with VPMM_SEED={seed}"
        try:
            output, code = run_logged(
                self.command,
                seconds + GRACE_SECONDS,
                log,
                VPMM_SEED=str(seed),
                VPMM_STRESS_SECONDS=str(seconds),
            )
        finally:
            self.seconds += time.monotonic() - began
        if counted := re.search(r"\b(\d+) rounds, (\d+) allocations", output):
            self.rounds += int(counted.group(1))
            self.allocations += int(counted.group(2))
        if code == 0:
            self.outcome = "passed"
            return True
        self.outcome = f"{'hung' if code is None else 'failed'} with VPMM_SEED={seed}"
        print("\n".join(output.splitlines()[-60:]))
        return False


def pieces(build: Path) -> list[Piece]:
    gpu = str(build / "tests" / "vpmm_test_gpu")
    python = [sys.executable, str(ROOT / "tests/gpu_python")]
    return [
        Piece("threads", [gpu, "--gtest_filter=*ThreadsOnGpu*/*cuda*"], share=4),
        Piece("programs", [gpu, "--gtest_filter=*random_programs_find*/*cuda*"]),
        Piece("processes", [python[0], f"{python[1]}/test_ipc.py", "Lives"], "numba"),
        Piece("Numba", [python[0], f"{python[1]}/test_stress.py"], "numba"),
    ]


def table(done: list[Piece]) -> str:
    lines = [f"{'piece':12} {'turns':>5} {'seconds':>8} {'rounds':>7} {'allocations':>12}  outcome"]
    lines += [
        f"{each.name:12} {each.turns:5} {each.seconds:8.0f} {each.rounds:7} {each.allocations:12}  {each.outcome}"
        for each in done
    ]
    return "\n".join(lines)


def sum_of(files: list[Path]) -> list[Piece]:
    """The pieces of several runs, by name. A piece of which a run did not pass has that run's outcome."""
    sums: dict[str, Piece] = {}
    for file in files:
        read = json.loads(file.read_text())
        for raw in [piece for run in (read if isinstance(read, list) else [read]) for piece in run["pieces"]]:
            one = Piece(**({"command": []} | raw))
            so_far = sums.setdefault(one.name, Piece(one.name, one.command))
            so_far.turns += one.turns
            so_far.seconds += one.seconds
            so_far.rounds += one.rounds
            so_far.allocations += one.allocations
            if so_far.outcome == "not run" or one.outcome not in ("not run", "passed"):
                so_far.outcome = one.outcome
    return list(sums.values())


def write(every: list[Piece], seed: int, out: Path) -> None:
    """Replaces the file at once: a run that is killed leaves the file as it was after a whole turn of a piece."""
    raw = {"machine": machine.describe(), "seed": seed, "pieces": [asdict(each) for each in every]}
    partial = out / "gpu-soak.json.part"
    partial.write_text(json.dumps(raw, indent=1) + "\n")
    partial.replace(out / "gpu-soak.json")


def soak(every: list[Piece], options: argparse.Namespace) -> bool:
    """Whether all passed."""
    ready = [each for each in every if not each.needs or (find_spec(each.needs) and find_spec("nanobind"))]
    shares = sum(each.share for each in ready)
    end = time.monotonic() + options.seconds
    seed = options.seed
    with (options.out / "gpu-soak.log").open("w") as log:
        while time.monotonic() < end:
            for each in ready:
                seconds = min(options.turn * each.share // shares, int(end - time.monotonic()))
                if seconds <= 0:
                    continue
                print(f"{each.name}: {seconds} s from VPMM_SEED={seed}", flush=True)
                try:
                    has_passed = each.run(seconds, seed, log)
                finally:
                    write(every, options.seed, options.out)
                if not has_passed:
                    return False
            seed += 1000
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=300, help="of the tests, without the build (default 300)")
    parser.add_argument("--turn", type=int, default=60, help="seconds of all pieces once (default 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first turn (default: the time)")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="gpu-soak.json of earlier runs")
    options = parser.parse_args()
    if options.sum:
        print(table(sum_of(options.sum)))
        return 0
    if not options.build or not options.out:
        parser.error("--build and --out are needed")
    options.out.mkdir(parents=True, exist_ok=True)
    path = [str(options.build.resolve() / "python"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    targets = ["vpmm_test_gpu"] + (["vpmm_python_package"] if find_spec("nanobind") else [])
    build = ["cmake", "--build", str(options.build), "-j", str(options.jobs), "--target", *targets]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    every = pieces(options.build)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return 0 if soak(every, options) else 1
    finally:
        print(f"\n{table(every)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
