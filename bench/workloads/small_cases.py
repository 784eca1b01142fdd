#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small, well-known sequences that split memory up, as traces: one file each, into the folder named.

Each comes from a public discussion of another allocator and needs no model to be reproduced. `s` waits for the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30


class Sequence:
    """A trace being written. Times are all 0: these are replayed as fast as possible."""

    def __init__(self) -> None:
        self.lines = ["op,id,bytes,stream,time_us"]
        self._streams: list[int] = []

    def allocate(self, size: int, stream: int = 0) -> int:
        self._streams.append(stream)
        block = len(self._streams) - 1
        self.lines.append(f"a,{block},{size},{stream},0")
        return block

    def free(self, *blocks: int) -> None:
        self.lines += [f"f,{block},0,{self._streams[block]},0" for block in blocks]

    def synchronise(self) -> None:
        self.lines.append("s,0,0,0,0")


def small_then_large(s: Sequence) -> None:
    """PyTorch's order test: what small blocks left behind serves no large one, unless segments can grow."""
    s.free(*[s.allocate(16 * MIB) for _ in range(8)])
    s.free(*[s.allocate(32 * MIB) for _ in range(4)])


def large_then_small(s: Sequence) -> None:
    s.free(*[s.allocate(32 * MIB) for _ in range(4)])
    s.free(*[s.allocate(16 * MIB) for _ in range(8)])


def two_apart(s: Sequence) -> None:
    """Half of what is free lies on either side of a live block: only memory that can be mapped elsewhere serves it."""
    blocks = [s.allocate(16 * MIB) for _ in range(8)]
    s.free(blocks[0], blocks[2])
    s.allocate(32 * MIB)


def batch_grows(s: Sequence) -> None:
    """A comment in PyTorch's allocator: the batch grows by one, so every layer is a little larger than last time."""
    for batch in range(8, 25):
        layers = [s.allocate(batch * (1 + layer % 5) * 256 * 1024) for layer in range(50)]
        s.free(*reversed(layers))


def side_stream(s: Sequence) -> None:
    """NVIDIA/Megatron-LM#6885: a stream that is used once keeps what it had from everybody else."""
    s.free(*[s.allocate(GIB, stream=1) for _ in range(20)])
    s.synchronise()
    s.free(*[s.allocate(GIB, stream=0) for _ in range(20)])


def method_chain(s: Sequence) -> None:
    """DiamondLightSource/httomo#667: a step takes 1 GiB of results and 4 GiB for a while; two such must fit 8 GiB."""
    first = s.allocate(GIB)
    s.free(s.allocate(4 * GIB))
    second = s.allocate(GIB)
    s.free(first)
    third = s.allocate(GIB)
    s.free(s.allocate(4 * GIB))
    s.free(second, third)


def fenced(s: Sequence) -> None:
    """pytorch/pytorch#123548: a small block that stays lies behind each large one that goes, and the next is larger."""
    for step in range(30):
        large = s.allocate((512 + 16 * step) * MIB)
        s.allocate(2 * MIB)
        s.free(large)


CASES: dict[str, Callable[[Sequence], None]] = {
    case.__name__: case
    for case in (small_then_large, large_then_small, two_apart, batch_grows, side_stream, method_chain, fenced)
}


def write_all(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, case in CASES.items():
        sequence = Sequence()
        case(sequence)
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text("\n".join(sequence.lines) + "\n")
    return paths


if __name__ == "__main__":
    print(*write_all(Path(sys.argv[1])), sep="\n")
