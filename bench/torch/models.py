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


class WriterLayer(nn.Module):
    """Reads what the cache has and adds to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.enter, self.leave = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, before: tuple[Tensor, Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        attended = f.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.leave(f.gelu(self.enter(self.norm(x)))), keys, values


class Writer(nn.Module):
    """Logits of the word that comes next, and the longer cache; `width` is a multiple of 128."""

    def __init__(self, words: int, width: int, longest: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(WriterLayer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def empty_cache(self, texts: int) -> list[tuple[Tensor, Tensor]]:
        nothing = self.embedding.weight.new_empty(texts, 16, 0, self.embedding.embedding_dim // 16)
        return [(nothing, nothing) for _ in self.layers]

    def forward(self, text: Tensor, cache: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        before, new = cache[0][0].shape[2], text.shape[1]
        mask = None  # one word sees all before it
        if new > 1:
            mask = torch.ones(new, before + new, dtype=torch.bool, device=text.device).tril(before)
        x = self.embedding(text) + self.places(torch.arange(before, before + new, device=text.device))
        longer = []
        for layer, known in zip(self.layers, cache, strict=True):
            x, keys, values = layer(x, known, mask)
            longer.append((keys, values))
        return self.head(self.norm(x[:, -1])).float(), longer


class Convolutions3d(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [
                nn.Conv3d(channels, after, 3, padding=1, bias=False),
                nn.InstanceNorm3d(after, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        super().__init__(*layers)


class SegmentationUnet(nn.Module):
    """Logits of each voxel's class; a volume's sides are multiples of 8 for four widths, and at least 16."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.first, self.last = Convolutions3d(1, widths[0]), nn.Conv3d(widths[0], classes, 1)
        self.shrink = nn.ModuleList(nn.Conv3d(a, a, 2, stride=2) for a, _ in pairs)
        self.down = nn.ModuleList(Convolutions3d(a, b) for a, b in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(Convolutions3d(2 * a, a) for a, _ in reversed(pairs))

    def forward(self, volume: Tensor) -> Tensor:
        skipped = [self.first(volume)]
        for shrink, down in zip(self.shrink, self.down, strict=True):
            skipped.append(down(shrink(skipped[-1])))
        x = skipped.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), skipped.pop()], 1))
        return self.last(x)
