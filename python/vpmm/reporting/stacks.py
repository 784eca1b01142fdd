# SPDX-License-Identifier: Apache-2.0
# vpmm: call stacks as text for people.

from __future__ import annotations

import re

from vpmm.recordings import Frame, Recording

_OF_LIBRARY = re.compile(
    r"libvpmm\.|_vpmm\.|vpmm_torch_|libc10|libpython|_ctypes"
)  # frames that are irrelevant to a program


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
