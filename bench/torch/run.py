#!/usr/bin/env python3
"""PyTorch programs under several allocators, and under VPMM with hardly more than they need; a process for each run.

    cmake --preset release -DVPMM_BENCH=ON && cmake --build --preset release --target vpmm_bench_torch_allocator
    python3 bench/torch/run.py --allocator build/release/bench/torch/allocator.so --out bench/results

The last column is the promise: the program runs with a capacity of 1.01 times its page-rounded live memory and 64 MiB.
Needs a GPU and PyTorch. Raw figures, with what each kind of driver call took, go to torch.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))

import machine  # noqa: E402  from the folder above

STEPS = {"moe": 24, "unet": 40, "bert": 30}
PEERS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cuda-async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
MIB = 1 << 20


def run(program: str, allocator: str, environment: dict[str, str], library: Path | None) -> dict[str, Any]:
    """The program's figures, or {"failed": what it said last}."""
    command = [sys.executable, str(HERE / "programs.py"), program, allocator, str(STEPS[program])]
    if library is not None:
        command.append(str(library.resolve()))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)
    if done.returncode == 0:
        return json.loads(done.stdout)
    return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:400]}


def cell(figures: dict[str, Any]) -> str:
    if "failed" in figures:
        return "out of memory"
    return f"{figures['held_bytes'] / 1e9:.2f}, {figures['seconds_second_half']:.2f}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--allocator", type=Path, required=True, help="the built allocator.so")
    arguments.add_argument("--programs", default=",".join(STEPS), help="some of them, by comma")
    arguments.add_argument("--out", type=Path, default=Path(), help="a folder for torch.json")
    options = arguments.parse_args()
    results: dict[str, dict[str, Any]] = {}
    print("GB held at the peak, seconds of the second half of the steps")
    print("| program | live | page-rounded | native | expandable | cuda-async | vpmm | vpmm at the fit |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for program in options.programs.split(","):
        rows = {name: run(program, "native", environment, None) for name, environment in PEERS.items()}
        rows["vpmm"] = run(program, "vpmm", {}, options.allocator)
        rounded = rows["vpmm"].get("page_rounded_live_bytes")
        if rounded is not None:
            capacity = {"VPMM_CAPACITY": str(rounded + rounded // 100 + 64 * MIB)}
            rows["vpmm-fit"] = run(program, "vpmm", capacity, options.allocator) | {"capacity": capacity}
        live = rows["vpmm"].get("live_bytes", 0) / 1e9
        cells = [cell(rows.get(name, {"failed": ""})) for name in (*PEERS, "vpmm", "vpmm-fit")]
        print(f"| {program} | {live:.2f} | {(rounded or 0) / 1e9:.2f} | {' | '.join(cells)} |", flush=True)
        results[program] = rows
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine.describe(), "steps": STEPS, "results": results}, indent=1)
    (options.out / "torch.json").write_text(text + "\n")
    return any("failed" in figures for rows in results.values() for figures in rows.values())


if __name__ == "__main__":
    sys.exit(main())
