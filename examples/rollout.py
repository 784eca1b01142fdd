# SPDX-License-Identifier: Apache-2.0
"""Training and rollout on one GPU: a model trains, its training state sleeps, a second model generates, and back.

python examples/rollout.py --allocator vpmm
python examples/rollout.py --allocator native    # sleeps with the package torch_memory_saver
python examples/rollout.py --allocator awake     # PyTorch's allocator; nothing sleeps

Needs a GPU and PyTorch 2.11. Each round trains a small transformer for some steps and copies its weights to a second
model of the same shape. Then the training state sleeps with its contents in host memory, the second model generates
with a key-value cache, and both sleep without their contents. Each round prints the seconds of its phases and the
memory of the GPU that is in use after the training and after the generation. The program ends with 1 if the bits of
the training state are not what they were before it slept, or if the generator does not have the trained weights.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

GIB = 1 << 30
HEADS = 8
VOCABULARY = 8192

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None, at: int) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.project(self.before_attention(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:  # one token, and all before it
            for kept, new in zip(cache, (key, value), strict=True):
                kept[:, :, at] = new[:, :, 0]
            key, value = (kept[:, :, : at + 1] for kept in cache)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.layers(self.before_layers(x))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, caches: Cache | None = None, at: int = 0) -> torch.Tensor:
        places = torch.arange(at, at + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number], at)
        return self.head(x)


# --- the three ways to sleep ---


class Vpmm:
    def __init__(self) -> None:
        import vpmm

        vpmm.use_for_torch()
        self.vpmm = vpmm

    def region(self, name: str, backup: bool) -> contextlib.AbstractContextManager[object]:
        return self.vpmm.tag(name, suspendable=True, backup=backup)

    def sleep(self, name: str) -> None:
        self.vpmm.suspend(name)

    def wake(self, name: str) -> None:
        self.vpmm.resume(name)


class MemorySaver:
    def __init__(self) -> None:
        from torch_memory_saver import torch_memory_saver

        torch_memory_saver.hook_mode = "torch"
        self.saver = torch_memory_saver

    def region(self, name: str, backup: bool) -> contextlib.AbstractContextManager[object]:
        return self.saver.region(name, enable_cpu_backup=backup)

    def sleep(self, name: str) -> None:
        self.saver.pause(name)

    def wake(self, name: str) -> None:
        self.saver.resume(name)


class Awake:
    def region(self, name: str, backup: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def sleep(self, name: str) -> None: ...

    def wake(self, name: str) -> None: ...


SLEEPERS = {"vpmm": Vpmm, "native": MemorySaver, "awake": Awake}


@torch.no_grad()
def digest(tensor: torch.Tensor) -> int:
    """Of all bits at their places: a sum modulo 2^64."""
    bits = tensor.contiguous().view(torch.int32).flatten().long()
    places = torch.arange(1, 2 * bits.numel(), 2, device=bits.device)
    return int((bits * places).sum())


# --- the phases ---


class Program:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.memory = SLEEPERS[options.allocator]()
        self.seconds: dict[str, float] = {}
        self.held: dict[str, float] = {}
        shape = (options.width, options.layers, options.length)
        with self.memory.region("training", backup=True), torch.device("cuda"):
            self.trained = Transformer(*shape)
            self.optimizer = torch.optim.AdamW(self.trained.parameters(), lr=1e-4)
        with self.memory.region("weights", backup=False), torch.device("cuda"):
            self.generator = Transformer(*shape).requires_grad_(False)
        with self.memory.region("cache", backup=False), torch.device("cuda"):
            heads = (options.batch, HEADS, options.length, options.width // HEADS)
            self.caches = [(torch.zeros(heads), torch.zeros(heads)) for _ in range(options.layers)]
        self.sleep()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - begin
        free, total = torch.cuda.mem_get_info()
        self.held[name] = (total - free) / GIB  # by all processes

    def train(self) -> None:
        """Its activations are of the tag, too: what is idle of them is not copied when it sleeps."""
        shape = (self.options.batch, self.options.length)
        with self.memory.region("training", backup=True):
            for _ in range(self.options.steps):
                tokens = torch.randint(VOCABULARY, shape, device="cuda")
                scores = self.trained(tokens[:, :-1])
                functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def hand_over(self) -> None:
        self.memory.wake("weights")
        for new, old in zip(self.generator.parameters(), self.trained.parameters(), strict=True):
            new.copy_(old)

    @torch.no_grad()
    def generate(self) -> None:
        self.memory.wake("cache")
        tokens = torch.zeros(self.options.batch, 1, dtype=torch.long, device="cuda")
        for at in range(self.options.length):
            tokens = self.generator(tokens, self.caches, at)[:, -1].argmax(-1, keepdim=True)

    def sleep(self) -> None:
        self.memory.sleep("weights")
        self.memory.sleep("cache")

    def weights(self) -> list[int]:
        return [digest(value) for value in self.trained.parameters()]

    def state(self) -> list[int]:
        values = [value for of in self.optimizer.state.values() for value in of.values() if value.is_cuda]
        return self.weights() + [digest(value) for value in values]

    def round(self) -> str:
        """What went wrong; empty if nothing did."""
        phases: list[tuple[str, Callable[[], None]]] = [
            ("train", self.train),
            ("hand over", self.hand_over),
            ("sleep", lambda: self.memory.sleep("training")),
            ("generate", self.generate),
            ("sleep again", self.sleep),
            ("wake", lambda: self.memory.wake("training")),
        ]
        before: list[int] = []
        weights: list[int] = []
        for name, work in phases:
            if name == "sleep":
                before, weights = self.state(), self.weights()
            with self.phase(name):
                work()
            if name == "generate" and weights != [digest(value) for value in self.generator.parameters()]:
                return "the generator does not have the trained weights"
        return "" if self.state() == before else "the training state is not what it was before it slept"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=tuple(SLEEPERS), default="vpmm")
    for name, value in {"rounds": 20, "steps": 3, "width": 1024, "layers": 12, "batch": 8, "length": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    program = Program(options)
    print(f"{torch.cuda.get_allocator_backend()}: seconds of each phase; GiB of the GPU in use after two of them")
    for number in range(1, options.rounds + 1):
        wrong = program.round()
        seconds = "  ".join(f"{name} {value:.3f}" for name, value in program.seconds.items())
        held = "  ".join(f"{name} {program.held[name]:.2f}" for name in ("train", "generate"))
        print(f"{number:3}: {seconds} | {held}")
        if wrong:
            print(wrong)
            return 1
    print(f"{options.rounds} rounds: training state and handed over weights were the same after each sleep")
    return 0


if __name__ == "__main__":
    sys.exit(main())
