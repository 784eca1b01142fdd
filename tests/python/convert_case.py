# SPDX-License-Identifier: Apache-2.0
"""tests: recordings and snapshots that tests of conversions are about."""

from __future__ import annotations

import gzip
import pickle
import random
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vpmm.recordings import Event, Frame, Kind, Recording

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20
BASE = 0x7F0000000000

Fields = dict[str, Any]


class ConvertCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-convert-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, content: bytes | str, name: str) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def real_snapshot(name: str) -> bytes:
    return gzip.decompress((DATA / f"snapshot-{name}.pickle.gz").read_bytes())


def block(size: int, state: str = "inactive", requested: int = 0, frames: list[Fields] | None = None) -> Fields:
    return {"size": size, "state": state, "requested_size": requested, "frames": frames or []}


def segment(address: int, blocks: list[Fields], **more: object) -> Fields:
    for each in blocks:
        each["address"] = address + sum(before["size"] for before in blocks[: blocks.index(each)])
    total = sum(each["size"] for each in blocks)
    return {"device": 0, "address": address, "total_size": total, "stream": 0, "blocks": blocks} | more


def entry(action: str, address: int, size: int, **more: object) -> Fields:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": []} | more


def snapshot(segments: list[Fields], trace: list[Fields], protocol: int = 4, **more: object) -> bytes:
    return pickle.dumps({"segments": segments, "device_traces": [trace]} | more, protocol=protocol)


def recorded() -> Recording:
    """What a pool could have recorded: chunks of 2 MiB, two streams, a tag, stacks, a mark, a failure, a move."""
    chunk = 2 * MIB
    events = [
        Event(kind=Kind.MAP, time_ns=1000, address=BASE, bytes=4 * chunk, value=1),
        Event(kind=Kind.DRIVER, time_ns=2000, bytes=4 * chunk, value=900, flags=2),
        Event(kind=Kind.ALLOCATE, time_ns=3000, address=BASE, bytes=3 * MIB, value=4 * MIB, stream=0, stack=1, tag=1),
        Event(kind=Kind.MARK, time_ns=4000, value=1),
        Event(kind=Kind.ALLOCATE, time_ns=5000, address=BASE + 2 * chunk, bytes=100, value=256, stream=1, stack=2),
        Event(kind=Kind.FREE, time_ns=6000, address=BASE, bytes=3 * MIB, stream=0),
        Event(kind=Kind.ALLOCATE_FAILED, time_ns=7000, bytes=1 << 40, value=2, stream=0, stack=1),
        Event(kind=Kind.OUT_OF_MEMORY, time_ns=7000, bytes=1 << 40, value=2),
        Event(kind=Kind.PAUSE, time_ns=9000, value=1500),
        Event(kind=Kind.MAP, time_ns=9500, address=BASE + 8 * chunk, bytes=2 * chunk),
        Event(kind=Kind.MOVE, time_ns=9600, address=BASE + 8 * chunk, bytes=2 * chunk, value=BASE),
        Event(kind=Kind.ALLOCATE, time_ns=9700, address=BASE + 8 * chunk, bytes=4 * MIB, value=4 * MIB, stream=1),
        Event(kind=Kind.UNMAP, time_ns=9800, address=BASE, bytes=2 * chunk),
    ]
    return Recording(
        header={"version": "0.1.0", "pid": 42, "device": 0, "capacity": 64 * MIB, "source": "vpmm", "sample": 1}
        | {"started_unix_ns": 1_700_000_000_000_000_000, "command": ["train", "--fast"]},
        events=events,
        strings={1: "step 1", 2: "out of device memory: 1 TiB was asked for"},
        stacks={1: (Frame("a.py", 3, "inner"), Frame("b.py", 9, "outer")), 2: (Frame("c.cpp", 1, "main"),)},
        tags={1: "weights"},
        streams={0: "stream 7 (0x0)", 1: "stream 13 (0x7f12)"},
        threads={0: "main"},
        end={"lost": 0, "ended": "exit"},
        warning="",
    )


def random_recording(seed: int, steps: int = 400) -> Recording:
    """A pool that maps and unmaps chunks under allocations, on two devices, as no program would."""
    draw = random.Random(seed)
    events: list[Event] = []
    live: dict[tuple[int, int], int] = {}
    for step in range(steps):
        device, address = draw.randrange(2), BASE + draw.randrange(64) * MIB
        size = draw.randrange(1, 4 * MIB)
        kind = draw.choice([Kind.MAP, Kind.UNMAP, Kind.ALLOCATE, Kind.ALLOCATE, Kind.FREE, Kind.FREE, Kind.MARK])
        if kind == Kind.FREE and live:
            device, address = draw.choice(list(live))
            size = live.pop((device, address))
        elif kind == Kind.ALLOCATE:
            live[device, address] = size
        elif kind in (Kind.MAP, Kind.UNMAP):
            size = draw.randrange(1, 9) * MIB
        events.append(Event(kind=kind, time_ns=step * 100, address=address, bytes=size, stream=step % 3, device=device))
    return Recording({"source": "vpmm"}, events, {}, {}, {}, {0: "0", 1: "0x10", 2: "0x20"}, {}, None, "")


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The data with bytes changed, cut out, doubled, or its end missing."""
    draw = random.Random(seed)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(changed))
            way = draw.randrange(4)
            if way == 0:
                changed[at] = draw.randrange(256)
            elif way == 1:
                del changed[max(at, 1) : at + draw.randrange(1, 9)]
            elif way == 2:
                changed[at:at] = changed[at : at + draw.randrange(1, 9)]
            else:
                del changed[max(at, 1) :]
        yield bytes(changed)
