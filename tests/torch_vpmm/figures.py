# SPDX-License-Identifier: Apache-2.0
"""tests: the figures that a snapshot implies, as PyTorch's own tests compare them with memory_stats()."""

from __future__ import annotations

from typing import Any

import torch

_OF_SEGMENTS = ("segment", "reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes")
_OF_BLOCKS = ("allocation", "active", "inactive_split", "inactive_split_bytes")
_POOLS = ("all", "small_pool", "large_pool")


def of_snapshot(device: int = 0) -> dict[str, int]:
    """Expandable segments are not counted, nor what is idle in them, as natively."""
    figures = {f"{name}.{pool}.current": 0 for name in (*_OF_SEGMENTS, *_OF_BLOCKS) for pool in _POOLS}
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != device:
            continue
        found = {name: segment[key] for name, key in _KEYS.items()}
        found["segment"] = int(not segment["is_expandable"])
        is_split = len(segment["blocks"]) > 1 and not segment["is_expandable"]
        for block in segment["blocks"]:
            is_idle = is_split and block["state"] == "inactive"
            _add(found, "allocation", block["state"] == "active_allocated")
            _add(found, "active", block["state"].startswith("active"))
            _add(found, "inactive_split", is_idle)
            _add(found, "inactive_split_bytes", block["size"] if is_idle else 0)
        for name, amount in found.items():
            for pool in ("all", f"{segment['segment_type']}_pool"):
                figures[f"{name}.{pool}.current"] += amount
    return figures


_KEYS = {
    "reserved_bytes": "total_size",
    "allocated_bytes": "allocated_size",
    "active_bytes": "active_size",
    "requested_bytes": "requested_size",
}


def _add(found: dict[str, int], name: str, amount: int) -> None:
    found[name] = found.get(name, 0) + amount


def untiled(segments: list[dict[str, Any]]) -> list[int]:
    """The addresses of segments that their blocks do not fill exactly, or that begin before the one before ends."""
    found, last_end = [], 0
    for segment in segments:
        at = segment["address"]
        is_sound = last_end <= at and segment["allocated_size"] == segment["active_size"]
        for block in segment["blocks"]:
            is_sound &= block["address"] == at
            at += block["size"]
        last_end = segment["address"] + segment["total_size"]
        if not is_sound or at != last_end:
            found.append(segment["address"])
    return found


def differences(device: int = 0) -> dict[str, tuple[int, int]]:
    """By name, what a snapshot implies and what memory_stats() says, where they differ; and peaks below the present."""
    said = torch.cuda.memory_stats(device)
    found = {name: (amount, said[name]) for name, amount in of_snapshot(device).items() if said[name] != amount}
    for name in (*_OF_SEGMENTS, *_OF_BLOCKS):
        for pool in _POOLS:
            now, peak = said[f"{name}.{pool}.current"], said[f"{name}.{pool}.peak"]
            if peak < now:
                found[f"{name}.{pool}.peak"] = (now, peak)
    return found
