# SPDX-License-Identifier: Apache-2.0
# vpmm: which allocation of a recording an address belongs to, for `vpmm explain`.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vpmm.recordings import Event, Kind, Recording
from vpmm.units import bytes_text, printable

LOGGED_STEP = 4096  # the kernel log names the begin of so many bytes around an access
_FARTHEST = 1 << 30  # of a neighbour; beyond it an address has nothing to do with an allocation
_MOST_FRAMES = 8


class Fault(NamedTuple):
    """An address that a kernel touched. `step`: the access is at one of so many bytes from there."""

    address: int
    step: int = 1
    access: str = ""  # "read", "write" or "atomic"; empty: not known
    pid: int | None = None


@dataclass(slots=True)
class Life:
    """One allocation of a recording. `freed` None: live at its end."""

    allocated: Event
    freed: Event | None = None

    @property
    def begin(self) -> int:
        return self.allocated.address

    @property
    def end(self) -> int:
        return self.allocated.address + self.allocated.bytes


def parse_address(text: str) -> int:
    """`0x7f458cc03000`, also with the underscore of the kernel log, or a decimal number. Raises ValueError."""
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]+(_[0-9a-fA-F]+)*", text):
        raise ValueError(f"{text} is not an address such as 0x7f458cc03000")
    try:
        return int(text.replace("_", ""), 16 if text[:2].lower() == "0x" else 10)
    except ValueError:
        raise ValueError(f"{text} is not an address such as 0x7f458cc03000") from None


def faults_in(log: str) -> Iterator[Fault]:
    """The faults of GPUs in lines of the kernel log (Xid 31)."""
    for line in log.splitlines():
        found = re.search(r"faulted @ (0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)", line)
        if found is None:
            continue
        access = re.search(r"ACCESS_TYPE_(?:VIRT_|PHYS_)?(READ|WRITE|ATOMIC)", line)
        pid = re.search(r"pid='?(\d{1,10})\b", line)
        yield Fault(
            parse_address(found[1]), LOGGED_STEP, access[1].lower() if access else "", int(pid[1]) if pid else None
        )


def lives_of(recording: Recording) -> list[Life]:
    """All allocations, in the order of their begins in time."""
    lives: list[Life] = []
    live: dict[tuple[int, int], Life] = {}
    for event in recording.events:
        key = (event.device, event.address)
        if event.kind in (Kind.ALLOCATE, Kind.LIVE):
            live[key] = Life(event)
            lives.append(live[key])
        elif event.kind == Kind.FREE and key in live:
            live.pop(key).freed = event
    return lives


def explain(recording: Recording, fault: Fault) -> str:
    """Sentences about the address: what holds it, what ends before it, what begins behind it."""
    last = fault.address + fault.step - 1
    what = f"{fault.address:#x}" if fault.step == 1 else f"{fault.address:#x} to {last:#x}"
    if fault.access:
        what += f", {'an atomic access' if fault.access == 'atomic' else f'a {fault.access}'}"
    if fault.pid is not None:
        what += f" of process {fault.pid}"
    lines = [what]
    lives = lives_of(recording)
    inside = [each for each in lives if each.begin <= last and fault.address < each.end]
    live = [each for each in inside if each.freed is None]
    for each in live or inside[-1:]:
        lines += _described(recording, each, _place_inside(each, fault))
    if not live:
        before = [each for each in lives if 0 <= fault.address - each.end < _FARTHEST]
        if before:
            nearest = max(before, key=lambda each: (each.end, each.freed is None, each.allocated.time_ns))
            beyond = fault.address - nearest.end
            span = str(beyond) if fault.step == 1 else f"{beyond} to {beyond + fault.step - 1}"
            lines += _described(recording, nearest, f"{span} bytes beyond the end of")
        behind = [each for each in lives if 0 < each.begin - last < _FARTHEST]
        if behind:
            nearest = min(behind, key=lambda each: (each.begin, each.freed is not None, -each.allocated.time_ns))
            gap = nearest.begin - fault.address
            span = str(gap) if fault.step == 1 else f"{gap - fault.step + 1} to {gap}"
            lines += _described(recording, nearest, f"{span} bytes before the begin of")
    if len(lines) == 1:
        lines.append("  in or near no allocation of the recording")
    return "\n".join(lines) + "\n"


def candidates(recording: Recording, stream: int | None, most: int = 10) -> str:
    """The newest allocations of a stream, or of all: for a fault without an address."""

    def number(life: Life) -> int | None:
        named = life.allocated.stream
        return None if named is None else recording.stream_number(named)

    found = [each for each in lives_of(recording) if stream in (None, number(each))]
    whose = "of all streams" if stream is None else f"of stream {stream}"
    lines = [f"the newest {min(most, len(found))} of {len(found)} allocations {whose}, the newest first"]
    for each in reversed(found[-most:]):
        lines += _described(recording, each, "")
    return "\n".join(lines) + "\n"


def _place_inside(life: Life, fault: Fault) -> str:
    if fault.step > 1 and fault.address < life.begin:
        return "in or before the begin of"
    if fault.step > 1 and fault.address + fault.step > life.end:
        return f"in the last bytes of, or up to {fault.address + fault.step - life.end} bytes beyond the end of,"
    offset = fault.address - life.begin
    return f"at byte {offset} of" if fault.step == 1 else f"at byte {offset} to {offset + fault.step - 1} of"


def _described(recording: Recording, life: Life, place: str) -> Iterable[str]:
    event = life.allocated
    exact = f"{event.bytes} bytes"
    size = exact if event.bytes < 1024 else f"{bytes_text(event.bytes)} ({exact})"
    yield f"  {place}{' ' if place else ''}{size} at {event.address:#x}"
    tag = f" with the tag {printable(recording.tags.get(event.tag, str(event.tag)))}" if event.tag else ""
    yield f"    allocated {_on(recording, event)}{tag} at {_time(recording, event)}{_stack(recording, event)}"
    if life.freed is None:
        yield "    live at the end of the recording"
    else:
        stack = _stack(recording, life.freed)
        yield f"    freed {_on(recording, life.freed)} at {_time(recording, life.freed)}{stack}"


def _on(recording: Recording, event: Event) -> str:
    return "without a stream" if event.stream is None else f"on {printable(recording.stream_name(event.stream))}"


def _time(recording: Recording, event: Event) -> str:
    return f"{(event.time_ns - recording.events[0].time_ns) / 1e6:.3f} ms"


def _stack(recording: Recording, event: Event) -> str:
    frames = recording.stacks.get(event.stack, ())[:_MOST_FRAMES]
    return "".join("\n      " + printable(f"{each.file}:{each.line} {each.function}") for each in frames)
