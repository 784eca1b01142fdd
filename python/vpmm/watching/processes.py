# SPDX-License-Identifier: Apache-2.0
# vpmm: finds processes that use VPMM, and the recordings that they write.

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from vpmm.errors import Error
from vpmm.recordings.binary import MAGIC, is_binary

_DELETED = " (deleted)"
_LIBRARY = re.compile(r"/(?:libvpmm\.so|_vpmm\.)[^/\n]*$", re.MULTILINE)


class NotRecorded(Error):  # noqa: N818  says what it is
    """The process has no recording, or it cannot be inspected; the text says what to do."""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def users() -> list[int]:
    """Processes of this user that have loaded libvpmm, but this one. A program that holds it as a static library is
    not found."""
    found = []
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            is_ours = entry.stat().st_uid == os.geteuid() and int(entry.name) != os.getpid()
            if is_ours and _LIBRARY.search((entry / "maps").read_text(errors="replace")):
                found.append(int(entry.name))
        except OSError:  # the process has ended, or may not be inspected
            continue
    return found


def command_of(pid: int) -> str:
    """Program and arguments; empty: the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def recordings_of(pid: int) -> list[str]:
    """Paths of the recordings that the process writes. Raises NotRecorded if it cannot be inspected."""
    try:
        handles = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda each: int(each.name))
    except PermissionError:
        raise NotRecorded(f"process {pid} belongs to somebody else: name its recording with --file") from None
    except OSError:
        raise NotRecorded(f"there is no process {pid}") from None
    found = []
    for handle in handles:
        path = _path_of(handle)
        if path is not None and path not in found:
            found.append(path)
    return found


def _path_of(handle: Path) -> str | None:
    """Of a recording, None: the handle is something else, or closed by now."""
    try:
        if not handle.is_file() or not _is_for_writing(handle):
            return None
        with handle.open("rb") as file:
            if not is_binary(file.read(len(MAGIC))):
                return None
        target = str(handle.readlink())
        status = handle.stat()
    except OSError:
        return None
    return _named(target, status) or str(handle)


def _named(target: str, status: os.stat_result) -> str | None:
    """The name of an open file, if it means that file here too, or the one that replaced it. In another mount namespace
    it may be anything."""
    try:
        if target.endswith(_DELETED):
            named = target.removesuffix(_DELETED)
            return named if stat.S_ISREG(os.stat(named).st_mode) else None
        return target if os.path.samestat(os.stat(target), status) else None
    except OSError:
        return None


def _is_for_writing(handle: Path) -> bool:
    """Tells the recorder from a program that reads the file, such as `vpmm top`."""
    flags = re.search(r"^flags:\s*([0-7]+)", (handle.parents[1] / "fdinfo" / handle.name).read_text(), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def recording_of(pid: int) -> str:
    """Path of the recording that a process writes; of several, which are one for each pool, the largest.

    Raises NotRecorded, with what to do, where there is none."""
    found = recordings_of(pid)
    if not found:
        raise NotRecorded(
            f"process {pid} is not being recorded: start it with VPMM_RECORD=run.vpmm in its environment. "
            "It does not tell its figures either: it has opened no pool, or has VPMM_TOP=0 or another VPMM_IPC_DIR"
        )
    return max(found, key=lambda each: Path(each).stat().st_size if Path(each).exists() else 0)
