"""Models of the PyTorch programs that no library has: mixture of experts, U-Net, encoder; random weights."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as f
from torch import Tensor, nn

HEADS = 12


class Expert(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class MoeBlock(nn.Module):
    """Attention, then for each token the two experts that its router prefers."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
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
    """Logits of tokens; `width` is a multiple of 12."""

    def __init__(self, words: int, width: int, experts: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
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
    """The noise in latent images of 4 channels, given how noisy each is; `base` is a multiple of 8."""

    def __init__(self, base: int) -> None:
        super().__init__()
        sizes = [base, 2 * base, 4 * base, 6 * base]
        self.first, self.last = Convolutions(4, base), nn.Conv2d(base, 4, 1)
        self.noisiness = nn.Sequential(nn.Linear(1, base), nn.SiLU(), nn.Linear(base, base))
        self.down = nn.ModuleList(Convolutions(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(Convolutions(a + b, a) for a, b in reversed(list(itertools.pairwise(sizes))))

    def forward(self, image: Tensor, noisiness: Tensor) -> Tensor:
        skipped = [self.first(image) + self.noisiness(noisiness[:, None])[:, :, None, None]]
        for down in self.down:
            skipped.append(down(f.avg_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for up in self.up:
            beside = skipped.pop()
            x = up(torch.cat([f.interpolate(x, size=beside.shape[-2:]), beside], 1))
        return self.last(x)


class Encoder(nn.Module):
    """Logits of tokens, BERT's shape; `width` is a multiple of 16."""

    def __init__(self, words: int, width: int, layers: int = 16) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)))
