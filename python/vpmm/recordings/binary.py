# SPDX-License-Identifier: Apache-2.0
# vpmm: the binary format of recordings: blocks of zstd with events of 64 bytes; see docs/reference/recording.md.

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from vpmm import _vpmm
from vpmm.errors import Error
from vpmm.recordings.model import WITH_TEXT, BadFile, Event, Frame, Kind, Recording, most_inflated, too_long

MAGIC = b"VPMMREC\x01"
_BLOCK = struct.Struct("<4sIIII")  # magic, kind, bytes stored, bytes when decompressed, CRC-32 of the stored bytes
_BLOCK_MAGIC = b"VPRB"
_HEADER, _DEFINITIONS, _EVENTS, _END = 1, 2, 3, 4
_MOST_BYTES = 16 << 20  # of a block
_EVENT = struct.Struct("<QQQQIIIIQHHI")
_NO_STREAM = 0xFFFFFFFF
_EVENTS_PER_BLOCK = 1 << 16
_KINDS = {int(kind): kind for kind in Kind}


def is_binary(data: bytes) -> bool:
    return data.startswith(MAGIC[:7])


# --- reading --------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.begin = 0  # offset of the data in the file
        self.at = 0  # offset of the current block in the data
        self.inflated = 0  # bytes of all blocks before it
        self.is_first = True
        self.recording = Recording()
        self.time_ns = 0

    def bad(self, reason: str) -> BadFile:
        return BadFile(self.name, self.begin + self.at, reason)

    def read(self) -> Recording:
        self.take_magic()
        self.take_blocks()
        if self.is_first:
            raise self.bad("the file ends before its header")
        if self.recording.end is None:
            self.recording.warning = (
                f"{self.name}: the program that was recorded did not finish it: what is missing after byte {self.at} "
                "was not written"
            )
        return self.recording

    def take_magic(self) -> None:
        if self.data[7:8] != MAGIC[7:]:
            raise BadFile(self.name, 7, "a version of the format that is not known")
        self.at = len(MAGIC)

    def take_blocks(self) -> None:
        """Reads all complete blocks."""
        while self.at < len(self.data):
            size = self.block(is_first=self.is_first)
            if size is None:
                break
            self.is_first = False
            self.at += size

    def block(self, *, is_first: bool) -> int | None:
        """Reads a block; returns its size in the file, or None if it is cut."""
        if self.recording.end is not None:
            raise self.bad("there is something behind the end")
        left = len(self.data) - self.at
        if left < _BLOCK.size:
            return None
        magic, kind, stored, raw, crc = _BLOCK.unpack_from(self.data, self.at)
        if magic != _BLOCK_MAGIC:
            raise self.bad("no block begins here")
        if raw > _MOST_BYTES or stored > _MOST_BYTES:
            raise self.bad(f"a block of {max(raw, stored)} bytes is more than any has")
        if (kind == _HEADER) != is_first or kind > _END or kind == 0:
            raise self.bad(f"a block of kind {kind} is not expected")
        if left < _BLOCK.size + stored:
            return None
        content = self.data[self.at + _BLOCK.size : self.at + _BLOCK.size + stored]
        if zlib.crc32(content) != crc:
            raise self.bad("the block's checksum is wrong")
        self.inflated += raw
        if self.inflated > most_inflated(self.begin + len(self.data)):
            raise too_long(self.name, self.begin + self.at, self.begin + len(self.data))
        self.take(kind, self.decompressed(content, raw))
        return _BLOCK.size + int(stored)

    def decompressed(self, content: bytes, raw: int) -> bytes:
        try:
            return _vpmm.decompress(content, raw)
        except Error as error:
            raise self.bad(str(error)) from None

    def take(self, kind: int, content: bytes) -> None:
        if kind == _EVENTS:
            self.take_events(content)
        elif kind == _DEFINITIONS:
            self.take_definitions(self.json_object(content))
        elif kind == _HEADER:
            self.recording.header = self.json_object(content)
        else:
            self.recording.end = self.json_object(content)

    def json_object(self, content: bytes) -> dict[str, object]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise self.bad("the block is no JSON") from None
        if not isinstance(found, dict):
            raise self.bad("the block is no JSON object")
        return found

    # --- tables ---

    def take_definitions(self, tables: dict[str, object]) -> None:
        recording = self.recording
        texts: dict[str, dict[int, str]] = {
            "strings": recording.strings,
            "tags": recording.tags,
            "libraries": recording.libraries,
            "streams": recording.streams,
            "threads": recording.threads,
        }
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise self.bad(f"{name} is no table")
            if name == "stacks":
                self.add(recording.stacks, table, self.stack)
            elif name in texts:
                self.add(texts[name], table, self.text)

    def add(self, known: dict[int, Any], table: dict[str, object], read: Callable[[object], object]) -> None:
        for key, value in table.items():
            if not key.isascii() or not key.isdigit() or len(key) > 20:
                raise self.bad(f"{key[:40]!r} is no number of a definition")
            known[int(key)] = read(value)

    def text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.bad("a definition is no text")
        return value

    def stack(self, value: object) -> tuple[Frame, ...]:
        if not isinstance(value, list):
            raise self.bad("a stack is no list")
        return tuple(self.frame(each) for each in value)

    def frame(self, value: object) -> Frame:
        match value:
            case [str() as file, int() as line, str() as function]:
                return Frame(file, line, function)
        raise self.bad("a frame is not file, line and function")

    # --- events ---

    def take_events(self, content: bytes) -> None:
        if len(content) % _EVENT.size != 0:
            raise self.bad("the block is no whole number of events")
        add = self.recording.events.append
        last = self.time_ns
        stacks, strings = self.recording.stacks, self.recording.strings
        for fields in _EVENT.iter_unpack(content):
            time_ns, address, size, value, stream, thread, tag, stack, arena, number, flags, device = fields
            kind = _KINDS.get(number)
            if kind is None:
                raise self.bad(f"there is no kind of event {number}")
            if time_ns < last:
                raise self.bad(f"time goes backwards, from {last} to {time_ns} ns")
            if stack and stack not in stacks:
                raise self.bad(f"stack {stack} is not defined")
            if kind in WITH_TEXT and value and value not in strings:
                raise self.bad(f"string {value} is not defined")
            last = time_ns
            named = None if stream == _NO_STREAM else stream
            add(Event(kind, time_ns, address, size, value, named, thread, tag, stack, arena, flags, device))
        self.time_ns = last


def decode(data: bytes, name: str) -> Recording:
    return _Reader(data, name).read()


class GrowingFile:
    """Reads a recording piece by piece, while its program writes it."""

    def __init__(self, name: str) -> None:
        self._reader = _Reader(b"", name)
        self.recording = self._reader.recording  # without the events, which `take` returns

    def take(self, more: bytes) -> list[Event]:
        """The events that `more` completes. Raises BadFile."""
        reader = self._reader
        reader.data, reader.begin, reader.at = reader.data[reader.at :] + more, reader.begin + reader.at, 0
        if reader.begin == 0:
            if len(reader.data) < len(MAGIC):
                return []
            if not is_binary(reader.data):
                raise reader.bad("no recording in the binary format")
            reader.take_magic()
        reader.take_blocks()
        events = self.recording.events
        self.recording.events = []
        return events


# --- writing --------------------------------------------------------------------------------------------------------


def _packed(events: Iterable[Event]) -> bytes:
    return b"".join(
        _EVENT.pack(
            each.time_ns,
            each.address,
            each.bytes,
            each.value,
            _NO_STREAM if each.stream is None else each.stream,
            each.thread,
            each.tag,
            each.stack,
            each.arena,
            each.kind,
            each.flags,
            each.device,
        )
        for each in events
    )


def _definitions(recording: Recording) -> Iterable[dict[str, object]]:
    """Writes events in blocks, whose size is limited."""
    tables: dict[str, dict[int, Any]] = {
        "strings": recording.strings,
        "stacks": recording.stacks,
        "tags": recording.tags,
        "libraries": recording.libraries,
        "streams": recording.streams,
        "threads": recording.threads,
    }
    for name, table in tables.items():
        part: dict[str, object] = {}
        size = 0
        for number, value in table.items():
            length = len(json.dumps(value)) + 16
            if part and size + length > _MOST_BYTES // 2:
                yield {name: part}
                part, size = {}, 0
            part[str(number)] = value
            size += length
        if part:
            yield {name: part}


def encode(recording: Recording) -> bytes:
    """Raises ValueError if a field is out of range."""
    parts = [MAGIC]

    def block(kind: int, raw: bytes) -> None:
        stored = _vpmm.compress(raw)
        parts.append(_BLOCK.pack(_BLOCK_MAGIC, kind, len(stored), len(raw), zlib.crc32(stored)) + stored)

    def as_json(value: object) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    block(_HEADER, as_json(recording.header))
    for tables in _definitions(recording):
        block(_DEFINITIONS, as_json(tables))
    for begin in range(0, len(recording.events), _EVENTS_PER_BLOCK):
        try:
            packed = _packed(recording.events[begin : begin + _EVENTS_PER_BLOCK])
        except struct.error as error:
            raise ValueError(f"a field of an event is beyond the binary format: {error}") from None
        block(_EVENTS, packed)
    if recording.end is not None:
        block(_END, as_json(recording.end))
    return b"".join(parts)
