# SPDX-License-Identifier: Apache-2.0
# vpmm: the part of a recording between two moments, with the live and mapped memory at its beginning.

from __future__ import annotations

import re
from dataclasses import replace

from vpmm.convert.ranges import Ranges
from vpmm.recordings import Event, Kind, Recording

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|min)")


def moment(recording: Recording, text: str) -> int:
    """Nanoseconds since the recording began, of a time such as 1.5s or 300ms, or of the first mark of that name.

    Raises ValueError that names the text and some marks that there are.
    """
    marks: dict[str, int] = {}
    for event in recording.events:
        if event.kind == Kind.MARK:
            marks.setdefault(recording.strings.get(event.value, ""), event.time_ns)
    if text in marks:
        return marks[text]
    time = _TIME.fullmatch(text)
    if time:
        return round(float(time[1]) * _UNITS[time[2]])
    known = ", ".join(f"`{each}`" for each in list(marks)[:5]) or "the recording has none"
    raise ValueError(f"`{text}` is neither a time such as 1.5s or 300ms nor a mark: {known}")


def cut(recording: Recording, after_ns: int, before_ns: int | None) -> Recording:
    """The events from `after_ns` to before `before_ns`, preceded by the live and mapped memory at that time."""
    beginning = _Beginning()
    kept: list[Event] = []
    for event in recording.events:
        if event.time_ns < after_ns:
            beginning.see(event)
        elif before_ns is None or event.time_ns < before_ns:
            kept.append(replace(event, time_ns=event.time_ns - after_ns))
    header = dict(recording.header)
    started = header.get("started_unix_ns")
    if isinstance(started, int):
        header["started_unix_ns"] = started + after_ns
    header["is_window"] = bool(header.get("is_window")) or after_ns > 0
    return replace(recording, header=header, events=beginning.events() + kept)


class _Beginning:
    def __init__(self) -> None:
        self.live: dict[tuple[int, int], Event] = {}
        self.mapped: dict[int, Ranges] = {}

    def see(self, event: Event) -> None:
        if event.kind in (Kind.ALLOCATE, Kind.LIVE):
            self.live[event.device, event.address] = event
        elif event.kind == Kind.FREE:
            self.live.pop((event.device, event.address), None)
        elif event.kind == Kind.MAP:
            self.ranges(event).add(event.address, event.address + event.bytes, event.stream)
        elif event.kind == Kind.UNMAP:
            self.ranges(event).remove(event.address, event.address + event.bytes)

    def ranges(self, event: Event) -> Ranges:
        return self.mapped.setdefault(event.device, Ranges())

    def events(self) -> list[Event]:
        mapped = [
            Event(
                kind=Kind.MAP,
                address=each.begin,
                bytes=each.end - each.begin,
                value=1,
                stream=each.stream,
                device=device,
            )
            for device, ranges in self.mapped.items()
            for each in ranges
        ]
        return mapped + [replace(event, kind=Kind.LIVE, time_ns=0) for event in self.live.values()]
