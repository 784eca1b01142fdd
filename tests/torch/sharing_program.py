# SPDX-License-Identifier: Apache-2.0
"""tests: a program that sends a tensor to another process, which changes it there."""

from __future__ import annotations

import torch
import torch.multiprocessing as mp


def child(to_child: mp.SimpleQueue, to_parent: mp.SimpleQueue) -> None:
    tensor = to_child.get()
    total = int(tensor.cpu().sum())
    tensor.copy_(torch.full_like(tensor, 7, device="cpu"))
    torch.cuda.synchronize()
    to_parent.put(total)


def main() -> None:
    context = mp.get_context("spawn")
    to_child, to_parent = context.SimpleQueue(), context.SimpleQueue()
    other = context.Process(target=child, args=(to_child, to_parent))
    other.start()
    tensor = torch.arange(1000).cuda()
    to_child.put(tensor)
    print("received", to_parent.get())
    print("sees", *tensor.cpu().unique().tolist())
    other.join()
    raise SystemExit(other.exitcode)


if __name__ == "__main__":
    main()
