#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the random tests of a real GPU for a given time, each time with new seeds; a short table comes last.

Every piece compares the contents of memory. A failure prints the seed that repeats it and ends the run; so does a piece
that counts no round. Raw results land in one folder: gpu-soak.log with everything printed, gpu-soak.json with machine,
seeds and counts, which is written before the first piece and after each piece of each turn. SIGINT and SIGTERM end a
run with its table. --sum FILE... prints that of such files, and ends with 1 if one of their pieces failed.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import machine
from gpu_tests import ROOT, end_by_an_exception, run_logged

GRACE_SECONDS = 300  # beyond its time, before a piece counts as hanging
OUTCOMES = ("failed", "hung", "cut off", "passed", "not run")  # the begin of each, and the worst first
END = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def heeding_signals() -> Iterator[None]:
    """SIGINT and SIGTERM that came before end the block, too; later ones wait."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, END)


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

    def rank(self) -> int:
        return next(rank for rank, begin in enumerate(OUTCOMES) if self.outcome.startswith(begin))

    def has_failed(self) -> bool:
        return self.outcome.startswith(("failed", "hung"))

    def run(self, seconds: int, seed: int, log: TextIO) -> bool:
        """Returns whether it passed."""
        began = time.monotonic()
        self.turns += 1
        self.outcome = f"cut off with VPMM_SEED={seed}"
        try:
            with heeding_signals():
                output, code = run_logged(
                    self.command,
                    seconds + GRACE_SECONDS,
                    log,
                    VPMM_SEED=str(seed),
                    VPMM_STRESS_SECONDS=str(seconds),
                )
        finally:
            self.seconds += time.monotonic() - began
        counted = re.search(r"\b([1-9]\d*) rounds, (\d+) allocations", output)
        if counted:
            self.rounds += int(counted.group(1))
            self.allocations += int(counted.group(2))
        if code == 0 and counted:
            self.outcome = "passed"
            return True
        told = re.findall(r"\bVPMM_SEED=(\d+)", output) or [seed]  # the last of them failed
        self.outcome = f"{'hung' if code is None else 'failed'} with VPMM_SEED={told[-1]}"
        if code == 0:
            self.outcome = "failed: counted nothing"
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
    """The pieces of several runs, by name, each with its worst outcome."""
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
            if one.rank() < so_far.rank():
                so_far.outcome = one.outcome
    return list(sums.values())


@dataclass
class Results:
    """gpu-soak.json."""

    out: Path
    seed: int
    every: list[Piece]
    machine: dict[str, str] = field(default_factory=machine.describe)

    def write(self) -> None:
        """Replaces the file at once: a run that is killed leaves the file as it was after a whole turn of a piece."""
        raw = {"machine": self.machine, "seed": self.seed, "pieces": [asdict(each) for each in self.every]}
        partial = self.out / "gpu-soak.json.part"
        partial.write_text(json.dumps(raw, indent=1) + "\n")
        partial.replace(self.out / "gpu-soak.json")


def soak(results: Results, seconds: int, turn: int) -> bool:
    """Whether something ran and all passed. SIGINT and SIGTERM are blocked while no piece runs, and afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END)
    every = results.every
    ready = [each for each in every if not each.needs or (find_spec(each.needs) and find_spec("nanobind"))]
    shares = sum(each.share for each in ready)
    end = time.monotonic() + seconds
    seed = results.seed
    with (results.out / "gpu-soak.log").open("w") as log:
        while True:
            for each in ready:
                part = min(turn * each.share // shares, int(end - time.monotonic()))
                if part <= 0:
                    return any(each.turns for each in ready)
                print(f"{each.name}: {part} s from VPMM_SEED={seed}", flush=True)
                try:
                    has_passed = each.run(part, seed, log)
                finally:
                    results.write()
                if not has_passed:
                    return False
            seed += 1000


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
        sums = sum_of(options.sum)
        print(table(sums))
        return 1 if any(each.has_failed() for each in sums) else 0
    if not options.build or not options.out:
        parser.error("--build and --out are needed")
    every = pieces(options.build)
    shares = sum(each.share for each in every)
    if options.turn < shares:
        parser.error(f"--turn must be {shares} or more, so that each piece has a second")
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.seed, every)
    results.write()
    path = [str(options.build.resolve() / "python"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    targets = ["vpmm_test_gpu"] + (["vpmm_python_package"] if find_spec("nanobind") else [])
    build = ["cmake", "--build", str(options.build), "-j", str(options.jobs), "--target", *targets]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    end_by_an_exception()
    try:
        return 0 if soak(results, options.seconds, options.turn) else 1
    finally:
        print(f"\n{table(every)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
