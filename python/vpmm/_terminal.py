# SPDX-License-Identifier: Apache-2.0
# vpmm: standard output that takes every text, whatever its encoding, and the width of its lines.

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys

from vpmm.units import printable

# What pictures are drawn with, where the encoding lacks it.
_INSTEAD = dict(zip("▁▂▃▄▅▆▇█…", "..:-=+*#.", strict=True))


_LEAST_COLUMNS = 40


def complain(message: str) -> None:
    """Writes it to standard error. Names and contents of files in it may hold commands to the terminal."""
    print("\n".join(printable(line) for line in f"vpmm: {message}".split("\n")), file=sys.stderr)


def columns(without: int) -> int:
    """Columns of standard output: COLUMNS, else the terminal's; `without` for a file or a pipe."""
    return max(shutil.get_terminal_size((without, 24)).columns, _LEAST_COLUMNS)


def _fall_back(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_INSTEAD.get(letter, "?") for letter in lost), error.end


def prepare() -> None:
    """Makes standard output and error accept all characters: those without a code become ASCII. A closed one is the
    null device."""
    codecs.register_error("vpmm", _fall_back)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for the life of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="vpmm")
