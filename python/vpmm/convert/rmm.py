# SPDX-License-Identifier: Apache-2.0
# vpmm: RMM's log, `Thread,Time,Action,Pointer,Size,Stream`, its older columns, which NBEP 7 shows, and csv_log()'s.

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, NoReturn

from vpmm.convert.build import Builder
from vpmm.recordings import BadFile, Event, Kind, Recording
from vpmm.recordings.lines import lines_of

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
OLD_HEADER = "Event Type,Device ID,Address,Stream,Size (bytes),"
_OLD_COLUMNS = 9  # up to the time at which an event began
_KINDS = {"allocate": Kind.ALLOCATE, "free": Kind.FREE, "allocate failure": Kind.ALLOCATE_FAILED}
_OLD_KINDS = {"Alloc": Kind.ALLOCATE, "Free": Kind.FREE}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:[.:,](\d{1,9}))?")
_DAY_NS = 86_400 * 10**9
_LATEST_NS = 3_600 * 10**9  # that a thread writes its line after another's
_DEVICE_IN_NAME = re.compile(r"\.dev(\d{1,4})\.")


def is_log(first_line: str) -> bool:
    return first_line.strip() == HEADER or first_line.startswith(OLD_HEADER)


def read(data: bytes, name: str, *, is_cut: bool = False) -> Recording:
    """The recording in a log. is_cut: its compressed data ended early. Raises BadFile that names file and line."""
    lines, warning = lines_of(data, name, is_cut=is_cut)
    if data and not lines:
        raise BadFile(name, 1, "the file is cut inside its first line")
    return _Reading(name).read((line + "\n" for line in lines), warning)


class _Reading:
    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 1
        self.build = Builder("rmm")
        self.last_ns = 0
        self.begin_ns: int | None = None
        self.days_ns = 0
        device = _DEVICE_IN_NAME.search(Path(name).name)
        self.device = int(device[1]) if device else 0

    def fail(self, reason: str) -> NoReturn:
        raise BadFile(self.name, self.line, reason)

    def read(self, lines: Iterator[str], warning: str) -> Recording:
        header = next(lines, "").strip()
        if not is_log(header):
            self.fail(f"the columns are none of RMM's: {HEADER}")
        row_of = self.new_row if header == HEADER else self.old_row
        columns = header.count(",") + 1
        if header != HEADER and columns < _OLD_COLUMNS:
            self.fail(f"{columns} columns stand in the header, and times in column {_OLD_COLUMNS} of RMM's older logs")
        try:
            for row in csv.reader(lines, strict=True):
                self.line += 1
                if not row:
                    continue
                if len(row) != columns:
                    self.fail(f"{len(row)} columns stand where {columns} should")
                row_of(row)
        except csv.Error as error:
            self.line += 1
            self.fail(str(error))
        return self.build.finished({"device": self.device}, warning)

    def new_row(self, row: list[str]) -> None:
        thread, clock, action, pointer, size, stream = (each.strip() for each in row)
        if action not in _KINDS:
            self.fail(f"`{action[:40]}` is no action: allocate, free or allocate failure")
        kind = _KINDS[action]
        address = 0 if pointer in ("(nil)", "nil") else self.number(pointer, "pointer", 16)
        event = self.build.add(kind, self.time_of(clock), address, self.number(size, "size"), device=self.device)
        event.stream = self.build.stream(self.number(stream, "stream", 16 if stream.startswith("0x") else 10))
        event.thread = self.build.thread(thread)
        if kind == Kind.ALLOCATE_FAILED:
            event.address, event.value = 0, self.build.string("allocate failure")

    # In this format the size of a free is 0, and times are seconds since the log began.
    def old_row(self, row: list[str]) -> None:
        if row[0] not in _OLD_KINDS:
            self.fail(f"`{row[0][:40]}` is no event: Alloc or Free")
        try:
            seconds = float(row[8])
            time_ns = round(seconds * 1e9)
        except (ValueError, OverflowError):
            self.fail(f"`{row[8][:40]}` is no time")
        address, size = self.number(row[2], "address", 16), self.number(row[4], "size")
        event = self.build.add(_OLD_KINDS[row[0]], self.rising(time_ns), address, size)
        event.device = min(self.number(row[1], "device"), 1023)
        event.stream = self.build.stream(self.number(row[3], "stream", 16 if row[3].startswith("0x") else 10))

    def number(self, text: str, what: str, base: int = 10) -> int:
        try:
            number = int(text, base) if len(text) <= 20 else -1
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 64:
            self.fail(f"`{text[:40]}` is no {what}")
        return number

    # The clock has no date. A step of half a day backwards is midnight; a smaller one is a thread that wrote late. So
    # is, after midnight, a step of nearly a day forward.
    def time_of(self, clock: str) -> int:
        found = _CLOCK.fullmatch(clock)
        if not found:
            self.fail(f"`{clock[:40]}` is no time, as in 12:34:56.789012")
        hours, minutes, seconds = (int(each) for each in found.groups()[:3])
        time_ns = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int((found[4] or "0").ljust(9, "0"))
        if self.begin_ns is None:
            self.begin_ns = time_ns
        time_ns += self.days_ns - self.begin_ns
        if time_ns < self.last_ns - _DAY_NS // 2:
            self.days_ns += _DAY_NS
            time_ns += _DAY_NS
        elif time_ns > self.last_ns + _DAY_NS - _LATEST_NS:
            time_ns -= _DAY_NS
        return self.rising(time_ns)

    def rising(self, time_ns: int) -> int:
        self.last_ns = min(max(self.last_ns, time_ns), (1 << 64) - 1)
        return self.last_ns


def write(recording: Recording, file: IO[str]) -> None:
    """Writes a log that RMM's replay benchmark reads: only allocations, frees and failed requests.

    The benchmark reads Thread, Size and Stream as decimal numbers, and Pointer as a hexadecimal one or (nil).
    """
    began = datetime(1970, 1, 1) + timedelta(microseconds=_started_us(recording))  # UTC
    live: dict[int, int] = {}
    file.write(HEADER + "\n")
    for event in recording.events:
        action = _action(event, live)
        if action is None:
            continue
        clock = (began + timedelta(microseconds=event.time_ns // 1000)).strftime("%H:%M:%S.%f")
        handle = recording.stream_handle(event.stream)
        thread = _number_of(recording.threads.get(event.thread, ""), event.thread)
        pointer = f"{event.address:#x}" if event.address else "(nil)"
        size = live.pop(event.address) if action == "free" else event.bytes
        file.write(f"{thread},{clock},{action},{pointer},{size},{handle}\n")


# Of a thread that is called `name 7845` or `7845`; else its number in the recording.
def _number_of(thread: str, number: int) -> int:
    found = re.search(r"(?:^|\s)([0-9]{1,19})$", thread)
    return int(found[1]) if found else number


# Updates the live memory after each call, except for a free, whose size is needed first.
def _action(event: Event, live: dict[int, int]) -> str | None:
    if event.kind in (Kind.ALLOCATE, Kind.LIVE) and event.address:
        live[event.address] = event.bytes
        return "allocate"
    if event.kind == Kind.FREE and event.address in live:
        return "free"
    return "allocate failure" if event.kind == Kind.ALLOCATE_FAILED else None


def _started_us(recording: Recording) -> int:
    started = recording.header.get("started_unix_ns", 0)
    return started // 1000 if isinstance(started, int) and 0 <= started < 1 << 62 else 0
