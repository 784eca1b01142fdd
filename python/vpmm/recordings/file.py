# SPDX-License-Identifier: Apache-2.0
# vpmm: reads and writes a recording in any format.

from __future__ import annotations

import os
import sys
from pathlib import Path

from vpmm._output import save
from vpmm.recordings import binary, comma_separated
from vpmm.recordings.model import Recording


def read(path: str | os.PathLike[str]) -> Recording:
    """Reads a recording, binary or CSV, by its content; `-` is standard input.

    A file that its program left unfinished is read as far as it goes, and `warning` says so. Raises BadFile for
    anything else unexpected, OSError where it cannot be read.
    """
    name = os.fspath(path)
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    name = "standard input" if name == "-" else name
    return binary.decode(data, name) if binary.is_binary(data) else comma_separated.decode(data, name)


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Writes a recording: CSV if the name ends with .csv or .csv.gz, else the binary format.

    CSV holds allocations and frees only. Raises OSError where the file cannot be written.
    """
    save(path, lambda file: file.write(encode(recording, path)))


def encode(recording: Recording, path: str | os.PathLike[str], format: str | None = None) -> bytes:
    """The content of a recording's file. format: "csv" or "vpmm"; None: by the ending of the name, which also says
    whether CSV is compressed."""
    name = os.fspath(path).lower()
    if format == "csv" or (format is None and name.endswith((".csv", ".csv.gz"))):
        return comma_separated.encode(recording, compressed=name.endswith(".gz"))
    return binary.encode(recording)
