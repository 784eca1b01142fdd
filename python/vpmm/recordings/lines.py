# SPDX-License-Identifier: Apache-2.0
# vpmm: the lines of text files: recordings in CSV and the logs of other programs.

from __future__ import annotations

from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """The complete lines of a file, without their line feeds."""

    lines: list[str]
    warning: str  # says that the file ends inside a line; empty: it does not


def lines_of(data: bytes, name: str, *, is_cut: bool = False) -> Lines:
    """Splits a file into lines. A last line without a line feed is left out, because a program that was killed may have
    written a part of it. is_cut: compressed data ended early."""
    text = data.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    *lines, rest = text.split("\n")
    if not rest and not is_cut:
        return Lines(lines, "")
    left_out = f": line {len(lines) + 1}, which has no line end, is left out" if rest else ""
    return Lines(lines, f"{name}: the file is cut after line {len(lines)}{left_out}")
