# SPDX-License-Identifier: Apache-2.0
# vpmm: the contents of a recording; docs/reference/recording.md describes each field.

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class BadFile(ValueError):  # noqa: N818  says what it is
    """A malformed file: `FILE:OFFSET: reason`, where OFFSET is a byte, or a line of CSV.

    `offset` None, `FILE: reason`: the reason itself names the place, as `segments[0].address`.
    """

    def __init__(self, path: str, offset: int | None, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if offset is None else f"{path}:{offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


MOST_OF_SMALL = 512 << 20  # decompressed bytes
_MOST_TIMES = 200  # a loop whose times differ has about 100 at most, one that repeats events with their times thousands


def most_inflated(stored: int) -> int:
    """The bytes to which a recording of `stored` bytes may decompress; a longer one was made to fill the memory."""
    return max(MOST_OF_SMALL, stored * _MOST_TIMES)


def too_long(path: str, offset: int, stored: int) -> BadFile:
    most = most_inflated(stored)
    return BadFile(path, offset, f"decompressed it has more than {most} bytes, as no recording of {stored} bytes")


class Kind(IntEnum):
    """Of an event."""

    ALLOCATE = 1
    FREE = 2
    ALLOCATE_FAILED = 3
    RECORD_USE = 4
    MAP = 5
    UNMAP = 6
    MOVE = 7
    TRIM = 8
    PAUSE = 9
    OUT_OF_MEMORY = 10
    MARK = 11
    ARENA_GROW = 12
    ARENA_SHRINK = 13
    LIVE = 14
    DRIVER = 15
    SAMPLE = 16
    SUSPEND = 17
    RESUME = 18


class DriverCall(IntEnum):
    """`flags` of a driver event."""

    CREATE = 1
    MAP = 2
    SET_ACCESS = 3
    UNMAP = 4
    RELEASE = 5
    OTHER = 6


# Kinds whose `value` is the number of a string.
WITH_TEXT = frozenset({Kind.ALLOCATE_FAILED, Kind.OUT_OF_MEMORY, Kind.MARK})


@dataclass(slots=True)
class Event:
    """An event. `bytes` is as requested, in bytes; `stream` None: no stream was named."""

    kind: Kind
    time_ns: int = 0
    address: int = 0
    bytes: int = 0
    value: int = 0
    stream: int | None = None
    thread: int = 0
    tag: int = 0
    stack: int = 0
    arena: int = 0
    flags: int = 0  # of an allocation: the number of its library; 0: not known
    device: int = 0


class Frame(NamedTuple):
    """Of a call stack."""

    file: str
    line: int
    function: str


@dataclass
class Recording:
    """Events in their order, and the tables to which their numbers refer."""

    header: dict[str, object] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    strings: dict[int, str] = field(default_factory=dict)
    stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)  # innermost frame first
    tags: dict[int, str] = field(default_factory=dict)
    streams: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    end: dict[str, object] | None = None  # None: the file was cut
    warning: str = ""  # a defect that does not prevent reading
    libraries: dict[int, str] = field(default_factory=dict)  # by `flags` of an allocation

    def text_of(self, event: Event) -> str:
        """The text of a failed allocation, a report or a mark; empty: none."""
        return self.strings.get(event.value, "") if event.kind in WITH_TEXT else ""

    def stream_number(self, stream: int) -> int:
        """N of `stream N`, by which texts call it; else its number in the recording."""
        found = re.match(r"stream (\d+)", self.streams.get(stream, ""))
        return int(found[1]) if found else stream

    def stream_name(self, stream: int) -> str:
        """For people: `stream 13 (0x7f..)`, but `default stream (7)` for that of CUDA."""
        name = self.streams.get(stream, "")
        found = re.fullmatch(r"stream (\d+) \(0x([012])\)", name)
        if found:
            return f"a thread's default stream ({found[1]})" if found[2] == "2" else f"default stream ({found[1]})"
        if name.startswith("stream "):
            return name
        return f"stream {stream}" if name in ("", str(stream)) else f"stream {stream} ({name})"

    def stream_handle(self, stream: int | None) -> int:
        """The program's handle of a stream: the number in `0x7f..`, or in `stream 13 (0x7f..)`.

        If that is not known, N of `stream N`, so that two streams stay distinct; else 0.
        """
        name = self.streams.get(stream, "") if stream is not None else ""
        found = re.fullmatch(r"(?:stream )?(0x[0-9a-fA-F]+|\d+)(?: \((0x[0-9a-fA-F]+)\))?", name)
        return int(found[2] or found[1], 0) if found else 0


class Numbers(dict[_Key, int], Generic[_Key]):
    """Numbers things in the order in which they are first requested, for writers of recordings."""

    def __init__(self, first: int = 1) -> None:
        super().__init__()
        self._first = first

    def __missing__(self, key: _Key) -> int:
        number = self[key] = self._first + len(self)
        return number

    def by_number(self) -> dict[int, _Key]:
        return {number: key for key, number in self.items()}
