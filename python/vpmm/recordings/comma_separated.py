# SPDX-License-Identifier: Apache-2.0
# vpmm: recordings as CSV, `op,id,bytes,stream,time_us`, gzip or plain. bench/traces/README.md has the format.

from __future__ import annotations

import gzip
import zlib

from vpmm.recordings.kinds import refusal
from vpmm.recordings.lines import BYTE_ORDER_MARK, lines_of
from vpmm.recordings.model import BadFile, Event, Kind, Numbers, Recording, most_inflated, too_long

_HEADER = "op,id,bytes,stream,time_us"
_COLUMNS = 5
_FIRST_BYTES = 4096
_MOST_STREAM = 0xFFFF_FFFE  # that a recording has room for
_GRAIN = 512
_FIRST_ADDRESS = 1 << 40
_MOST = 1 << 64
_LARGEST = 1 << 52  # sizes beyond are of no real memory: their addresses may overlap


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
        begin, self.next = self.next, self.next + min(rounded, _LARGEST)
        return begin

    def give_back(self, begin: int, size: int) -> None:
        rounded = max(-(-size // _GRAIN) * _GRAIN, _GRAIN)
        self.idle.setdefault(rounded, []).append(begin)


def _inflated(data: bytes, name: str) -> tuple[bytes, bool]:
    """The lines of a file, and whether its compressed data is cut. Without the header only the first bytes."""
    if not data.startswith(b"\x1f\x8b"):
        return data, False
    inflater = zlib.decompressobj(wbits=31)
    most = most_inflated(len(data))
    try:
        lines = inflater.decompress(data, _FIRST_BYTES)
        if len(lines) == _FIRST_BYTES:
            if not lines.removeprefix(BYTE_ORDER_MARK).startswith(_HEADER.encode()):
                return lines, False
            lines += inflater.decompress(inflater.unconsumed_tail, most)
    except zlib.error as error:
        raise BadFile(name, 0, f"the file cannot be decompressed: {error}") from None
    if len(lines) > most:
        raise too_long(name, 0, len(data))
    if inflater.unused_data:
        raise BadFile(name, len(data) - len(inflater.unused_data), "there is something behind the end")
    return lines, not inflater.eof


def _no_header(content: bytes) -> str:
    if content and _HEADER.encode().startswith(content):
        return f"the file is cut inside its first line, {_HEADER}"
    return refusal(content[:_FIRST_BYTES])


def decode(data: bytes, name: str) -> Recording:
    """Raises BadFile, which says what the file seems to be if it is none of these."""
    content, is_cut = _inflated(data, name)
    lines, warning = lines_of(content, name, is_cut=is_cut)
    if not lines or lines[0] != _HEADER:
        raise BadFile(name, 1, _no_header(content))
    recording = Recording(header={"source": "csv", "sample": 1}, warning=warning)
    recording.end = None if warning else {"lost": 0, "ended": "stopped"}
    live: dict[int, Event] = {}
    seen: set[int] = set()
    addresses = _Addresses()
    last_us = 0
    for number, line in enumerate(lines[1:], start=2):
        op, *fields = line.split(",")
        if op not in ("a", "f") or len(fields) != _COLUMNS - 1:
            raise BadFile(name, number, "not op,id,bytes,stream,time_us with op a or f")
        if not all(each.isascii() and each.isdigit() and len(each) <= 20 and int(each) < _MOST for each in fields):
            raise BadFile(name, number, "a column is no number")
        which, size, stream, time_us = map(int, fields)
        if time_us < last_us:
            raise BadFile(name, number, "time goes backwards")
        last_us = time_us
        last_ns = min(time_us * 1000, _MOST - 1)
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
    if max(recording.streams, default=0) > _MOST_STREAM:
        _number_streams(recording)
    return recording


def _number_streams(recording: Recording) -> None:
    """Handles become names, and streams are numbered in the order in which they first appear."""
    numbers: Numbers[int] = Numbers(0)
    for event in recording.events:
        if event.stream is not None:
            event.stream = numbers[event.stream]
    recording.streams = {number: hex(handle) if handle else "0" for number, handle in numbers.by_number().items()}


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
