# SPDX-License-Identifier: Apache-2.0
# vpmm: recordings as traces for ui.perfetto.dev: counters, instants for failures, slices for allocations and calls.

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import IO

from vpmm.convert.ranges import Ranges
from vpmm.recordings import Event, Kind, Recording

# Numbers of fields and values in perfetto/trace/trace_packet.proto and in track_event/*.proto.
_PACKET, _TIMESTAMP, _SEQUENCE, _SEQUENCE_FLAGS, _TRACK_EVENT, _DESCRIPTOR = 1, 8, 10, 13, 11, 60
_UUID, _NAME_OF_TRACK, _PROCESS, _PARENT, _COUNTER = 1, 2, 3, 5, 8
_PID, _PROCESS_NAME = 1, 6
_UNIT, _BYTES = 3, 3
_TYPE, _TRACK, _NAME, _VALUE, _NOTE = 9, 11, 23, 30, 4
_NOTE_NAME, _NOTE_UINT, _NOTE_TEXT = 10, 3, 6
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4
_STATE_CLEARED = 1

_COUNTERS = ("live", "mapped", "pending", "free")
_DRIVER_CALLS = {1: "create", 2: "map", 3: "set access", 4: "unmap", 5: "release", 6: "other call"}
_MOST_SLICES = 10_000  # of allocations: those that hold most for longest
_MOST_FRAMES = 24
_SAME_SEQUENCE = 1
_PROCESS_TRACK = 1


def write(recording: Recording, file: IO[bytes]) -> None:
    """Writes the trace. Times are since the epoch if the recording has its start time."""
    _Writing(recording, file).write()


def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a message: a number as varint, a text or a message with its length in front."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


class _Figures:
    """The counters of one device. A sample has the pool's own figures, which hold until events change them."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.mapped = Ranges()
        self.values = dict.fromkeys(_COUNTERS, 0)
        self.has_samples = False

    def see(self, event: Event) -> bool:
        """Whether the event changed a counter."""
        before = dict(self.values)
        if event.kind in (Kind.ALLOCATE, Kind.LIVE):
            self.values["live"] += event.bytes - self.live.get(event.address, 0)
            self.live[event.address] = event.bytes
        elif event.kind == Kind.FREE:
            self.values["live"] -= self.live.pop(event.address, 0)
        elif event.kind == Kind.SAMPLE:
            self.has_samples = True
            self.values |= {"mapped": event.address, "pending": event.bytes, "free": event.value}
        elif event.kind in (Kind.MAP, Kind.UNMAP) and not self.has_samples:
            change = self.mapped.add if event.kind == Kind.MAP else self.mapped.remove
            change(event.address, event.address + event.bytes)
            self.values["mapped"] = self.mapped.total
        if not self.has_samples:
            self.values["free"] = max(0, self.values["mapped"] - self.values["live"])
        return self.values != before


def _largest(events: list[Event]) -> dict[int, int]:
    """The allocations that hold most for longest, by the indices of their events, with those of their frees."""
    live: dict[tuple[int, int], int] = {}
    ends: dict[int, int] = {}
    for index, event in enumerate(events):
        if event.kind in (Kind.ALLOCATE, Kind.LIVE, Kind.FREE):
            begin = live.pop((event.device, event.address), None)
            if begin is not None:
                ends[begin] = index
            if event.kind != Kind.FREE:
                live[event.device, event.address] = index
                ends[index] = len(events)
    kept = heapq.nlargest(_MOST_SLICES, ends, key=lambda begin: events[begin].bytes * (ends[begin] - begin))
    return {begin: ends[begin] for begin in kept}


class _Lanes:
    """Numbers of tracks: slices that overlap are on different ones, and an idle one is used again."""

    def __init__(self) -> None:
        self.idle: list[int] = []
        self.count = 0

    def take(self) -> int:
        if self.idle:
            return heapq.heappop(self.idle)
        self.count += 1
        return self.count - 1

    def give(self, lane: int) -> None:
        heapq.heappush(self.idle, lane)


class _Writing:
    def __init__(self, recording: Recording, file: IO[bytes]) -> None:
        self.recording = recording
        self.file = file
        started = recording.header.get("started_unix_ns", 0)
        self.begin_ns = started if isinstance(started, int) else 0
        self.tracks: dict[tuple[str, int], int] = {}
        self.ends = _largest(recording.events)
        self.lanes: defaultdict[str, _Lanes] = defaultdict(_Lanes)
        self.open: dict[int, tuple[str, int]] = {}  # by the event that ends the slice; below 0: none does
        self.is_first = True

    def write(self) -> None:
        pid = self.recording.header.get("pid", 0)
        command = self.recording.header.get("command") or ["recorded program"]
        name = " ".join(str(each) for each in command) if isinstance(command, list) else str(command)
        process = field(_PID, pid if isinstance(pid, int) and pid > 0 else 1) + field(_PROCESS_NAME, name)
        self.packet(field(_DESCRIPTOR, field(_UUID, _PROCESS_TRACK) + field(_PROCESS, process)))
        figures: dict[int, _Figures] = {}
        for index, event in enumerate(self.recording.events):
            self.allocation(index, event)
            device = figures.setdefault(event.device, _Figures())
            before = dict(device.values)
            if device.see(event):
                self.count(event, before, device.values)
            self.show(event)
        for track, lane in self.open.values():
            self.end_allocation(self.recording.events[-1].time_ns, track, lane)

    # A slice lasts from the allocation to its free. Lanes of a stream have one name: viewers show them as one.
    def allocation(self, index: int, event: Event) -> None:
        if index in self.open:
            self.end_allocation(event.time_ns, *self.open.pop(index))
        if index not in self.ends:
            return
        stream = (
            "no stream" if event.stream is None else f"stream {self.recording.streams.get(event.stream, event.stream)}"
        )
        track = f"device {event.device}: allocations, {stream.replace('stream stream', 'stream')}"
        lane = self.lanes[track].take()
        frames = self.recording.stacks.get(event.stack, ())
        tag = self.recording.tags.get(event.tag, "")
        name = tag or (frames[0].function if frames else "") or "allocation"
        more = field(_NAME, name) + b"".join(self.notes(event))
        if event.value > event.bytes:
            more += field(_NOTE, field(_NOTE_NAME, "taken") + field(_NOTE_UINT, event.value))
        if frames:
            stack = "\n".join(f"{each.function} ({each.file}:{each.line})" for each in frames[:_MOST_FRAMES])
            more += field(_NOTE, field(_NOTE_NAME, "stack") + field(_NOTE_TEXT, stack))
        end = self.ends[index]
        if end == len(self.recording.events):
            more += field(_NOTE, field(_NOTE_NAME, "freed") + field(_NOTE_TEXT, "never"))
        self.event(event.time_ns, _BEGIN, self.track(track, lane=lane), more)
        self.open[end if end < len(self.recording.events) else -1 - index] = (track, lane)

    def end_allocation(self, time_ns: int, track: str, lane: int) -> None:
        self.event(time_ns, _END, self.track(track, lane=lane))
        self.lanes[track].give(lane)

    def packet(self, payload: bytes) -> None:
        payload += field(_SEQUENCE, _SAME_SEQUENCE)
        if self.is_first:
            payload += field(_SEQUENCE_FLAGS, _STATE_CLEARED)
            self.is_first = False
        self.file.write(field(_PACKET, payload))

    def track(self, name: str, *, counts: bool = False, lane: int = 0) -> int:
        uuid = self.tracks.get((name, lane))
        if uuid is None:
            uuid = self.tracks[name, lane] = _PROCESS_TRACK + 1 + len(self.tracks)
            track = field(_UUID, uuid) + field(_PARENT, _PROCESS_TRACK) + field(_NAME_OF_TRACK, name)
            if counts:
                track += field(_COUNTER, field(_UNIT, _BYTES))
            self.packet(field(_DESCRIPTOR, track))
        return uuid

    def event(self, time_ns: int, kind: int, track: int, more: bytes = b"") -> None:
        event = field(_TYPE, kind) + field(_TRACK, track) + more
        self.packet(field(_TIMESTAMP, self.begin_ns + time_ns) + field(_TRACK_EVENT, event))

    def count(self, event: Event, before: dict[str, int], values: dict[str, int]) -> None:
        for name in _COUNTERS:
            if values[name] != before[name]:
                track = self.track(f"device {event.device}: {name}", counts=True)
                self.event(event.time_ns, _COUNT, track, field(_VALUE, values[name]))

    def show(self, event: Event) -> None:
        if event.kind == Kind.MARK:
            self.instant(event, "marks", self.text(event))
        elif event.kind in (Kind.OUT_OF_MEMORY, Kind.ALLOCATE_FAILED):
            name = "out of memory" if event.kind == Kind.OUT_OF_MEMORY else "allocation failed"
            self.instant(event, "shortages", f"{name}: {event.bytes} bytes")
        elif event.kind == Kind.TRIM:
            self.instant(event, "shortages", f"trim: {event.bytes} bytes")
        elif event.kind in (Kind.SUSPEND, Kind.RESUME):
            tag = self.recording.tags.get(event.value, "")
            words = ["suspend" if event.kind == Kind.SUSPEND else "resume", *([tag] if tag else [])]
            self.instant(event, "suspended memory", f"{' '.join(words)}: {event.bytes} bytes")
        elif event.kind == Kind.DRIVER:
            self.slice(event, "driver", _DRIVER_CALLS.get(event.flags, "other call"))
        elif event.kind == Kind.PAUSE:
            self.slice(event, "waits for the GPU", "pause")

    def instant(self, event: Event, track: str, name: str) -> None:
        more = field(_NAME, name) + b"".join(self.notes(event))
        self.event(event.time_ns, _INSTANT, self.track(f"device {event.device}: {track}"), more)

    # An event is written when the call is over. Two calls of one thread never overlap.
    def slice(self, event: Event, track: str, name: str) -> None:
        thread = self.recording.threads.get(event.thread, str(event.thread))
        uuid = self.track(f"device {event.device}: {track}, thread {thread}")
        begin = max(0, event.time_ns - event.value)
        self.event(begin, _BEGIN, uuid, field(_NAME, name) + b"".join(self.notes(event)))
        self.event(event.time_ns, _END, uuid)

    def notes(self, event: Event) -> Iterator[bytes]:
        if event.bytes:
            yield field(_NOTE, field(_NOTE_NAME, "bytes") + field(_NOTE_UINT, event.bytes))
        if event.kind in (Kind.OUT_OF_MEMORY, Kind.ALLOCATE_FAILED):
            yield field(_NOTE, field(_NOTE_NAME, "report") + field(_NOTE_TEXT, self.text(event)))
        if event.tag in self.recording.tags:
            yield field(_NOTE, field(_NOTE_NAME, "tag") + field(_NOTE_TEXT, self.recording.tags[event.tag]))

    def text(self, event: Event) -> str:
        return self.recording.strings.get(event.value, "")
