# SPDX-License-Identifier: Apache-2.0
# vpmm: reads a growing recording; after a replacement, by a newer window or another run, it starts again.

from __future__ import annotations

import os
from typing import BinaryIO

from vpmm.recordings import Event, Recording
from vpmm.recordings.binary import GrowingFile

_PIECE = 4 << 20


class Follower:
    """`has_begun_anew` tells that the events of the last `poll` are those of another file from its beginning on.

    Raises OSError where the file cannot be read, BadFile where it is no recording in the binary format.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO
        self._growing: GrowingFile
        self.has_begun_anew = False
        self._open()

    def _open(self) -> None:
        self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115  kept open
        self._growing = GrowingFile(self._path)

    @property
    def recording(self) -> Recording:
        """Header, tables and end, as far as read; no events."""
        return self._growing.recording

    def poll(self) -> list[Event] | None:
        """Some of the data written since the last call, in pieces that are read quickly; None: no more."""
        self.has_begun_anew = False
        more = self._file.read(_PIECE)
        if not more and self._is_another_file():
            self.close()
            self._open()
            self.has_begun_anew = True
            more = self._file.read(_PIECE)
        return self._growing.take(more) if more else None

    def _is_another_file(self) -> bool:
        """Between two files of one name there may be none."""
        mine = os.fstat(self._file.fileno())
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return not os.path.samestat(mine, found) or found.st_size < self._file.tell()

    def close(self) -> None:
        self._file.close()
