# SPDX-License-Identifier: Apache-2.0
# vpmm: two recordings compared: their curves over one another, and tables of the differences.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpmm.reporting import facts
from vpmm.reporting.columns import Columns
from vpmm.reporting.lines import labelled, wrapped
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
        return story.library_name(life.event)
    return story.stack_label(life.event.stack)


def _names(first: Story, second: Story) -> list[str]:
    names = [story.header_text("file") or facts.title(story) for story in (first, second)]
    return [f"{name} ({place})" for name, place in zip(names, ("first", "second"), strict=True)]


def add_curves(columns: Columns, stories: dict[str, tuple[Story, int]]) -> None:
    """Live memory of each, by its name, at the times of any; the number is added to the times of the story. A time at
    which one rose and fell again comes twice: with the most, then with what was left."""
    lines = [timeline_of(story) for story, _ in stories.values()]
    own = [[at + later for at in line.time_ns] for line, (_, later) in zip(lines, stories.values(), strict=True)]
    times: list[int] = []
    curves: list[list[int]] = [[] for _ in stories]
    for at in sorted(set().union(*own)):
        held = [_most_and_last(known, line.live, at) for known, line in zip(own, lines, strict=True)]
        for place in (0, 1) if any(most > last for most, last in held) else (1,):
            times.append(at)
            for curve, values in zip(curves, held, strict=True):
                curve.append(values[place])
    columns.add_differences("time.t", times)
    columns.add_differences("time.index", range(len(times)))
    for name, curve in zip(stories, curves, strict=True):
        columns.add_differences(f"time.{name}", curve)


def _most_and_last(known: Sequence[int], values: Sequence[int], at: int) -> tuple[int, int]:
    """The highest value at a time, and the last, which holds from then on."""
    begin, end = bisect_left(known, at), bisect_right(known, at)
    last = values[end - 1] if end else 0
    return max(values[begin:end], default=last), last


def comparison_of(first: Story, second: Story, columns: Columns) -> dict[str, object]:
    """Everything that the page of two recordings shows."""
    add_curves(columns, {"first": (first, -first.begin_ns), "second": (second, -second.begin_ns)})
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


def comparison_text(first: Story, second: Story, width: int = 100) -> str:
    """The differences in lines of at most `width` columns, at least 40, with an end of line."""
    names = _names(first, second)
    lines = [wrapped(name, width, " " * 8, begin) for name, begin in zip(names, ("first:  ", "second: "), strict=True)]
    rows = [f"  {'':<24}{'first':>14}{'second':>14}  difference"]
    found = differences(first, second)
    rows += [f"  {each.label:<24}{each.first:>14}{each.second:>14}  {each.difference}" for each in found]
    if max(map(len, rows)) > width:
        rows = [wrapped(f"{each.label}: {_in_words(each)}", width, "    ", "  ") for each in found]
    lines += ["", *rows, "", wrapped("At the peaks, by stack, largest difference first", width)]
    for each in group_differences(first, second, "stack")[:12]:
        figures = f"  {each.first:>12}{each.second:>12}  {each.difference:<22}"
        if len(figures.rstrip()) > width:
            lines += [wrapped(_in_words(each), width, "    ", "  "), wrapped(each.label, width, "    ")]
        else:
            lines.append(labelled(figures, each.label, width))
    return "\n".join(lines) + "\n"


def _in_words(each: Difference) -> str:
    return f"first {each.first}, second {each.second}, difference {each.difference}"
