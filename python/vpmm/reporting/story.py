# SPDX-License-Identifier: Apache-2.0
# vpmm: summarizes a recording in one pass over its events: lifetimes, mapped memory, failures and slow calls.

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from dataclasses import dataclass, field

from vpmm.recordings import Event, Kind, Recording
from vpmm.reporting.stacks import StackLabels, library_of
from vpmm.units import bytes_in, bytes_text

NEVER = 1 << 62
_LIMIT = re.compile(r"^  mapped .*; the limit is (.+?);", re.MULTILINE)
_ROUNDED = 0.006  # sizes in reports have three digits


@dataclass(slots=True)
class Life:
    """An allocation's life: after event `begin` and until before event `end`, which are indices of events."""

    event: Event
    begin: int
    end: int = NEVER
    end_ns: int = NEVER


@dataclass(slots=True)
class Mapping:
    """The life of a chunk: from `moved_ns` on it is an old address of moved memory."""

    address: int
    bytes: int
    begin: int
    begin_ns: int
    moved: int = NEVER
    moved_ns: int = NEVER
    end: int = NEVER
    end_ns: int = NEVER


@dataclass(slots=True)
class Failure:
    """A request that was not served."""

    index: int
    event: Event
    report: str
    live: int
    taken: int  # by live memory, rounding included
    mapped: int
    pending: int
    free: int


@dataclass(slots=True)
class Spent:
    """Calls of one kind, or pauses."""

    calls: int = 0
    bytes: int = 0
    ns: int = 0
    longest_ns: int = 0

    def add(self, ns: int, size: int) -> None:
        self.calls += 1
        self.bytes += size
        self.ns += ns
        self.longest_ns = max(self.longest_ns, ns)


@dataclass(slots=True)
class StreamUse:
    """The activity of one stream; `live` is at the end."""

    allocations: int = 0
    bytes: int = 0
    live: int = 0
    peak: int = 0
    last_ns: int = 0


@dataclass
class Series:
    """Figures after each event; pending memory stays until the next sample."""

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    live: array[int] = field(default_factory=lambda: array("q"))
    mapped: array[int] = field(default_factory=lambda: array("q"))
    pending: array[int] = field(default_factory=lambda: array("q"))
    free: array[int] = field(default_factory=lambda: array("q"))


class Story:
    """Reads `recording` for the device `device`; None: the one with most events."""

    def __init__(self, recording: Recording, device: int | None = None) -> None:
        self.recording = recording
        self.devices = _events_by_device(recording.events)
        self.device = (
            device if device is not None else max(self.devices, key=lambda each: self.devices[each], default=0)
        )
        if device is not None and self.devices and device not in self.devices:
            raise ValueError(f"device {device} is not in this recording: {', '.join(map(str, sorted(self.devices)))}")
        self.events = recording.events
        if len(self.devices) > 1 or self.device not in self.devices:
            self.events = [each for each in recording.events if each.device == self.device]
        self.stack_labels = StackLabels(recording)
        self.series = Series()
        self.lives: list[Life] = []
        self.mappings: list[Mapping] = []
        self.failures: list[Failure] = []
        self.mistakes = 0
        self.rescued = 0  # requests that met a shortage and were served in the end
        self.marks: list[tuple[int, str, int]] = []  # time, text, index of the event
        self.driver: dict[int, Spent] = defaultdict(Spent)
        self.late_driver = Spent()  # in the second half of the time
        self.late_remaps = 0  # then: chunks that were mapped again, or given back
        self.pauses = Spent()
        self.streams: dict[int | None, StreamUse] = defaultdict(StreamUse)
        self.allocations = 0
        self.frees = 0
        self.created = 0  # bytes of chunks, created and released
        self.released = 0
        self.peak = 0
        self.peak_index = -1
        self.peak_taken = 0  # rounding included
        self.peak_mapped = 0
        self.peak_pending = 0
        self.peak_pending_index = -1
        self.has_maps = False
        self.has_samples = False
        self.begin_ns = self.events[0].time_ns if self.events else 0
        self.end_ns = self.events[-1].time_ns if self.events else 0
        _Walk(self).run()

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def page_size(self) -> int:
        return self.header_number("page_size") or 2 << 20

    @property
    def grain(self) -> int:
        """The unit of placement from a page up; recordings that do not name it are of pools that rounded to pages."""
        return self.header_number("grain") or self.page_size

    def taken_for(self, size: int) -> int:
        """The bytes that the pool takes for a request, as PageSizes::rounded; below a page, the page to cut it from."""
        if size <= self.page_size:
            return self.page_size
        least_step = 0 if size > 4 * self.page_size else (1 << (size - 1).bit_length() - 1) // 32
        step = max(self.grain, least_step)
        return -(-size // step) * step

    def extent(self, event: Event) -> tuple[int, int]:
        """Where an allocation begins and ends; that of one below a page is its pages, which serve nothing else."""
        unit = self.page_size if event.bytes < self.page_size else self.grain
        end = event.address + max(event.bytes, event.value, 1)
        return event.address // unit * unit, -(-end // unit) * unit

    @property
    def capacity(self) -> int:
        """The pool's limit, or the GPU's memory; 0: not known."""
        return self.header_number("capacity") or self.header_number("device_bytes")

    @property
    def live_at_end(self) -> int:
        return self.series.live[-1] if self.series.live else 0

    def header_number(self, name: str) -> int:
        value = self.recording.header.get(name, 0)
        return value if isinstance(value, int) and value > 0 else 0

    def setting(self, name: str) -> str:
        """The value with which the pool was opened; empty: the recording does not have it."""
        settings = self.recording.header.get("settings")
        value = settings.get(name, "") if isinstance(settings, dict) else ""
        return value if isinstance(value, str) else ""

    def header_text(self, name: str) -> str:
        value = self.recording.header.get(name, "")
        return value if isinstance(value, str) else ""

    def alive(self, index: int) -> list[Life]:
        """The live memory after event `index`, oldest first."""
        return [each for each in self.lives if each.begin <= index < each.end]

    def limit_at(self, failure: Failure) -> int:
        """The limit when the request failed. One that was set while it was recorded is in the report, rounded."""
        said = _LIMIT.search(failure.report)
        if said is None:
            return self.capacity
        limit = bytes_in(said[1]) or self.header_number("device_bytes")
        return self.capacity if math.isclose(limit, self.capacity, rel_tol=_ROUNDED) else limit

    def is_full(self, failure: Failure) -> bool:
        """Whether live memory and the request, rounded as the pool rounds, exceed the available memory."""
        return 0 < self.limit_at(failure) < failure.taken + self.taken_for(failure.event.bytes)

    def stack_label(self, stack: int) -> str:
        return self.stack_labels[stack]

    def stream_name(self, stream: int | None) -> str:
        if stream is None:
            return "no stream named"
        return self.recording.stream_name(stream)

    def thread_name(self, thread: int) -> str:
        return self.recording.threads.get(thread, f"thread {thread}")

    def tag_name(self, tag: int) -> str:
        return self.recording.tags.get(tag, f"tag {tag}" if tag else "no tag")

    def library_name(self, allocation: Event) -> str:
        """The library that asked: as the pool recorded it, or else as the stack shows it."""
        recorded = self.recording.libraries.get(allocation.flags, "")
        return recorded or library_of(self.recording.stacks.get(allocation.stack, ()))


def _events_by_device(events: list[Event]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for event in events:
        found[event.device] += 1
    return dict(found)


class _Walk:
    """Fills a story. Invariant: `live` is the sum over `at`."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.live = 0
        self.taken = 0
        self.mapped = 0
        self.pending = 0
        self.free = 0
        self.fresh = 0  # bytes mapped for the request in progress
        self.at: dict[int, Life] = {}
        self.chunks: dict[int, Mapping] = {}
        self.short: dict[int, tuple[int, Event]] = {}  # by thread: a report that no outcome has followed yet
        self.middle_ns = story.begin_ns + (story.end_ns - story.begin_ns) // 2

    def run(self) -> None:
        story = self.story
        steps = {
            Kind.ALLOCATE: self.allocate,
            Kind.LIVE: self.allocate,
            Kind.FREE: self.deallocate,
            Kind.MAP: self.map,
            Kind.UNMAP: self.unmap,
            Kind.MOVE: self.move,
            Kind.SAMPLE: self.sample,
            Kind.DRIVER: self.driver,
            Kind.PAUSE: self.pause,
            Kind.MARK: self.mark,
            Kind.SUSPEND: self.sleep,
            Kind.RESUME: self.sleep,
            Kind.ALLOCATE_FAILED: self.failed,
            Kind.OUT_OF_MEMORY: self.shortage,
        }
        story.has_maps = any(each.kind is Kind.MAP for each in story.events)
        story.has_samples = any(each.kind is Kind.SAMPLE for each in story.events)
        series = story.series
        for index, event in enumerate(story.events):
            step = steps.get(event.kind)
            if step is not None:
                step(index, event)
            series.time_ns.append(event.time_ns)
            series.live.append(self.live)
            series.mapped.append(self.mapped)
            series.pending.append(self.pending)
            series.free.append(self.free)
        for index, event in self.short.values():
            self.add_failure(index, event, story.recording.text_of(event))
        story.failures.sort(key=lambda each: each.index)

    def allocate(self, index: int, event: Event) -> None:
        story = self.story
        if event.address in self.at:
            self.end_life(index, event)
        life = Life(event, index)
        self.at[event.address] = life
        story.lives.append(life)
        self.live += event.bytes
        self.take(max(event.value, event.bytes))
        stream = story.streams[event.stream]
        stream.live += event.bytes
        stream.peak = max(stream.peak, stream.live)
        if event.kind is Kind.ALLOCATE:
            story.allocations += 1
            stream.allocations += 1
            stream.bytes += event.bytes
            stream.last_ns = event.time_ns
            short = self.short.get(event.thread)
            if short is not None and short[1].bytes == event.bytes:
                del self.short[event.thread]
                story.rescued += 1
        if self.live > story.peak:
            story.peak, story.peak_index = self.live, index

    def deallocate(self, index: int, event: Event) -> None:
        if event.address in self.at:
            self.story.frees += 1
            self.end_life(index, event)
        if event.stream is not None:
            self.story.streams[event.stream].last_ns = event.time_ns

    # Between samples, free memory is the last sample's, corrected by the events since.
    def take(self, size: int) -> None:
        self.taken += size
        self.story.peak_taken = max(self.story.peak_taken, self.taken)
        self.free = max(self.free + self.fresh - size, 0)
        self.fresh = 0

    def end_life(self, index: int, event: Event) -> None:
        life = self.at.pop(event.address)
        life.end, life.end_ns = index, event.time_ns
        self.live -= life.event.bytes
        self.take(-max(life.event.value, life.event.bytes))
        self.story.streams[life.event.stream].live -= life.event.bytes

    def map(self, index: int, event: Event) -> None:
        mapping = Mapping(event.address, event.bytes, index, event.time_ns)
        self.chunks[event.address] = mapping
        self.story.mappings.append(mapping)
        if event.value == 1:
            self.story.created += event.bytes
            self.fresh += event.bytes
            self.set_mapped(self.mapped + event.bytes)
        else:
            self.story.late_remaps += event.time_ns > self.middle_ns

    def unmap(self, index: int, event: Event) -> None:
        for mapping in self.covered(event.address, event.bytes):
            del self.chunks[mapping.address]
            mapping.end, mapping.end_ns = index, event.time_ns
        if event.value == 1:
            self.story.released += event.bytes
            self.story.late_remaps += event.time_ns > self.middle_ns
            self.free = max(self.free - event.bytes, 0)
            self.set_mapped(max(self.mapped - event.bytes, 0))

    def move(self, index: int, event: Event) -> None:
        for mapping in self.covered(event.value, event.bytes):
            if mapping.moved == NEVER:
                mapping.moved, mapping.moved_ns = index, event.time_ns

    def covered(self, begin: int, size: int) -> list[Mapping]:
        """The chunks in a range, in order."""
        found = []
        at = begin
        while at < begin + size and at in self.chunks:
            found.append(self.chunks[at])
            at += max(self.chunks[at].bytes, 1)
        return found

    def sample(self, index: int, event: Event) -> None:
        self.pending, self.free, self.fresh = event.bytes, event.value, 0
        self.set_mapped(event.address)
        if self.pending > self.story.peak_pending:
            self.story.peak_pending, self.story.peak_pending_index = self.pending, index

    def set_mapped(self, mapped: int) -> None:
        self.mapped = mapped
        self.story.peak_mapped = max(self.story.peak_mapped, mapped)

    def driver(self, index: int, event: Event) -> None:
        del index
        self.story.driver[event.flags].add(event.value, event.bytes)
        if event.time_ns > self.middle_ns:
            self.story.late_driver.add(event.value, event.bytes)

    def pause(self, index: int, event: Event) -> None:
        del index
        self.story.pauses.add(event.value, 0)

    def mark(self, index: int, event: Event) -> None:
        self.story.marks.append((event.time_ns, self.story.recording.text_of(event), index))

    def sleep(self, index: int, event: Event) -> None:
        name = self.story.recording.tags.get(event.value) or f"arena {event.arena}"
        word = "suspend" if event.kind is Kind.SUSPEND else "resume"
        self.story.marks.append((event.time_ns, f"{word} {name}: {bytes_text(event.bytes)}", index))

    def shortage(self, index: int, event: Event) -> None:
        self.short[event.thread] = (index, event)

    def failed(self, index: int, event: Event) -> None:
        if event.flags == 1:
            self.story.mistakes += 1
            return
        text = self.story.recording.text_of(event)
        _, report = self.short.pop(event.thread, (index, event))
        self.add_failure(index, event, self.story.recording.text_of(report) or text)

    def add_failure(self, index: int, event: Event, report: str) -> None:
        failure = Failure(index, event, report, self.live, self.taken, self.mapped, self.pending, self.free)
        self.story.failures.append(failure)
