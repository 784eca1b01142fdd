"""What growth of a memory pool of PyTorch costs, by how much the pool already holds.

    python3 bench/torch/pool_growth.py
    PYTORCH_ALLOC_CONF=expandable_segments:True python3 bench/torch/pool_growth.py
    VPMM_TORCH=1 python3 bench/torch/pool_growth.py

Allocates tensors of one size in a new torch.cuda.MemPool, and prints the mean time of an allocation.
"""

from __future__ import annotations

import os
import time

import torch

SIZES = (2 << 20, 300 << 10)  # bytes
COUNTS = (1000, 4000, 12000)


def mean_us(size: int, count: int) -> float:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        start = time.perf_counter()
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
        seconds = time.perf_counter() - start
    del tensors, pool
    torch.cuda.empty_cache()
    return seconds / count * 1e6


def main() -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    print(torch.cuda.memory.get_allocator_backend(), os.environ.get("PYTORCH_ALLOC_CONF", ""))
    for size in SIZES:
        times = ", ".join(f"{count}: {mean_us(size, count):.1f} us" for count in COUNTS)
        print(f"{size >> 10} KiB, {times}", flush=True)


if __name__ == "__main__":
    main()
