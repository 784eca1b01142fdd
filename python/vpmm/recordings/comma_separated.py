# vpmm: recordings as CSV, `op,id,bytes,stream,time_us`, gzip or plain. bench/traces/README.md has the format.

from __future__ import annotations

import gzip
import zlib

from vpmm.recordings.model import BadFile, Event, Kind, Recording

_HEADER = "op,id,bytes,stream,time_us"
_COLUMNS = 5
_GRAIN = 512
_FIRST_ADDRESS = 1 << 40
_MOST = 1 << 64


class _Addresses:
    """CSV has no addresses, so each live allocation gets one; a freed address is reused for the same size."""

    def __init__(self) -> None:
        self.next = _FIRST_ADDRESS
        self.idle: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        rounded = max(-(-size // _GRAIN) * _GRAIN, _GRAIN)
        idle = self.idle.get(rounded)
        if idle:
            return idle.pop()
        begin, self.next = self.next, self.next + rounded
        return begin

    def give_back(self, begin: int, size: int) -> None:
        rounded = max(-(-size // _GRAIN) * _GRAIN, _GRAIN)
        self.idle.setdefault(rounded, []).append(begin)


def _inflated(data: bytes, name: str) -> tuple[str, bool]:
    """The text, and whether the compressed file is cut."""
    if not data.startswith(b"\x1f\x8b"):
        return _text(data, name), False
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(data)
    except zlib.error as error:
        raise BadFile(name, 0, f"the file cannot be decompressed: {error}") from None
    if inflater.eof:
        if inflater.unused_data:
            raise BadFile(name, len(data) - len(inflater.unused_data), "there is something behind the end")
        return _text(text, name), False
    return _text(text[: text.rfind(b"\n") + 1], name), True


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise BadFile(name, error.start, "neither a recording nor CSV") from None


def decode(data: bytes, name: str) -> Recording:
    text, is_cut = _inflated(data, name)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines or lines[0] != _HEADER:
        raise BadFile(name, 1, f"a recording in CSV begins with {_HEADER}")
    recording = Recording(
        header={"source": "csv", "sample": 1}, end=None if is_cut else {"lost": 0, "ended": "stopped"}
    )
    if is_cut:
        recording.warning = f"{name}: the file was cut after line {len(lines)}"
    live: dict[int, Event] = {}
    seen: set[int] = set()
    addresses = _Addresses()
    last_ns = 0
    for number, line in enumerate(lines[1:], start=2):
        op, *fields = line.split(",")
        if op not in ("a", "f") or len(fields) != _COLUMNS - 1:
            raise BadFile(name, number, "not op,id,bytes,stream,time_us with op a or f")
        if not all(each.isdigit() and int(each) < _MOST for each in fields):
            raise BadFile(name, number, "a column is no number")
        which, size, stream, time_us = map(int, fields)
        if time_us * 1000 < last_ns:
            raise BadFile(name, number, "time goes backwards")
        last_ns = time_us * 1000
        if op == "a":
            if which in seen:
                raise BadFile(name, number, f"allocation {which} is there twice")
            seen.add(which)
            event = Event(Kind.ALLOCATE, last_ns, addresses.take(size), size, stream=stream)
            live[which] = event
        else:
            begin = live.pop(which, None)
            if begin is None:
                raise BadFile(name, number, f"allocation {which} is freed and not live")
            addresses.give_back(begin.address, begin.bytes)
            event = Event(Kind.FREE, last_ns, begin.address, begin.bytes, stream=stream)
        recording.streams.setdefault(stream, str(stream))
        recording.events.append(event)
    return recording


def encode(recording: Recording, *, compressed: bool) -> bytes:
    """Leaves out everything without a column in CSV, and frees of memory that was not allocated in the recording."""
    named = [each.stream for each in recording.events if each.stream is not None]
    unnamed = max(named, default=-1) + 1
    ids: dict[tuple[int, int], int] = {}
    lines = [_HEADER]
    made = 0
    for event in recording.events:
        key = (event.device, event.address)
        stream = unnamed if event.stream is None else event.stream
        if event.kind in (Kind.ALLOCATE, Kind.LIVE):
            ids[key] = made
            lines.append(f"a,{made},{event.bytes},{stream},{event.time_ns // 1000}")
            made += 1
        elif event.kind is Kind.FREE and key in ids:
            lines.append(f"f,{ids.pop(key)},0,{stream},{event.time_ns // 1000}")
    text = ("\n".join(lines) + "\n").encode()
    return gzip.compress(text, mtime=0) if compressed else text
