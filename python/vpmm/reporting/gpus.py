# SPDX-License-Identifier: Apache-2.0
# vpmm: several GPUs in one report: the recordings that belong together, names and a common time.

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vpmm.recordings import Recording
from vpmm.reporting.story import Story


def stories_of(recording: Recording) -> list[Story]:
    """A story of each device that has an event, by its number; of a recording without events one."""
    devices = sorted({event.device for event in recording.events})
    return [Story(recording, device) for device in devices] if len(devices) > 1 else [Story(recording)]


def are_of_one_process(first: Recording, second: Recording) -> bool:
    """Whether two recordings are of two GPUs of a process, and not of two runs."""
    process = first.header.get("pid")
    is_one = process is not None and process == second.header.get("pid")
    return is_one and first.header.get("device") != second.header.get("device")


def names_of(stories: Sequence[Story]) -> list[str]:
    """`GPU 0`; where several have one number, with the file before it, and at last with a number of its own."""
    names = [f"GPU {story.device}" for story in stories]
    if len(set(names)) < len(names):
        names = [
            f"{story.header_text('file') or 'recording'}, {name}" for story, name in zip(stories, names, strict=True)
        ]
    counts = Counter(names)
    return [f"{name} ({at})" if counts[name] > 1 else name for at, name in enumerate(names, start=1)]


def later_by(stories: Sequence[Story]) -> list[int]:
    """Nanoseconds to add to the times of each story for a common time, which begins with the first recording.

    Recordings that do not say when they began are taken to have begun at once.
    """
    begun = [story.header_number("started_unix_ns") for story in stories]
    if all(begun):
        return [each - min(begun) for each in begun]
    return [-story.recording.events[0].time_ns if story.recording.events else 0 for story in stories]
