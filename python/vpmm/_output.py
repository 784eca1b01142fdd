# SPDX-License-Identifier: Apache-2.0
# vpmm: where the package writes files that its user named.

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

Write = Callable[[IO[bytes]], object]
# Files behind these names belong to the system; a shell's redirection is one of them, as /dev/stdout.
_OF_THE_SYSTEM = ("/dev/", "/proc/")


def save(path: str | os.PathLike[str], write: Write) -> int | None:
    """Lets `write` fill the file, and returns its size in bytes; None for anything but a regular file.

    A regular file is replaced when the new content is whole, and keeps its mode, owner, symbolic and hard links.
    Pipes, terminals and devices are written to; `-` is standard output. Raises OSError, also for a folder; a regular
    file then has its old content.
    """
    name = os.fspath(path)
    if name == "-":
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return None
    try:
        old = os.stat(name)
    except FileNotFoundError:
        return _replace(name, write, None)
    if stat.S_ISREG(old.st_mode) and not os.path.abspath(name).startswith(_OF_THE_SYSTEM):
        return _replace(name, write, old)
    with open(name, "wb") as file:  # a folder is an error here
        write(file)
    return None


def _replace(name: str, write: Write, old: os.stat_result | None) -> int:
    if old is not None:
        os.close(os.open(name, os.O_WRONLY | os.O_CLOEXEC))  # a file that may not be written stays as it is
    target = Path(os.path.realpath(name))
    # One with several names stays one, and one in a folder that takes no files is written in place.
    in_place = old is not None and (old.st_nlink > 1 or not os.access(target.parent, os.W_OK))
    part = (Path(tempfile.gettempdir()) if in_place else target.parent) / f".{target.name[:80]}-{secrets.token_hex(8)}"
    mode = 0o666 if old is None else 0o600  # a new file has what the umask leaves of it
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            size = os.fstat(descriptor).st_size
            if old is not None and not in_place:
                _take_over(descriptor, old)
        if in_place:
            with open(part, "rb") as whole, open(target, "wb") as file:
                shutil.copyfileobj(whole, file)
        else:
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return size


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """The mode, and the owner where the system allows it, of the file that is replaced."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
