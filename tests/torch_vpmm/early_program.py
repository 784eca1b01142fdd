# SPDX-License-Identifier: Apache-2.0
"""tests: a program in which another library uses a GPU's pool before PyTorch does, and PyTorch no other GPU.

It prints what it found.
"""

from __future__ import annotations

import figures
import probe
import torch

import vpmm

MIB = 1 << 20
DEVICE = 1


def current(name: str) -> int:
    return torch.cuda.memory_stats(DEVICE)[f"{name}.current"]


def main() -> None:
    pool = vpmm.Pool.default(DEVICE)
    first = pool.allocate(64 * MIB, 0)
    with vpmm.tag("early", device=DEVICE, suspendable=True):
        tagged = pool.allocate(6 * MIB, 0)
    tensor = torch.empty(1000, dtype=torch.uint8, device=f"cuda:{DEVICE}")
    seen = torch.cuda.memory_snapshot()
    blocks = [block for segment in seen for block in segment["blocks"]]
    of_others = [block for block in blocks if block["requested_size"] >= MIB]
    print([(b["address"] == at, b["requested_size"] // MIB) for b, at in zip(of_others, (first, tagged), strict=True)])
    print({segment["is_expandable"] for segment in seen})
    observer = probe.load()
    print(observer.base(tensor.data_ptr() + 1) == (tensor.data_ptr(), 1024))
    print(observer.share(tensor.data_ptr() + 8)[0])
    tensor.record_stream(torch.cuda.Stream(DEVICE))
    segments = current("segment.all")
    pool.deallocate(tagged, 0)
    reserved = torch.cuda.memory_reserved(DEVICE)
    vpmm.trim(device=DEVICE)
    print(segments, current("segment.all"), reserved - torch.cuda.memory_reserved(DEVICE) >= 6 * MIB)
    print(
        {name: pair for name, pair in figures.differences(DEVICE).items() if name.startswith(("segment", "reserved"))}
    )
    del tensor
    torch.cuda.empty_cache()
    print(*(torch.cuda.memory_stats(DEVICE)[name] for name in ("num_alloc_retries", "num_ooms")))
    print(current("allocated_bytes.all"), current("reserved_bytes.all") == 64 * MIB)


if __name__ == "__main__":
    main()
