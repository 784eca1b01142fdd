#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an allocation costs Numba with its own memory manager and with ours, on the same GPU in one run.

Each manager runs in processes of its own, in turn, several times; figures are medians over them. `vpmm` and numba-cuda
must be importable. Writes numba-memalloc.json with every figure and numba-memalloc.md, and prints the latter.
"""

# ruff: noqa: ANN401  Numba has no types

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"80 B": 80, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
MANAGERS = {"Numba": {}, "VPMM": {"NUMBA_CUDA_MEMORY_MANAGER": "vpmm"}}
ROUNDS = 5
STEPS = 2000


def per_call_us(call: Callable[[], object], count: int) -> float:
    for _ in range(count // 10 + 1):
        call()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count * 1e6


def program(cuda: Any, np: Any) -> Callable[[], object]:
    """A step as many programs have it: temporary arrays and short kernels, and nothing that waits."""

    def sum_of(out: Any, left: Any, right: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = left[i] + right[i]

    add = cuda.jit(sum_of)
    size = 1 << 16
    first, second = cuda.to_device(np.ones(size, np.float32)), cuda.to_device(np.ones(size, np.float32))

    def step() -> None:
        total = cuda.device_array_like(first)
        add[size // 256, 256](total, first, second)
        again = cuda.device_array_like(first)
        add[size // 256, 256](again, total, second)

    step()
    cuda.synchronize()
    return step


def nothing(array: object) -> None:
    """A kernel whose argument is all that costs."""


def measure() -> dict[str, float]:
    import numpy as np
    from numba import cuda

    context = cuda.current_context()
    figures = {}
    for name, size in SIZES.items():
        figures[f"context.memalloc, {name}"] = per_call_us(partial(context.memalloc, size), 3000)
        figures[f"device_array, {name}"] = per_call_us(partial(cuda.device_array, size, np.uint8), 3000)
    step = program(cuda, np)
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    cuda.synchronize()
    figures["a program's step, 2 arrays and 2 kernels"] = (time.perf_counter() - begin) / STEPS * 1e6
    host = np.ones(1 << 16, np.float32)
    touch = cuda.jit(nothing)[1, 1]
    figures["a kernel with a 256 KiB host array"] = per_call_us(partial(touch, host), 500)
    return figures


def run_all(rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {manager: [] for manager in MANAGERS}
    quiet = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "0"}
    for number in range(rounds):
        for manager, variables in MANAGERS.items():
            environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CUDA_MEMORY_MANAGER"}
            command = [sys.executable, __file__, "--measure"]
            done = subprocess.run(
                command, env=environment | quiet | variables, stdout=subprocess.PIPE, text=True, timeout=300, check=True
            )
            found[manager].append(json.loads(done.stdout))
            print(f"round {number + 1} of {rounds}, {manager}: done", file=sys.stderr)
    return found


def table(found: dict[str, list[dict[str, float]]], where: dict[str, str]) -> str:
    lines = ["# Allocations of Numba", ""]
    lines += [f"- {key}: {value}" for key, value in where.items()]
    lines += ["", "Allocated and dropped; microseconds, medians over the processes, with the range.", ""]
    lines += ["| | Numba's manager | VPMM | ratio |", "|---|---|---|---|"]
    for row in found["Numba"][0]:
        cells, medians = [], []
        for manager in MANAGERS:
            values = [figures[row] for figures in found[manager]]
            medians.append(statistics.median(values))
            cells.append(f"{medians[-1]:.2f} ({min(values):.2f} to {max(values):.2f})")
        lines.append(f"| {row} | {' | '.join(cells)} | {medians[0] / medians[1]:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "bench")))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes for each manager")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    sys.path.insert(0, str(ROOT / "tools"))
    import machine

    found, where = run_all(options.rounds), machine.describe()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "numba-memalloc.json").write_text(json.dumps({"machine": where, "figures": found}, indent=1) + "\n")
    text = table(found, where)
    (options.out / "numba-memalloc.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
