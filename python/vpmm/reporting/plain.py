# SPDX-License-Identifier: Apache-2.0
# vpmm: the report as text for a terminal.

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vpmm.recordings import DriverCall
from vpmm.reporting import facts
from vpmm.reporting.gpus import names_of
from vpmm.reporting.lines import labelled, wrapped
from vpmm.reporting.page import failure_figures
from vpmm.reporting.picture import Picture, picture_at
from vpmm.reporting.rules import advice, percent, time_text, why
from vpmm.reporting.story import Story
from vpmm.reporting.timeline import timeline_of
from vpmm.units import bytes_text, count_text

_HEIGHT = 8  # of the curve, in lines
_BLOCKS = " ▁▂▃▄▅▆▇█"
_GROUPS = 8
_FAILURES = 3
_LEAKS = 10
_SAYS_NOTHING = re.compile(r"no |the program$")  # of all memory, as a library or as a tag


def curve(story: Story, width: int) -> list[str]:
    """Live memory over time, as blocks."""
    line = timeline_of(story)
    if not line.time_ns or not story.peak or not story.duration_ns:
        return []
    columns = width - 12
    most = [0] * columns
    last_column = last_live = 0
    for time_ns, live in zip(line.time_ns, line.live, strict=True):
        column = min((time_ns - story.begin_ns) * columns // story.duration_ns, columns - 1)
        for between in range(last_column + 1, column):
            most[between] = last_live
        most[column] = max(most[column], live)
        last_column, last_live = column, live
    rows = []
    for row in range(_HEIGHT, 0, -1):
        label = bytes_text(story.peak) if row == _HEIGHT else ""
        levels = [min(max(live * _HEIGHT * 8 // story.peak - (row - 1) * 8, 0), 8) for live in most]
        rows.append(f"{label:>10} |" + "".join(_BLOCKS[level] for level in levels).rstrip())
    end = time_text(story.duration_ns)
    rows.append(f"{'0':>10} +" + "-" * columns)
    rows.append(" " * 12 + "0" + end.rjust(columns - 1))
    return rows


def _groups(picture: Picture, way: str, width: int) -> Iterable[str]:
    for group in picture.groups[way][:_GROUPS]:
        share = percent(group.bytes, picture.live)
        yield labelled(f"  {bytes_text(group.bytes):>10} {share:>5} {group.count:>8,}  ", group.label, width)


def _alive(story: Story, width: int) -> list[str]:
    lines: list[str] = []
    for name, index in facts.moments(story)[:1]:
        picture = picture_at(story, index, name)
        said = f"What lived at the peak: {bytes_text(picture.live)} in {count_text(picture.count, 'allocation')}"
        lines += ["", wrapped(said, width)]
        for way in ("stack", "library", "tag", "stream", "size"):
            groups = picture.groups[way]
            is_named = way in ("stack", "library", "tag") and groups and not _SAYS_NOTHING.match(groups[0].label)
            is_told = len(groups) > 1 or is_named
            if is_told or way == "size":
                lines += [f" by {way}", *_groups(picture, way, width)]
    return lines


def _failures(story: Story, width: int) -> list[str]:
    lines: list[str] = []
    for failure in story.failures[:_FAILURES]:
        at = time_text(failure.event.time_ns - story.begin_ns)
        lines += ["", f"Failed: {bytes_text(failure.event.bytes)} after {at}"]
        lines.append(wrapped(why(story, failure), width, "  "))
        figures = "; ".join(f"{name}: {bytes_text(size)}" for name, size in failure_figures(story, failure))
        lines.append(wrapped(figures, width, "  "))
        lines += [wrapped(line, width, "  | ") for line in failure.report.splitlines()[:20]]
    if len(story.failures) > _FAILURES:
        lines.append(f"and {len(story.failures) - _FAILURES} more failed")
    return lines


def _driver(story: Story) -> list[str]:
    if not story.driver and not story.pauses.calls:
        return []
    lines = ["", "Time in the driver"]
    for kind, spent in sorted(story.driver.items()):
        name = DriverCall(kind).name.lower().replace("_", " ") if 1 <= kind <= DriverCall.OTHER else "other"
        lines.append(
            f"  {name:<12} {time_text(spent.ns):>10} {percent(spent.ns, story.duration_ns):>5} "
            f"{count_text(spent.calls, 'call'):>14}"
        )
    if story.pauses.calls:
        lines.append(f"  {'waits':<12} {time_text(story.pauses.ns):>10} {count_text(story.pauses.calls, 'call'):>20}")
    return lines


def _leaks(story: Story, width: int) -> list[str]:
    found = facts.leaks(story)
    if not found:
        return []
    lines = ["", "Never freed, oldest first"]
    lines += [
        labelled(
            f"  {bytes_text(each.bytes):>10} {each.count:>8,}  since {time_text(each.oldest_ns):>9}  ",
            each.label,
            width,
        )
        for each in found[:_LEAKS]
    ]
    return lines


def text_of_gpus(stories: Sequence[Story], width: int = 100) -> str:
    """The report of each GPU, one below the other, as text_of() has it."""
    if len(stories) == 1:
        return text_of(stories[0], width)
    named = zip(names_of(stories), stories, strict=True)
    return "\n".join(f"{wrapped(name, width)}\n{text_of(story, width, is_alone=False)}" for name, story in named)


def text_of(story: Story, width: int = 100, *, is_alone: bool = True) -> str:
    """The whole report in lines of at most `width` columns, at least 40. `is_alone`: as in facts.notes()."""
    lines = [
        wrapped(facts.title(story), width),
        wrapped(facts.summary(story), width),
        *(wrapped(f"Note: {each}", width) for each in facts.notes(story, is_alone=is_alone)),
    ]
    lines += ["", *curve(story, width), "", "What to change"]
    for said in advice(story):
        lines += [
            wrapped(f"{'!' if said.level == 'bad' else '-'} {said.title}", width),
            wrapped(said.reason, width, "    "),
        ]
        if said.action:
            lines.append(wrapped(said.action, width, "    "))
    lines += [*_failures(story, width), *_alive(story, width)]
    lines += [*(wrapped(line, width, "    ", "") for line in _driver(story)), *_leaks(story, width)]
    return "\n".join(lines) + "\n"
