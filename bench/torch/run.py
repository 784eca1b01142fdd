#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs under four allocators, each run in a process of its own: memory, time, losses; tables and a picture.

    python3 bench/torch/run.py                                   # all of it, into bench/results
    python3 bench/torch/run.py --programs gnn,moe --allocators native,vpmm --scale 0.5 --seconds 300
    python3 bench/torch/run.py --resume                          # what is missing in bench/results
    python3 bench/torch/run.py --limits --programs moe           # also the smallest limit at which each still runs

Needs a GPU, PyTorch, transformers, torch_geometric and torchvision; for `vpmm` the package, which `VPMM_TORCH=1` puts
under PyTorch. `shim` is VPMM behind PyTorch's pluggable allocator and says what each kind of driver call took:

    cmake --preset release -DVPMM_BENCH=ON && cmake --build --preset release --target vpmm_bench_torch_allocator
    python3 bench/torch/run.py --allocators native,shim --shim build/release/bench/torch/allocator.so

vpmm_bench_timed_calls is loaded before PyTorch and measures what its allocators spend in CUDA's calls:

    python3 bench/torch/run.py --timed-calls build/release/bench/torch/timed_calls.so

`vpmm-latency` is VPMM with the setting that buys time with memory. `native-again` is native a second time: how far two
runs of one allocator differ. Raw figures of each run go to torch-programs.json as soon as it ends, tables to
torch-programs.md, pictures to torch-programs.svg and, of held memory alone, torch-held.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402  from the folder above
import tables  # noqa: E402
from catalogue import PROGRAMS  # noqa: E402

ALLOCATORS: dict[str, dict[str, str]] = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "cuda-async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
    "vpmm": {"VPMM_TORCH": "1"},
    "vpmm-latency": {"VPMM_TORCH": "1", "VPMM_PREFER": "latency"},
    "native-again": {},
    "shim": {},
}
# What decides about the allocator is ours to say, whatever the shell had.
CLEARED = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "VPMM_TORCH", "VPMM_PREFER")
RUN_SECONDS = 300

Figures = dict[str, Any]


@dataclass
class Clock:
    """How much of the time for everything is left."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)


def environment_of(allocator: str, options: argparse.Namespace) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    if options.deterministic:
        kept["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    timer = {"LD_PRELOAD": str(options.timed_calls.resolve())} if options.timed_calls else {}
    return kept | ALLOCATORS[allocator] | timer


def run(program: str, allocator: str, options: argparse.Namespace, seconds: float, *more: str) -> Figures:
    """The figures of one process, or {"failed": why, "message": what it said last}."""
    command = [sys.executable, str(HERE / "measure.py"), program, "--scale", str(options.scale), *more]
    command += ["--deterministic"] if options.deterministic else []
    command += ["--steps", str(options.steps)] if options.steps else []
    command += ["--shim", str(options.shim.resolve())] if allocator == "shim" else []
    began = time.monotonic()
    try:
        environment = environment_of(allocator, options)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "out of time", "wall_seconds": round(seconds, 1)}
    wall = {"wall_seconds": round(time.monotonic() - began, 1)}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.strip().splitlines()[-1])) | wall
    message = "\n".join(done.stderr.strip().splitlines()[-12:])
    return {"failed": f"ended with {done.returncode}", "message": message[-2000:]} | wall


def smallest_limit(program: str, allocator: str, row: Figures, options: argparse.Namespace, clock: Clock) -> Figures:
    """Bisects between what lives, below which nothing can run, and what the allocator took with no limit.

    A fraction limits what the allocator reserves; ballast limits what the process holds, loaded kernels included.
    A run that takes four times as long as without a limit counts as one that does not run.
    """
    figures = row[allocator]
    fails = row["native"]["live_bytes"]
    runs = figures["reserved_bytes" if options.limit_by == "fraction" else "held_bytes"]
    tries: list[dict[str, Any]] = []
    for _ in range(options.limit_steps):
        limit = (fails + runs) // 2
        allowed = min(4 * figures["wall_seconds"], clock.left())
        if runs - fails < row["native"]["live_bytes"] // 100 or allowed < figures["wall_seconds"]:
            break
        got = run(program, allocator, options, allowed, "--limit", str(limit), "--limit-by", options.limit_by)
        tries.append({"limit_bytes": limit, "failed": got.get("failed")})
        fails, runs = (limit, runs) if "failed" in got else (fails, limit)
    return {"by": options.limit_by, "runs_bytes": runs, "fails_bytes": fails, "tries": tries}


class Results:
    """Everything measured so far, kept on disk: {program: {allocator: figures}}."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out / "torch-programs.json"
        self.settings = {"scale": options.scale, "deterministic": options.deterministic}
        self.settings |= {"steps": options.steps} if options.steps else {}
        self.rows: dict[str, dict[str, Figures]] = {}
        if options.resume and self.path.exists():
            before = json.loads(self.path.read_text())
            if before["settings"] != self.settings:
                raise SystemExit(f"{self.path} was measured with {before['settings']}: not the same")
            self.rows = before["results"]

    def missing(self, program: str, allocator: str) -> bool:
        """Not measured yet, or cut off by the clock."""
        row = self.rows.get(program, {})
        return allocator not in row or row[allocator].get("failed") == "out of time"

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"machine": machine.describe(), "settings": self.settings, "results": self.rows}
        self.path.write_text(json.dumps(whole, indent=1) + "\n")


def measure_all(results: Results, options: argparse.Namespace, clock: Clock) -> None:
    for program in options.programs:
        row = results.rows.setdefault(program, {})
        for allocator in options.allocators:
            if results.missing(program, allocator):
                if clock.left() < 20:
                    print(f"out of time before {program} under {allocator}; --resume goes on", flush=True)
                    return
                row[allocator] = run(program, allocator, options, min(RUN_SECONDS, clock.left()))
                print(tables.line(program, allocator, row), flush=True)
                results.save()
    for program in options.programs if options.limits else ():
        row = results.rows[program]
        for allocator in options.allocators:
            able = allocator != "shim" and "failed" not in row[allocator] and "failed" not in row.get("native", row)
            if able and "limit" not in row[allocator] and clock.left() > 20:
                row[allocator]["limit"] = smallest_limit(program, allocator, row, options, clock)
                print(tables.limit_line(program, allocator, row), flush=True)
                results.save()


def chosen(known: tuple[str, ...]) -> Any:  # noqa: ANN401  a type for argparse
    def names(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
        return text.split(",")

    return names


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", type=chosen(tuple(PROGRAMS)), default=list(PROGRAMS), help="some of them, by comma"
    )
    parser.add_argument("--allocators", type=chosen(tuple(ALLOCATORS)), default=list(ALLOCATORS)[:4])
    parser.add_argument("--scale", type=float, default=1.0, help="of memory; 1 is for a GPU of 80 GB")
    parser.add_argument("--steps", type=int, help="of each run in all, a fifth to warm up; else as catalogue.py says")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for everything; no run begins after")
    parser.add_argument("--limits", action="store_true", help="find the smallest limit at which each runs; long")
    parser.add_argument("--limit-steps", type=int, default=4, help="of the bisection, each a whole run")
    parser.add_argument("--limit-by", choices=["fraction", "ballast"], default="fraction", help="see measure.py")
    parser.add_argument("--deterministic", action="store_true", help="so that losses can be equal to the bit; slower")
    parser.add_argument("--resume", action="store_true", help="keep what the folder has and measure what is missing")
    parser.add_argument("--shim", type=Path, help="the built allocator.so, for the allocator `shim`")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--timed-calls", type=Path, help="the built timed_calls.so: what rivals spend in CUDA, too")
    options = parser.parse_args()
    if "shim" in options.allocators and options.shim is None:
        parser.error("the allocator shim needs --shim")
    return options


def main() -> int:
    options = parse()
    results = Results(options)
    measure_all(results, options, Clock(options.seconds))
    text = tables.report(results.rows, machine.describe(), results.settings)
    print(f"\n{text}\n{tables.summary(results.rows)}")
    (options.out / "torch-programs.md").write_text(text)
    tables.plot(results.rows, options.out / "torch-programs.svg")
    tables.plot(results.rows, options.out / "torch-held.svg", (tables.HELD,))
    return any("failed" in figures for row in results.rows.values() for figures in row.values())


if __name__ == "__main__":
    sys.exit(main())
