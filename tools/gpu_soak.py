#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the random tests of a real GPU for a given time, each time with new seeds; a short table comes last.

Every piece compares the contents of memory. A failure prints the seed that repeats it and ends the run. Raw results
land in one folder: gpu-soak.log with everything printed, gpu-soak.json with machine, seeds and counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
        output, code = run_logged(
            self.command,
            seconds + GRACE_SECONDS,
            log,
            VPMM_SEED=str(seed),
            VPMM_STRESS_SECONDS=str(seconds),
        )
        self.turns += 1
        self.seconds += time.monotonic() - began
        if counted := re.search(r"^(\d+) rounds, (\d+) allocations", output, re.MULTILINE):
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
        Piece("processes", [python[0], f"{python[1]}/test_ipc.py"], "numba"),
        Piece("Numba", [python[0], f"{python[1]}/test_stress.py"], "numba"),
    ]


def table(done: list[Piece]) -> str:
    lines = [f"{'piece':12} {'turns':>5} {'seconds':>8} {'rounds':>7} {'allocations':>12}  outcome"]
    lines += [
        f"{each.name:12} {each.turns:5} {each.seconds:8.0f} {each.rounds:7} {each.allocations:12}  {each.outcome}"
        for each in done
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=300, help="of the tests, without the build (default 300)")
    parser.add_argument("--turn", type=int, default=60, help="seconds of all pieces once (default 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first turn (default: the time)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = [str(options.build.resolve() / "python"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    targets = ["vpmm_test_gpu"] + (["vpmm_python_package"] if find_spec("nanobind") else [])
    build = ["cmake", "--build", str(options.build), "-j", str(options.jobs), "--target", *targets]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    every = pieces(options.build)
    ready = [each for each in every if not each.needs or (find_spec(each.needs) and find_spec("nanobind"))]
    shares = sum(each.share for each in ready)
    end = time.monotonic() + options.seconds
    seed = options.seed
    has_passed = True
    with (options.out / "gpu-soak.log").open("w") as log:
        while has_passed and time.monotonic() < end:
            for each in ready:
                seconds = min(options.turn * each.share // shares, int(end - time.monotonic()))
                if seconds > 0 and has_passed:
                    print(f"{each.name}: {seconds} s from VPMM_SEED={seed}", flush=True)
                    has_passed = each.run(seconds, seed, log)
            seed += 1000
    raw = {"machine": machine.describe(), "seed": options.seed, "pieces": [asdict(each) for each in every]}
    (options.out / "gpu-soak.json").write_text(json.dumps(raw, indent=1) + "\n")
    print(f"\n{table(every)}")
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
