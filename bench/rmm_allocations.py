#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an allocation and its free cost Python through RMM, with its own resources and with ours, in one run.

Each resource runs in processes of its own, in turn, several times; figures are medians over them. `vpmm` and `rmm` must
be importable. Writes rmm-allocations.json with every figure and rmm-allocations.md, and prints the latter. The same
from C++ is the peer `rmm-vpmm` of vpmm_bench.
"""

# ruff: noqa: ANN401  RMM has no types

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
THREADS = (1, 8)
HAS_CUDA = os.environ.get("VPMM_DRIVER") != "sim"
STREAMS = ("created", "per-thread default") if HAS_CUDA else ("per-thread default",)  # each thread has its own
POOL_BYTES = 8 << 30
RESOURCES = ("vpmm", "vpmm-callbacks", "pool", "arena", "cuda-async")
ROUNDS = 5
PAIRS = 20_000  # of each thread
SECONDS = 300


def resource_of(name: str) -> Any:
    import rmm.mr

    if name.startswith("vpmm"):
        from vpmm.plugins import rmm as plugin

        return plugin.memory_resource(0) if name == "vpmm" else plugin._through_python(0)
    if name == "cuda-async":
        return rmm.mr.CudaAsyncMemoryResource()
    cuda = rmm.mr.CudaMemoryResource()
    if name == "pool":
        return rmm.mr.PoolMemoryResource(cuda, initial_pool_size=POOL_BYTES)
    return rmm.mr.ArenaMemoryResource(cuda, arena_size=POOL_BYTES)


def stream_of(kind: str) -> Any:
    """A stream of the thread that asks."""
    from rmm.pylibrmm.stream import PER_THREAD_DEFAULT_STREAM, Stream

    return Stream() if kind == "created" else PER_THREAD_DEFAULT_STREAM


def make_context_current() -> None:
    """As it is in a thread that has used CUDA."""
    if HAS_CUDA:
        import rmm.mr

        cuda = rmm.mr.CudaMemoryResource()
        cuda.deallocate(cuda.allocate(256), 256)


def pairs(resource: Any, size: int, count: int, stream: Any) -> None:
    for _ in range(count):
        resource.deallocate(resource.allocate(size, stream), size, stream)


def of_thread(resource: Any, size: int, count: int, kind: str, begin: Barrier) -> float:
    """Seconds that one of several threads takes for `count` pairs, once all are ready."""
    make_context_current()
    stream = stream_of(kind)
    pairs(resource, size, count // 10, stream)
    begin.wait()
    start = time.perf_counter()
    pairs(resource, size, count, stream)
    return time.perf_counter() - start


def measure(name: str, count: int) -> dict[str, float]:
    """Microseconds for an allocation and its free, as each thread sees them."""
    resource = resource_of(name)
    figures = {}
    for kind, threads, (label, size) in itertools.product(STREAMS, THREADS, SIZES.items()):
        begin = Barrier(threads)
        with ThreadPoolExecutor(threads) as pool:
            took = list(pool.map(of_thread, *zip(*[(resource, size, count, kind, begin)] * threads, strict=True)))
        figures[f"{label}, {threads} threads, {kind}"] = statistics.mean(took) / count * 1e6
    return figures


def run_all(names: list[str], rounds: int, count: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            command = [sys.executable, __file__, "--measure", name, "--pairs", str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
            found[name].append(json.loads(done.stdout))
            print(f"round {number + 1} of {rounds}, {name}: done", file=sys.stderr)
    return found


def table(found: dict[str, list[dict[str, float]]], where: dict[str, str]) -> str:
    lines = ["# Allocations of RMM from Python", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines += ["An allocation and its free; microseconds, medians over the processes, with the range.", ""]
    lines += [f"| | {' | '.join(found)} |", f"|{'---|' * (len(found) + 1)}"]
    for row in next(iter(found.values()))[0]:
        columns = [[figures[row] for figures in each] for each in found.values()]
        cells = [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in columns]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "bench")))
    parser.add_argument("--resources", nargs="+", choices=RESOURCES, default=list(RESOURCES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes for each resource")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="allocations of each thread and size")
    parser.add_argument("--measure", choices=RESOURCES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.pairs)))
        return
    sys.path.insert(0, str(ROOT / "tools"))
    import machine

    found, where = run_all(options.resources, options.rounds, options.pairs), machine.describe()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rmm-allocations.json").write_text(json.dumps({"machine": where, "figures": found}, indent=1) + "\n")
    text = table(found, where)
    (options.out / "rmm-allocations.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
