# vpmm: ranges of addresses that do not overlap, in order, each with the stream that it belongs to.

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
    """What is mapped, say. Neighbours stay apart. Invariant: total == sum(end - begin)."""

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
        """The ranges that share an address with [begin, end), whole."""
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
        """Adds what of [begin, end) is not there yet, and returns that."""
        added = [Range(gap.begin, gap.end, stream) for gap in self.gaps(begin, end)]
        for each in added:
            at = bisect_left(self._begins, each.begin)
            self._begins.insert(at, each.begin)
            self._ranges.insert(at, each)
            self.total += each.end - each.begin
        return added

    def remove(self, begin: int, end: int) -> list[Range]:
        """Takes away what of [begin, end) is there, and returns that; ranges that reach beyond it are cut."""
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

    def holds(self, begin: int, end: int) -> bool:
        """Whether one range is exactly this."""
        at = bisect_left(self._begins, begin)
        return at < len(self._begins) and self._ranges[at].begin == begin and self._ranges[at].end == end

    def joined(self) -> list[Range]:
        """The ranges with neighbours of one stream made one."""
        found: list[Range] = []
        for each in self._ranges:
            if found and found[-1][1:] == (each.begin, each.stream):
                found[-1] = Range(found[-1].begin, each.end, each.stream)
            else:
                found.append(each)
        return found
