#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory pool, from Python as its users have it: pairs of one size, and traces. Prints vpmm_bench's CSV.

Exit code 3: there is no CuPy here, or no GPU for it. Python's own time is part of every figure.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
PAIRS = {"pair 256 B": 256, "pair 64 KiB": 64 * KIB, "pair 2 MiB": 2 * MIB, "pair 16 MiB": 16 * MIB}
WRITTEN = MIB  # at most, of each allocation of a trace


def sample(part: str, case: str, metric: str, unit: str, value: float, repeat: int = 0) -> None:
    print(f"{part},{case},cupy,1,{metric},{unit},{repeat},{value:.9g}", flush=True)


def measure_pairs(cupy: Any, repeats: int, round_ms: float) -> None:  # noqa: ANN401 - optional
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.Stream(non_blocking=True):
        for name, size in PAIRS.items():
            for repeat in range(-1, repeats):
                count = 0
                begin = now = time.perf_counter_ns()
                while now - begin < round_ms * 1e6:
                    for _ in range(64):
                        block = pool.malloc(size)
                        del block
                    count += 64
                    now = time.perf_counter_ns()
                if repeat >= 0:  # the first round warms up
                    sample("hot_path", name, "time", "ns", (now - begin) / count, repeat)
            pool.free_all_blocks()


def read_trace(path: Path) -> list[tuple[str, int, int, int]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [(r["op"], int(r["id"]), int(r["bytes"]), int(r["stream"])) for r in csv.DictReader(file)]


def replay(cupy: Any, path: Path, part: str) -> None:  # noqa: ANN401 - optional
    """The pool never shrinks of itself, so what it holds at the end is its peak, unless it ran out of memory."""
    events = read_trace(path)
    pool = cupy.cuda.MemoryPool()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(1 + max(stream for *_, stream in events))]
    blocks: dict[int, Any] = {}
    sizes: dict[int, int] = {}
    live = peak = refused = 0
    times = []
    for op, block, size, stream in events:
        if op == "a":
            with streams[stream]:
                begin = time.perf_counter_ns()
                try:
                    blocks[block] = pool.malloc(size)
                except cupy.cuda.memory.OutOfMemoryError:
                    refused += 1
                    continue
                times.append(time.perf_counter_ns() - begin)
            # No other name may hold the block, or its free would come late.
            blocks[block].memset_async(0, min(size, WRITTEN), streams[stream])
            sizes[block] = size
            live += size
            peak = max(peak, live)
        elif op == "f" and block in blocks:
            live -= sizes[block]
            del blocks[block]
        elif op == "s":
            cupy.cuda.Device().synchronize()
    held = pool.total_bytes()
    name = path.name.split(".")[0]
    sample(part, name, "peak live", "bytes", peak)
    sample(part, name, "peak held", "bytes", held)
    sample(part, name, "peak held / peak live", "x", held / peak)
    sample(part, name, "refused", "allocations", refused)
    times.sort()
    sample(part, name, "allocate p50", "us", times[len(times) // 2] / 1e3)
    sample(part, name, "allocate p99", "us", times[(len(times) - 1) * 99 // 100] / 1e3)
    sample(part, name, "allocate worst", "us", times[-1] / 1e3)
    sample(part, name, "allocate sum", "ms", sum(times) / 1e6)
    cupy.cuda.Device().synchronize()
    blocks.clear()
    pool.free_all_blocks()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["hot-path", "replay"])
    parser.add_argument("--trace", type=Path, nargs="*", default=[])
    parser.add_argument("--as", dest="name", default="replay", help="part that the samples belong to")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--round-ms", type=float, default=30)
    options, _ = parser.parse_known_args()
    try:
        import cupy

        cupy.cuda.Device(0).use()
        cupy.cuda.Device(0).synchronize()
    except Exception as error:
        print(f"unavailable: {error}", file=sys.stderr)
        return 3
    print(f"# version,cupy,CuPy {cupy.__version__}")
    if options.part == "hot-path":
        measure_pairs(cupy, options.repeats, options.round_ms)
    for path in options.trace:
        replay(cupy, path, options.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
