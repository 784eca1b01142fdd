# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning in one process: rollouts with a key-value cache, then training steps, in turn, on one GPU.

python examples/pytorch_rollout.py                 # out of memory, with memory reserved but unallocated
VPMM_TORCH=1 python examples/pytorch_rollout.py    # completes

Needs a GPU and PyTorch 2.11. The model is a stack of plain matrices: only the pattern of its memory is that of a real
program. Each sequence takes a block of cache for every 16 tokens, as paged attention does, and ends when it likes. Its
blocks are then free, and its log probabilities stay for the training, where activations are many times as large.
"""

import random
import sys

import torch

MIB = 1 << 20
LIMIT = 640 * MIB
ROUNDS = 3
SEQUENCES = 48
CACHE_BLOCK = 2 * MIB  # keys and values of 16 tokens, of all layers
WIDTH = 512
LAYERS = 12
TOKENS = 12288  # of a training batch: each activation has 24 MiB

torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
weights = [torch.zeros(WIDTH, WIDTH, device="cuda", requires_grad=True) for _ in range(LAYERS)]


def rollout(chance: random.Random) -> list[torch.Tensor]:
    """Generates all sequences together, a token each at a time; returns the log probabilities of each."""
    cache: dict[int, list[torch.Tensor]] = {sequence: [] for sequence in range(SEQUENCES)}
    lengths = {sequence: chance.randrange(20, 160) for sequence in cache}
    finished = []
    for token in range(max(lengths.values()) + 1):
        for sequence, blocks in list(cache.items()):
            if token == lengths[sequence]:
                del cache[sequence]
                finished.append(torch.empty(5 * MIB // 16, device="cuda"))  # 1.25 MiB
            elif token % 16 == 0:
                blocks.append(torch.empty(CACHE_BLOCK, dtype=torch.uint8, device="cuda"))
    return finished


def train(experience: list[torch.Tensor]) -> None:
    """One step of gradient descent on what the rollout left."""
    hidden = torch.cat(experience)[: TOKENS * WIDTH].view(TOKENS, WIDTH)
    for weight in weights:
        hidden = torch.relu(hidden @ weight)
    hidden.sum().backward()
    with torch.no_grad():
        for weight in weights:
            weight -= 0.01 * weight.grad
            weight.grad = None


backend = torch.cuda.get_allocator_backend()
chance = random.Random(0)
try:
    for _ in range(ROUNDS):
        train(rollout(chance))
except torch.OutOfMemoryError as error:
    print(f"{backend}: {error}")
    sys.exit(1)
reserved, allocated = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
print(f"{backend}: {ROUNDS} rounds held at most {reserved // MIB} MiB, {allocated // MIB} MiB of them in tensors")
