# SPDX-License-Identifier: Apache-2.0
# vpmm: the report as one HTML file that needs nothing else: the data as JSON, and the scripts that draw it.

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from vpmm._output import save
from vpmm.recordings import DriverCall
from vpmm.reporting import facts
from vpmm.reporting.address_map import free_ranges, kept_lives, map_of
from vpmm.reporting.columns import Columns
from vpmm.reporting.compare import add_curves, comparison_of
from vpmm.reporting.gpus import later_by, names_of
from vpmm.reporting.rules import advice, why
from vpmm.reporting.stacks import add_stacks
from vpmm.reporting.story import Failure, Spent, Story
from vpmm.reporting.timeline import add_timeline

_SCRIPTS = ["base.js", "lives.js", "timeline.js", "bands.js", "alive.js", "map.js", "gpus.js", "main.js"]
_SCRIPTS_OF_TWO = ["base.js", "lives.js", "timeline.js", "compare.js"]
_MOST_MARKS = 2000
_MOST_REPORT = 20_000  # characters
_DRIVER_CALLS = {
    DriverCall.CREATE: "create",
    DriverCall.MAP: "map",
    DriverCall.SET_ACCESS: "set access",
    DriverCall.UNMAP: "unmap",
    DriverCall.RELEASE: "release",
    DriverCall.OTHER: "other",
}


def _spent(spent: Spent) -> dict[str, object]:
    return {"calls": spent.calls, "bytes": spent.bytes, "ns": spent.ns, "longest": spent.longest_ns}


def failure_figures(story: Story, failure: Failure) -> list[tuple[str, int]]:
    """The memory at a failed request, as far as the recording has it."""
    found = [("asked for", failure.event.bytes), ("live, as requested", failure.live)]
    if failure.taken != failure.live:
        found.append(("taken, with rounding", failure.taken))
    if story.peak_mapped:
        found.append(("mapped", failure.mapped))
    if story.has_maps:
        ranges = free_ranges(story, failure.index)
        found += [("free", sum(ranges)), ("largest free range", max(ranges, default=0))]
    if story.has_samples:
        found.append(("pending, as last sampled", failure.pending))
    if limit := story.limit_at(failure):
        found.append(("capacity", limit))
    return found


def _failures(story: Story) -> list[dict[str, object]]:
    return [
        {
            "t": each.event.time_ns,
            "index": each.index,
            "bytes": each.event.bytes,
            "report": each.report[:_MOST_REPORT],
            # Each costs a walk over all allocations.
            "why": why(story, each) if number < 12 else "",
            "figures": failure_figures(story, each) if number < 12 else [],
        }
        for number, each in enumerate(story.failures[: facts.MOST_FAILURES])
    ]


def data_of(story: Story, curve: Columns, columns: Columns, *, is_alone: bool = True) -> dict[str, object]:
    """Everything that the page shows. What is long goes into `curve`, which a browser shows first, and `columns`.

    `is_alone`: as in facts.notes().
    """
    lives = kept_lives(story)
    stacks = {number: place for place, number in enumerate(sorted({life.event.stack for life in lives} | {0}))}
    add_stacks(columns, story.recording, stacks, story.stack_labels)
    add_timeline(curve, story)
    told_map = map_of(story, columns, lives, stacks)
    leaks = facts.leaks(story)
    return {
        "title": facts.title(story),
        "summary": facts.summary(story),
        "facts": facts.facts(story),
        "notes": facts.notes(story, is_alone=is_alone),
        "advice": [
            {"level": each.level, "title": each.title, "reason": each.reason, "action": each.action}
            for each in advice(story)
        ],
        "events": len(story.events),
        "duration": story.duration_ns,
        "capacity": story.capacity,
        "hasStacks": bool(story.recording.stacks),
        "peak": {
            "index": max(story.peak_index, 0),
            "live": story.peak,
            "t": story.events[story.peak_index].time_ns if story.peak_index >= 0 else 0,
        },
        "marks": story.marks[:_MOST_MARKS],
        "failures": _failures(story),
        "failureCount": len(story.failures),
        "moments": facts.moments(story),
        "allocations": len(story.lives),
        "names": {
            "streams": {number: story.stream_name(number) for number in story.streams if number is not None},
            "tags": {tag: story.tag_name(tag) for tag in {life.event.tag for life in story.lives} if tag},
            "threads": {number: story.thread_name(number) for number in {life.event.thread for life in story.lives}},
        },
        "map": told_map,
        "curve": curve.shape,
        "columns": columns.shape,
        "driver": [
            {"name": _DRIVER_CALLS.get(DriverCall(kind), "other") if 1 <= kind <= 6 else "other", **_spent(spent)}
            for kind, spent in sorted(story.driver.items())
        ],
        "pauses": _spent(story.pauses),
        "streams": [
            {
                "name": story.stream_name(stream),
                "allocations": each.allocations,
                "bytes": each.bytes,
                "peak": each.peak,
                "live": each.live,
                "last": each.last_ns,
            }
            for stream, each in sorted(story.streams.items(), key=lambda pair: -pair[1].bytes)[:100]
        ],
        "leakTold": f"{sum(each.count for each in leaks):,} allocations were still live at the end, oldest first. What "
        "a program keeps for all of its life is here, too.",
        "leaks": [
            {
                "label": each.label,
                "bytes": each.bytes,
                "count": each.count,
                "oldest": each.oldest_ns,
                "newest": each.newest_ns,
            }
            for each in leaks
        ],
    }


def page_of(story: Story) -> str:
    """The page, as a text."""
    curve, columns = Columns(), Columns()
    return _filled(data_of(story, curve, columns), [curve], [columns], _SCRIPTS)


def page_of_two(first: Story, second: Story) -> str:
    """The page that compares two recordings, as a text."""
    curves = Columns()
    told = comparison_of(first, second, curves) | {"curve": curves.shape}
    return _filled(told, [curves], [], _SCRIPTS_OF_TWO)


def page_of_gpus(stories: Sequence[Story]) -> str:
    """The page of several GPUs, each a story of a device, as a text: the curves of all, and the report of one.

    Of one GPU it is page_of().
    """
    if len(stories) == 1:
        return page_of(stories[0])
    later = later_by(stories)
    curves: list[Columns] = [Columns()]
    columns: list[Columns] = []
    add_curves(curves[0], {f"gpu{at}": each for at, each in enumerate(zip(stories, later, strict=True))})
    gpus = []
    for story, name, offset in zip(stories, names_of(stories), later, strict=True):
        lines = [len(curves), len(columns)]
        curves.append(Columns())
        columns.append(Columns())
        title = facts.title(story)
        about = {"gpu": name, "offset": offset, "lines": lines, "title": name if title in name else f"{title}, {name}"}
        gpus.append(data_of(story, curves[-1], columns[-1], is_alone=False) | about)
    busiest = max(range(len(stories)), key=lambda at: len(stories[at].events))
    return _filled({"gpus": gpus, "first": busiest, "curve": curves[0].shape}, curves, columns, _SCRIPTS)


def _filled(data: dict[str, object], curves: list[Columns], columns: list[Columns], scripts: list[str]) -> str:
    web = resources.files("vpmm.reporting") / "web"

    def text(name: str) -> str:
        return (web / name).read_text(encoding="utf-8")

    # No text of a recording may close its enclosing element.
    told = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    places = {
        "STYLE": text("page.css"),
        "DATA": told,
        "CURVES": "\n".join(each.text() for each in curves),
        "COLUMNS": "\n".join(each.text() for each in columns),
        "SCRIPT": "\n".join(text(name) for name in scripts),
    }
    # All at once: a text of the recording may look like a place.
    return re.sub(rf"/\*({'|'.join(places)})\*/", lambda place: places[place[1]], text("page.html"))


def write_page(page: str, path: str | Path) -> int | None:
    """Writes a page; `-` is standard output. Returns its size in bytes, None where it is no regular file.

    Raises OSError if that fails; a file that was there then has its old content.
    """
    content = page.encode()
    return save(path, lambda file: file.write(content))
