# SPDX-License-Identifier: Apache-2.0
# vpmm: call stacks as text for people.

from __future__ import annotations

import re
from collections.abc import Iterable

from vpmm.recordings import Frame, Numbers, Recording
from vpmm.reporting.columns import Columns

NO_LIBRARY = "no library known"
_MOST_DEPTH = 48

_OF_LIBRARY = re.compile(
    r"libvpmm\.|_vpmm\.|vpmm_torch_|libc10|libpython|_ctypes"
)  # frames that are irrelevant to a program
_OF_TORCH = re.compile(r"(?:^|/)(?:aten|c10|torch)/")  # PyTorch's sources, in its snapshots


def frame_text(frame: Frame) -> str:
    """`function (file:line)`, the file without its folders."""
    place = frame.file.rsplit("/", 1)[-1]
    if not place:
        return frame.function or "?"
    return f"{frame.function or '?'} ({place}:{frame.line})" if frame.line else f"{frame.function or '?'} ({place})"


def stack_label(frames: tuple[Frame, ...]) -> str:
    """The most informative innermost frames: those of the program rather than of its libraries."""
    own = [each for each in frames if "site-packages" not in each.file and each.line]
    told = own or [each for each in frames if not _OF_LIBRARY.match(each.file.rsplit("/", 1)[-1])] or list(frames)
    return " < ".join(frame_text(each) for each in told[:3])


class StackLabels(dict[int, str]):
    """By number of the stack, made on first use."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._stacks = recording.stacks

    def __missing__(self, stack: int) -> str:
        frames = self._stacks.get(stack, ())
        label = self[stack] = stack_label(frames) if frames else "no stack recorded"
        return label


def library_of(frames: Iterable[Frame]) -> str:
    """The library that asked for memory: that of the innermost frame outside of VPMM and the interpreter."""
    for frame in frames:
        name = frame.file.rsplit("/", 1)[-1]
        if not name or name == "??" or _OF_LIBRARY.match(name):
            continue
        for folder in ("site-packages/", "dist-packages/"):
            if folder in frame.file:
                return frame.file.split(folder, 1)[1].split("/", 1)[0].removesuffix(".py")
        if ".so" in name:
            return name.split(".so", 1)[0]
        return "torch" if _OF_TORCH.search(frame.file) else "the program"
    return NO_LIBRARY


def add_stacks(columns: Columns, recording: Recording, stacks: Iterable[int], labels: StackLabels) -> None:
    """The stacks for a page: a tree of calls, outermost first, in which each stack is a node. Node 0 is the root."""
    frames: Numbers[str] = Numbers(1)
    nodes: dict[tuple[int, int], int] = {}
    own_nodes, own_labels = [], []
    for stack in stacks:
        calls = recording.stacks.get(stack, ())
        node = 0
        for call in list(reversed(calls))[:_MOST_DEPTH]:
            node = nodes.setdefault((node, frames[frame_text(call)]), len(nodes) + 1)
        own_nodes.append(node)
        own_labels.append(labels[stack])
    columns.add("stacks.node", own_nodes)
    columns.add_texts("stacks.label", own_labels)
    columns.add("nodes.parent", [0, *(parent for parent, _ in nodes)])
    columns.add("nodes.frame", [0, *(frame for _, frame in nodes)])
    columns.add_texts("frames", ["", *frames.by_number().values()])
