# SPDX-License-Identifier: Apache-2.0
# vpmm: recordings from and to the formats of PyTorch, RMM, Nsight Systems and Perfetto.

from __future__ import annotations

import io
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import IO, NoReturn

from vpmm import recordings
from vpmm._output import save as save_file
from vpmm.convert import memory_viz, nsight, perfetto, rmm, torch_snapshot
from vpmm.recordings import BadFile, Recording
from vpmm.recordings.lines import BYTE_ORDER_MARK

__all__ = ["INPUTS", "OUTPUTS", "format_for", "load", "of_device", "save"]

INPUTS = ("torch", "rmm", "nsight", "csv", "vpmm")
OUTPUTS = ("memory_viz", "perfetto", "rmm", "csv", "vpmm")
# Limit of one file, decompressed. Its Python objects are many times as large.
MOST_BYTES = 2 << 30

_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"
_PICKLE = b"\x80"
_SUFFIXES = {
    ".pickle": "memory_viz",
    ".pkl": "memory_viz",
    ".perfetto-trace": "perfetto",
    ".pftrace": "perfetto",
    ".pb": "perfetto",
    ".rmm.csv": "rmm",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".vpmm": "vpmm",
}
# These formats have no devices.
_OF_ONE_DEVICE = ("rmm", "csv")


def load(path: str | Path, format: str | None = None, *, with_stacks: bool = True) -> Recording:
    """Reads a file of any format in INPUTS; None: by its content. `-`: a recording from standard input.

    with_stacks False: leaves out the call stacks of a snapshot, which takes less time.

    What is no regular file, as a pipe, is read once, and so by its content it can only be a recording.

    Raises BadFile, which names the file and the offset, line or member that is wrong, and OSError.
    """
    if format not in (None, *INPUTS):
        raise ValueError(f"`{format}` is no format to read: {', '.join(INPUTS)}")
    if str(path) == "-":
        if format not in (None, "csv", "vpmm"):
            raise ValueError(f"only recordings go through standard input; give the {format} file by its name")
        return recordings.read("-")
    path = Path(path)
    format = format or _format_of(path)
    if format == "torch":
        content, is_cut = _content(path)
        if is_cut:
            raise BadFile(str(path), path.stat().st_size, "the compressed file is cut")
        return torch_snapshot.read(content, str(path), with_stacks=with_stacks)
    if format == "rmm":
        content, is_cut = _content(path)
        return rmm.read(content, str(path), is_cut=is_cut)
    if format == "nsight":
        return nsight.read(path)
    return recordings.read(str(path))


def save(recording: Recording, path: str | Path, format: str | None = None) -> list[str]:
    """Writes a file of a format in OUTPUTS; None: by the ending of its name. Returns warnings, a sentence each.

    A regular file is there when it is whole, and keeps its mode and links; pipes and devices are written to, and `-` is
    standard output.
    """
    path = Path(path)
    format = format or format_for(path)
    warnings = []
    devices = Counter(event.device for event in recording.events)
    if format in _OF_ONE_DEVICE and len(devices) > 1:
        device = devices.most_common(1)[0][0]
        recording = of_device(recording, device)
        warnings.append(f"{format} knows no devices: only device {device} of {len(devices)} is written")
    size = save_file(path, lambda file: _write(recording, file, path, format))
    if format == "memory_viz" and size is not None and size > memory_viz.MUCH:
        warnings.append(
            f"{path} has {size >> 20} MiB: browsers give up above {memory_viz.MUCH >> 20}; --after and --before cut it"
        )
    return warnings


def _write(recording: Recording, file: IO[bytes], path: Path, format: str) -> None:
    if format == "memory_viz":
        memory_viz.write(recording, file)
    elif format == "perfetto":
        perfetto.write(recording, file)
    elif format == "rmm":
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        rmm.write(recording, text)
        text.detach()
    else:
        file.write(recordings.encode(recording, path, format))


def format_for(path: Path) -> str:
    """The format from a file's name; without an ending a recording. Raises ValueError, which names the known endings,
    for another one."""
    name = path.name.lower()
    for suffix, format in _SUFFIXES.items():
        if name.endswith(suffix):
            return format
    if not path.suffix:
        return "vpmm"
    known = ", ".join(_SUFFIXES)
    more = "; `vpmm report` writes HTML" if path.suffix == ".html" else ""
    raise ValueError(f"{path}: no format has the ending {path.suffix}, but {known}; --to names the format{more}")


def of_device(recording: Recording, device: int) -> Recording:
    """The recording without events of other devices. Raises ValueError, which names the devices, for an absent one."""
    known = sorted({event.device for event in recording.events})
    if device not in known:
        raise ValueError(
            f"device {device} is not in this recording: {', '.join(map(str, known)) or 'it has no events'}"
        )
    events = [event for event in recording.events if event.device == device]
    return replace(recording, events=events, header=recording.header | {"device": device})


def _format_of(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a pipe to detect its format would consume it
        return "vpmm"
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, 4096)
        except zlib.error:  # the reader reports the error
            return "vpmm"
    if head.startswith(_SQLITE):
        return "nsight"
    if head.startswith(_PICKLE):
        return "torch"
    if rmm.is_log(head.removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0].decode("utf-8", "replace")):
        return "rmm"
    return "vpmm"


def _content(path: Path) -> tuple[bytes, bool]:
    """What is in a file, decompressed, and whether its compressed data is cut."""
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            file.seek(0)
            data = file.read(MOST_BYTES + 1)
            return (data, False) if len(data) <= MOST_BYTES else _too_much(path)
        file.seek(0)
        inflate, parts, length, offset = zlib.decompressobj(31), [], 0, 0
        for block in iter(lambda: file.read(1 << 20), b""):
            try:
                parts.append(inflate.decompress(block, MOST_BYTES + 1 - length))
            except zlib.error as error:
                raise BadFile(str(path), offset, str(error)) from None
            length += len(parts[-1])
            offset += len(block)
            if length > MOST_BYTES:
                _too_much(path)
        return b"".join(parts), not inflate.eof


def _too_much(path: Path) -> NoReturn:
    raise BadFile(str(path), MOST_BYTES, f"longer than {MOST_BYTES >> 30} GiB")
