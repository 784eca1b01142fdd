# SPDX-License-Identifier: Apache-2.0
"""What memory pools of PyTorch hold, and what their growth costs.

    python3 bench/torch/pools.py
    PYTORCH_ALLOC_CONF=expandable_segments:True python3 bench/torch/pools.py
    VPMM_TORCH=1 python3 bench/torch/pools.py

Growth: tensors of one size in a new torch.cuda.MemPool; the mean time of an allocation. Held: the decrease of the
device's free memory by cudaMemGetInfo, over the bytes of the tensors that live at the peak. Graphs: a model is captured
for batches of many sizes, with one pool for all graphs, as servers of language models do.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import torch
from torch import nn

GROWTH_SIZES = (2 << 20, 300 << 10)  # bytes
GROWTH_COUNTS = (1000, 4000, 12000)
MIB = 1 << 20
SIZES: dict[str, Callable[[random.Random], int]] = {
    "1.1 MiB": lambda _: MIB * 11 // 10,
    "3.1 MiB": lambda _: MIB * 31 // 10,
    "1 to 10 MiB": lambda numbers: numbers.randrange(MIB, 10 * MIB),
    "up to 4 MiB": lambda numbers: numbers.randrange(512, 4 * MIB),
}


def tensor(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def free_memory() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def mean_us(size: int, count: int) -> float:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        start = time.perf_counter()
        tensors = [tensor(size) for _ in range(count)]
        seconds = time.perf_counter() - start
    del tensors, pool
    torch.cuda.empty_cache()
    return seconds / count * 1e6


def held_over_live(size_of: Callable[[random.Random], int], replacements: int) -> float:
    numbers = random.Random(5)
    before = free_memory()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [tensor(size_of(numbers)) for _ in range(1000)]
        most = sum(map(torch.numel, tensors))
        for _ in range(replacements):
            at = numbers.randrange(len(tensors))
            tensors[at] = torch.empty(0)
            tensors[at] = tensor(size_of(numbers))
            most = max(most, sum(map(torch.numel, tensors)))
    held = before - torch.cuda.mem_get_info()[0]
    del tensors, pool
    torch.cuda.empty_cache()
    return held / most


def graphs() -> tuple[float, float]:
    """GiB held by graphs and the tensors in them, and seconds of all captures."""
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(1152), nn.Linear(1152, 4608), nn.GELU(), nn.Linear(4608, 1152))
                            for _ in range(24))).cuda().half()  # fmt: skip
    with torch.no_grad():
        model(torch.zeros(8, 1152, device="cuda").half())
        before = free_memory()
        start = time.perf_counter()
        captured = []
        pool = torch.cuda.graph_pool_handle()
        for batch in range(1536, 0, -48):
            graph = torch.cuda.CUDAGraph()
            words = torch.zeros(batch, 1152, device="cuda").half()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=pool):
                answer = model(words)
            captured.append((graph, words, answer))
        seconds = time.perf_counter() - start
        held = before - torch.cuda.mem_get_info()[0]
        for graph, _, _ in captured:
            graph.replay()
        torch.cuda.synchronize()
    return held / (1 << 30), seconds


def main() -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    print(torch.cuda.memory.get_allocator_backend(), os.environ.get("PYTORCH_ALLOC_CONF", ""))
    for size in GROWTH_SIZES:
        times = ", ".join(f"{count}: {mean_us(size, count):.1f} us" for count in GROWTH_COUNTS)
        print(f"growth by {size >> 10} KiB, {times}", flush=True)
    for name, size_of in SIZES.items():
        print(f"held over live, {name}: {held_over_live(size_of, 0):.3f}, "
              f"with replacements {held_over_live(size_of, 3000):.3f}", flush=True)  # fmt: skip
    held, seconds = graphs()
    print(f"graphs: {held:.3f} GiB, {seconds:.2f} s")


if __name__ == "__main__":
    main()
