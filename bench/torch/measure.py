#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one program in this process, under the allocator that the environment chose; prints one line of JSON.

    python3 measure.py PROGRAM [--scale 0.5] [--steps N] [--limit BYTES --limit-by fraction|ballast] [--device cpu]

`held_bytes` is what the device lost since just before the program began: cudaMemGetInfo, asked by a thread ten times a
second and after each step, alike for every allocator; kernels that are loaded on the way are in it. `reserved_bytes` is
what the allocator itself says. A limit is PyTorch's set_per_process_memory_fraction, or so much memory taken with
cuMemAlloc beforehand that no more than the limit is left.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from catalogue import PROGRAMS
from programs import Machine

COUNTS = ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms", "num_sync_all_streams")


class Held:
    """The most memory that the device lost since this was made."""

    def __init__(self) -> None:
        torch.ones(1, device="cuda")  # the context exists
        torch.cuda.synchronize()
        self.before = self.least = torch.cuda.mem_get_info()[0]
        threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> None:
        self.least = min(self.least, torch.cuda.mem_get_info()[0])

    def bytes(self) -> int:
        return self.before - self.least

    def _watch(self) -> None:
        while True:
            time.sleep(0.1)
            self.look()


class Shim:
    """VPMM behind PyTorch's pluggable allocator, `allocator.cpp`, which also says what driver calls took."""

    def __init__(self, library: str) -> None:
        names = "vpmm_bench_torch_allocate", "vpmm_bench_torch_deallocate"
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, *names))
        self.library = ctypes.CDLL(library)

    def report(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            self.library.vpmm_bench_torch_report(str(path).encode())
            return dict(json.loads(path.read_text()))


def timed_calls() -> dict[str, Any]:
    """What timed_calls.cpp counted, where run.py has put it under this process."""
    try:
        report = ctypes.CDLL(None).vpmm_bench_timed_calls
    except AttributeError:
        return {}
    calls, ns = ctypes.c_uint64(), ctypes.c_uint64()
    report(ctypes.byref(calls), ctypes.byref(ns))
    return {"timed": {"calls": calls.value, "ns": ns.value}}


def set_limit(limit: int, by: str) -> None:
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    if by == "fraction":
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    elif free > limit:
        address, size = ctypes.c_uint64(), ctypes.c_size_t(free - limit)
        status = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), size)
        if status != 0:
            raise RuntimeError(f"cuMemAlloc of {free - limit} bytes, so that {limit} are left: error {status}")


def allocator_figures(shim: Shim | None) -> dict[str, Any]:
    """What the allocator says of itself. `pool` has VPMM's own statistics where VPMM serves."""
    if shim is not None:
        return {"backend": "shim", "pool": shim.report()}
    stats = torch.cuda.memory_stats()
    figures: dict[str, Any] = {
        "backend": torch.cuda.memory.get_allocator_backend(),
        "live_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "counts": {name: stats[name] for name in COUNTS if name in stats},
    }
    if os.environ.get("VPMM_TORCH") == "1":
        import vpmm

        figures["pool"] = vpmm.stats()
        if figures["pool"]["allocations"] == 0:
            raise RuntimeError("VPMM_TORCH=1, and VPMM served nothing: PyTorch did not take it")
    return figures


def run(options: argparse.Namespace) -> dict[str, Any]:
    on_gpu = options.device == "cuda"
    shim = Shim(options.shim) if options.shim else None
    if options.limit:
        set_limit(options.limit, options.limit_by)
    if options.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # would add work to each allocation
    held = Held() if on_gpu else None
    torch.manual_seed(1)
    warmup, steps, module = PROGRAMS[options.program]
    if options.steps is not None:
        warmup, steps = options.steps // 5, options.steps - options.steps // 5
    make = getattr(importlib.import_module(module), options.program)
    step = make(Machine(torch.device(options.device), options.scale))
    seconds: list[float] = []
    losses: list[float] = []
    for number in range(warmup + steps):
        began = time.perf_counter()
        loss = step(number)
        if held is not None:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
        if held is not None:
            held.look()
    figures: dict[str, Any] = {"warmup": warmup, "seconds": seconds, "losses": losses}
    if held is not None:
        figures |= {"held_bytes": held.bytes()} | allocator_figures(shim) | timed_calls()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, help="so many in all, a fifth of them to warm up")
    parser.add_argument("--limit", type=int, help="bytes")
    parser.add_argument("--limit-by", choices=["fraction", "ballast"], default="fraction")
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's deterministic algorithms; slower")
    parser.add_argument("--shim", help="the built allocator.so")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu only shows that a program runs")
    try:
        figures = run(parser.parse_args())
    except torch.OutOfMemoryError as error:
        figures = {"failed": "out of memory", "message": str(error)[:600]}
    print(json.dumps(figures), flush=True)
    sys.stderr.flush()
    os._exit(0)  # what is left need not be freed piece by piece


if __name__ == "__main__":
    main()
