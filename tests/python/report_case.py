# SPDX-License-Identifier: Apache-2.0
"""tests: recordings of programs that never ran: a small pool of pages that writes down what it does."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from dataclasses import replace
from itertools import accumulate

from vpmm.recordings import DriverCall, Event, Frame, Kind, Numbers, Recording

MIB = 1 << 20
PAGE = 2 * MIB
MS = 1_000_000
_FIRST = 0x7F00_0000_0000


def recording_of(*events: Event, **header: object) -> Recording:
    """`events` as they are; those without a time get one, a millisecond after the other."""
    for number, event in enumerate(events):
        event.time_ns = event.time_ns or number * MS
    recording = Recording(header={"source": "vpmm", "page_size": PAGE} | header, events=list(events), end={"lost": 0})
    recording.strings = {1: "out of device memory: the report"}
    return recording


def two_gpus() -> Recording:
    """A recording of two GPUs: a training, and the same at twice the speed on the second."""
    made = training(4)
    events = [replace(each, device=1, time_ns=each.time_ns // 2) for each in made.events]
    made.events = sorted([*made.events, *events], key=lambda each: each.time_ns)
    return made


class PageColumns:
    """The columns of a page, read as its script does; of a page of several GPUs those of one, or of the curves: -1."""

    def __init__(self, page: str, gpu: int = -1) -> None:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        assert found
        told = json.loads(found.group(1))
        if gpu >= 0:
            told = told["gpus"][gpu]
        self.planes: dict[str, list[bytes]] = {}
        self.counts: dict[str, int] = {}
        for place, (block, key) in enumerate((("curves", "curve"), ("columns", "columns"))):
            if key in told:
                self.read(page, block, told.get("lines", (0, 0))[place], told[key])

    def read(self, page: str, block: str, line: int, shape: dict[str, tuple[int, int]]) -> None:
        found = re.search(rf'<script type="text/plain" id="{block}">(.*?)</script>', page, re.DOTALL)
        assert found
        left = zlib.decompress(base64.b64decode(found.group(1).split("\n")[line]))
        for name, (count, width) in shape.items():
            self.planes[name] = [left[place * count : (place + 1) * count] for place in range(width)]
            self.counts[name] = count
            left = left[count * width :]
        assert not left

    def numbers(self, name: str) -> list[int]:
        planes = self.planes[name]
        return [int.from_bytes(each, "little") for each in zip(*planes, strict=True)] or [0] * self.counts[name]

    def sums(self, name: str) -> list[int]:
        return list(accumulate(-(each + 1) // 2 if each % 2 else each // 2 for each in self.numbers(name)))

    def texts(self, name: str) -> list[str]:
        return self.planes[name][0].decode().split("\n")


class Maker:
    """Allocates like a pool of whole chunks: an idle one of the size, else idle ones put together, else a new one."""

    def __init__(self, capacity: int) -> None:
        self.recording = Recording(
            header={
                "version": "0.1.0",
                "source": "vpmm",
                "pid": 7,
                "device": 0,
                "device_name": "NVIDIA H100 80GB HBM3",
                "page_size": PAGE,
                "capacity": capacity,
                "device_bytes": 80 << 30,
                "command": ["python", "train.py", "--batch", "24"],
                "stacks": "python",
                "sample": 1,
            },
            end={"lost": 0, "ended": "exit"},
        )
        self.capacity = capacity
        self.now = 0
        self.next = _FIRST
        self.mapped = 0
        self.live: dict[int, tuple[int, int]] = {}  # address: bytes, pages' bytes
        self.idle: dict[int, int] = {}  # address: bytes
        self.pending: list[tuple[int, int, int]] = []  # when it is over, address, bytes
        self.small: list[int] = []
        self.zombies: list[tuple[int, int]] = []
        self.strings: Numbers[str] = Numbers()
        self.stacks: Numbers[tuple[Frame, ...]] = Numbers()
        self.tags: Numbers[str] = Numbers()
        self.stack: tuple[Frame, ...] = ()
        self.tag = ""
        self.stream: int | None = 0
        self.thread = 0

    # --- events ---

    def put(self, kind: Kind, address: int = 0, size: int = 0, value: int = 0, flags: int = 0) -> Event:
        event = Event(kind, self.now, address, size, value, self.stream, self.thread, flags=flags)
        self.recording.events.append(event)
        return event

    def driver(self, call: DriverCall, size: int, ns: int) -> None:
        self.put(Kind.DRIVER, 0, size, ns, int(call))
        self.now += ns

    def wait(self, ns: int) -> None:
        self.now += ns
        for each in [each for each in self.pending if each[0] <= self.now]:
            self.pending.remove(each)
            self.idle[each[1]] = each[2]
        for address, size in self.zombies:
            self.put(Kind.UNMAP, address, size)
        self.zombies = []

    def sample(self) -> None:
        pending = sum(each[2] for each in self.pending)
        self.put(Kind.SAMPLE, self.mapped, pending, pending + sum(self.idle.values()))

    def mark(self, text: str) -> None:
        self.put(Kind.MARK, value=self.strings[text])

    def called(self, *functions: str, file: str = "train.py") -> None:
        """Innermost first."""
        self.stack = tuple(Frame(f"/home/me/{file}", 10 * (i + 1), name) for i, name in enumerate(functions))

    # --- the pool ---

    def allocate(self, size: int) -> int | None:
        pages = -(-size // PAGE) * PAGE
        address = self.place(pages)
        if address is None:
            self.fail(size)
            return None
        self.live[address] = (size, pages)
        event = self.put(Kind.ALLOCATE, address, size, pages)
        event.stack = self.stacks[self.stack] if self.stack else 0
        event.tag = self.tags[self.tag] if self.tag else 0
        self.now += 2000
        return address

    def place(self, pages: int) -> int | None:
        fitting = [address for address, size in self.idle.items() if size == pages]
        if fitting:
            del self.idle[fitting[0]]
            return fitting[0]
        address = self.next
        parts: list[tuple[int, int]] = []
        for old, size in sorted(self.idle.items(), key=lambda each: -each[1]):
            if sum(each[1] for each in parts) + size <= pages:
                parts.append((old, size))
        missing = pages - sum(each[1] for each in parts)
        for old, size in list(self.idle.items()):
            if self.mapped + missing > self.capacity and (old, size) not in parts:
                self.give_back(old, size)
        if self.mapped + missing > self.capacity:
            return None
        self.next += pages + 16 * PAGE
        at = address
        for old, size in parts:
            del self.idle[old]
            self.put(Kind.MAP, at, size)
            self.put(Kind.MOVE, at, size, old)
            self.driver(DriverCall.MAP, size, 9000)
            self.zombies.append((old, size))
            at += size
        if missing:
            self.driver(DriverCall.CREATE, missing, 150_000 + missing // 4000)
            self.put(Kind.MAP, at, missing, 1)
            self.mapped += missing
        self.driver(DriverCall.SET_ACCESS, pages, 20_000)
        return address

    def give_back(self, address: int, size: int) -> None:
        del self.idle[address]
        self.put(Kind.UNMAP, address, size, 1)
        self.driver(DriverCall.RELEASE, size, 80_000)
        self.mapped -= size

    def fail(self, size: int) -> None:
        self.sample()
        live = sum(each[0] for each in self.live.values())
        text = (
            f"out of device memory: {size / MIB:.1f} MiB were asked for, and {live / MIB:.1f} MiB live\n"
            f"  limit {self.capacity / MIB:.1f} MiB, mapped {self.mapped / MIB:.1f} MiB"
        )
        self.put(Kind.OUT_OF_MEMORY, 0, size, self.strings[text])
        self.put(Kind.ALLOCATE_FAILED, 0, size, self.strings[text])

    def free(self, address: int, busy_ns: int = 0) -> None:
        size, pages = self.live.pop(address)
        self.put(Kind.FREE, address, size)
        self.now += 1000
        if busy_ns:
            self.pending.append((self.now + busy_ns, address, pages))
        else:
            self.idle[address] = pages

    def done(self) -> Recording:
        self.recording.strings = self.strings.by_number()
        self.recording.stacks = self.stacks.by_number()
        self.recording.tags = self.tags.by_number()
        return self.recording


def training(steps: int = 24, capacity: int = 2300 * MIB) -> Recording:
    """Weights, then steps whose activations grow until one does not fit."""
    rng = random.Random(3)
    pool = Maker(capacity)
    pool.recording.streams = {0: "0x0"}
    pool.recording.threads = {0: "main"}
    pool.tag = "weights"
    for layer in range(12):
        pool.called("empty", f"Linear.__init__ layer {layer % 3}", "build_model", "main")
        pool.allocate(rng.randrange(20, 60) * MIB)
    pool.tag = "optimizer"
    for _ in range(12):
        pool.called("zeros_like", "AdamW.step", "train", "main")
        pool.allocate(rng.randrange(40, 90) * MIB)
    for step in range(steps):
        pool.mark(f"step {step}")
        held: list[int] = []
        length = rng.randrange(2, 9) + step // 4
        pool.tag = "activations"
        for layer in range(14):
            pool.called(
                rng.choice(["matmul", "softmax", "gelu"]), f"Block.forward {layer % 4}", "forward", "train", "main"
            )
            address = pool.allocate(length * rng.randrange(7, 19) * MIB // 2 + 4096)
            pool.wait(4 * MS)
            pool.sample()
            if address is None:
                return pool.done()
            held.append(address)
        pool.tag = "gradients"
        for address in reversed(held):
            pool.called("matmul", "backward", "train", "main")
            gradient = pool.allocate(rng.randrange(3, 9) * MIB)
            pool.free(address)
            pool.wait(5 * MS)
            pool.sample()
            if gradient is not None:
                pool.free(gradient)
    return pool.done()


def serving(requests: int = 300) -> Recording:
    """Four threads with a stream each; what they free is in use by the GPU for a while, and one stream goes idle."""
    rng = random.Random(5)
    pool = Maker(4 << 30)
    pool.recording.header["command"] = ["python", "serve.py", "--streams", "4"]
    pool.recording.streams = {0: "0x0"} | {number: f"0x5581{number}a0" for number in range(1, 5)}
    pool.recording.threads = {0: "main", 1: "encoder", 2: "vision 1", 3: "vision 2", 4: "warm-up"}
    pool.tag = "weights"
    pool.called("load", "Model.__init__", "main", file="serve.py")
    for _ in range(8):
        pool.allocate(rng.randrange(60, 120) * MIB)
    pool.stream, pool.thread, pool.tag = 4, 4, "warm-up"
    pool.called("warm_up", "main", file="serve.py")
    for _ in range(4):
        pool.allocate(160 * MIB)
    for _ in range(requests):
        pool.stream = pool.thread = rng.randrange(1, 4)
        pool.tag = pool.recording.threads[pool.thread]
        pool.called(
            rng.choice(["attention", "conv", "embed"]), f"infer_{pool.tag.replace(' ', '_')}", "worker", file="serve.py"
        )
        held = [pool.allocate(rng.randrange(4, 150) * MIB) for _ in range(rng.randrange(2, 6))]
        pool.wait(rng.randrange(1, 8) * MS)
        pool.sample()
        for address in held:
            if address is not None:
                pool.free(address, rng.randrange(2, 60) * MS)
        pool.wait(rng.randrange(1, 4) * MS)
        pool.sample()
        if rng.random() < 0.03:
            pool.put(Kind.PAUSE, value=3 * MS)
            pool.wait(3 * MS)
    return pool.done()


def leaking(steps: int = 200) -> Recording:
    """Each step keeps a piece that nobody frees."""
    pool = Maker(8 << 30)
    for _ in range(steps):
        pool.called("append", "log_loss", "train")
        pool.allocate(2 * MIB)
        pool.called("matmul", "train")
        address = pool.allocate(40 * MIB)
        pool.wait(MS)
        if address is not None:
            pool.free(address)
        pool.wait(MS)
    return pool.done()
