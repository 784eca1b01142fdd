# SPDX-License-Identifier: Apache-2.0
# vpmm: a log of allocations and frees, with the columns of NBEP 7.

from __future__ import annotations

import atexit
import csv
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TextIO

from vpmm import _vpmm
from vpmm.errors import Error

__all__ = ["CsvLog"]

COLUMNS = (
    "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,"
    "Location"
).split(",")
_ROWS_KEPT = 1024
# The allocating line of the program is above the frames of these packages.
_LIBRARIES = ("vpmm", "numba", "numba_cuda", "cuda", "weakref")

_logs: list[CsvLog] = []


def _tell_all(event: str, device: int, address: int, stream: int, size: int, start: float, end: float) -> None:
    for log in tuple(_logs):
        log._note(event, device, address, stream, size, start, end)


def _location() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class CsvLog:
    """Logs allocations and frees made through the Python package until it is stopped; see vpmm.csv_log()."""

    def __init__(self, path_or_file: str | os.PathLike[str] | TextIO, locations: bool, memory: bool) -> None:
        if not isinstance(path_or_file, (str, os.PathLike)) and not hasattr(path_or_file, "write"):
            raise TypeError(f"path_or_file is {path_or_file!r}: must be a path, or a file that can be written to")
        self._owns_file = isinstance(path_or_file, (str, os.PathLike))
        if isinstance(path_or_file, (str, os.PathLike)):
            self._file: TextIO = open(path_or_file, "w", encoding="utf-8")  # noqa: SIM115  closed by stop()
        else:
            self._file = path_or_file
        self._locations = locations
        self._memory = memory
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._rows: deque[tuple[object, ...]] = deque()
        self._live = 0
        self._free_and_total: dict[int, tuple[int, int]] = {}
        self._begin = time.perf_counter()
        self._is_running = True
        self._process = os.getpid()  # a forked child inherits the rows; only the parent writes them
        self._writer.writerow(COLUMNS)
        self._file.flush()  # a forked child flushes what it inherits
        _logs.append(self)
        _vpmm.set_log(_tell_all)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the log and writes the remaining rows; closes a file that was named by path. A second call does nothing.

        A log that is not stopped is finished when the process exits.
        """
        if not self._is_running:
            return
        self._is_running = False
        atexit.unregister(self.stop)
        _logs.remove(self)
        if not _logs:
            _vpmm.set_log(None)
        self._write()
        if self._owns_file:
            self._file.close()

    def __enter__(self) -> CsvLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # A free comes from finalizers, which run inside any code, even inside this log's own write. So a free takes no
    # lock, makes no CUDA call and writes nothing; only an allocation does.
    def _note(self, event: str, device: int, address: int, stream: int, size: int, start: float, end: float) -> None:
        is_allocation = event == "Alloc"
        self._live += 1 if is_allocation else -1
        if is_allocation and self._memory:
            self._ask_for_memory(device)
        free, total = self._free_and_total.get(device, (0, 0))
        where = _location() if self._locations else ""
        times = (f"{start - self._begin:.6f}", f"{end - self._begin:.6f}", f"{end - start:.9f}")
        live = max(self._live, 0)  # memory allocated before the log began may be freed now
        self._rows.append((event, device, f"{address:#x}", stream, size, free, total, live, *times, where))
        if is_allocation and len(self._rows) >= _ROWS_KEPT and self._is_running:
            self._write()

    def _ask_for_memory(self, device: int) -> None:
        try:
            self._free_and_total[device] = _vpmm.Pool.default(device).memory_info()
        except Error:  # the log keeps the last known figures
            return

    def _write(self) -> None:
        if os.getpid() != self._process:
            return
        self._writer.writerows(self._taken())
        self._file.flush()

    def _taken(self) -> Iterator[tuple[object, ...]]:
        for _ in range(len(self._rows)):  # ignores rows that other threads add meanwhile, or this might not end
            try:
                yield self._rows.popleft()
            except IndexError:  # another thread is writing
                return
