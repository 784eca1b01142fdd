# SPDX-License-Identifier: Apache-2.0
# vpmm: the common part of readers of foreign formats: numbers streams, stacks, tags and texts, and collects events.

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import replace

from vpmm.recordings import Event, Frame, Kind, Numbers, Recording


class Builder:
    """Makes a recording. Numbers of streams and threads begin with 0, those of texts, stacks and tags with 1."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._events: list[Event] = []
        self._strings: Numbers[str] = Numbers(1)
        self._stacks: Numbers[tuple[Frame, ...]] = Numbers(1)
        self._tags: Numbers[str] = Numbers(1)
        self._streams: Numbers[str] = Numbers(0)
        self._of_handles: dict[int, int] = {}  # the same numbers, found without a text
        self._threads: Numbers[str] = Numbers(0)

    def string(self, text: str) -> int:
        return self._strings[text]

    def stack(self, frames: tuple[Frame, ...]) -> int:
        return self._stacks[frames] if frames else 0

    def stream(self, handle: int) -> int:
        number = self._of_handles.get(handle)
        if number is None:
            number = self._of_handles[handle] = self._streams[hex(handle) if handle else "0"]
        return number

    def thread(self, name: str) -> int:
        return self._threads[name]

    def tag(self, label: str) -> int:
        return self._tags[label] if label else 0

    def add(
        self,
        kind: Kind,
        time_ns: int,
        address: int,
        bytes: int,
        *,
        value: int = 0,
        stream: int | None = None,
        stack: int = 0,
        device: int = 0,
    ) -> Event:
        """Appends an event and returns it, so that the caller can set further fields."""
        event = Event(kind, time_ns, address, bytes, value, stream, 0, 0, stack, 0, 0, device)
        self._events.append(event)
        return event

    def finished(self, header: dict[str, object], warning: str = "") -> Recording:
        """warning: a defect of the file that did not prevent reading."""
        events, left_out = consistent(self._events)
        if left_out:
            frees = f"{left_out} frees of what was allocated before the beginning, or twice, are left out"
            warning = f"{warning}; {frees}" if warning else frees
        return Recording(
            header={"version": "", "source": self._source, "device": 0, "sample": 1} | header,
            events=events,
            strings=self._strings.by_number(),
            stacks=self._stacks.by_number(),
            tags=self._tags.by_number(),
            streams=self._streams.by_number(),
            threads=self._threads.by_number(),
            end={"lost": 0, "ended": "stopped"},
            warning=warning,
        )


def consistent(events: list[Event]) -> tuple[list[Event], int]:
    """Makes events consistent: each free is of live memory, and allocations do not overlap. Returns the events and the
    number of frees left out because nothing was live; adds frees that a log has lost, and the sizes of frees."""
    devices: defaultdict[int, _Live] = defaultdict(_Live)
    kept: list[Event] = []
    left_out = 0
    for event in events:
        if event.kind == Kind.FREE:
            size = devices[event.device].remove(event.address)
            if size is None:
                left_out += 1
                continue
            event.bytes = size
        elif event.kind in (Kind.ALLOCATE, Kind.LIVE):
            live = devices[event.device]
            for address in live.overlapping(event.address, event.bytes):
                size = live.remove(address) or 0
                kept.append(replace(event, kind=Kind.FREE, address=address, bytes=size, value=0, stack=0, tag=0))
            live.add(event.address, event.bytes)
        kept.append(event)
    return kept, left_out


class _Live:
    """The live allocations of a device, which do not overlap. Invariant: `begins` has the keys of `sizes` in order."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.begins: list[int] = []

    def add(self, begin: int, size: int) -> None:
        self.sizes[begin] = size
        insort(self.begins, begin)

    def remove(self, begin: int) -> int | None:
        size = self.sizes.pop(begin, None)
        if size is not None:
            del self.begins[bisect_left(self.begins, begin)]
        return size

    def overlapping(self, begin: int, size: int) -> list[int]:
        """Addresses of the allocations that overlap a range, or begin with it."""
        first = bisect_left(self.begins, begin)
        if first > 0 and self.begins[first - 1] + self.sizes[self.begins[first - 1]] > begin and size:
            first -= 1
        return self.begins[first : bisect_left(self.begins, begin + max(size, 1), first)]
