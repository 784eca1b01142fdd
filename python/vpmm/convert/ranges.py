# SPDX-License-Identifier: Apache-2.0
# vpmm: ordered ranges of addresses that do not overlap, each with its stream.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class Range(NamedTuple):
    """Addresses from `begin` to before `end`."""

    begin: int
    end: int
    stream: int | None = None


class Ranges:
    """A set of ranges, such as mapped memory. Neighbours stay separate. Invariant: total == sum(end - begin)."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ranges: list[Range] = []
        self.total = 0

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def _overlapping(self, begin: int, end: int) -> slice:
        first = bisect_right(self._begins, begin)
        if first > 0 and self._ranges[first - 1].end > begin:
            first -= 1
        return slice(first, max(first, bisect_left(self._begins, end)))

    def overlapping(self, begin: int, end: int) -> list[Range]:
        """The whole ranges that overlap [begin, end)."""
        return self._ranges[self._overlapping(begin, end)]

    def gaps(self, begin: int, end: int) -> list[Range]:
        """The parts of [begin, end) that no range covers."""
        found = []
        for each in self.overlapping(begin, end):
            if each.begin > begin:
                found.append(Range(begin, each.begin))
            begin = max(begin, each.end)
        if begin < end:
            found.append(Range(begin, end))
        return found

    def add(self, begin: int, end: int, stream: int | None = None) -> list[Range]:
        """Adds the missing parts of [begin, end), and returns them."""
        added = [Range(gap.begin, gap.end, stream) for gap in self.gaps(begin, end)]
        for each in added:
            at = bisect_left(self._begins, each.begin)
            self._begins.insert(at, each.begin)
            self._ranges.insert(at, each)
            self.total += each.end - each.begin
        return added

    def remove(self, begin: int, end: int) -> list[Range]:
        """Removes the parts of [begin, end) that are present, and returns them; cuts ranges that cross its ends."""
        where = self._overlapping(begin, end)
        removed, kept = [], []
        for each in self._ranges[where]:
            removed.append(Range(max(begin, each.begin), min(end, each.end), each.stream))
            if each.begin < begin:
                kept.append(Range(each.begin, begin, each.stream))
            if each.end > end:
                kept.append(Range(end, each.end, each.stream))
        self._ranges[where] = kept
        self._begins[where] = [each.begin for each in kept]
        self.total -= sum(each.end - each.begin for each in removed)
        return removed

    def remove_whole(self, begin: int, end: int) -> list[Range]:
        """Removes the ranges that overlap [begin, end), and returns them."""
        found = self.overlapping(begin, end)
        for each in found:
            self.remove(each.begin, each.end)
        return found

    def holds(self, begin: int, end: int) -> bool:
        """Whether there is exactly this range."""
        at = bisect_left(self._begins, begin)
        return at < len(self._begins) and self._ranges[at].begin == begin and self._ranges[at].end == end

    def joined(self) -> list[Range]:
        """The ranges, with neighbours of one stream merged."""
        found: list[Range] = []
        for each in self._ranges:
            if found and found[-1][1:] == (each.begin, each.stream):
                found[-1] = Range(found[-1].begin, each.end, each.stream)
            else:
                found.append(each)
        return found
