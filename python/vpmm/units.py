# vpmm: sizes and times as people read them.

from __future__ import annotations


def bytes_text(size: int) -> str:
    """In the largest of B, KiB, MiB, GiB and TiB that leaves 1 or more: 1536 is 1.50 KiB."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), "B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            break
    return f"{value:.2f} {unit}"


def duration_text(microseconds: float) -> str:
    """In us, ms or s."""
    if microseconds < 1000:
        return f"{microseconds:.1f} us"
    return f"{microseconds / 1e3:.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.2f} s"
