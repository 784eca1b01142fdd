#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a torch.empty and its free cost on the host, ns a pair, by allocator, size and number of threads.

    python3 bench/torch/empty_cost.py                       # native, expandable, cuda-async and vpmm
    python3 bench/torch/empty_cost.py --allocators native,vpmm --repeats 15 --out bench/results

Each allocator runs in a process of its own. `script` is a loop in TorchScript, which holds no lock of Python's, so that
threads do meet in the allocator; `python` is the loop that users write, where threads take turns. Every thread has a
stream of its own. A figure is the wall time of all threads over the pairs of one, median of the repeats: with eight
threads it is that of one where nobody waits for anybody. The ratio is to native.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from run import ALLOCATORS, CLEARED, ROOT  # puts the folder of `machine` on the path

import machine  # isort: skip

SIZES = {"512 B": 512, "64 KiB": 64 << 10, "2 MiB": 2 << 20, "16 MiB": 16 << 20}
THREADS = (1, 8)
PAIRS = 10_000  # of each thread in a repeat
# Sizes that differ by a byte and a sum of offsets, all 0, keep TorchScript from making one tensor of several or none.
SCRIPT = """
def pairs(count: int, size: int, device: Device) -> int:
    total = 0
    for i in range(count):
        total += torch.empty([size - i % 2], dtype=torch.uint8, device=device).storage_offset()
    return total
"""

Pairs = Callable[[int, int], object]


def loops(device_name: str) -> dict[str, Pairs]:
    """By kind: allocates and frees so many tensors of so many bytes."""
    import torch

    device = torch.device(device_name)

    def python(count: int, size: int) -> None:
        for _ in range(count):
            torch.empty(size, dtype=torch.uint8, device=device)

    script = torch.jit.CompilationUnit(SCRIPT).pairs
    return {"script": lambda count, size: script(count, size, device), "python": python}


def check_that_all_are_made(pairs: Pairs) -> None:
    """That no optimizer left any out: PyTorch's own count must agree, for every kind of loop."""
    import torch

    if torch.cuda.memory.get_allocator_backend() != "native":
        return  # cudaMallocAsync does not count, and the loops are the same
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    pairs(1000, 512)
    made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    if made != 1000:
        raise RuntimeError(f"of 1000 tensors {made} were made")


def wall_ns(pairs: Pairs, count: int, size: int, streams: list[object]) -> float:
    """Of all threads, from when all are ready until the last is done, over the pairs of one."""
    import torch

    ready, done = threading.Barrier(len(streams) + 1), threading.Barrier(len(streams) + 1)
    errors: list[BaseException] = []

    def work(stream: object) -> None:
        try:
            with torch.cuda.stream(stream) if stream is not None else nullcontext():  # type: ignore[arg-type]
                pairs(10, size)
                ready.wait()
                pairs(count, size)
                done.wait()
        except BaseException as error:
            errors.append(error)
            ready.abort()
            done.abort()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        began = time.perf_counter_ns()
        done.wait()
        took = time.perf_counter_ns() - began
    except threading.BrokenBarrierError:
        raise errors[0] from None
    for thread in threads:
        thread.join()
    return took / count


def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    import torch

    on_gpu = options.device == "cuda"
    make_stream: Callable[[], object] = torch.cuda.Stream if on_gpu else lambda: None
    streams = [make_stream() for _ in range(max(THREADS))]
    samples: list[dict[str, object]] = []
    for kind, pairs in loops(options.device).items():
        wall_ns(pairs, 1000, 512, streams[:1])  # TorchScript compiles in the first calls
        if on_gpu:
            check_that_all_are_made(pairs)
        for name, size in SIZES.items():
            for threads in THREADS:
                wall_ns(pairs, options.pairs // 4 + 1, size, streams[:threads])
                times = [wall_ns(pairs, options.pairs, size, streams[:threads]) for _ in range(options.repeats)]
                samples.append({"kind": kind, "size": name, "threads": threads, "ns": times})
    if on_gpu and os.environ.get("VPMM_TORCH") == "1":
        import vpmm

        if vpmm.stats()["allocations"] == 0:
            raise RuntimeError("VPMM_TORCH=1, and VPMM served nothing: PyTorch did not take it")
    return samples


def start(allocator: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """What a process under that allocator measured; none if it failed, which is said."""
    environment = {name: value for name, value in os.environ.items() if name not in CLEARED} | ALLOCATORS[allocator]
    command = [sys.executable, __file__, "--here", "--pairs", str(options.pairs), "--repeats", str(options.repeats)]
    command += ["--device", options.device]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    if done.returncode != 0:
        print(f"{allocator} failed: {done.stderr.strip()[-600:]}")
        return []
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def table(results: dict[str, list[dict[str, object]]]) -> str:
    cases: dict[tuple[object, ...], dict[str, float]] = {}
    for allocator, samples in results.items():
        for sample in samples:
            case = sample["kind"], sample["size"], sample["threads"]
            cases.setdefault(case, {})[allocator] = statistics.median(sample["ns"])  # type: ignore[arg-type]
    lines = [f"| loop | size | threads | {' | '.join(results)} |", "|---|---|---|" + "---|" * len(results)]
    for (kind, size, threads), medians in cases.items():
        native = medians.get("native")
        cells = [
            f"{medians[name]:.0f}" + (f" ({medians[name] / native:.2f})" if native and name != "native" else "")
            if name in medians
            else "failed"
            for name in results
        ]
        lines.append(f"| {kind} | {size} | {threads} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocators", default="native,expandable,cuda-async,vpmm", help="some of them, by comma")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu only shows that it runs")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="for torch-empty.json and .md")
    parser.add_argument("--here", action="store_true", help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options)))
        return 0
    results = {name: start(name, options) for name in options.allocators.split(",")}
    text = table(results)
    print(f"ns a pair, and the ratio to native's\n\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    raw = {"machine": machine.describe(), "pairs": options.pairs, "results": results}
    (options.out / "torch-empty.json").write_text(json.dumps(raw, indent=1) + "\n")
    (options.out / "torch-empty.md").write_text(f"ns a torch.empty and its free, and the ratio to native's.\n\n{text}")
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
