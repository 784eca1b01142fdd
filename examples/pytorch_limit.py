# SPDX-License-Identifier: Apache-2.0
"""Runs out of memory with PyTorch's own allocator and completes with VPMM. Needs a GPU and PyTorch 2.11.

python examples/pytorch_limit.py                 # out of memory, with memory reserved but unallocated
VPMM_TORCH=1 python examples/pytorch_limit.py    # completes
"""

import sys

import torch

GIB = 1 << 30
LIMIT = 4 * GIB

free, total = torch.cuda.mem_get_info()
torch.cuda.set_per_process_memory_fraction(LIMIT / total)


def batch(size_mib: int) -> list[torch.Tensor]:
    """The activations of one batch: 16 tensors, sized by its longest sequence."""
    return [torch.empty(size_mib << 20, dtype=torch.uint8, device="cuda") for _ in range(16)]


weights = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]  # 512 MiB
results = []
try:
    # At most 3.75 GiB are live at a time. PyTorch's allocator cuts the result of a batch from a freed activation of
    # that batch. The remainder is too small for the next batch and its result, so it stays idle.
    for longest in (100, 110, 120, 131, 142, 153, 164, 176):
        activations = batch(longest)
        del activations
        results.append(torch.empty((longest * 11 // 20) << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    print(f"{torch.cuda.get_allocator_backend()}: {error}")
    sys.exit(1)
reserved = torch.cuda.max_memory_reserved()
print(f"{torch.cuda.get_allocator_backend()}: all batches ran in {reserved / GIB:.2f} GiB of {LIMIT / GIB:.0f}")
