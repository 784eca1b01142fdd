# SPDX-License-Identifier: Apache-2.0
# vpmm: a pool in a few lines, as text and as a table for notebooks.

from __future__ import annotations

from vpmm._vpmm import Pool
from vpmm.units import bytes_text, count_text

__all__ = ["as_html", "as_text"]


def _rows(pool: Pool) -> list[tuple[str, str, str]]:
    """Name, size and further figures, without rows that have no content."""
    now = pool.statistics()
    capacity = pool.get_capacity()
    rows = [
        ("capacity", "what the GPU has" if capacity is None else bytes_text(capacity), ""),
        ("mapped", bytes_text(now["mapped_bytes"]), f"peak {bytes_text(now['peak_mapped_bytes'])}"),
        (
            "live",
            bytes_text(now["live_bytes"]),
            f"{count_text(now['live_allocations'], 'allocation')}, peak {bytes_text(now['peak_live_bytes'])}",
        ),
        ("idle", bytes_text(now["free_bytes"]), f"largest range {bytes_text(now['largest_free_bytes'])}"),
        ("trapped", bytes_text(now["trapped_bytes"]), "part of idle that cannot move"),
    ]
    if now["suspended_bytes"]:
        rows.append(("suspended", bytes_text(now["suspended_bytes"]), "addresses without memory"))
    if now["failed_allocations"]:
        rows.append(("failed", count_text(now["failed_allocations"], "request"), ""))
    return rows


def _name(pool: Pool) -> str:
    return f"vpmm.Pool of device {pool.device}, {'private' if pool.is_private else 'process-wide'}"


def as_text(pool: Pool) -> str:
    """The name of the pool and a line for each figure, without a line break at the end."""
    lines = [f"  {name:<10} {size}{', ' if more else ''}{more}" for name, size, more in _rows(pool)]
    return "\n".join([_name(pool), *lines])


def as_html(pool: Pool) -> str:
    """The same as a table; the name alone for a closed pool."""
    if pool.is_closed:
        return f"{_name(pool)}, closed"
    rows = "".join(f"<tr><th>{name}</th><td>{size}</td><td>{more}</td></tr>" for name, size, more in _rows(pool))
    return f"<table><caption>{_name(pool)}</caption>{rows}</table>"
