#!/usr/bin/env python3
"""One PyTorch program under one allocator: trains a model on inputs whose sizes change, prints one line of JSON.

    python3 programs.py PROGRAM ALLOCATOR STEPS [LIBRARY]

PROGRAM: `moe` (a transformer with a mixture of experts), `unet` (a U-Net on images of many resolutions), `bert` (an
encoder on batches of many lengths, with an evaluation on a second stream between). ALLOCATOR: `native`, or `vpmm` with
LIBRARY, the built `allocator.so`. The sizes depend on the seed alone, so every run asks for the same.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

WORDS = 30_000


class Expert(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class MoeBlock(nn.Module):
    """Attention, then for each token the two experts that its router prefers."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.router = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, experts),
        )
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, 12, width // 12).permute(2, 0, 3, 1, 4)
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        tokens = self.norm(x).reshape(-1, width)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return x + mixed.view(batch, length, width)


class Moe(nn.Module):
    def __init__(self, width: int = 1536, experts: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.Sequential(*(MoeBlock(width, experts) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class Convolutions(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
        super().__init__(*layers)


class Unet(nn.Module):
    def __init__(self, base: int = 96) -> None:
        super().__init__()
        sizes = [base, 2 * base, 4 * base, 6 * base]
        self.first, self.last = Convolutions(4, base), nn.Conv2d(base, 4, 1)
        self.down = nn.ModuleList(Convolutions(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(Convolutions(a + b, a) for a, b in reversed(list(itertools.pairwise(sizes))))

    def forward(self, image: Tensor) -> Tensor:
        skipped = [self.first(image)]
        for down in self.down:
            skipped.append(down(f.avg_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for up in self.up:
            beside = skipped.pop()
            x = up(torch.cat([f.interpolate(x, size=beside.shape[-2:]), beside], 1))
        return self.last(x)


class Bert(nn.Module):
    def __init__(self, width: int = 1024, layers: int = 16) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


PROGRAMS: dict[str, type[nn.Module]] = {"moe": Moe, "unet": Unet, "bert": Bert}


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, WORDS, (batch, length), device="cuda")


def loss_of(program: str, model: nn.Module, rng: random.Random) -> Tensor:
    """Of one step's batch."""
    if program == "unet":
        height = rng.choice(range(96, 321, 16))
        shape = (rng.choice([4, 6, 8, 12]), 4, height, height + rng.choice([0, 16]))
        image = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return f.mse_loss(model(image), image)
    if program == "moe":
        batch, least = rng.choice([(4, 1024), (6, 768), (8, 512)])
        text = tokens(batch, least + rng.randrange(256))
    else:
        text = tokens(rng.choice([8, 12, 16]), rng.randrange(128, 768))
    return f.cross_entropy(model(text).flatten(0, 1).float(), text.flatten())


def evaluate(model: nn.Module, rng: random.Random, stream: torch.cuda.Stream) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(tokens(16, rng.randrange(128, 768))).float().softmax(-1).amax()
    torch.cuda.current_stream().wait_stream(stream)


def use_vpmm(library: str) -> ctypes.CDLL:
    names = "vpmm_bench_torch_allocate", "vpmm_bench_torch_deallocate"
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, *names))
    return ctypes.CDLL(library)


def report_of(library: ctypes.CDLL) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        library.vpmm_bench_torch_report(str(path).encode())
        return json.loads(path.read_text())


def main(program: str, allocator: str, steps: int, library: str | None = None) -> None:
    pool = use_vpmm(library) if allocator == "vpmm" and library else None
    torch.manual_seed(1)
    rng = random.Random(1)
    model = PROGRAMS[program]().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    side = torch.cuda.Stream()
    seconds: list[float] = []
    for step in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = loss_of(program, model, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        if program == "bert" and step % 5 == 4:
            evaluate(model, rng, side)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    figures = report_of(pool) if pool else {"held_bytes": torch.cuda.max_memory_reserved()}
    print(json.dumps({"seconds_second_half": sum(seconds[steps // 2 :]), **figures}), flush=True)
    os._exit(0)  # what is left need not be freed piece by piece


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:5])
