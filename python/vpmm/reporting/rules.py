# SPDX-License-Identifier: Apache-2.0
# vpmm: advice from a recording: rules, each with the figures that triggered it.

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from vpmm.recordings import Kind
from vpmm.reporting.address_map import free_ranges
from vpmm.reporting.picture import grouped_by_place
from vpmm.reporting.story import NEVER, Failure, Story
from vpmm.units import bytes_in, bytes_text, count_text, duration_text

MIB = 1 << 20
_SLICES = 10  # of the time, to detect growth
_WARM_NS = 100_000_000  # a shorter recording is all start
_REQUESTS = (Kind.ALLOCATE, Kind.ALLOCATE_FAILED)
_TRY = "vpmm try on this file says how much VPMM would hold, and what would have failed."


@dataclass(frozen=True)
class Advice:
    """`level`: bad, something failed; warn, something costs; good, nothing to do."""

    level: Literal["bad", "warn", "good"]
    title: str
    reason: str
    action: str = ""


Rule = Callable[[Story], Advice | None]


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def is_of_a_pool(story: Story) -> bool:
    """Whether VPMM recorded it, not another allocator."""
    return story.header_text("source") in ("", "vpmm")


def time_text(ns: float) -> str:
    return duration_text(ns / 1000)


# --- requests that failed -------------------------------------------------------------------------------------------

_TAG_LIMIT = re.compile(r"; (?P<tag>[^;\n]+) has (?P<has>[^;\n]+) of its limit of (?P<limit>[^;\n]+)")
_TRAPPED = re.compile(r"^ *trapped +(.+?) of what is free cannot move", re.MULTILINE)
_MISSING = re.compile(r"^[^\n]*; (.+?) are missing;")


def why(story: Story, failure: Failure) -> str:
    """The reason for a failed request, in a sentence, as far as the recording has it."""
    size = failure.event.bytes
    asked = bytes_text(size)
    if tag := _TAG_LIMIT.search(failure.report):
        return f"{asked} were asked for, and {tag['tag']} had {tag['has']} of its limit of {tag['limit']}."
    trapped, missing = _TRAPPED.search(failure.report), _MISSING.search(failure.report)
    if story.is_full(failure):
        taken = story.taken_for(size)
        limit = story.limit_at(failure)
        more = missing[1] if missing else bytes_text(failure.taken + taken - limit)
        rounded = f" and take {bytes_text(taken)}" if taken != size else ""
        idle = f", and {trapped[1]} were free in chunks that live memory uses in part" if trapped else ""
        return (
            f"{asked} were asked for{rounded} while {bytes_text(failure.taken)} were taken{idle}: together that is "
            f"{more} more than the {bytes_text(limit)} there are."
        )
    if trapped and missing:
        return (
            f"{asked} were asked for, and {missing[1]} were missing: {trapped[1]} of what was free could not move, "
            "because live memory uses a part of its chunks."
        )
    if failure.pending and failure.free - failure.pending < size:
        return (
            f"{bytes_text(failure.free)} were free when {asked} were asked for, but {bytes_text(failure.pending)} of "
            "it was still in use by work on the GPU."
        )
    if story.has_maps:
        ranges = free_ranges(story, failure.index)
        if ranges and sum(ranges) >= size:
            return (
                f"{bytes_text(sum(ranges))} were free when {asked} were asked for, in {len(ranges)} ranges of which "
                f"the largest had {bytes_text(max(ranges))}."
            )
    return (
        f"{asked} were asked for while {bytes_text(failure.live)} lived; the recording does not say what the GPU had "
        "left: other processes and other pools hold memory, too."
    )


def tag_limit(story: Story) -> Advice | None:
    """A tag was at its limit."""
    at_limit = [each for each in story.failures if _TAG_LIMIT.search(each.report)]
    if not at_limit:
        return None
    return Advice(
        "bad",
        f"{count_text(len(at_limit), 'request')} failed at the limit of a tag",
        why(story, at_limit[0]),
        "Raise the limit (VPMM_LIMITS, vpmm.tag(limit=...)), or free memory of the tag.",
    )


def trapped_memory(story: Story) -> Advice | None:
    """Idle memory was trapped."""
    for failure in story.failures:
        if not story.is_full(failure) and _TRAPPED.search(failure.report) and _MISSING.search(failure.report):
            return Advice(
                "bad",
                "A request failed while free memory could not move",
                why(story, failure),
                "A smaller VPMM_CHUNK_MAX, down to 2MiB, traps less and takes more driver calls.",
            )
    return None


def out_of_memory(story: Story) -> Advice | None:
    """The program needs more memory than is available."""
    full = [each for each in story.failures if story.is_full(each) and not _TAG_LIMIT.search(each.report)]
    if not full:
        return None
    first = full[0]
    groups = grouped_by_place(story, story.alive(first.index))
    holder = f" Most of it, {bytes_text(groups[0].bytes)}, is of {groups[0].label}." if groups else ""
    return Advice(
        "bad",
        f"Out of memory: {len(full)} request{'s' if len(full) > 1 else ''} did not fit",
        why(story, first) + holder,
        f"Free some of it earlier, or make room: {_limit_text(story, first)}. vpmm fit on this file says how small a "
        "GPU can be.",
    )


def _limit_text(story: Story, failure: Failure) -> str:
    """The limit that was in the way, and the place that it is from."""
    limit, of_settings = story.limit_at(failure), story.setting("VPMM_CAPACITY")
    if limit == story.header_number("device_bytes"):
        return f"the GPU has {bytes_text(limit)}"
    if limit == story.capacity and _may_be(limit, of_settings):
        return f"VPMM_CAPACITY is {bytes_text(limit)}"
    now = f"{bytes_text(limit)} were the limit, which the program set (vpmm_set_capacity, or PyTorch's memory fraction)"
    return now if of_settings in ("", "none") else f"{now}; VPMM_CAPACITY is {of_settings}"


def _may_be(limit: int, setting: str) -> bool:
    """Whether VPMM_CAPACITY is that limit; of a share nothing tells it. Recordings of old versions have no settings."""
    size = re.fullmatch(r"(\d+)([KMGT]i)?B", setting)
    if size is None:
        return setting != "none"
    return bytes_in(f"{size[1]} {size[2]}B" if size[2] else f"{size[1]} bytes") == limit


def pending_failure(story: Story) -> Advice | None:
    """Memory was free, but the GPU still used it."""
    for failure in story.failures:
        size = failure.event.bytes
        if failure.pending and failure.free >= size > failure.free - failure.pending:
            return Advice(
                "bad",
                "A request failed while freed memory waited for the GPU",
                why(story, failure),
                "Free on the stream that used the memory last, and synchronise a stream that runs far ahead before "
                "the large request. A stream that is captured can wait for nothing: free before the capture.",
            )
    return None


def fragmentation(story: Story) -> Advice | None:
    """Enough was free, in pieces."""
    if not story.has_maps:
        return None
    for failure in story.failures:
        if _TRAPPED.search(failure.report):
            continue
        ranges = free_ranges(story, failure.index)
        if sum(ranges) - failure.pending >= failure.event.bytes > max(ranges, default=0):
            return Advice(
                "bad",
                "A request failed although enough was free, in pieces",
                why(story, failure),
                "The pool joins idle pieces unless it may not: see whether it has VPMM_MAX_MAPPINGS mappings, "
                "whether a capture forbids it, or whether one page per chunk (VPMM_CHUNK_MAX=page) is needed."
                if is_of_a_pool(story)
                else f"An allocator that cannot move memory cannot join them; VPMM can. {_TRY}",
            )
    return None


# --- memory that is held --------------------------------------------------------------------------------------------


def mapped_beyond_live(story: Story) -> Advice | None:
    """The pool holds much more than the peak of live memory."""
    extra = story.peak_mapped - story.peak
    if not story.peak or extra < max(story.peak // 5, 64 * MIB):
        return None
    return Advice(
        "warn",
        f"{bytes_text(extra)} more was mapped than ever lived at once",
        f"At most {bytes_text(story.peak)} lived, and {bytes_text(story.peak_mapped)} were mapped "
        f"({percent(extra, story.peak)} more). It is free memory in the wrong place, memory that waits for other "
        "streams, or room that spares driver calls.",
        "If memory is short, VPMM_PREFER=footprint spends driver calls to hold less." if is_of_a_pool(story) else _TRY,
    )


def pending_memory(story: Story) -> Advice | None:
    """Much memory was freed and not yet usable, and requests followed."""
    most = story.peak_pending
    later = story.events[story.peak_pending_index + 1 :]
    if most < max(story.peak // 10, 64 * MIB) or not any(each.kind in _REQUESTS for each in later):
        return None
    window = [each for each in story.events[: story.peak_pending_index + 1][-5000:] if each.kind is Kind.FREE]
    by_stream: dict[int | None, int] = {}
    for event in window:
        by_stream[event.stream] = by_stream.get(event.stream, 0) + 1
    who = max(by_stream, key=lambda each: by_stream[each], default=None)
    used = {each.stream for each in story.events if each.kind is Kind.RECORD_USE}
    if who is not None and {*by_stream, *story.streams, *used} == {who}:
        return None  # the only stream may use it at once
    busiest = f" Most frees before that named {story.stream_name(who)}." if by_stream and who is not None else ""
    unnamed = (
        " Most frees before that named no stream, and wait for all work of the GPU."
        if who is None and by_stream
        else ""
    )
    return Advice(
        "warn",
        f"Up to {bytes_text(most)} was freed and waited for the GPU",
        f"That is {percent(most, story.peak)} of the peak: memory that nobody owns and other streams cannot use yet."
        + busiest
        + unnamed,
        ("Name the stream when you free; f" if unnamed else "F")
        + "ree on the stream that used the memory last; keep the CPU from running many steps ahead of the GPU.",
    )


def is_default_stream(name: str) -> bool:
    """A program's weights are often allocated there, and stay."""
    return re.fullmatch(r"0|0x[012]|stream \d+ \(0x[012]\)", name) is not None


def hoarding_stream(story: Story) -> Advice | None:
    """A stream that is no longer used holds memory."""
    half = story.begin_ns + story.duration_ns // 2
    idle = {
        stream: each
        for stream, each in story.streams.items()
        if 0 < each.last_ns < half
        and each.live >= max(story.peak // 20, MIB)
        and not is_default_stream(story.recording.streams.get(stream, "") if stream is not None else "0")
    }
    if not idle or len(story.streams) < 2:
        return None
    stream, most = max(idle.items(), key=lambda each: each[1].live)
    return Advice(
        "warn",
        f"{story.stream_name(stream).capitalize()} holds {bytes_text(most.live)} and is no longer used",
        f"Its last call was at {time_text(most.last_ns)} of {time_text(story.end_ns)}; what it allocated still lives "
        "at the end.",
        "Free what belongs to it when its work is over.",
    )


def growth(story: Story) -> Advice | None:
    """The minimum of live memory grows from slice to slice, as with a leak."""
    lows = _lows(story)
    if len(lows) < _SLICES:
        return None
    later = lows[_SLICES // 3 :]
    rise = later[-1] - later[0]
    steps = [after - before for before, after in pairwise(later)]
    if min(steps) < 0 or sum(each > 0 for each in steps) < len(steps) - 1 or rise < max(story.peak // 20, MIB):
        return None
    middle = story.begin_ns + story.duration_ns // 3
    kept = [each for each in story.lives if each.end == NEVER and each.event.time_ns > middle]
    groups = grouped_by_place(story, kept)
    what = f" Most of what was never freed since then, {bytes_text(groups[0].bytes)}, is of " if groups else ""
    what += f"{groups[0].label}." if groups else ""
    return Advice(
        "warn",
        f"Live memory grows all the time: {bytes_text(rise)} in the last two thirds",
        f"The least that lived went from {bytes_text(later[0])} to {bytes_text(later[-1])} and never came back." + what,
        "This looks like a leak: see what is listed under Never freed.",
    )


def _lows(story: Story) -> list[int]:
    """The minimum of live memory in each tenth of the time; empty: the recording is too short."""
    series = story.series
    if story.allocations < 10 * _SLICES or not story.duration_ns:
        return []
    lows: dict[int, int] = {}
    for time_ns, live in zip(series.time_ns, series.live, strict=True):
        part = min((time_ns - story.begin_ns) * _SLICES // story.duration_ns, _SLICES - 1)
        lows[part] = min(lows.get(part, live), live)
    return [lows[part] for part in sorted(lows)]


def capacity_is_near(story: Story) -> Advice | None:
    """Nothing failed, but little memory is left."""
    if story.failures or not story.capacity or story.peak < story.capacity * 0.92:
        return None
    return Advice(
        "warn",
        f"The peak is {percent(story.peak, story.capacity)} of what there is",
        f"{bytes_text(story.peak)} of {bytes_text(story.capacity)} lived at once: a slightly larger batch won't fit.",
        "Look at what is alive at the peak before you enlarge anything.",
    )


def rounding(story: Story) -> Advice | None:
    """Allocations take more than they request."""
    alive = story.alive(story.peak_index) if story.peak_index >= 0 else []
    known = [each.event for each in alive if each.event.value >= each.event.bytes > 0]
    extra = sum(each.value - each.bytes for each in known)
    if not known or extra < max(story.peak // 10, 2 * story.page_size):
        return None
    worst = max(known, key=lambda each: each.value - each.bytes)
    return Advice(
        "warn",
        f"Rounding takes {bytes_text(extra)} at the peak",
        f"{len(known)} allocations take {percent(extra, story.peak)} more than they ask for; one of "
        f"{bytes_text(worst.bytes)} takes {bytes_text(worst.value)}. Pages have {bytes_text(story.page_size)}, "
        f"and larger allocations are whole multiples of {bytes_text(story.grain)}.",
        "Put small tensors together. VPMM_CHUNK_MAX=page and VPMM_IPC_ISOLATE=1 round every size to whole pages.",
    )


# --- time that is spent ---------------------------------------------------------------------------------------------


def driver_calls(story: Story) -> Advice | None:
    """Mapping goes on after the program has warmed up."""
    late = story.late_driver
    if late.calls < 50 or late.ns < story.duration_ns * 0.01 or story.duration_ns < _WARM_NS:
        return None
    if story.has_maps and story.late_remaps == 0 and story.released == 0:
        return None  # all of them were for memory that the program had not had before
    per_second = late.calls / max(story.duration_ns / 2e9, 1e-9)
    return Advice(
        "warn",
        f"The driver is called {per_second:.0f} times a second to map memory, long after the start",
        f"In the second half {count_text(late.calls, 'call')} took {time_text(late.ns)}, "
        f"{percent(late.ns, story.duration_ns / 2)} "
        "of the time.",
        "VPMM_PREFER=latency spends memory to spare such calls. Sizes that repeat from step to step need none.",
    )


def given_back(story: Story) -> Advice | None:
    """Memory is released to the driver and requested again."""
    again = min(story.released, story.created)
    if again < 2 * max(story.peak_mapped, 1) or again < 64 * MIB:
        return None
    return Advice(
        "warn",
        f"{bytes_text(again)} went back to the driver and were fetched again",
        f"That is {again / story.peak_mapped:.1f} times the most that was mapped.",
        "Raise VPMM_RELEASE_THRESHOLD or leave it out, and trim less often.",
    )


def waits(story: Story) -> Advice | None:
    """Requests waited for the GPU."""
    if story.pauses.calls == 0 or story.pauses.ns < story.duration_ns * 0.01:
        return None
    return Advice(
        "warn",
        f"Requests waited {time_text(story.pauses.ns)} for the GPU",
        f"{count_text(story.pauses.calls, 'call')} paused, the longest for {time_text(story.pauses.longest_ns)}: "
        "memory was short, and what other streams had freed was still in use.",
        "Give the pool more room, or free earlier; VPMM_PREFER=latency does not wait before it grows.",
    )


def rescued(story: Story) -> Advice | None:
    """Memory ran short, and a callback made room."""
    if story.rescued == 0:
        return None
    return Advice(
        "warn",
        f"{count_text(story.rescued, 'request')} {'was' if story.rescued == 1 else 'were'} served only after memory "
        "had run out",
        "An out-of-memory callback made room, or another pool gave memory back.",
        "Each of them is slow: make room before.",
    )


RULES: list[Rule] = [
    tag_limit,
    out_of_memory,
    trapped_memory,
    pending_failure,
    fragmentation,
    growth,
    hoarding_stream,
    pending_memory,
    mapped_beyond_live,
    capacity_is_near,
    rounding,
    rescued,
    waits,
    driver_calls,
    given_back,
]


def advice(story: Story) -> list[Advice]:
    """The advice of the rules, failures first; a single good one if no rule applies."""
    found = [said for said in (rule(story) for rule in RULES) if said is not None]
    if story.failures and not any(each.level == "bad" for each in found):
        found.insert(0, Advice("bad", "A request failed", why(story, story.failures[0])))
    missing = unread(story)
    if not found and not missing:
        found.append(Advice("good", "Nothing stands out", "No rule found something that should be changed."))
    elif not found:
        found.append(
            Advice(
                "good",
                "Nothing stands out in what was recorded",
                f"The recording does not have {', '.join(missing[:-1])}{' and ' if missing[:-1] else ''}{missing[-1]}, "
                "so the rules about them found nothing to read.",
                "A binary recording, made with VPMM_RECORD=run.vpmm, has them all.",
            )
        )
    return found


def unread(story: Story) -> list[str]:
    """The parts of a recording that rules need and this one cannot have."""
    if is_of_a_pool(story):
        return []
    known = {
        "call stacks": bool(story.recording.stacks),
        "maps": story.has_maps,
        "samples of pending memory": story.has_samples,
        "failed requests": story.header_text("source") not in ("csv", "nsight-systems"),
        "driver calls and waits": bool(story.driver or story.pauses.calls),
    }
    return [name for name, is_known in known.items() if not is_known]
