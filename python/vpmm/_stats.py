# SPDX-License-Identifier: Apache-2.0
# vpmm: the figures of a pool, by their names.

from __future__ import annotations

from typing import TypedDict

__all__ = ["Stats"]


class Stats(TypedDict):
    """The statistics of a pool, at one moment: ints in the order of docs/reference/statistics.md, and two dictionaries.

    That page has the meaning of each. Totals only grow, from the moment the pool was opened.
    """

    # --- bytes, current and peak ---
    mapped_bytes: int
    peak_mapped_bytes: int
    live_bytes: int
    peak_live_bytes: int
    allocated_bytes: int
    free_bytes: int
    pending_bytes: int
    largest_free_bytes: int
    reserved_bytes: int
    hole_bytes: int
    zombie_bytes: int
    stream_ordered_bytes: int
    small_bytes: int
    small_free_bytes: int
    cached_bytes: int
    trapped_bytes: int
    leased_bytes: int
    suspended_bytes: int
    host_copy_bytes: int
    quarantined_bytes: int
    # --- counts, current and peak ---
    live_allocations: int
    free_regions: int
    zombie_regions: int
    chunks: int
    peak_chunks: int
    mappings: int
    peak_mappings: int
    timelines: int
    outstanding_events: int
    # --- counts, total ---
    allocations: int
    deallocations: int
    failed_allocations: int
    caller_mistakes: int
    hits: int
    plans: int
    failed_plans: int
    chunks_created: int
    chunks_released: int
    chunks_moved: int
    # --- bytes, total ---
    bytes_moved: int
    # --- counts, total ---
    gpu_waits: int
    host_waits: int
    pauses: int
    events_recorded: int
    driver_calls: int
    # --- nanoseconds, total ---
    driver_ns: int
    # --- bytes, current ---
    guarded_bytes: int
    # --- counts, total ---
    guarded_allocations: int
    unguarded_allocations: int
    damaged_allocations: int
    # --- bytes, current: as live allocations asked for, also suspended ones ---
    by_tag: dict[str | int, int]
    """By the name of the tag, or its number if it has no name. Memory without a tag is not among them."""
    by_library: dict[str | int, int]
    """By the library that allocated, whichever tag the memory has. Only libraries that are tagged:
    VPMM_TAG_LIBRARIES=1, or those with a limit in VPMM_LIMITS."""
