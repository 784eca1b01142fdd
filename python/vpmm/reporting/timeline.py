# SPDX-License-Identifier: Apache-2.0
# vpmm: reduces a curve of a million events to some thousand points that keep its peaks and lows.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vpmm.reporting.columns import Columns
from vpmm.reporting.story import Story

PARTS = 1500  # of time, and as many of events
MOST_EVENTS = 1_500_000  # in a page; of a longer recording it has the reduced curve


@dataclass
class Timeline:
    """Figures that hold from `time_ns[i]` until the next; None: not in the recording."""

    time_ns: Sequence[int]
    index: Sequence[int]  # of the event
    live: Sequence[int]
    mapped: Sequence[int] | None
    pending: Sequence[int] | None
    free: Sequence[int] | None


def _cuts(time_ns: Sequence[int]) -> list[int]:
    """The starts of the parts, equal in time and equal in events, so that a burst is not one point."""
    count = len(time_ns)
    begin, end = time_ns[0], time_ns[-1]
    cuts = {count * part // PARTS for part in range(PARTS)}
    cuts.update(bisect_left(time_ns, begin + (end - begin) * part // PARTS) for part in range(PARTS))
    return [*sorted(cuts), count]


def _extremes(values: Sequence[int], begin: int, end: int) -> tuple[int, int]:
    part = values[begin:end]
    return begin + part.index(max(part)), begin + part.index(min(part))


def timeline_of(story: Story) -> Timeline:
    """Holds the highest and the lowest live and mapped bytes, and the most pending, of each part."""
    series = story.series
    if not series.time_ns:
        return Timeline([], [], [], None, None, None)
    kept: set[int] = {0, len(series.time_ns) - 1, max(story.peak_index, 0)}
    kept.update(failure.index for failure in story.failures[:PARTS])
    cuts = _cuts(series.time_ns)
    for begin, end in pairwise(cuts):
        if end > begin:
            kept.update((begin, end - 1), _extremes(series.live, begin, end))
            if story.has_maps or story.has_samples:
                kept.update(_extremes(series.mapped, begin, end))
            if story.has_samples:
                kept.update(_extremes(series.pending, begin, end))
    order = sorted(kept)

    def at(values: Sequence[int], is_known: bool) -> list[int] | None:
        return [values[index] for index in order] if is_known else None

    return Timeline(
        [series.time_ns[index] for index in order],
        order,
        [series.live[index] for index in order],
        at(series.mapped, story.has_maps or story.has_samples),
        at(series.pending, story.has_samples),
        at(series.free, story.has_samples),
    )


def _whole(story: Story) -> Timeline:
    series = story.series
    return Timeline(
        series.time_ns,
        range(len(series.time_ns)),
        series.live,
        series.mapped if story.has_maps or story.has_samples else None,
        series.pending if story.has_samples else None,
        series.free if story.has_samples else None,
    )


def add_timeline(columns: Columns, story: Story) -> None:
    """The figures after each event for the page; of more than MOST_EVENTS, the reduced curve."""
    line = _whole(story) if len(story.events) <= MOST_EVENTS else timeline_of(story)
    columns.add_differences("time.t", line.time_ns)
    columns.add_differences("time.index", line.index)
    columns.add_differences("time.live", line.live)
    if line.mapped is not None:
        columns.add_differences("time.mapped", line.mapped)
    if line.pending is not None:
        columns.add_differences("time.pending", line.pending)
    if line.free is not None:  # it changes when live memory does, the other way
        columns.add_differences("time.free", [free + live for free, live in zip(line.free, line.live, strict=True)])
