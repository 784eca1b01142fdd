# SPDX-License-Identifier: Apache-2.0
# vpmm: two recordings compared: their curves over one another, and tables of the differences.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpmm.reporting import facts
from vpmm.reporting.columns import Columns
from vpmm.reporting.stacks import library_of
from vpmm.reporting.story import Life, Story
from vpmm.reporting.timeline import timeline_of
from vpmm.units import bytes_text, duration_text

_MOST_GROUPS = 30


@dataclass(frozen=True)
class Difference:
    """A figure of both, and `second` less `first`, as texts."""

    label: str
    first: str
    second: str
    difference: str


def _difference(label: str, first: int, second: int, text: Callable[[int], str]) -> Difference:
    change = second - first
    if not change:
        return Difference(label, text(first), text(second), "none")
    sign = "+" if change > 0 else "-"
    share = f" ({sign}{100 * abs(change) / first:.0f} %)" if first else ""
    return Difference(label, text(first), text(second), f"{sign}{text(abs(change))}{share}")


def _ns_text(ns: int) -> str:
    return duration_text(ns / 1000)


def differences(first: Story, second: Story) -> list[Difference]:
    """The leading figures. Figures that a recording does not have are left out."""
    pair = (first, second)

    def row(label: str, of: Callable[[Story], int], text: Callable[[int], str]) -> Difference:
        return _difference(label, of(first), of(second), text)

    found = [
        row("requested, at the peak", lambda each: each.peak, bytes_text),
        row("taken, at most", lambda each: each.peak_taken, bytes_text),
    ]
    if all(each.peak_mapped for each in pair):
        found.append(row("mapped, at most", lambda each: each.peak_mapped, bytes_text))
    found.append(row("live at the end", lambda each: each.live_at_end, bytes_text))
    found.append(row("allocations", lambda each: each.allocations, lambda count: f"{count:,}"))
    found.append(row("failed requests", lambda each: len(each.failures), str))
    if all(each.driver for each in pair):
        calls = row("driver calls", lambda each: sum(spent.calls for spent in each.driver.values()), lambda n: f"{n:,}")
        found += [calls, row("time in the driver", lambda each: sum(s.ns for s in each.driver.values()), _ns_text)]
    found.append(row("recorded", lambda each: each.duration_ns, _ns_text))
    return found


def group_differences(first: Story, second: Story, way: str) -> list[Difference]:
    """Live memory at each recording's own peak by stack, library or tag, largest difference first."""
    sums: dict[str, list[int]] = {}
    for place, story in enumerate((first, second)):
        for life in story.alive(story.peak_index) if story.peak_index >= 0 else []:
            sums.setdefault(_label(story, life, way), [0, 0])[place] += life.event.bytes
    ordered = sorted(sums.items(), key=lambda each: (-abs(each[1][1] - each[1][0]), each[0]))[:_MOST_GROUPS]
    return [_difference(label, before, after, bytes_text) for label, (before, after) in ordered if before != after]


def _label(story: Story, life: Life, way: str) -> str:
    if way == "tag":
        return story.tag_name(life.event.tag)
    if way == "library":
        return library_of(story.recording.stacks.get(life.event.stack, ()))
    return story.stack_label(life.event.stack)


def _names(first: Story, second: Story) -> list[str]:
    names = [story.header_text("file") or facts.title(story) for story in (first, second)]
    return [f"{name} ({place})" for name, place in zip(names, ("first", "second"), strict=True)]


def add_curves(columns: Columns, first: Story, second: Story) -> None:
    """Live memory of both since their beginnings, at the times of either."""
    lines = [timeline_of(first), timeline_of(second)]
    own = [[each - story.begin_ns for each in line.time_ns] for line, story in zip(lines, (first, second), strict=True)]
    times = sorted({*own[0], *own[1]})

    def held(known: Sequence[int], values: Sequence[int]) -> list[int]:
        places = (bisect_right(known, at) - 1 for at in times)
        return [values[place] if place >= 0 else 0 for place in places]

    columns.add_differences("time.t", times)
    columns.add_differences("time.index", range(len(times)))
    for name, known, line in zip(("first", "second"), own, lines, strict=True):
        columns.add_differences(f"time.{name}", held(known, line.live))


def comparison_of(first: Story, second: Story, columns: Columns) -> dict[str, object]:
    """Everything that the page of two recordings shows."""
    add_curves(columns, first, second)
    names = _names(first, second)
    leading = differences(first, second)[0]
    return {
        "title": f"{names[0]} and {names[1]}",
        "summary": f"At the peak {leading.first} were requested in the first and {leading.second} in the second: "
        f"a difference of {leading.difference}.",
        "facts": [],
        "notes": [*facts.notes(first)[:3], *facts.notes(second)[:3]],
        "names": names,
        "events": columns.shape["time.t"][0],
        "capacity": 0,
        "marks": [],
        "failures": [],
        "peak": None,
        "differences": [_cells(each) for each in differences(first, second)],
        "groups": {
            way: [_cells(each) for each in group_differences(first, second, way)] for way in ("stack", "library", "tag")
        },
    }


def _cells(each: Difference) -> list[str]:
    return [each.label, each.first, each.second, each.difference]


def comparison_text(first: Story, second: Story) -> str:
    """The differences for a terminal, with an end of line."""
    names = _names(first, second)
    lines = [f"first:  {names[0]}", f"second: {names[1]}", "", f"  {'':<24}{'first':>14}{'second':>14}  difference"]
    lines += [
        f"  {each.label:<24}{each.first:>14}{each.second:>14}  {each.difference}" for each in differences(first, second)
    ]
    lines += ["", "At the peaks, by stack, largest difference first"]
    for each in group_differences(first, second, "stack")[:12]:
        lines.append(f"  {each.first:>12}{each.second:>12}  {each.difference:<22}{each.label[:50]}")
    return "\n".join(lines) + "\n"
