# SPDX-License-Identifier: Apache-2.0
# vpmm: the holders of live memory at one moment: by size, stack, library, stream and tag.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from vpmm.reporting.story import Life, Story
from vpmm.units import bytes_text

Key = TypeVar("Key", bound=Hashable)
MOST_GROUPS = 40  # of a table; the rest is one line


@dataclass(slots=True)
class Group:
    """Allocations that have something in common."""

    label: str
    bytes: int = 0
    count: int = 0


@dataclass
class Picture:
    """The live memory after event `index`, largest group first."""

    title: str
    index: int
    time_ns: int
    live: int
    count: int
    groups: dict[str, list[Group]]


def size_class(bits: int) -> str:
    """Sizes of that many bits, from one power of two up to the next: 3 MiB is of `2 to 4 MiB`."""
    if bits <= 10:
        return "below 1 KiB"
    power = 1 << (bits - 1)
    low, high = bytes_text(power).replace(".00", ""), bytes_text(2 * power).replace(".00", "")
    unit = high.split()[1]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def grouped(lives: Iterable[Life], key_of: Callable[[Life], Key], label_of: Callable[[Key], str]) -> list[Group]:
    """By common `key_of`, largest first; keys of one label are one group, as is all beyond MOST_GROUPS."""
    sums: dict[Key, list[int]] = {}
    for life in lives:
        known = sums.setdefault(key_of(life), [0, 0])
        known[0] += life.event.bytes
        known[1] += 1
    found: dict[str, Group] = {}
    for key, (size, count) in sums.items():
        label = label_of(key)
        group = found.setdefault(label, Group(label))
        group.bytes += size
        group.count += count
    ordered = sorted(found.values(), key=lambda each: (-each.bytes, each.label))
    rest = ordered[MOST_GROUPS:]
    if not rest:
        return ordered
    others = Group(f"{len(rest)} others", sum(each.bytes for each in rest), sum(each.count for each in rest))
    return [*ordered[:MOST_GROUPS], others]


def grouped_by_place(story: Story, lives: list[Life]) -> list[Group]:
    """Groups by the allocating stack; without recorded stacks, by size."""
    if any(each.event.stack for each in lives):
        return grouped(lives, lambda each: each.event.stack, story.stack_label)
    return grouped(lives, lambda each: each.event.bytes.bit_length(), size_class)


def picture_at(story: Story, index: int, title: str) -> Picture:
    """The live memory after event `index`."""
    lives = story.alive(index)
    return picture_of(story, lives, index, title)


def picture_of(story: Story, lives: list[Life], index: int, title: str) -> Picture:
    groups = {
        "size": grouped(lives, lambda each: each.event.bytes.bit_length(), size_class),
        "stack": grouped(lives, lambda each: each.event.stack, story.stack_label),
        "library": grouped(lives, lambda each: story.library_name(each.event), str),
        "stream": grouped(lives, lambda each: each.event.stream, story.stream_name),
        "tag": grouped(lives, lambda each: each.event.tag, story.tag_name),
    }
    time_ns = story.events[index].time_ns if 0 <= index < len(story.events) else 0
    live = sum(each.event.bytes for each in lives)
    return Picture(title, index, time_ns, live, len(lives), groups)
