# SPDX-License-Identifier: Apache-2.0
# vpmm: PyTorch's snapshots and allocator traces, `torch.cuda.memory._dump_snapshot`, as recordings.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import add, itemgetter
from typing import Any, NoReturn

from vpmm.convert.build import Builder
from vpmm.convert.pickles import loads
from vpmm.convert.ranges import Ranges
from vpmm.recordings import BadFile, Event, Frame, Kind, Recording
from vpmm.units import bytes_text

Fields = dict[str, Any]
_PENDING = ("active_pending_free", "active_awaiting_free")
_STATES = ("active_allocated", "inactive", *_PENDING)
_MOST_DEVICES = 1024
_NUMBERS = ("addr", "size", "stream", "time_us", "device_free")  # of an event
_LONGEST_TEXT = 1000


def read(data: bytes, name: str, *, with_stacks: bool = True) -> Recording:
    """The recording in a snapshot of PyTorch 1.13 to 2.15: every device's history, and what lived before it began.

    with_stacks False: without call stacks, which takes less time.

    Raises BadFile that names the file and the offset, or the member that is wrong.
    """
    return _Reading(loads(data, name), name, len(data), with_stacks=with_stacks).recording()


@dataclass
class _Block:
    bytes: int
    taken: int
    stream: int
    frames: object


@dataclass
class _Device:
    """The state of one device when the snapshot was taken; after `rewind`, when its history began."""

    live: dict[int, _Block] = field(default_factory=dict)
    segments: Ranges = field(default_factory=Ranges)

    def rewind(self, trace: list[Fields]) -> None:
        """Undoes the history, the last event first. Ignores contradictions."""
        for event in reversed(trace):
            action = event["action"]
            if action == "free_completed":
                continue
            address, size = event.get("addr", 0), event.get("size", 0)
            if action == "alloc":
                block = self.live.pop(address, None)
                event["taken"] = block.taken if block else 0
            elif action == "free_requested" or action == "free":
                self.live[address] = _Block(size, 0, event.get("stream", 0), None)
            elif action in ("segment_alloc", "segment_map"):
                self.segments.remove(address, address + size)
            elif action in ("segment_free", "segment_unmap"):
                self.segments.add(address, address + size, event.get("stream", 0))


class _Reading:
    def __init__(self, snapshot: object, name: str, length: int, *, with_stacks: bool = True) -> None:
        self.name = name
        self.with_stacks = with_stacks
        self.items_left = length  # of all lists together: a pickle may name one list a thousand times
        if isinstance(snapshot, list):  # 1.13: the segments alone
            snapshot = {"segments": snapshot}
        self.snapshot = self.fields(snapshot, "the snapshot")
        if not {"segments", "device_traces"} & self.snapshot.keys():
            self.fail_for_members()
        self.build = Builder("pytorch")
        self.stacks: dict[int, int] = {}  # by identity of a list of frames, which the snapshot keeps alive
        self.traces = self.checked_traces()
        self.devices: dict[int, _Device] = {}
        self.begin_us = self.first_time()

    # --- checks ---

    def fail(self, where: str, reason: str) -> NoReturn:
        raise BadFile(self.name, None, f"{where}: {reason}")

    def fail_for_members(self) -> NoReturn:
        names = ", ".join(f"`{plain(key)}`" for key in islice(self.snapshot, 3)) or "nothing"
        reason = f"no snapshot of PyTorch: neither `segments` nor `device_traces` is in it, but {names}"
        if any(isinstance(each, dict) and "segments" in each for each in self.snapshot.values()):
            reason += "; it holds several snapshots: write one of them to a file of its own"
        raise BadFile(self.name, None, reason)

    def fields(self, value: object, where: str) -> Fields:
        if not isinstance(value, dict):
            self.fail(where, f"a {type(value).__name__} stands where a dictionary should")
        return value

    def items(self, holder: Fields, key: str, where: str) -> list[Any]:
        value = holder.get(key, [])
        if not isinstance(value, (list, tuple)):
            self.fail(f"{where}{key}", f"a {type(value).__name__} stands where a list should")
        self.count_items(value, f"{where}{key}")
        return list(value)

    def count_items(self, items: list[Any] | tuple[Any, ...], where: str) -> None:
        self.items_left -= len(items)
        if self.items_left < 0:
            self.fail(where, "the snapshot repeats itself, and would be longer than its file")

    def number(self, holder: Fields, key: str, where: str, default: int | None = None) -> int:
        value = holder.get(key, default)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
            self.fail(f"{where}.{key}", "is missing" if value is None else f"{plain(value)!r} is no number of 64 bits")
        return value & (1 << 64) - 1  # addresses and streams that PyTorch wrote as negative numbers

    def checked_traces(self) -> list[list[Fields]]:
        traces = []
        for device, trace in enumerate(self.items(self.snapshot, "device_traces", "")):
            where = f"device_traces[{device}]"
            if device >= _MOST_DEVICES or not isinstance(trace, (list, tuple)):
                self.fail(where, "is no trace of a device")
            self.count_items(trace, where)
            if are_sound(trace):
                traces.append([event.copy() for event in trace])
            else:
                traces.append([self.checked_event(event, f"{where}[{at}]") for at, event in enumerate(trace)])
        return traces

    def checked_event(self, event: object, where: str) -> Fields:
        fields = dict(self.fields(event, where))
        if not isinstance(fields.get("action"), str):
            self.fail(where, "has no action")
        for key in _NUMBERS:
            value = fields.get(key, 0)
            if type(value) is not int or not 0 <= value < 1 << 64:
                fields[key] = self.number(fields, key, where)
        if fields.get("addr", 0) + fields.get("size", 0) > 1 << 64:
            self.fail(where, "reaches beyond the last address")
        return fields

    def first_time(self) -> int:
        times = [event["time_us"] for trace in self.traces for event in trace if event.get("time_us")]
        return min(times, default=0)

    # --- the state at the end ---

    def device(self, ordinal: int, where: str) -> _Device:
        if ordinal >= _MOST_DEVICES:
            self.fail(where, f"there is no device {ordinal}")
        return self.devices.setdefault(ordinal, _Device())

    def read_segments(self) -> None:
        for at, value in enumerate(self.items(self.snapshot, "segments", "")):
            where = f"segments[{at}]"
            segment = self.fields(value, where)
            device = self.device(self.number(segment, "device", where, 0), where)
            address = self.number(segment, "address", where)
            stream = self.number(segment, "stream", where, 0)
            end = address + self.number(segment, "total_size", where)
            if end > 1 << 64:
                self.fail(where, "reaches beyond the last address")
            device.segments.add(address, end, stream)
            for index, block in enumerate(self.items(segment, "blocks", f"{where}.")):
                address = self.read_block(
                    device, self.fields(block, where), address, stream, f"{where}.blocks[{index}]"
                )
            if address > end:
                self.fail(where, "its blocks are longer than itself")

    # Gives the address behind the block. Older snapshots have no addresses: blocks tile their segment.
    def read_block(self, device: _Device, block: Fields, address: int, stream: int, where: str) -> int:
        size = self.number(block, "size", where)
        state = block.get("state")
        if state not in _STATES:
            self.fail(where, f"{plain(state)!r} is no state of a block")
        if state == "active_allocated":
            history = self.items(block, "history", f"{where}.")  # until 2.0
            newest = self.fields(history[0], where) if history else {}
            requested = self.number(block, "requested_size", where, newest.get("real_size", size))
            frames = block.get("frames", newest.get("frames"))
            device.live[address] = _Block(min(requested, size), size, stream, frames)
        return address + size

    # --- events ---

    def recording(self) -> Recording:
        self.read_segments()
        for ordinal in range(len(self.traces)):
            if self.traces[ordinal]:
                self.device(ordinal, "device_traces")
        for ordinal, device in sorted(self.devices.items()):
            device.rewind(self.traces[ordinal] if ordinal < len(self.traces) else [])
            self.write_beginning(ordinal, device)
        has_beginning = any(device.live or len(device.segments) for device in self.devices.values())
        if has_beginning and self.begin_us:
            self.begin_us -= 1  # earlier memory is at 0, and the first call is later
        for time_us, ordinal, event in sorted(self.in_time(), key=itemgetter(0)):
            self.write(ordinal, event, time_us)
        return self.finished(has_beginning)

    def finished(self, has_beginning: bool) -> Recording:
        header: dict[str, object] = {"is_window": has_beginning, "started_unix_ns": self.begin_us * 1000}
        settings = self.snapshot.get("allocator_settings")
        if isinstance(settings, dict):
            header["settings"] = {key: plain(value) for key, value in settings.items()}
        if len(self.devices) == 1:
            header["device"] = next(iter(self.devices))
        recording = self.build.finished(header)
        if not any(self.traces):
            recording.warning = f"{self.name} has no history, only what lived: call _record_memory_history() first"
        elif before := sum(len(device.live) for device in self.devices.values()):
            recording.warning = f"the history begins late: {before} allocations lived already"
        return recording

    def write_beginning(self, ordinal: int, device: _Device) -> None:
        for each in device.segments:
            stream = self.build.stream(each.stream or 0)
            self.build.add(Kind.MAP, 0, each.begin, each.end - each.begin, value=1, stream=stream, device=ordinal)
        for address, block in sorted(device.live.items()):
            stream, stack = self.build.stream(block.stream), self.stack(block.frames, "segments")
            self.build.add(
                Kind.LIVE, 0, address, block.bytes, value=block.taken, stream=stream, stack=stack, device=ordinal
            )

    # The annotations and the events of all devices, each with its time, in the order of those of one time. Snapshots
    # before 2.2 have no times: a microsecond for each event.
    def in_time(self) -> Iterator[tuple[int, int, Fields]]:
        for at, value in enumerate(self.items(self.snapshot, "external_annotations", "")):
            where = f"external_annotations[{at}]"
            note = self.fields(value, where)
            time_us = self.number(note, "time_us", where, 0)
            text = " ".join(plain(note.get(key, "")) for key in ("stage", "name")).removeprefix("MARK").strip()
            mark = {"action": "mark", "text": text}
            yield max(0, time_us - self.begin_us), self.number(note, "device", where, 0), mark
        for ordinal, trace in enumerate(self.traces):
            last = 0
            for event in trace:
                known_us = event.get("time_us")
                last = max(last, known_us - self.begin_us if known_us else last + 1)
                if event["action"] != "free_completed":  # a recording has the time of the free, not of reusability
                    yield last, ordinal, event

    def write(self, ordinal: int, event: Fields, time_us: int) -> None:
        action, time_ns = event["action"], time_us * 1000
        kind = _KINDS.get(action)
        if kind is None:
            text = plain(event.get("text", action))
            self.build.add(Kind.MARK, time_ns, 0, 0, value=self.build.string(text), device=ordinal)
            return
        if kind == Kind.ALLOCATE_FAILED:
            self.write_failure(time_ns, event, ordinal)
            return
        value = 1 if kind is Kind.MAP or kind is Kind.UNMAP else event.get("taken", 0)
        made = self.build.add(kind, time_ns, event.get("addr", 0), event.get("size", 0), value=value, device=ordinal)
        self.write_origin(made, event)

    def write_origin(self, made: Event, event: Fields) -> None:
        made.stream = self.build.stream(event.get("stream", 0))
        if frames := event.get("frames"):
            made.stack = self.stack(frames, "device_traces")
        if metadata := event.get("user_metadata"):
            made.tag = self.build.tag(label_of(metadata))

    # The report of a shortage precedes the failed request.
    def write_failure(self, time_ns: int, event: Fields, ordinal: int) -> None:
        size: int = event.get("size", 0)
        free = event.get("device_free", event.get("addr", 0))
        known = bytes_text(free) if isinstance(free, int) else "unknown memory"
        asked = f"{bytes_text(size)} were asked for, and the device had {known} free"
        text = self.build.string(f"PyTorch is out of memory: {asked}")
        for kind in (Kind.OUT_OF_MEMORY, Kind.ALLOCATE_FAILED):
            self.write_origin(self.build.add(kind, time_ns, 0, size, value=text, device=ordinal), event)

    def stack(self, frames: object, where: str) -> int:
        if not frames or not self.with_stacks:
            return 0
        number = self.stacks.get(id(frames))
        if number is None:
            if not isinstance(frames, (list, tuple)):
                self.fail(where, "frames are no list")
            self.count_items(frames, where)
            number = self.build.stack(tuple(self.frame(each, where) for each in frames))
            self.stacks[id(frames)] = number
        return number

    def frame(self, value: object, where: str) -> Frame:
        fields = self.fields(value, f"{where}: a frame")
        line = fields.get("line", 0)
        if type(line) is not int or not 0 <= line < 1 << 31:
            line = 0
        return Frame(plain(fields.get("filename", "")), line, plain(fields.get("name", "")))


def are_sound(trace: Sequence[Any]) -> bool:
    """Whether checked_event() would change nothing in any event: a column at a time, which is several times as fast."""

    def are_all(kind: type, values: list[Any]) -> bool:
        return {kind}.issuperset(map(type, values))

    if not are_all(dict, list(trace)) or not are_all(str, [event.get("action") for event in trace]):
        return False
    columns = [[event.get(key, 0) for event in trace] for key in _NUMBERS]
    if not all(are_all(int, values) and min(values, default=0) >= 0 for values in columns):
        return False
    ends = map(add, *columns[:2])
    return max(ends, default=0) <= 1 << 64 and all(max(values, default=0) < 1 << 64 for values in columns)


def plain(value: object) -> str:
    """A text, or a number or similar value as a text. Containers are not read: they may contain themselves."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return str(value) if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def label_of(metadata: object) -> str:
    if isinstance(metadata, dict):
        return ", ".join(f"{key}={plain(value)}" for key, value in islice(metadata.items(), 16))
    return plain(metadata or "")


_KINDS = {
    "alloc": Kind.ALLOCATE,
    "free_requested": Kind.FREE,
    "segment_alloc": Kind.MAP,
    "segment_map": Kind.MAP,
    "segment_free": Kind.UNMAP,
    "segment_unmap": Kind.UNMAP,
    "oom": Kind.ALLOCATE_FAILED,
}
