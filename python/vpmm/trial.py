# SPDX-License-Identifier: Apache-2.0
# vpmm: replays a recorded program on a simulated GPU to find the memory that it would need under VPMM.

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vpmm import native
from vpmm.convert import of_device
from vpmm.convert.ranges import Ranges
from vpmm.errors import Error
from vpmm.recordings import Event, Kind, Recording
from vpmm.units import bytes_text, duration_text

_ALLOCATORS = {
    "pytorch": "PyTorch's allocator, recorded",
    "rmm": "RMM's resource, recorded",
    "nsight-systems": "cudaMalloc, recorded",
    "vpmm": "VPMM, recorded",
}
# Rows of the table: name, allocator of `vpmm replay`, settings.
_RUNS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("VPMM", "vpmm", {}),
    ("VPMM, footprint", "vpmm", {"VPMM_PREFER": "footprint"}),
    ("VPMM, page", "vpmm-page", {}),
    ("cudaMallocAsync, model", "cuda-async", {}),
)
_ROOMY = 139 << 30
_MOST = 1 << 44  # bytes of a simulated GPU; larger requests are mistakes, which fail
_MISTAKE = 1  # flag of a request that failed for another reason than memory


@dataclass
class Row:
    """The results of one allocator. None: not known."""

    name: str
    held: int | None
    driver_us: float | None
    failed: int
    smallest: int | None


@dataclass
class Trial:
    """The results of `vpmm try` for one device of a recording. Sizes are bytes."""

    requests: int
    live: int
    recorded: Row
    rows: list[Row]
    notes: list[str]


class _Requests:
    """The requests to replay, as lines of CSV. A failed request is written as an allocation and an immediate free."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.failed = 0
        self.live = 0  # at the peak, with the failed requests served
        self._now = 0
        self._living: dict[int, tuple[int, int]] = {}  # address: number and bytes
        self._streams: dict[int | None, int] = {}
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        kind = event.kind
        if kind is Kind.FREE:
            self._free(event)
        elif event.bytes and event.address and (kind is Kind.ALLOCATE or kind is Kind.LIVE):
            self._free(event)  # the allocation there before, whose own free was lost
            self._ask(event)
            self._living[event.address] = (self.count, event.bytes)
            self._now += event.bytes
            self.live = max(self.live, self._now)
        elif event.bytes and kind is Kind.ALLOCATE_FAILED and not event.flags & _MISTAKE:
            self.failed += 1
            self.live = max(self.live, self._now + event.bytes)
            self._ask(event)
            self._write("f", self.count, 0, event)

    def _ask(self, event: Event) -> None:
        self.count += 1
        self._write("a", self.count, event.bytes, event)

    def _free(self, event: Event) -> None:
        number, size = self._living.pop(event.address, (0, 0))
        if number:
            self._now -= size
            self._write("f", number, 0, event)

    def _write(self, op: str, number: int, size: int, event: Event) -> None:
        stream = self._streams.setdefault(event.stream, len(self._streams))
        self.lines.append(f"{op},{number},{size},{stream},{event.time_ns // 1000}\n")


def run(recording: Recording, device: int | None, say: Callable[[str], None]) -> Trial:
    """Replays a recording under each setting; calls `say` before each step. Raises Error and OSError.

    `device` None: the one with the most calls.
    """
    calls = Counter(event.device for event in recording.events)
    if device is None:
        device = calls.most_common(1)[0][0] if calls else 0
    notes = [recording.warning] if recording.warning else []
    if len(calls) > 1:
        notes.append(f"Of {len(calls)} devices this is device {device}; --device names another.")
    if calls:
        recording = of_device(recording, device)
    requests = _Requests(recording.events)
    if not requests.count:
        raise Error(f"there is nothing to try: device {device} has no allocation in this recording")
    with tempfile.TemporaryDirectory(prefix="vpmm-try-") as folder:
        trace = Path(folder, "requests.csv")
        trace.write_text("op,id,bytes,stream,time_us\n" + "".join(requests.lines))
        with ThreadPoolExecutor(min(os.cpu_count() or 1, len(_RUNS))) as threads:  # each waits for a program
            begun = [threads.submit(_replayed, *each, trace, requests, say) for each in _RUNS]
            rows = [each.result() for each in begun]
    return Trial(requests.count, requests.live, _recorded_row(recording, requests), rows, notes)


def _recorded_row(recording: Recording, requests: _Requests) -> Row:
    source = str(recording.header.get("source", ""))
    held = _peak_held(recording)
    if held is None and source == "nsight-systems":
        held = requests.live
    enough = None if requests.failed else held
    return Row(_ALLOCATORS.get(source, "as recorded"), held, None, requests.failed, enough)


# The peak of mapped memory, from the pool's own samples or from its mapping calls.
def _peak_held(recording: Recording) -> int | None:
    mapped, peak = Ranges(), 0
    for event in recording.events:
        kind = event.kind
        if kind is Kind.MAP:
            mapped.add(event.address, event.address + event.bytes)
            peak = max(peak, mapped.total)
        elif kind is Kind.UNMAP:
            mapped.remove(event.address, event.address + event.bytes)
        elif kind is Kind.SAMPLE:
            peak = max(peak, event.address)
    said = (recording.end or {}).get("peak_mapped_bytes", 0)
    return max(peak, said if isinstance(said, int) else 0) or None


def _replayed(
    name: str, allocator: str, settings: dict[str, str], trace: Path, requests: _Requests, say: Callable[[str], None]
) -> Row:
    say(f"replaying {requests.count} requests: {name}")
    capacity = min(max(_ROOMY, 2 * requests.live), _MOST)
    words = ["replay", str(trace), "--driver", "sim", "--json", "--fit", "--unchecked", "--capacity", str(capacity)]
    result = json.loads(native.output_of([*words, "--allocator", allocator], **settings))
    return Row(
        name,
        int(result["peak_mapped_bytes"]),
        float(result["driver_time_us"]),
        int(result["failed_allocations"]),
        result["fit_bytes"],
    )


def as_json(trial: Trial) -> str:
    """One object: requests, peak_live_bytes, recorded, rows, notes, verdict."""
    rows = [
        {
            "name": row.name,
            "peak_held_bytes": row.held,
            "driver_time_us": row.driver_us,
            "failed_requests": row.failed,
            "smallest_gpu_bytes": row.smallest,
        }
        for row in (trial.recorded, *trial.rows)
    ]
    return json.dumps(
        {
            "requests": trial.requests,
            "peak_live_bytes": trial.live,
            "recorded": rows[0],
            "rows": rows[1:],
            "notes": trial.notes,
            "verdict": verdict(trial),
        }
    )


def table(trial: Trial, columns: int = sys.maxsize) -> str:
    """The table and the sentence below it. A table wider than `columns` becomes a paragraph for each row."""
    head = ["", "held at the peak", "over live", "driver time (simulated)", "failed", "smallest GPU"]
    rows = [_cells(row, trial) for row in (trial.recorded, *trial.rows)]
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    text = f"{trial.requests} requests, {bytes_text(trial.live)} live at the peak\n\n"
    if sum(widths) + 2 * len(widths) - 2 <= columns:
        for first, *cells in (head, *rows):
            figures = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            text += "  ".join([first.ljust(widths[0]), *figures]).rstrip() + "\n"
    else:
        for first, *cells in rows:
            figures = (f"{name} {cell}" for name, cell in zip(head[1:], cells, strict=True))
            text += f"{first}\n{_wrapped(figures, columns)}\n"
    return text + "\n" + "\n".join(textwrap.fill(said, columns) for said in (verdict(trial), *trial.notes)) + "\n"


def _wrapped(figures: Iterable[str], columns: int) -> str:
    """Lines between whose figures is a comma, each figure in one line with its name."""
    whole = ", ".join(figure.replace(" ", "\N{NO-BREAK SPACE}") for figure in figures)
    lines = textwrap.fill(whole, columns, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _cells(row: Row, trial: Trial) -> list[str]:
    return [
        row.name,
        "not recorded" if row.held is None else bytes_text(row.held),
        "-" if row.held is None or row.failed else f"{row.held / trial.live:.3f}",  # not all was held
        "-" if row.driver_us is None else duration_text(row.driver_us),
        str(row.failed),
        "-" if row.smallest is None else bytes_text(row.smallest),
    ]


def verdict(trial: Trial) -> str:
    """The meaning of the figures, as a sentence."""
    ours, recorded = trial.rows[0], trial.recorded
    if ours.held is None or ours.smallest is None:
        return f"VPMM could not serve {ours.failed} of {trial.requests} requests on the largest GPU that was tried."
    holds, least = bytes_text(ours.held), bytes_text(ours.smallest)
    if recorded.held is None:
        return f"VPMM would hold {holds} at its peak; the smallest GPU that runs this program has {least} for it."
    held = bytes_text(recorded.held)
    if recorded.failed:
        which = "1 request" if recorded.failed == 1 else f"{recorded.failed} requests"
        end = "nothing would have failed"
        if ours.smallest > recorded.held:
            end = "it needs that much" if recorded.name == _ALLOCATORS["vpmm"] else "with VPMM it needs that much, too"
        return (
            f"{which} failed while {held} were held. With all served VPMM would hold {holds} at its peak, and can do "
            f"with {least}: {end}."
        )
    change = ours.held / recorded.held - 1
    how = "as much as" if abs(change) < 0.005 else f"{abs(change):.0%} {'less' if change < 0 else 'more'} than"
    return (
        f"VPMM would hold {holds} at its peak, {how} the {held} recorded; the smallest GPU that runs this program has "
        f"{least} for it."
    )
