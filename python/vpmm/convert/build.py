# vpmm: what every reader of a foreign format does: numbers streams, stacks, tags and texts, and collects events.

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import TypeVar

from vpmm.recordings import Event, Frame, Kind, Recording

_Key = TypeVar("_Key", bound=Hashable)


class _Table(dict[_Key, int]):
    """Numbers for what it is asked for, in order of appearance."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def __missing__(self, key: _Key) -> int:
        number = self[key] = self._first + len(self)
        return number

    def by_number(self) -> dict[int, _Key]:
        return {number: key for key, number in self.items()}


class Builder:
    """Makes a recording. Numbers of streams and threads begin with 0, those of texts, stacks and tags with 1."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._events: list[Event] = []
        self._strings: _Table[str] = _Table(1)
        self._stacks: _Table[tuple[Frame, ...]] = _Table(1)
        self._tags: _Table[str] = _Table(1)
        self._streams: _Table[str] = _Table(0)
        self._threads: _Table[str] = _Table(0)

    def string(self, text: str) -> int:
        return self._strings[text]

    def stack(self, frames: tuple[Frame, ...]) -> int:
        return self._stacks[frames] if frames else 0

    def stream(self, handle: int) -> int:
        return self._streams[hex(handle) if handle else "0"]

    def thread(self, name: str) -> int:
        return self._threads[name]

    def tag(self, label: object) -> int:
        """Of a text, or of what else a program hung on an allocation; None and what is empty: no tag."""
        if not label:
            return 0
        return self._tags[label if isinstance(label, str) else json.dumps(label, default=str, sort_keys=True)]

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
        """Appends an event and returns it, for what else is to be set."""
        event = Event(kind=kind, time_ns=time_ns, address=address, bytes=bytes, value=value)
        event.stream, event.stack, event.device = stream, stack, device
        self._events.append(event)
        return event

    def finished(self, header: dict[str, object], warning: str = "") -> Recording:
        return Recording(
            header={"version": "", "source": self._source, "device": 0, "sample": 1} | header,
            events=self._events,
            strings=self._strings.by_number(),
            stacks=self._stacks.by_number(),
            tags=self._tags.by_number(),
            streams=self._streams.by_number(),
            threads=self._threads.by_number(),
            end={"lost": 0, "ended": "stopped"},
            warning=warning,
        )
