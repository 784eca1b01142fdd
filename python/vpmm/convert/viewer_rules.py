# SPDX-License-Identifier: Apache-2.0
# vpmm: checks a snapshot against the strict rules of PyTorch's viewer.

from __future__ import annotations

import pickletools
from typing import Any

from vpmm.convert.ranges import Ranges

Fields = dict[str, Any]
# The opcodes that the viewer's own reader of pickles knows.
OPCODES = frozenset(
    "PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS BINPUT "
    "LONG_BINPUT BINGET LONG_BINGET MEMOIZE".split()
)
_MOST_EXACT = 1 << 53  # beyond it the viewer's numbers are not exact


def broken_in_pickle(data: bytes) -> list[str]:
    """The opcodes of a pickle that the viewer cannot read, by name and offset."""
    return [f"{at}: {opcode.name}" for opcode, _, at in pickletools.genops(data) if opcode.name not in OPCODES]


def broken(snapshot: Fields) -> list[str]:
    """The rules that a snapshot breaks, a sentence each; empty: every event of its history can be shown."""
    found: list[str] = []
    for at, segment in enumerate(snapshot["segments"]):
        found += [f"segments[{at}]: {each}" for each in _broken_segment(segment)]
    for device, trace in enumerate(snapshot["device_traces"]):
        found += [f"device_traces[{device}]{each}" for each in _Rewinding(snapshot, device).broken(trace)]
        categories = {event["category"] for event in trace if "category" in event}
        if categories and "unknown" not in categories:
            found.append(f"device_traces[{device}]: categories without `unknown`")
    return found


def _broken_segment(segment: Fields) -> list[str]:
    found = []
    at = segment["address"]
    for block in segment["blocks"]:
        if block["address"] != at:
            found.append(f"a block begins at {block['address']:#x}, the one before ends at {at:#x}")
        is_live = block["state"] != "inactive"
        if block["size"] <= 0 or (is_live and not 0 <= block["requested_size"] <= block["size"]):
            found.append(f"the block at {at:#x} has {block['size']} bytes, {block['requested_size']} requested")
        at += block["size"]
    if at != segment["address"] + segment["total_size"] or at >= _MOST_EXACT:
        found.append("its blocks do not fill it")
    return found


class _Rewinding:
    """Walks backwards through a history, as the viewer does, and checks each state."""

    def __init__(self, snapshot: Fields, device: int) -> None:
        self.segments = Ranges()
        self.blocks: dict[int, int] = {}
        self.pending: set[int] = set()
        self.found: list[str] = []
        for segment in snapshot["segments"]:
            if segment["device"] != device:
                continue
            end = segment["address"] + segment["total_size"]
            if self.segments.overlapping(segment["address"], end):
                self.found.append(f": segments overlap at {segment['address']:#x}")
            self.segments.add(segment["address"], end, segment["stream"])
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.blocks[block["address"]] = block["size"]
                if block["state"] == "active_pending_free":
                    self.pending.add(block["address"])

    def broken(self, trace: list[Fields]) -> list[str]:
        reached = 0
        for address, size in sorted(self.blocks.items()):
            if address < reached:
                self.found.append(f": two blocks at {address:#x}")
            reached = address + size
            self.look_at(address, reached, ": ")
        for at in range(len(trace) - 1, -1, -1):
            self.undo(trace[at], f"[{at}]: ")
        return self.found

    # The viewer treats neighbours of one stream as one segment.
    def look_at(self, begin: int, end: int, where: str) -> None:
        within = self.segments.overlapping(begin, end)
        if self.segments.gaps(begin, end) or len({each.stream for each in within}) != 1:
            self.found.append(f"{where}the block at {begin:#x} is in no segment")

    def undo(self, event: Fields, where: str) -> None:
        action, address, size = event["action"], event.get("addr", 0), event["size"]
        if not isinstance(event["frames"], list) or "stream" not in event:
            self.found.append(f"{where}frames or stream are missing")
        if action == "alloc":
            if address not in self.blocks or address in self.pending:
                self.found.append(f"{where}what was allocated at {address:#x} is not live behind it")
            self.blocks.pop(address, None)
        elif action == "free_completed":
            if address in self.blocks:
                self.found.append(f"{where}what is live at {address:#x} was freed")
            self.blocks[address] = size
            self.pending.add(address)
            self.look_at(address, address + size, where)
        elif action == "free_requested":
            if address not in self.pending:
                self.found.append(f"{where}the free of {address:#x} is never completed")
            self.pending.discard(address)
        elif action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
            self.undo_segment(event, where)
        elif action == "oom" and "device_free" not in event:
            self.found.append(f"{where}oom without device_free")

    def undo_segment(self, event: Fields, where: str) -> None:
        begin, end = event["addr"], event["addr"] + event["size"]
        if event["action"] in ("segment_free", "segment_unmap"):
            if self.segments.overlapping(begin, end):
                self.found.append(f"{where}what was unmapped at {begin:#x} is mapped behind it")
            self.segments.add(begin, end, event["stream"])
            return
        if event["action"] == "segment_alloc" and not self.segments.holds(begin, end):
            self.found.append(f"{where}the segment at {begin:#x} is not there behind it")
        if self.segments.gaps(begin, end):
            self.found.append(f"{where}what was mapped at {begin:#x} is not there behind it")
        self.segments.remove(begin, end)
        if any(begin < address + size and address < end for address, size in self.blocks.items()):
            self.found.append(f"{where}a block lives at {begin:#x}, where nothing is mapped yet")
