# SPDX-License-Identifier: Apache-2.0
"""Models of the PyTorch programs that need no other library; random weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


class TriangleProduct(nn.Module):
    """Changes each pair of residues by the pairs that both have with every third one."""

    def __init__(self, width: int, formula: str) -> None:
        super().__init__()
        self.formula = formula
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.sides, self.gate, self.out = nn.Linear(width, 4 * width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        x = self.norm(pairs)
        values, gates = self.sides(x).chunk(2, -1)
        left, right = (values * gates.sigmoid()).chunk(2, -1)
        mixed = self.norm_after(torch.einsum(self.formula, left, right))
        return pairs + self.out(mixed) * self.gate(x).sigmoid()


class TriangleAttention(nn.Module):
    """Attention along each row of pairs; its weights have as many numbers as there are triples of residues."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.bias = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, heads, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: Tensor, rows: int) -> Tensor:
        x = self.norm(pairs)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias, scale = self.bias(x).permute(2, 0, 1), q.shape[-1] ** -0.5
        mixed = [
            ((some_q * scale) @ some_k.mT + bias).softmax(-1) @ some_v
            for some_q, some_k, some_v in zip(q.split(rows), k.split(rows), v.split(rows), strict=True)
        ]
        return pairs + self.out(torch.cat(mixed).transpose(1, 2).flatten(2) * self.gate(x).sigmoid())


class PairBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.products = nn.Sequential(*(TriangleProduct(width, each) for each in ("ikc,jkc->ijc", "kic,kjc->ijc")))
        self.along, self.across = TriangleAttention(width), TriangleAttention(width)
        self.transition = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, pairs: Tensor, rows: int) -> Tensor:
        pairs = self.along(self.products(pairs), rows)
        pairs = self.across(pairs.transpose(0, 1), rows).transpose(0, 1)
        return pairs + self.transition(pairs)


class Folding(nn.Module):
    """Scores of the distances between residues; `before` has the pairs of the pass before."""

    def __init__(self, width: int, blocks: int, bins: int) -> None:
        super().__init__()
        self.left, self.right, self.apart = nn.Embedding(21, width), nn.Embedding(21, width), nn.Embedding(65, width)
        self.again, self.head = nn.LayerNorm(width), nn.Linear(width, bins)
        self.blocks = nn.ModuleList(PairBlock(width) for _ in range(blocks))

    def forward(self, residues: Tensor, before: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(len(residues), device=residues.device)
        apart = (places[:, None] - places).clamp(-32, 32) + 32
        pairs = self.left(residues)[:, None] + self.right(residues) + self.apart(apart)
        if before is not None:
            pairs = pairs + self.again(before)
        for block in self.blocks:
            is_kept = not torch.is_grad_enabled()
            pairs = block(pairs, rows) if is_kept else checkpoint(block, pairs, rows, use_reentrant=False)
        return self.head(pairs + pairs.transpose(0, 1)).float(), pairs


class Interaction(nn.Module):
    """Neighbours change each atom's numbers and vectors."""

    def __init__(self, width: int, shells: int) -> None:
        super().__init__()
        self.offers = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filters, self.mix = nn.Linear(shells, 3 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(
        self, scalars: Tensor, vectors: Tensor, edges: Tensor, near: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        targets, sources = edges
        message = self.offers(scalars).index_select(0, sources) * self.filters(near)
        change, keep, turn = message.chunk(3, -1)
        scalars = scalars.index_add(0, targets, change)
        turned = vectors.index_select(0, sources) * keep[:, None] + directions[:, :, None] * turn[:, None]
        vectors = vectors.index_add(0, targets, turned)
        left, right = self.mix(vectors).chunk(2, -1)
        lengths = (right.square().sum(1) + 1e-6).sqrt()
        more, inner, gate = self.update(torch.cat([scalars, lengths], -1)).chunk(3, -1)
        return scalars + more + inner * (left * right).sum(1), vectors + gate[:, None] * left


class Potential(nn.Module):
    """The energy of each molecule of a batch, whose atoms stand one behind the other."""

    def __init__(self, width: int, layers: int, reach: float, shells: int = 20) -> None:
        super().__init__()
        self.reach = reach
        self.elements = nn.Embedding(90, width)
        self.layers = nn.ModuleList(Interaction(width, shells) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0.5, reach, shells))

    def forward(self, elements: Tensor, places: Tensor, edges: Tensor, owners: Tensor, molecules: int) -> Tensor:
        between = places.index_select(0, edges[1]) - places.index_select(0, edges[0])
        distances = (between.square().sum(-1, keepdim=True) + 1e-9).sqrt()
        fade = 0.5 * (1 + (distances * (math.pi / self.reach)).cos())
        near = (-4 * (distances - self.get_buffer("centres")).square()).exp() * fade
        scalars = self.elements(elements)
        vectors = scalars.new_zeros(len(scalars), 3, scalars.shape[1])
        for layer in self.layers:
            scalars, vectors = layer(scalars, vectors, edges, near, between / distances)
        return scalars.new_zeros(molecules).index_add(0, owners, self.head(scalars).squeeze(-1))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return f.scaled_dot_product_attention(q, k, v, is_causal=True)


class AdaptedLayer(nn.Module):
    """Attention and a feed-forward net; an adapter has two matrices for each of the two entrances."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.enter, self.leave = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(
        self,
        x: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal,
        adapter: list[Tensor] | None = None,
    ) -> Tensor:
        normed = self.attention_norm(x)
        qkv = self.qkv(normed)
        if adapter is not None:
            qkv = qkv + normed @ adapter[0] @ adapter[1]
        mixed = attend(*qkv.unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norm(x)
        inner = self.enter(normed)
        if adapter is not None:
            inner = inner + normed @ adapter[2] @ adapter[3]
        return x + self.leave(f.gelu(inner))


class AdaptedWriter(nn.Module):
    """Logits of the word behind a text; `width` is a multiple of 16."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(AdaptedLayer(width) for _ in range(layers))

    def empty_cache(self, length: int) -> Tensor:
        """Keys and values of each layer, with room for so many words."""
        width = self.embedding.embedding_dim
        return self.embedding.weight.new_empty(len(self.layers), 2, 16, length, width // 16)

    def forward(
        self, text: Tensor, shared: Tensor | None, own: Tensor, filled: int, adapter: list[list[Tensor]]
    ) -> Tensor:
        """Adds keys and values of the text to `own`, behind those that fill it; all of `shared` stands before them."""
        x, end = self.embedding(text)[None], filled + len(text)
        first = 0 if shared is None else shared.shape[3]
        mask = None  # one word sees all before it
        if len(text) > 1:
            mask = torch.ones(len(text), first + end, dtype=torch.bool, device=text.device).tril(first + filled)
        for number, layer in enumerate(self.layers):

            def attend(q: Tensor, k: Tensor, v: Tensor, number: int = number) -> Tensor:
                own[number, 0, :, filled:end], own[number, 1, :, filled:end] = k[0], v[0]
                known = own[number, :, :, :end]
                keys, values = known if shared is None else torch.cat([shared[number], known], 2)
                return f.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=mask)

            x = layer(x, attend, adapter[number])
        return x[0, -1] @ self.embedding.weight.T
