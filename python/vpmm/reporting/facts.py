# SPDX-License-Identifier: Apache-2.0
# vpmm: the leading figures of a recording, in words, and its gaps.

from __future__ import annotations

from dataclasses import dataclass

from vpmm.reporting.picture import size_class
from vpmm.reporting.story import NEVER, Life, Story
from vpmm.units import bytes_text, count_text, duration_text

MOST_FAILURES = 200
_MOST_LEAKS = 60
_MOST_MOMENTS = 4


@dataclass(frozen=True)
class Leak:
    """Allocations of one place that were never freed."""

    label: str
    bytes: int
    count: int
    oldest_ns: int
    newest_ns: int


def title(story: Story) -> str:
    """The recorded command, or the file, or the source of the recording."""
    command = story.recording.header.get("command")
    if isinstance(command, list) and command:
        return " ".join(str(each).rsplit("/", 1)[-1] if i == 0 else str(each) for i, each in enumerate(command))[:300]
    source = story.header_text("source")
    name = story.header_text("file")
    if name:
        return name
    return "a recorded program" if source in ("", "vpmm", "csv") else f"a recording of {source}"


def facts(story: Story) -> list[tuple[str, str, str]]:
    """Label, value and, for a bad value, `bad`."""
    found = [("requested, at the peak", bytes_text(story.peak), "")]
    if story.peak_taken != story.peak:
        found.append(("taken, at most", bytes_text(story.peak_taken), ""))
    if story.peak_mapped:
        found.append(("mapped, at most", bytes_text(story.peak_mapped), ""))
    if story.capacity:
        found.append(("capacity", bytes_text(story.capacity), ""))
    failed = len(story.failures)
    found.append(("failed request" if failed == 1 else "failed requests", str(failed), "bad" if failed else ""))
    found.append(("allocations", f"{story.allocations:,}", ""))
    found.append(("stream" if len(story.streams) == 1 else "streams", str(len(story.streams)), ""))
    found.append(("recorded", duration_text(story.duration_ns / 1000), ""))
    return found


def summary(story: Story) -> str:
    """The recording in a few sentences."""
    if not story.events:
        return "Nothing happened while this was recorded."
    device = story.header_text("device_name") or f"device {story.device}"
    parts = [
        f"On {device}, {count_text(story.allocations, 'allocation')} in {duration_text(story.duration_ns / 1000)}. "
        f"At most {bytes_text(story.peak)} of requested memory lived at once"
    ]
    if story.peak_mapped:
        parts.append(f", and {bytes_text(story.peak_mapped)} were mapped")
    if story.capacity:
        parts.append(f", of {bytes_text(story.capacity)}")
    parts.append(". ")
    if story.failures:
        first = story.failures[0]
        at = duration_text((first.event.time_ns - story.begin_ns) / 1000)
        count = len(story.failures)
        parts.append(
            f"{'A request' if count == 1 else f'{count} requests'} failed, "
            f"{'' if count == 1 else 'the first '}for {bytes_text(first.event.bytes)} after {at}. "
        )
    left = story.live_at_end
    parts.append(f"At the end {bytes_text(left)} still lived." if left else "All of it was freed.")
    return "".join(parts)


def notes(story: Story, *, is_alone: bool = True) -> list[str]:
    """Remarks on the recording itself. `is_alone`: other devices of it are not in the report."""
    header, end = story.recording.header, story.recording.end or {}
    found = [story.recording.warning] if story.recording.warning else []
    lost = end.get("lost", 0)
    if isinstance(lost, int) and lost > 0:
        found.append(f"{lost:,} calls are not in the recording, because it could not be written fast enough.")
    sample = header.get("sample", 1)
    if isinstance(sample, int) and sample > 1:
        found.append(f"One allocation in {sample} was recorded: live memory is about {sample} times what is shown.")
    if header.get("is_window") is True:
        found.append("Older events were dropped: the recording begins with what lived then.")
    if len(story.devices) > 1 and is_alone:
        others = ", ".join(str(each) for each in sorted(story.devices) if each != story.device)
        found.append(f"This is device {story.device}; the recording has devices {others}, too (--device).")
    if not story.recording.stacks and story.events:
        found.append("No call stacks were recorded; VPMM_RECORD_STACKS=python or native says who allocates.")
    return found


def moments(story: Story) -> list[tuple[str, int]]:
    """Name and event of the peak, of failed requests, and of the end."""
    if not story.events:
        return []
    found = [("at the peak", max(story.peak_index, 0))]
    for number, failure in enumerate(story.failures[: _MOST_MOMENTS - 2], start=1):
        found.append(("when a request failed" if len(story.failures) == 1 else f"at failure {number}", failure.index))
    if story.live_at_end:
        found.append(("at the end", len(story.events) - 1))
    return found


def leaks(story: Story) -> list[Leak]:
    """Allocations that were never freed, by stack or else by size, oldest first."""
    found: dict[str, list[Life]] = {}
    for life in story.lives:
        if life.end == NEVER:
            label = (
                story.stack_label(life.event.stack) if life.event.stack else size_class(life.event.bytes.bit_length())
            )
            found.setdefault(label, []).append(life)
    made = [
        Leak(
            label,
            sum(each.event.bytes for each in lives),
            len(lives),
            lives[0].event.time_ns,
            lives[-1].event.time_ns,
        )
        for label, lives in found.items()
    ]
    largest = sorted(made, key=lambda each: -each.bytes)[:_MOST_LEAKS]
    return sorted(largest, key=lambda each: each.oldest_ns)
