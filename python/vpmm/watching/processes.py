# SPDX-License-Identifier: Apache-2.0
# vpmm: finds the recording that a process writes.

from __future__ import annotations

from pathlib import Path

from vpmm.errors import Error
from vpmm.recordings.binary import MAGIC, is_binary

_DELETED = " (deleted)"


class NotRecorded(Error):  # noqa: N818  says what it is
    """The process has no recording, or it cannot be inspected; the text says what to do."""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def recordings_of(pid: int) -> list[str]:
    """Paths of the recordings that the process has open. Raises NotRecorded if it cannot be inspected."""
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
        if not handle.is_file():
            return None
        with handle.open("rb") as file:
            if not is_binary(file.read(len(MAGIC))):
                return None
        target = str(handle.readlink())
    except OSError:
        return None
    if target.endswith(_DELETED) or not Path(target).exists():  # replaced, or in another mount namespace
        named = target.removesuffix(_DELETED)
        return named if Path(named).exists() else str(handle)
    return target


def recording_of(pid: int) -> str:
    """Path of the recording that a process writes; of several, which are one for each pool, the largest.

    Raises NotRecorded, with what to do, where there is none."""
    found = recordings_of(pid)
    if not found:
        raise NotRecorded(f"process {pid} is not being recorded: start it with VPMM_RECORD=run.vpmm in its environment")
    return max(found, key=lambda each: Path(each).stat().st_size if Path(each).exists() else 0)
