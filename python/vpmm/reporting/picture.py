# SPDX-License-Identifier: Apache-2.0
# vpmm: the holders of live memory at one moment: by size, stack, stream, tag and thread, and as a tree of calls.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from vpmm.reporting.stacks import frame_text
from vpmm.reporting.story import Life, Story
from vpmm.units import bytes_text

Key = TypeVar("Key", bound=Hashable)
MOST_GROUPS = 40  # of a table; the rest is one line
_SMALLEST_SHARE = 1 / 500  # of a picture, for a node of the tree
_MOST_DEPTH = 48


@dataclass(slots=True)
class Group:
    """Allocations that have something in common."""

    label: str
    bytes: int = 0
    count: int = 0


@dataclass(slots=True)
class Node:
    """A function on the stack, and the memory allocated below it."""

    label: str
    bytes: int = 0
    count: int = 0
    below: dict[str, Node] = field(default_factory=dict)


@dataclass
class Picture:
    """The live memory after event `index`, largest group first."""

    title: str
    index: int
    time_ns: int
    live: int
    count: int
    groups: dict[str, list[Group]]
    tree: Node


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
        "stream": grouped(lives, lambda each: each.event.stream, story.stream_name),
        "tag": grouped(lives, lambda each: each.event.tag, story.tag_name),
        "thread": grouped(lives, lambda each: each.event.thread, story.thread_name),
    }
    time_ns = story.events[index].time_ns if 0 <= index < len(story.events) else 0
    live = sum(each.event.bytes for each in lives)
    return Picture(title, index, time_ns, live, len(lives), groups, _tree(story, lives))


def _tree(story: Story, lives: list[Life]) -> Node:
    """Calls from the outermost inwards, without those that are too narrow to see."""
    by_stack: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for life in lives:
        size, count = by_stack[life.event.stack]
        by_stack[life.event.stack] = (size + life.event.bytes, count + 1)
    root = Node("all that lives")
    for stack, (size, count) in by_stack.items():
        frames = story.recording.stacks.get(stack, ())
        path = [frame_text(each) for each in reversed(frames)][:_MOST_DEPTH] or ["no stack recorded"]
        node = root
        for label in ["", *path]:
            if label:
                node = node.below.setdefault(label, Node(label))
            node.bytes += size
            node.count += count
    _prune(root, root.bytes * _SMALLEST_SHARE)
    return root


def _prune(node: Node, least: float) -> None:
    node.below = {label: each for label, each in node.below.items() if each.bytes >= least}
    for each in node.below.values():
        _prune(each, least)
