# vpmm: who holds the memory that lives at one moment: by size, stack, stream, tag and thread, and as a tree of calls.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vpmm.recordings import Frame
from vpmm.reporting.story import Life, Story
from vpmm.units import bytes_text

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
    """A function that was on the stack, and what was allocated below it."""

    label: str
    bytes: int = 0
    count: int = 0
    below: dict[str, Node] = field(default_factory=dict)


@dataclass
class Picture:
    """What lived after event `index`, largest group first."""

    title: str
    index: int
    time_ns: int
    live: int
    count: int
    groups: dict[str, list[Group]]
    tree: Node


def size_class(size: int) -> str:
    """From one power of two up to the next: 3 MiB is of `2 to 4 MiB`."""
    if size < 1024:
        return "below 1 KiB"
    power = 1 << (size.bit_length() - 1)
    low, high = bytes_text(power).replace(".00", ""), bytes_text(2 * power).replace(".00", "")
    unit = high.split()[1]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def frame_text(frame: Frame) -> str:
    """`function (file:line)`, the file without its folders."""
    place = frame.file.rsplit("/", 1)[-1]
    if not place:
        return frame.function or "?"
    return f"{frame.function or '?'} ({place}:{frame.line})" if frame.line else f"{frame.function or '?'} ({place})"


def stack_label(frames: tuple[Frame, ...]) -> str:
    """The innermost frames that say most: those of the program rather than of what it calls."""
    own = [each for each in frames if "site-packages" not in each.file and each.line] or list(frames)
    return " < ".join(frame_text(each) for each in own[:3])


class StackLabels(dict[int, str]):
    """By number of the stack, made when first asked for."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self._stacks = story.recording.stacks

    def __missing__(self, stack: int) -> str:
        frames = self._stacks.get(stack, ())
        label = self[stack] = stack_label(frames) if frames else "no stack recorded"
        return label


def grouped(lives: Iterable[Life], label_of: Callable[[Life], str]) -> list[Group]:
    """Largest first; beyond MOST_GROUPS they are one."""
    found: dict[str, Group] = {}
    for life in lives:
        label = label_of(life)
        group = found.get(label)
        if group is None:
            group = found[label] = Group(label)
        group.bytes += life.event.bytes
        group.count += 1
    ordered = sorted(found.values(), key=lambda each: (-each.bytes, each.label))
    rest = ordered[MOST_GROUPS:]
    if not rest:
        return ordered
    others = Group(f"{len(rest)} others", sum(each.bytes for each in rest), sum(each.count for each in rest))
    return [*ordered[:MOST_GROUPS], others]


def picture_at(story: Story, index: int, title: str) -> Picture:
    """What lived after event `index`."""
    lives = story.alive(index)
    return picture_of(story, lives, index, title)


def picture_of(story: Story, lives: list[Life], index: int, title: str) -> Picture:
    labels = StackLabels(story)
    by: dict[str, Callable[[Life], str]] = {
        "size": lambda each: size_class(each.event.bytes),
        "stack": lambda each: labels[each.event.stack],
        "stream": lambda each: story.stream_name(each.event.stream),
        "tag": lambda each: story.tag_name(each.event.tag),
        "thread": lambda each: story.thread_name(each.event.thread),
    }
    groups = {name: grouped(lives, label_of) for name, label_of in by.items()}
    time_ns = story.events[index].time_ns if 0 <= index < len(story.events) else 0
    live = sum(each.event.bytes for each in lives)
    return Picture(title, index, time_ns, live, len(lives), groups, _tree(story, lives))


def _tree(story: Story, lives: list[Life]) -> Node:
    """Calls from the outermost inwards, without what is too narrow to be seen."""
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
