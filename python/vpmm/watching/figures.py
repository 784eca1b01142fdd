# SPDX-License-Identifier: Apache-2.0
# vpmm: the figures of `vpmm top`, updated event by event.

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from vpmm.recordings import Event, Kind, Recording

_STEP_NS = 100_000_000
RATE_STEPS = 20  # rates are those of the last two seconds


class PoolLine(NamedTuple):
    """One of several pools. None: not known."""

    device: int
    live_bytes: int | None
    mapped_bytes: int | None


class Figures:
    """Sizes are in bytes; live sizes are as requested. Pending and free memory are those of the last sample."""

    has_streams = True  # `by_stream` and stream_rate() are known

    def __init__(self) -> None:
        self.live: dict[tuple[int, int], Event] = {}
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.mapped_bytes = 0
        self.suspended_bytes = 0  # of live memory, since the recording began
        self.pending_bytes = 0
        self.free_bytes = 0
        self.sampled_ns: int | None = None
        self.by_tag: Counter[int] = Counter()
        self.by_library: Counter[int] = Counter()  # 0: not known
        self.by_stream: Counter[int | None] = Counter()
        self.last_ns = 0
        self.failures = 0
        self.last_failure: Event | None = None
        self.last_mark: Event | None = None
        self.pools: list[PoolLine] = []  # if there are several
        self.more_pools = 0  # that are in none of the figures
        self.state = ""  # why the figures are not those of now
        # For each of the last tenths of a second: the number of events of each kind, and of allocations on each stream.
        self._recent: deque[tuple[int, Counter[Kind], Counter[int | None]]] = deque(maxlen=RATE_STEPS)

    def apply(self, event: Event) -> None:
        kind = event.kind
        self.last_ns = event.time_ns
        if kind in (Kind.ALLOCATE, Kind.LIVE):
            self._allocated(event)
        elif kind is Kind.FREE:
            self._freed((event.device, event.address))
        elif kind is Kind.SAMPLE:
            self.mapped_bytes, self.pending_bytes, self.free_bytes = event.address, event.bytes, event.value
            self.sampled_ns = event.time_ns
        elif kind is Kind.MAP and event.value == 1:
            self.mapped_bytes += event.bytes
        elif kind is Kind.UNMAP and event.value == 1:
            self.mapped_bytes = max(0, self.mapped_bytes - event.bytes)
        elif kind is Kind.SUSPEND:
            self.suspended_bytes += event.bytes
        elif kind is Kind.RESUME:
            self.suspended_bytes = max(0, self.suspended_bytes - event.bytes)
        elif kind is Kind.ALLOCATE_FAILED:
            self.failures += 1
            self.last_failure = event
        elif kind is Kind.MARK:
            self.last_mark = event
        self._count(event)

    def _allocated(self, event: Event) -> None:
        key = (event.device, event.address)
        self._freed(key)  # its free is not in the recording
        self.live[key] = event
        self._add(event, event.bytes)
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

    def _freed(self, key: tuple[int, int]) -> None:
        event = self.live.pop(key, None)
        if event is not None:
            self._add(event, -event.bytes)

    def _add(self, event: Event, size: int) -> None:
        self.live_bytes += size
        self.by_tag[event.tag] += size
        self.by_library[event.flags] += size
        self.by_stream[event.stream] += size

    # --- rates ---

    def _count(self, event: Event) -> None:
        step = event.time_ns // _STEP_NS
        if not self._recent or self._recent[-1][0] != step:
            self._recent.append((step, Counter(), Counter()))
        _, kinds, streams = self._recent[-1]
        kinds[event.kind] += 1
        if event.kind is Kind.ALLOCATE:
            streams[event.stream] += 1

    def _per_second(self, now_ns: int, count: int) -> float:
        """Counts over two seconds, or since the recording began if that is shorter."""
        return count / min(RATE_STEPS * _STEP_NS / 1e9, max(now_ns / 1e9, 0.1))

    def rate(self, kind: Kind, now_ns: int) -> float:
        """Events of a kind a second, at a moment at or after the last event."""
        first = now_ns // _STEP_NS - RATE_STEPS
        return self._per_second(now_ns, sum(kinds[kind] for step, kinds, _ in self._recent if step > first))

    def stream_rate(self, stream: int | None, now_ns: int) -> float:
        """Allocations a second on a stream."""
        first = now_ns // _STEP_NS - RATE_STEPS
        return self._per_second(now_ns, sum(streams[stream] for step, _, streams in self._recent if step > first))


def capacity_of(recording: Recording) -> int:
    """Bytes that the pool may map; 0: not known."""
    for name in ("capacity", "device_bytes"):
        size = recording.header.get(name)
        if isinstance(size, int) and size > 0:
            return size
    return 0
