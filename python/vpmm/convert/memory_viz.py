# SPDX-License-Identifier: Apache-2.0
# vpmm: recordings as snapshots for pytorch.org/memory_viz and `python -m torch.cuda._memory_viz`.

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import IO, Any

from vpmm.convert.ranges import Range, Ranges
from vpmm.recordings import Event, Kind, Recording

Fields = dict[str, Any]
_MOST_NUMBER = (1 << 63) - 1
_MOST_DEVICES = 1024
MUCH = 200 << 20  # file size in bytes above which the browser's page fails


@dataclass
class _Live:
    event: Event
    end: int


@dataclass
class _Device:
    """The state of one device during the trace. Invariant: every live block is inside `mapped`."""

    trace: list[Fields] = field(default_factory=list)
    mapped: Ranges = field(default_factory=Ranges)
    blocks: Ranges = field(default_factory=Ranges)  # live memory
    live: dict[int, _Live] = field(default_factory=dict)
    whole: bool = True  # segments are mapped and unmapped as a whole, and no block crosses one
    has_streams: bool = True  # no block crosses memory of two streams; otherwise segments have no stream


def write(recording: Recording, file: IO[bytes]) -> None:
    """Writes the snapshot as a pickle of protocol 2, the highest that the viewer reads completely."""
    pickle.dump(snapshot_of(recording), file, protocol=2)


def snapshot_of(recording: Recording) -> Fields:
    """What `torch.cuda.memory._snapshot()` would have given for this recording, by the viewer's rules.

    Memory that a recording uses and does not map, as all of a CSV file, is mapped where it is first used.
    """
    return _Writing(recording).snapshot()


class _Writing:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.devices: dict[int, _Device] = {}
        self.frames: dict[int, list[Fields]] = {0: []}
        self.annotations: list[Fields] = []
        started = recording.header.get("started_unix_ns", 0)
        self.begin_us = started // 1000 if isinstance(started, int) else 0
        capacity = recording.header.get("capacity")
        self.capacity = capacity if isinstance(capacity, int) else 0

    # Memory that is mapped or live before the first call has no history: the viewer finds it in the segments.
    def snapshot(self) -> Fields:
        begins = bool(self.recording.header.get("is_window"))
        for event in self.recording.events:
            device = self.devices.setdefault(event.device, _Device())
            begins = begins and event.time_ns == 0 and event.kind in (Kind.LIVE, Kind.MAP)
            if begins or event.kind == Kind.LIVE:
                self.begin_with(event, device)
            else:
                self.write(event, device)
        count = max(self.devices, default=0) + 1
        if count > _MOST_DEVICES:
            raise ValueError(f"device {count - 1} is beyond the {_MOST_DEVICES} that a snapshot lists")
        traces = [self.trace_of(self.devices.get(ordinal)) for ordinal in range(count)]
        segments = [each for ordinal, device in sorted(self.devices.items()) for each in self.segments(ordinal, device)]
        for part in (
            segments,
            *traces,
            self.annotations,
            *self.frames.values(),
            *(each["blocks"] for each in segments),
        ):
            for fields in part:
                _shorten(fields)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": {"source": str(self.recording.header.get("source", "vpmm"))},
            "external_annotations": self.annotations,
        }

    # --- events ---

    def write(self, event: Event, device: _Device) -> None:
        if event.kind == Kind.ALLOCATE and event.address and event.bytes:
            self.allocate(event, device)
        elif event.kind == Kind.FREE and event.address in device.live:
            self.free(event, device)
        elif event.kind == Kind.MAP:
            self.map(event, device, event.address, event.address + event.bytes)
        elif event.kind == Kind.UNMAP:
            self.unmap(event, device)
        elif event.kind == Kind.ALLOCATE_FAILED:
            free = max(0, self.capacity - device.mapped.total)
            self.note(device, event, "oom", 0, event.bytes, device_free=free)
        elif event.kind == Kind.MARK:
            self.mark(event)

    def begin_with(self, event: Event, device: _Device) -> None:
        end = event.address + event.bytes
        if event.kind == Kind.MAP:
            device.mapped.add(event.address, end, event.stream)
        elif event.address and event.bytes and not device.blocks.overlapping(event.address, end):
            device.whole &= not device.mapped.gaps(event.address, end)
            device.mapped.add(event.address, end, event.stream)
            self.place(event, device, end)

    def place(self, event: Event, device: _Device, end: int) -> None:
        within = device.mapped.overlapping(event.address, end)
        device.whole &= len(within) == 1
        device.has_streams &= len({each.stream for each in within}) == 1
        device.blocks.add(event.address, end)
        device.live[event.address] = _Live(event, end)

    def allocate(self, event: Event, device: _Device) -> None:
        end = event.address + event.bytes
        for stale in device.blocks.overlapping(event.address, end):  # its free was lost
            self.free(event, device, stale.begin)
        if device.mapped.gaps(event.address, end):
            device.whole = False
            self.map(event, device, event.address, end)
        self.place(event, device, end)
        self.note(device, event, "alloc", event.address, event.bytes)

    def free(self, event: Event, device: _Device, address: int | None = None) -> None:
        address = event.address if address is None else address
        live = device.live.pop(address)
        device.blocks.remove(address, live.end)
        for action in ("free_requested", "free_completed"):
            self.note(device, event, action, address, live.end - address)

    def map(self, event: Event, device: _Device, begin: int, end: int) -> None:
        added = device.mapped.add(begin, end, event.stream)
        device.whole &= [tuple(each[:2]) for each in added] == [(begin, end)]
        for each in added:
            self.note(device, event, "segment_map", each.begin, each.end - each.begin)

    # Live memory stays mapped: a recording that says otherwise has lost a free.
    def unmap(self, event: Event, device: _Device) -> None:
        end = event.address + event.bytes
        device.whole &= device.mapped.holds(event.address, end) and not device.blocks.overlapping(event.address, end)
        for idle in device.blocks.gaps(event.address, end):
            for each in device.mapped.remove(idle.begin, idle.end):
                self.note(device, event, "segment_unmap", each.begin, each.end - each.begin, stream=each.stream)

    def mark(self, event: Event) -> None:
        text = self.recording.strings.get(event.value, "")
        stage, _, name = text.partition(" ")
        if stage not in ("START", "END"):
            stage, name = "MARK", text
        time_us = self.begin_us + event.time_ns // 1000
        self.annotations.append({"device": event.device, "time_us": time_us, "stage": stage, "name": name})

    def note(self, device: _Device, event: Event, action: str, address: int, size: int, **more: int | None) -> None:
        entry: Fields = {"action": action, "addr": address, "size": size}
        entry["stream"] = self.stream(more.pop("stream", event.stream))
        entry["time_us"] = self.begin_us + event.time_ns // 1000
        entry["frames"] = self.frames_of(event.stack)
        entry["user_metadata"] = self.recording.tags.get(event.tag, "")
        entry["compile_context"] = "N/A"
        if action == "oom":
            del entry["addr"]
        device.trace.append(entry | more)

    # --- the end ---

    # Whole segments also appear in the viewer's timeline of segments.
    def trace_of(self, device: _Device | None) -> list[Fields]:
        if device is None:
            return []
        if device.whole:
            names = {"segment_map": "segment_alloc", "segment_unmap": "segment_free"}
            for entry in device.trace:
                entry["action"] = names.get(entry["action"], entry["action"])
        if not device.has_streams:
            for entry in device.trace:
                if entry["action"].startswith("segment"):
                    entry["stream"] = 0
        return device.trace

    def segments(self, ordinal: int, device: _Device) -> list[Fields]:
        if not device.has_streams:
            mapped, device.mapped = device.mapped, Ranges()
            for each in mapped:
                device.mapped.add(each.begin, each.end)
        ranges = list(device.mapped) if device.whole else device.mapped.joined()
        return [self.segment(ordinal, device, each) for each in ranges]

    def segment(self, ordinal: int, device: _Device, extent: Range) -> Fields:
        lives = [device.live[each.begin] for each in device.blocks.overlapping(extent.begin, extent.end)]
        blocks = self.blocks(lives, extent)
        requested = sum(live.event.bytes for live in lives)
        taken = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": ordinal,
            "address": extent.begin,
            "total_size": extent.end - extent.begin,
            "allocated_size": taken,
            "active_size": taken,
            "requested_size": requested,
            "stream": self.stream(extent.stream),
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": not device.whole,
            "frames": [],
            "blocks": blocks,
        }

    # Blocks tile the segment. A block has the length in the recording, if that fits.
    def blocks(self, lives: list[_Live], extent: Range) -> list[Fields]:
        blocks: list[Fields] = []
        at = extent.begin
        for index, live in enumerate(lives):
            begin = max(live.event.address, extent.begin)
            room = lives[index + 1].event.address if index + 1 < len(lives) else extent.end
            end = min(live.end, extent.end)
            if live.event.address + live.event.value <= room:
                end = max(end, live.event.address + live.event.value)
            if at < begin:
                blocks.append(_block(at, begin - at, 0, "inactive", []))
            frames = self.frames_of(live.event.stack)
            blocks.append(_block(begin, end - begin, min(live.event.bytes, end - begin), "active_allocated", frames))
            at = end
        if at < extent.end:
            blocks.append(_block(at, extent.end - at, 0, "inactive", []))
        return blocks

    def stream(self, number: int | None) -> int:
        return self.recording.stream_handle(number)

    # One list for each stack, so that the pickle stores it once.
    def frames_of(self, stack: int) -> list[Fields]:
        found = self.frames.get(stack)
        if found is None:
            found = [
                {"filename": file, "line": line, "name": function}
                for file, line, function in self.recording.stacks.get(stack, ())
            ]
            self.frames[stack] = found
        return found


# The viewer reads whole numbers of up to 8 bytes, with a sign. Addresses and streams beyond are negative, as PyTorch
# writes them; a size beyond, of a request that went below zero, becomes the largest.
def _shorten(fields: Fields) -> None:
    for key, value in fields.items():
        if type(value) is int and value > _MOST_NUMBER:
            fields[key] = value - (1 << 64) if key in ("addr", "address", "stream") else _MOST_NUMBER


def _block(address: int, size: int, requested: int, state: str, frames: list[Fields]) -> Fields:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
