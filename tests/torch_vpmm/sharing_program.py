# SPDX-License-Identifier: Apache-2.0
"""tests: a program that sends tensors to another process, which reads them and changes them there."""

from __future__ import annotations

import gc

import torch
import torch.multiprocessing as mp


def receive(inbox: mp.Queue, outbox: mp.Queue) -> None:
    for tensor in iter(inbox.get, None):
        outbox.put((torch.cuda.get_allocator_backend(), tensor[:2].tolist(), tensor[-1:].tolist()))
        tensor[:1].copy_(torch.tensor([7], dtype=tensor.dtype))
        torch.cuda.synchronize()
        del tensor
        outbox.put("changed")


def numbers(count: int, first: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int32).to("cuda")


def main() -> None:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=receive, args=(inbox, outbox))
    other.start()
    large = numbers(5_000_000, 0)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        in_pool = [numbers(5_000_000, 100), numbers(50, 200)]
    torch.cuda.synchronize()
    for tensor in (large, numbers(10, 300), *in_pool, large[1000:]):
        inbox.put(tensor)
        print(*outbox.get(timeout=100), outbox.get(timeout=100), tensor[:2].tolist())
    inbox.put(None)
    other.join(60)
    del large, tensor, pool
    in_pool.clear()
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    print("left", torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), other.exitcode)


if __name__ == "__main__":
    main()
