#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a cupy.empty and its free cost on the host, ns a pair, by allocator, size and number of threads. Needs a GPU.

    python3 bench/cupy/empty_cost.py                       # CuPy's pool, its pool of the driver, and VPMM

Each allocator runs in a process of its own; every thread has a stream of its own and allocates and frees arrays of
bytes in a loop. A figure is the wall time of all threads over the pairs of one, median of the repeats: threads take
turns for the interpreter's lock, so with eight it is at least eight times that of one. The ratio is to CuPy's pool.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402  from the folder above

ALLOCATORS = ("cupy", "cuda-async", "vpmm")
SIZES = {"512 B": 512, "64 KiB": 64 << 10, "2 MiB": 2 << 20, "16 MiB": 16 << 20}
THREADS = (1, 8)


def choose(allocator: str) -> None:
    import cupy

    if allocator == "cuda-async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    elif allocator == "vpmm":
        import vpmm

        vpmm.use_for_cupy()


def wall_ns(count: int, size: int, threads: int) -> float:
    import cupy

    ready = threading.Barrier(threads)
    began: list[int] = []
    ended: list[int] = []

    def work() -> None:
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(10):
                cupy.empty(size, dtype=cupy.uint8)
            ready.wait()
            began.append(time.perf_counter_ns())
            for _ in range(count):
                cupy.empty(size, dtype=cupy.uint8)
            ended.append(time.perf_counter_ns())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (max(ended) - min(began)) / count


def measure(pairs: int, repeats: int) -> list[dict[str, object]]:
    samples: list[dict[str, object]] = []
    for name, size in SIZES.items():
        for threads in THREADS:
            wall_ns(pairs // 4, size, threads)
            times = [wall_ns(pairs, size, threads) for _ in range(repeats)]
            samples.append({"size": name, "threads": threads, "ns": times})
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="for cupy-empty.json and .md")
    parser.add_argument("--here", choices=ALLOCATORS, help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.here:
        choose(options.here)
        print(json.dumps(measure(options.pairs, options.repeats)))
        return
    found: dict[str, list[dict[str, object]]] = {}
    for allocator in ALLOCATORS:
        command = [sys.executable, __file__, "--here", allocator, "--pairs", str(options.pairs)]
        done = subprocess.run(
            [*command, "--repeats", str(options.repeats)], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode != 0:
            print(f"{allocator} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        found[allocator] = json.loads(done.stdout.splitlines()[-1])
    table = table_of(found)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cupy-empty.json").write_text(
        json.dumps({"machine": machine.describe(), "samples": found}, indent=1) + "\n"
    )
    (options.out / "cupy-empty.md").write_text(table)
    print(table)


def table_of(found: dict[str, list[dict[str, object]]]) -> str:
    lines = ["| size | threads | " + " | ".join(f"{name}, ns" for name in found) + " | VPMM to CuPy's pool |"]
    lines.append("|---" * (len(found) + 3) + "|")
    base = next(iter(found.values()), [])
    for index, sample in enumerate(base):
        medians = {name: statistics.median(each[index]["ns"]) for name, each in found.items()}  # type: ignore[arg-type]
        ratio = f"{medians['vpmm'] / medians['cupy']:.2f}" if {"vpmm", "cupy"} <= medians.keys() else "-"
        cells = " | ".join(f"{ns:,.0f}" for ns in medians.values())
        lines.append(f"| {sample['size']} | {sample['threads']} | {cells} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
