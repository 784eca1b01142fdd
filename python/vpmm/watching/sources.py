# SPDX-License-Identifier: Apache-2.0
# vpmm: where `vpmm top` has its figures from: a recording, or the answers of a process.

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Protocol

from vpmm.errors import Error
from vpmm.recordings import Kind, Recording
from vpmm.watching.asking import NoAnswer, PoolTold, Told, ask
from vpmm.watching.figures import Figures, PoolLine
from vpmm.watching.follower import Follower
from vpmm.watching.processes import NotRecorded, is_running, recording_of, recordings_of

_OTHER_TAGS = 1 << 32  # above every tag's number
_SECONDS_FOR_RATES = 2.0
_ONCE = 0.25  # seconds between two answers for one picture


class Source(Protocol):
    """`name` is that of the file; a process has none."""

    @property
    def name(self) -> str: ...

    @property
    def figures(self) -> Figures: ...

    @property
    def recording(self) -> Recording:
        """Header, tables and end; no events."""
        ...

    def catch_up(self, seconds: float | None) -> None:
        """Brings the figures up to date, within about `seconds`; None: however long it takes."""
        ...

    def has_ended(self) -> bool: ...

    def close(self) -> None: ...


def source_of(pid: int) -> Source:
    """The recording that a process writes; without one, the process itself.

    Raises NotRecorded, with what to do, or NoAnswer, if there is neither."""
    try:
        is_recorded = bool(recordings_of(pid))
    except NotRecorded:  # it may hide its files from others
        is_recorded = False
    if not is_recorded and (told := ask(pid)) is not None:
        return Asked(pid, told)
    return Recorded(recording_of(pid), pid)


class Recorded:
    """A recording that grows. `pid`: the process that writes it, if known."""

    def __init__(self, path: str, pid: int | None) -> None:
        self.name = Path(path).name
        self.figures = Figures()
        self._pid = pid
        self._follower = Follower(path)

    @property
    def recording(self) -> Recording:
        return self._follower.recording

    def catch_up(self, seconds: float | None) -> None:
        """Raises vpmm.Error if the program has written nothing yet, and only one picture is asked for."""
        until = None if seconds is None else time.monotonic() + seconds
        while (events := self._follower.poll()) is not None:
            if self._follower.has_begun_anew:
                self.figures = Figures()
            for event in events:
                self.figures.apply(event)
            if until is not None and time.monotonic() > until:
                break
        if seconds is None and not self.recording.header:
            raise Error(f"{self.name}: nothing is recorded in it yet")

    def has_ended(self) -> bool:
        """After the last data, if the process has ended."""
        if self.recording.end is not None:
            return True
        if self._pid is None or is_running(self._pid):
            return False
        self.catch_up(1.0)
        return True

    def close(self) -> None:
        self._follower.close()


class FiguresTold(Figures):
    """Sums over the pools of a process. Rates are those between two answers."""

    has_streams = False

    def __init__(self) -> None:
        super().__init__()
        self._counts: deque[tuple[float, dict[Kind, int]]] = deque()

    def take(self, told: Told) -> None:
        """With a busy pool the figures stay as they are, if there are any."""
        self.state = "busy" if told.busy else ""
        if told.busy and self._counts:
            return
        pools = told.pools
        self.last_ns = self.sampled_ns = told.age_ns
        self.live_bytes = sum(pool.live_bytes for pool in pools)
        self.peak_live_bytes = max(self.live_bytes, sum(pool.peak_live_bytes for pool in pools))
        self.mapped_bytes = sum(pool.mapped_bytes for pool in pools)
        self.suspended_bytes = sum(pool.suspended_bytes for pool in pools)
        self.pending_bytes = sum(pool.pending_bytes for pool in pools)
        self.free_bytes = sum(pool.free_bytes for pool in pools)
        self.failures = sum(pool.failed_allocations for pool in pools)
        self._take_tags(pools)
        self._take_libraries(pools)
        lines = [PoolLine(pool.device, pool.live_bytes, pool.mapped_bytes) for pool in pools]
        lines += [PoolLine(device, None, None) for device in told.busy]
        self.more_pools = told.more
        self.pools = sorted(lines, key=lambda line: line.device) if len(lines) > 1 else []
        if not told.busy:
            self._take_counts(told.age_ns / 1e9, pools)

    def _take_tags(self, pools: list[PoolTold]) -> None:
        self.by_tag.clear()
        for pool in pools:
            for tag, _, size in pool.tags:
                self.by_tag[tag] += size
            self.by_tag[_OTHER_TAGS] += pool.tagged_bytes - sum(size for _, _, size in pool.tags)
            if not pool.suspended_bytes:  # else live memory of tags is not all in `live_bytes`
                self.by_tag[0] += max(pool.live_bytes - pool.tagged_bytes, 0)

    def _take_libraries(self, pools: list[PoolTold]) -> None:
        self.by_library.clear()
        for pool in pools:
            for tag, _, size in pool.libraries:
                self.by_library[tag] += size
            if not pool.suspended_bytes:
                self.by_library[0] += max(pool.live_bytes - sum(size for _, _, size in pool.libraries), 0)

    def _take_counts(self, now: float, pools: list[PoolTold]) -> None:
        counts = {
            Kind.ALLOCATE: sum(pool.allocations for pool in pools),
            Kind.FREE: sum(pool.deallocations for pool in pools),
            Kind.DRIVER: sum(pool.driver_calls for pool in pools),
            Kind.PAUSE: sum(pool.pauses for pool in pools),
        }
        self._counts.append((now, counts))
        while len(self._counts) > 2 and self._counts[1][0] <= now - _SECONDS_FOR_RATES:
            self._counts.popleft()

    def rate(self, kind: Kind, now_ns: int) -> float:
        del now_ns  # the last answer is of now
        if len(self._counts) < 2:
            return 0.0
        (begin, before), (end, after) = self._counts[0], self._counts[-1]
        # Less: a pool has ended, and its counts with it.
        return max(after[kind] - before[kind], 0) / max(end - begin, 1e-3)


def _capacity(pools: list[PoolTold]) -> int:
    """Bytes that all pools may map: of each device no more than it has. 0: not known."""
    devices = {pool.device: pool.device_bytes for pool in pools}
    limits = dict.fromkeys(devices, 0)
    for pool in pools:
        limits[pool.device] += pool.device_bytes if pool.capacity is None else pool.capacity
    return sum(min(limit, devices[device]) if devices[device] else limit for device, limit in limits.items())


class Asked:
    """A process that answers; `told` is its first answer."""

    def __init__(self, pid: int, told: Told) -> None:
        self.name = ""
        self.figures = FiguresTold()
        self.recording = Recording()
        self._pid = pid
        self._first: Told | None = told

    def catch_up(self, seconds: float | None) -> None:
        """Raises NoAnswer if only one picture is asked for and there is no second answer."""
        told, self._first = self._first or self._asked(must=seconds is None), None
        if told is None:
            return
        self._take(told)
        if seconds is None:
            time.sleep(_ONCE)  # for the rates
            if again := self._asked(must=True):
                self._take(again)

    def _asked(self, *, must: bool) -> Told | None:
        """None: no answer now."""
        try:
            told = ask(self._pid)
        except NoAnswer:
            if must and is_running(self._pid):
                raise
            told = None
        if told is None:
            self.figures.state = "no answer"
        return told

    def _take(self, told: Told) -> None:
        self.figures.take(told)
        pools = told.pools
        if not pools and told.busy and self.recording.header:
            return
        devices = {pool.device: pool.device_name for pool in pools}
        name = next(iter(devices.values()), "no pool") if len(devices) < 2 else f"{len(devices)} devices"
        self.recording.header = {"pid": self._pid, "device_name": name, "capacity": _capacity(pools)}
        self.recording.tags = {tag: name for pool in pools for tag, name, _ in pool.tags if name}
        self.recording.tags[_OTHER_TAGS] = "(other tags)"
        self.recording.libraries = {tag: name for pool in pools for tag, name, _ in pool.libraries}

    def has_ended(self) -> bool:
        if is_running(self._pid):
            return False
        self.recording.end = {}
        return True

    def close(self) -> None:
        pass
