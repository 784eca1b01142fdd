# SPDX-License-Identifier: Apache-2.0
# vpmm: the pool's address space at a moment: the free ranges, and the data with which a page draws any moment.

from __future__ import annotations

import heapq
from collections.abc import Sequence

from vpmm.recordings import Numbers
from vpmm.reporting.columns import Columns
from vpmm.reporting.story import NEVER, Life, Mapping, Story

MOST_LIVES = 600_000  # in a page; the smallest and shortest are left out
MOST_MAPPINGS = 60_000
_GRAIN = 512


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


def kept_lives(story: Story) -> list[Life]:
    """All allocations, or those that hold most for longest, in order."""
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


def _later(begin: int, end: int) -> int:
    return 0 if end == NEVER else end - begin + 1


def _add_addresses(columns: Columns, name: str, addresses: Sequence[int]) -> tuple[int, int]:
    base, grain = _base(addresses)
    columns.add(f"{name}.address", [(each - base) // grain for each in addresses])
    return base, grain


def add_lives(story: Story, columns: Columns, lives: Sequence[Life], stacks: dict[int, int]) -> tuple[int, int]:
    """`stacks` has the numbers that the page uses. Returns the origin and the step of the addresses."""
    libraries: Numbers[str] = Numbers(0)
    columns.add_differences("lives.begin", [each.begin for each in lives])
    columns.add("lives.end", [_later(each.begin, each.end) for each in lives])
    columns.add("lives.bytes", [each.event.bytes for each in lives])
    columns.add("lives.rounding", [max(each.event.value - each.event.bytes, 0) for each in lives])
    columns.add("lives.stream", [0 if each.event.stream is None else each.event.stream + 1 for each in lives])
    columns.add("lives.tag", [each.event.tag for each in lives])
    columns.add("lives.library", [libraries[story.library_name(each.event)] for each in lives])
    columns.add_texts("libraries", libraries.by_number().values())
    columns.add("lives.thread", [each.event.thread for each in lives])
    columns.add("lives.stack", [stacks[each.event.stack] for each in lives])
    return _add_addresses(columns, "lives", [each.event.address for each in lives])


def add_mappings(columns: Columns, mappings: Sequence[Mapping]) -> tuple[int, int]:
    """Returns the origin and the step of the addresses."""
    columns.add_differences("chunks.begin", [each.begin for each in mappings])
    columns.add("chunks.end", [_later(each.begin, each.end) for each in mappings])
    columns.add("chunks.moved", [_later(each.begin, each.moved) for each in mappings])
    columns.add("chunks.bytes", [each.bytes for each in mappings])
    return _add_addresses(columns, "chunks", [each.address for each in mappings])


def map_of(story: Story, columns: Columns, lives: Sequence[Life], stacks: dict[int, int]) -> dict[str, object]:
    """For the page: the kept allocations and every chunk with the events that began and ended them, in `columns`."""
    told = (
        "Each bar is a piece of the pool's address space, in order of address; the line below is the pool's notation "
        "in pages, or in bytes what is not whole pages: [4] taken, [-4] free, [~4] old address of memory that moved, "
        "[*4] no memory here. Requests below a page take whole pages here. Trapped memory is free in a chunk that an "
        "allocation uses in part: it serves what fits there, but it cannot move."
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
        "lives": add_lives(story, columns, lives, stacks),
        "chunks": add_mappings(columns, story.mappings[:MOST_MAPPINGS]),
    }
