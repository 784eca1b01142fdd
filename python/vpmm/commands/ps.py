# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm ps`: the processes that use VPMM, and their memory.

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import NamedTuple

from vpmm import _terminal
from vpmm.errors import Error
from vpmm.recordings import BadFile
from vpmm.units import bytes_text, printable

_PATIENCE = 5.0  # seconds for all processes
_FOR_ONE = 1.0  # seconds for one answer


class _Row(NamedTuple):
    """One process. None: not known."""

    pid: int
    command: str
    recordings: list[str]
    mapped_bytes: int | None
    live_bytes: int | None


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "ps",
        help="list the processes that use VPMM",
        description="Lists your processes that have loaded the library, with their mapped and live memory: as they "
        "answer, or, with VPMM_TOP=0, as of the last data that they recorded with VPMM_RECORD=FILE.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line for each process")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Succeeds if there is none, too."""
    from vpmm.watching import processes

    until = time.monotonic() + _PATIENCE
    rows = [_row(pid, command, until) for pid in processes.users() if (command := processes.command_of(pid))]
    if options.json:
        for row in rows:
            print(json.dumps(row._asdict()))
        return 0
    if not rows:
        print("vpmm: no process of this user has loaded the library", file=sys.stderr)
        return 0
    columns = _terminal.columns(sys.maxsize)
    print(f"{'PID':>7} {'mapped':>11} {'live':>11}  command")
    for row in rows:
        mapped, live = ("-" if size is None else bytes_text(size) for size in (row.mapped_bytes, row.live_bytes))
        print(f"{row.pid:>7} {mapped:>11} {live:>11}  {printable(row.command)}"[:columns])
    return 0


def _row(pid: int, command: str, until: float) -> _Row:
    """Sums over the pools of the process."""
    from vpmm.watching import processes

    try:
        files = processes.recordings_of(pid)
    except Error:  # it has ended, or may not be inspected
        files = []
    answered = _sizes_told(pid, until)
    sizes = [answered] if answered is not None else [_sizes_in(file, until) for file in files]
    return _Row(pid, command, files, _sum([mapped for mapped, _ in sizes]), _sum([live for _, live in sizes]))


def _sizes_told(pid: int, until: float) -> tuple[int, int] | None:
    """Mapped and live bytes of the pools of a process; None: it does not tell."""
    from vpmm import watching

    patience = min(until - time.monotonic(), _FOR_ONE)
    try:
        told = watching.ask(pid, patience) if patience > 0 else None
    except watching.NoAnswer:
        return None
    if told is None or told.busy or told.more:
        return None
    return sum(pool.mapped_bytes for pool in told.pools), sum(pool.live_bytes for pool in told.pools)


def _sum(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _sizes_in(path: str, until: float) -> tuple[int | None, int | None]:
    """Mapped and live bytes of a recording. None: not known, or not read in time."""
    from vpmm import watching

    figures = watching.Figures()
    try:
        with contextlib.closing(watching.Follower(path)) as follower:
            while (events := follower.poll()) is not None:
                if time.monotonic() > until:
                    return None, None
                if follower.has_begun_anew:
                    figures = watching.Figures()
                for event in events:
                    figures.apply(event)
            is_whole = follower.recording.header.get("sample") == 1
    except (BadFile, OSError, Error):
        return None, None
    has_mapped = figures.mapped_bytes or figures.sampled_ns is not None
    return figures.mapped_bytes if has_mapped else None, figures.live_bytes if is_whole else None
