# SPDX-License-Identifier: Apache-2.0
# vpmm: Nsight Systems' table of memory, from `nsys export --type sqlite` of a profile with --cuda-memory-usage=true.

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from vpmm.convert.build import Builder
from vpmm.recordings import BadFile, Kind, Recording

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_NEEDED = ("start", "address", "bytes", "memKind", "memoryOperationType")
_OPTIONAL = ("globalPid", "deviceId", "streamId")
_ON_DEVICE = (2, 3)  # device memory and arrays; other kinds are host or managed memory or part of a program
_KINDS = {0: Kind.ALLOCATE, 1: Kind.FREE}
_Row = tuple[int, int, int, int, int, int, int, int]


def read(path: Path) -> Recording:
    """The device memory of the process with the most calls. Raises BadFile that names the file and the row."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = list(_rows(connection, path))
    except (sqlite3.Error, UnicodeError) as error:  # its messages may not be valid text
        raise BadFile(str(path), None, str(error)) from None
    except MemoryError:  # a damaged length, mostly
        raise BadFile(str(path), None, "reading it takes more memory than there is") from None
    return _recording(rows, path)


def _rows(connection: sqlite3.Connection, path: Path) -> Iterator[_Row]:
    # A view could run forever.
    found = connection.execute("select type from sqlite_master where name = ?", (TABLE,)).fetchone()
    if found != ("table",):
        raise BadFile(str(path), None, _no_table(connection))
    there = {row[1] for row in connection.execute(f"pragma table_info({TABLE})")}
    for name in _NEEDED:
        if name not in there:
            raise BadFile(str(path), None, f"{TABLE} has no column {name}")
    columns = [*_NEEDED, *(name if name in there else "null" for name in _OPTIONAL)]
    query = f"select rowid, {', '.join(columns)} from {TABLE} order by start, rowid"
    for row in connection.execute(query):
        numbers = tuple(0 if value is None else value for value in row[1:])
        if not all(type(value) is int for value in numbers):
            raise BadFile(str(path), None, f"{TABLE}, row {row[0]}: a column holds no number")
        if numbers[3] in _ON_DEVICE:
            yield numbers  # type: ignore[misc]  # eight of them


def _no_table(connection: sqlite3.Connection) -> str:
    names = [str(row[0]) for row in connection.execute("select name from sqlite_master where type = 'table' limit 4")]
    if not names or any(name.isupper() for name in names):  # as all of Nsight Systems
        return f"there is no table {TABLE}: profile with nsys profile --cuda-memory-usage=true"
    held = ", ".join(name[:40] for name in names)
    return f"an SQLite database with the tables {held}: no export of Nsight Systems, which has {TABLE}"


def _recording(rows: list[_Row], path: Path) -> Recording:
    build = Builder("nsight-systems")
    calls = Counter(row[5] for row in rows)
    process = calls.most_common(1)[0][0] if calls else 0
    begin = rows[0][0] if rows else 0
    for start, address, size, _, operation, pid, device, stream in rows:
        if pid != process:
            continue
        if operation not in _KINDS:
            raise BadFile(str(path), None, f"{TABLE}: {operation} is no operation: 0 allocates, 1 frees")
        event = build.add(_KINDS[operation], start - begin, address & (1 << 64) - 1, max(size, 0))
        event.stream, event.device = build.stream(max(stream, 0)), min(max(device, 0), 1023)
    others = sum(calls.values()) - calls[process]
    warning = f"{path} is of {len(calls)} processes: {others} calls of others are left out" if others else ""
    return build.finished({"pid": (process >> 24) & 0xFFFFFF}, warning)
