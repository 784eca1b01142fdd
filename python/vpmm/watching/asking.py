# SPDX-License-Identifier: Apache-2.0
# vpmm: asks a running process for the figures of its pools, at the socket that it has for `vpmm top` (src/ipc).

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vpmm.errors import Error
from vpmm.units import printable

_VERSION = 1  # kTopVersion in src/ipc/top_answer.hpp
_MOST = 1 << 20  # bytes of an answer; processes send less
_MOST_NUMBER = (1 << 64) - 1
_MOST_VERSION = 40  # letters of a version that is shown
_PATIENCE = 2.0  # seconds for one process
_NAME = re.compile(r"top-([0-9]+)-[0-9a-f]+\.sock")


class NoAnswer(Error):  # noqa: N818  says what it is
    """The process has a socket, but its figures cannot be read; the text says why."""


class PoolTold(NamedTuple):
    """A pool of another process, in bytes and counts. `capacity` None: no limit; `device_bytes` 0: not known."""

    device: int
    device_name: str
    device_bytes: int
    capacity: int | None
    live_bytes: int
    peak_live_bytes: int
    mapped_bytes: int
    pending_bytes: int
    free_bytes: int
    suspended_bytes: int
    allocations: int
    deallocations: int
    failed_allocations: int
    driver_calls: int
    pauses: int
    tagged_bytes: int  # of all tags
    tags: list[tuple[int, str, int]]  # those that hold most: number, name or "", live bytes
    libraries: list[tuple[int, str, int]]  # likewise; earlier versions of VPMM tell none


class Told(NamedTuple):
    """The answer of a process. `busy` are the devices of pools without figures, whose locks were taken; `more` is the
    number of pools that the process does not tell of, since it has so many."""

    age_ns: int
    pools: list[PoolTold]
    busy: list[int]
    more: int = 0


def ask(pid: int, patience: float = _PATIENCE) -> Told | None:
    """The figures of all pools of a process; None: it has no socket.

    Raises NoAnswer if it does not answer within `patience` seconds, or if this version does not understand it."""
    until = time.monotonic() + patience
    # More than one, if several copies of the library are in the process.
    answers = [_read(pid, _receive(pid, talk, until)) for talk in _connections(pid, until)]
    if not answers:
        return None
    return Told(
        max(answer.age_ns for answer in answers),
        [pool for answer in answers for pool in answer.pools],
        [device for answer in answers for device in answer.busy],
        sum(answer.more for answer in answers),
    )


# --- sockets ---


def _folders(pid: int) -> list[Path]:
    """The process's own folder, as far as its environment is visible, and those of this process."""
    texts = [os.environ.get("VPMM_IPC_DIR", ""), f"/tmp/vpmm-{os.geteuid()}"]
    try:
        found = re.search(rb"(?:^|\0)VPMM_IPC_DIR=([^\0]+)", Path(f"/proc/{pid}/environ").read_bytes())
        texts.insert(0, os.fsdecode(found[1]) if found else "")
    except OSError:
        pass
    return [Path(text) for text in dict.fromkeys(texts) if text.startswith("/")]


def _is_own(folder: Path) -> bool:
    """Whether no other user can put a socket there."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it is gone by now, or closed to its owner, too
        return []


def _sockets(pid: int) -> tuple[list[str], list[str]]:
    """Those with the number of the process in their names, and all others: numbers differ between containers."""
    named: list[str] = []
    others: list[str] = []
    for folder in filter(_is_own, _folders(pid)):
        for name in _names_in(folder):
            if match := _NAME.fullmatch(name):
                (named if int(match[1]) == pid else others).append(str(folder / name))
    return named, others


def _connections(pid: int, until: float) -> Iterator[socket.socket]:
    """To the sockets at which the process listens. Raises NoAnswer if one takes no connection."""
    for paths in _sockets(pid):
        is_found = False
        for path in paths:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as talk:
                talk.settimeout(max(until - time.monotonic(), 0.01))
                if _connect(pid, talk, path, until) and _peer_of(talk) == (pid, os.geteuid()):
                    is_found = True
                    yield talk
        if is_found:  # in a container that shares the folder, another process has the same number
            return


def _connect(pid: int, talk: socket.socket, path: str, until: float) -> bool:
    while True:
        try:
            talk.connect(path)
        except BlockingIOError:  # too many connections wait to be accepted
            if time.monotonic() > until:
                raise _silent(pid) from None
            time.sleep(0.01)
        except OSError:  # the socket of an ended process
            return False
        else:
            return True


def _peer_of(talk: socket.socket) -> tuple[int, int]:
    """Process and user that listen at the other end."""
    pid, user, _ = struct.unpack("=iII", talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def _silent(pid: int) -> NoAnswer:
    return NoAnswer(f"process {pid} does not answer: it may be stopped")


def _receive(pid: int, talk: socket.socket, until: float) -> bytes:
    talk.settimeout(max(until - time.monotonic(), 0.01))
    try:
        answer = talk.recv(_MOST)
    except OSError:
        raise _silent(pid) from None
    if not answer:
        raise NoAnswer(f"process {pid} gives no answer: it may be out of host memory, or end")
    return answer


# --- the answer ---


def _read(pid: int, answer: bytes) -> Told:
    try:
        told = json.loads(answer)
        if told["vpmm_top"] == _VERSION:
            pools = told["pools"]
            return Told(
                _number(told["age_ns"]),
                [_pool(pool) for pool in pools if not pool["is_busy"]],
                [_number(pool["device"]) for pool in pools if pool["is_busy"]],
                _number(told.get("more_pools", 0)),  # earlier libraries do not have it
            )
        library = printable(str(told["library"])[:_MOST_VERSION])
    except (ValueError, TypeError, LookupError, RecursionError):  # the last: lists in lists in lists
        raise NoAnswer(f"the answer of process {pid} cannot be understood") from None
    from vpmm import __version__

    raise NoAnswer(
        f"process {pid} has version {library} of VPMM, whose answer version {__version__} does not understand: "
        "use the vpmm of that version"
    )


def _pool(told: dict[str, object]) -> PoolTold:
    """Ignores members that it does not know."""
    others = ("device_name", "capacity", "tags", "libraries")
    numbers = {name: _number(told[name]) for name in PoolTold._fields if name not in others}
    capacity = told["capacity"]
    return PoolTold(
        device_name=str(told["device_name"]),
        capacity=None if capacity is None else _number(capacity),
        tags=_tags(told["tags"]),
        libraries=_tags(told.get("libraries", [])),
        **numbers,
    )


def _tags(told: object) -> list[tuple[int, str, int]]:
    if not isinstance(told, list):
        raise TypeError("no list of tags")
    return [(_number(tag["tag"]), str(tag["name"]), _number(tag["live_bytes"])) for tag in told]


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST_NUMBER:
        raise TypeError("no number")
    return value
