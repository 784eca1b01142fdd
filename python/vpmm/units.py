# SPDX-License-Identifier: Apache-2.0
# vpmm: sizes and times as text for people, and texts of others that a terminal may show.

from __future__ import annotations

import re


def bytes_text(size: int) -> str:
    """In the largest of B, KiB, MiB, GiB and TiB that gives at least 1: 1536 is 1.50 KiB."""
    if size < 1024:
        return f"{size} B"
    exponent = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**exponent:.2f} {'KMGT'[exponent - 1]}iB"


def bytes_in(text: str) -> int:
    """The bytes of a size as the pool prints it, such as `1.46 GiB`, which is rounded; 0: `text` is none."""
    found = re.fullmatch(r"([\d.]+) (byte|bytes|KiB|MiB|GiB|TiB)", text)
    if found is None:
        return 0
    unit: int = 1 << 10 * ("KMGT".find(found[2][0]) + 1)
    return round(float(found[1]) * unit)


def count_text(count: int, what: str) -> str:
    """`1 call`, `2,000 calls`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def duration_text(microseconds: float) -> str:
    """In us, ms or s."""
    if microseconds < 1000:
        return f"{microseconds:.1f} us"
    return f"{microseconds / 1e3:.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.2f} s"


def printable(text: str) -> str:
    """Removes terminal commands, and line ends, from texts of a recording."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
