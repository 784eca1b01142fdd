# SPDX-License-Identifier: Apache-2.0
# vpmm: the pool's address space at a moment: the free ranges, and the data with which a page draws any moment.

from __future__ import annotations

import heapq
from collections.abc import Sequence

from vpmm.reporting.story import NEVER, Life, Mapping, Story

MOST_LIVES = 100_000  # in a page; the smallest and shortest are left out
MOST_MAPPINGS = 60_000
_GRAIN = 512
_COLUMNS = dict[str, object]


def free_ranges(story: Story, index: int) -> list[int]:
    """Sizes of the mapped and unallocated ranges after event `index`, in order of address."""
    chunks = sorted(
        (each.address, each.address + each.bytes)
        for each in story.mappings
        if each.begin <= index < each.end and each.moved > index
    )
    taken = sorted(story.extent(each.event) for each in story.alive(index))
    return _left_over(chunks, taken)


def _left_over(chunks: list[tuple[int, int]], taken: list[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    free_from = free_to = 0  # the range under construction
    following = 0
    for begin, end in chunks:
        at = begin
        while following < len(taken) and taken[following][1] <= begin:
            following += 1
        which = following
        while at < end:
            is_last = which >= len(taken) or taken[which][0] >= end
            stop = end if is_last else taken[which][0]
            if stop > at:
                if free_to != at:
                    found.append(free_to - free_from)
                    free_from = at
                free_to = stop
            if is_last:
                break
            at = max(at, taken[which][1])
            which += 1
    found.append(free_to - free_from)
    return [each for each in found if each > 0]


def _kept_lives(story: Story) -> list[Life]:
    if len(story.lives) <= MOST_LIVES:
        return story.lives
    last = len(story.events)
    kept = heapq.nlargest(
        MOST_LIVES, story.lives, key=lambda each: each.event.bytes * (min(each.end, last) - each.begin)
    )
    return sorted(kept, key=lambda each: each.begin)


def _base(addresses: Sequence[int]) -> tuple[int, int]:
    """The origin and the step: all addresses are whole steps from the origin."""
    base = min(addresses, default=0)
    grain = _GRAIN if all((each - base) % _GRAIN == 0 for each in addresses) else 1
    return base, grain


def _differences(begins: Sequence[int]) -> list[int]:
    return [each - before for before, each in zip([0, *begins], begins, strict=False)]


def _later(begin: int, end: int) -> int:
    return -1 if end == NEVER else end - begin


def lives_as_columns(lives: Sequence[Life], stacks: dict[int, int]) -> _COLUMNS:
    """`stacks` has the numbers that the page uses."""
    base, grain = _base([each.event.address for each in lives])
    return {
        "base": base,
        "grain": grain,
        "begin": _differences([each.begin for each in lives]),
        "end": [_later(each.begin, each.end) for each in lives],
        "address": [(each.event.address - base) // grain for each in lives],
        "bytes": [each.event.bytes for each in lives],
        "rounding": [max(each.event.value - each.event.bytes, 0) for each in lives],
        "stream": [-1 if each.event.stream is None else each.event.stream for each in lives],
        "tag": [each.event.tag for each in lives],
        "stack": [stacks.get(each.event.stack, 0) for each in lives],
    }


def mappings_as_columns(mappings: Sequence[Mapping]) -> _COLUMNS:
    base, grain = _base([each.address for each in mappings])
    return {
        "base": base,
        "grain": grain,
        "begin": _differences([each.begin for each in mappings]),
        "end": [_later(each.begin, each.end) for each in mappings],
        "moved": [_later(each.begin, each.moved) for each in mappings],
        "address": [(each.address - base) // grain for each in mappings],
        "bytes": [each.bytes for each in mappings],
    }


def map_of(story: Story, stacks: dict[int, int]) -> dict[str, object]:
    """For the page: every allocation and chunk with the events that began and ended it."""
    lives = _kept_lives(story)
    told = (
        "Each bar is a piece of the pool's address space, in order of address; the line below is the pool's notation "
        "in pages, or in bytes what is not whole pages: [4] in use, [-4] free, [~4] old address of memory that moved, "
        "[*4] no memory here."
    )
    if not story.has_maps:
        told = (
            "This recording does not say what the pool had mapped, so only allocations are here, [*n] between them; "
            "a recording made with VPMM_RECORD shows the pool's address space."
        )
        if story.header_text("source") == "csv":
            told += " CSV has no addresses either: the allocations were laid out when the file was read."
    if len(lives) < len(story.lives):
        told += f" Of {len(story.lives)} allocations the {len(lives)} that hold most for longest are drawn."
    return {
        "told": told,
        "page": story.page_size,
        "grain": story.grain,
        "hasMaps": story.has_maps,
        "lives": lives_as_columns(lives, stacks),
        "chunks": mappings_as_columns(story.mappings[:MOST_MAPPINGS]),
    }
