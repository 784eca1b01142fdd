# SPDX-License-Identifier: Apache-2.0
# vpmm: one picture of `vpmm top`, as lines of text.

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from vpmm.recordings import Event, Kind, Recording
from vpmm.units import bytes_text, duration_text, printable
from vpmm.watching.figures import Figures, capacity_of

_BLOCKS = "▁▂▃▄▅▆▇█"
_LEAST_WIDTH = 40
_LEAST_WIDTH_OF_TWO = 64  # tables side by side
_MOST_BAR = 60
_MOST_POOLS = 8
_MOST_NAME = 76  # of a tag or stream, in a table by itself


def _bar(size: int, most: int, width: int) -> str:
    filled = min(round(size * width / most), width) if most else 0
    return "#" * filled + "." * (width - filled)


def spark(values: Sequence[int], width: int) -> str:
    """The last values as blocks, scaled from zero to their maximum."""
    shown = values[-width:]
    most = max(shown, default=0) or 1
    return "".join(_BLOCKS[value * (len(_BLOCKS) - 1) // most] for value in shown)


def _title(recording: Recording, figures: Figures, name: str, now_ns: int, width: int) -> str:
    header = recording.header
    device = header.get("device_name") or f"device {header.get('device', 0)}"
    parts = ["vpmm top", name, f"pid {header['pid']}" if "pid" in header else "", str(device)]
    state = "ended" if recording.end is not None else figures.state
    parts += [duration_text(now_ns / 1000), state]
    return "  ".join(printable(part) for part in parts if part)[:width]


def _sizes(recording: Recording, figures: Figures, now_ns: int, width: int) -> list[str]:
    capacity = capacity_of(recording)
    shown = [("live", figures.live_bytes)]
    if figures.suspended_bytes:
        shown.append(("asleep", figures.suspended_bytes))
    sampled_ns = figures.sampled_ns
    if figures.mapped_bytes or sampled_ns is not None:
        shown.append(("mapped", figures.mapped_bytes))
    if sampled_ns is not None:
        shown += [("pending", figures.pending_bytes), ("free", figures.free_bytes)]
    most = max(capacity if capacity < 4 * figures.peak_live_bytes else 0, figures.peak_live_bytes, figures.mapped_bytes)
    bar = min(width - 24, _MOST_BAR)
    lines = [f"{name:<8}{bytes_text(size):>12}  [{_bar(size, most, bar)}]" for name, size in shown]
    of = f" of {bytes_text(capacity)} that it may have" if capacity else ""
    if sampled_ns is not None and sampled_ns < now_ns:
        lines.append(f"pending and free are of {duration_text(sampled_ns / 1000)}")
    peak = f"peak live {bytes_text(figures.peak_live_bytes)}{of}; a full bar is {bytes_text(most)}"
    return [*lines, *textwrap.wrap(peak, width), *_pools(figures)]


def _pools(figures: Figures) -> list[str]:
    """A line for each of several pools."""
    if not figures.pools:
        return []
    lines = [f"{'pool on':<12}{'live':>12}{'mapped':>12}"]
    for pool in figures.pools[:_MOST_POOLS]:
        live, mapped = ("busy" if size is None else bytes_text(size) for size in (pool.live_bytes, pool.mapped_bytes))
        lines.append(f"{f'device {pool.device}':<12}{live:>12}{mapped:>12}")
    more = max(len(figures.pools) - _MOST_POOLS, 0) + figures.more_pools
    untold = f", {figures.more_pools} of them in no figure here" if figures.more_pools else ""
    return [*lines, f"and {more} more{untold}"] if more else lines


def _rates(figures: Figures, now_ns: int, width: int) -> list[str]:
    named = [
        (Kind.ALLOCATE, "allocations"),
        (Kind.FREE, "frees"),
        (Kind.DRIVER, "driver calls"),
        (Kind.PAUSE, "pauses"),
    ]
    parts = [f"{name}/s {figures.rate(kind, now_ns):,.0f}" for kind, name in named]
    lines = [parts[0]]
    for part in (*parts[1:], f"failed {figures.failures}"):
        longer = f"{lines[-1]}   {part}"
        lines[-1:] = [longer] if len(longer) <= width else [lines[-1], part]
    return lines


def _said(recording: Recording, figures: Figures, width: int) -> list[str]:
    def line(name: str, event: Event | None, text: str) -> list[str]:
        whole = printable(f"{name} at {event.time_ns / 1e9:.3f} s: {text}") if event else ""
        return textwrap.wrap(whole, width, subsequent_indent="  ")

    mark, failure = figures.last_mark, figures.last_failure
    said = recording.text_of(failure) if failure else ""
    asked = bytes_text(failure.bytes) if failure else ""
    return [
        *line("mark", mark, recording.text_of(mark) if mark else ""),
        *line("failed", failure, f"{asked} were asked for. {said}"),
    ]


def _columns(left: list[str], right: list[str], width: int) -> list[str]:
    half = width // 2
    rows = max(len(left), len(right))
    left, right = left + [""] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{a[: half - 2]:<{half}}{b[: width - half]}".rstrip() for a, b in zip(left, right, strict=True)]


def _tables(recording: Recording, figures: Figures, now_ns: int, width: int, rows: int) -> list[str]:
    """Side by side, or one below the other where the terminal is narrow."""
    are_beside = width >= _LEAST_WIDTH_OF_TWO and figures.has_streams
    name_width = max(width // 2 - 28, 8) if are_beside else min(width - 24, _MOST_NAME)
    rows = rows if are_beside or not figures.has_streams else max((rows - 1) // 2, 2)

    def row(name: str, size: str, rate: str) -> str:
        return f"{printable(name)[:name_width]:<{name_width}}{size:>12}{rate:>12}"

    def held(title: str, sums: Counter[int], names: dict[int, str], most: int) -> list[str]:
        holders = [(names.get(number, f"{title} {number}"), size) for number, size in sums.most_common(most)]
        return [row(title, "live", ""), *(row(name, bytes_text(size), "") for name, size in holders if size > 0)]

    libraries: list[str] = []
    if recording.libraries:
        libraries = held("library", figures.by_library, {0: "not known"} | recording.libraries, max(rows // 2 - 1, 1))
        libraries.append("")
    tags = held("tag", figures.by_tag, {0: "no tag"} | recording.tags, max(rows - len(libraries), 1))
    tags = [*libraries, *tags]
    if not figures.has_streams:
        return tags
    streams = [row("stream", "live", "allocs/s")]
    for stream, size in figures.by_stream.most_common(rows):
        name = "no stream" if stream is None else recording.stream_name(stream)
        streams.append(row(name, bytes_text(size), f"{figures.stream_rate(stream, now_ns):,.0f}"))
    return _columns(tags, streams, width) if are_beside else [*tags, *streams]


def frame(
    recording: Recording,
    figures: Figures,
    name: str,
    *,
    now_ns: int | None = None,
    history: Sequence[int] = (),
    width: int = 100,
    height: int = 24,
) -> list[str]:
    """Lines of at most `width` letters. `now_ns` is a moment of the recording at or after its last event; `history` is
    what was live at the pictures before."""
    width = max(width, _LEAST_WIDTH)
    now_ns = figures.last_ns if now_ns is None else now_ns
    lines = [_title(recording, figures, name, now_ns, width), "", *_sizes(recording, figures, now_ns, width)]
    if len(history) > 1:
        lines.append(f"live over time  {spark(history, width - 16)}")
    lines += ["", *_rates(figures, now_ns, width), *_said(recording, figures, width), ""]
    lines += _tables(recording, figures, now_ns, width, max(height - len(lines) - 2, 3))
    return [line[:width].rstrip() for line in lines]
