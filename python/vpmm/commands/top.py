# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm top`: a live view of a pool, from the recording that its program writes.

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vpmm.errors import Error

if TYPE_CHECKING:
    from vpmm.watching import Figures, Follower

_MOST_HISTORY = 500


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0.05 to 3600 seconds")
    return seconds


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "top",
        help="watch the pool of a running program",
        description="Shows live, mapped, pending and free memory, rates, tags and streams, from the recording that a "
        "program writes with VPMM_RECORD=FILE. q or Ctrl-C ends it.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("pid", nargs="?", type=int, metavar="PID", help="a program that is being recorded")
    what.add_argument("--file", metavar="FILE", help="a recording in the binary format")
    parser.add_argument("--once", action="store_true", help="print one picture and exit")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between pictures (default: 1)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ends with the recording, with the program, at `q` or at Ctrl-C; returns 2 if there is nothing to watch."""
    from vpmm import watching

    try:
        path = options.file if options.file is not None else watching.recording_of(options.pid)
        follower = watching.Follower(path)
        try:
            _Screen(follower, Path(path).name, options).show()
        finally:
            follower.close()
    except KeyboardInterrupt:  # how one ends it
        pass
    return 0


class _Screen:
    def __init__(self, follower: Follower, name: str, options: argparse.Namespace) -> None:
        from vpmm.watching import Figures

        self._follower = follower
        self._name = name
        self._options = options
        self._figures: Figures = Figures()
        self._history: list[int] = []
        self._last_event_at = time.monotonic()

    def show(self) -> None:
        from vpmm.watching.terminal import Terminal

        self._catch_up()
        if self._options.once and not self._follower.recording.header:
            raise Error(f"{self._name}: nothing is recorded in it yet")
        if self._options.once:
            print("\n".join(self._lines()))
            return
        terminal = Terminal()
        with terminal.screen():
            while True:
                self._draw(terminal.is_one)
                if self._has_ended() or not terminal.wait(self._options.interval):
                    break
                self._catch_up()
        if terminal.is_one:  # what was on the screen is gone
            print("\n".join(self._lines()))

    def _catch_up(self) -> None:
        """Reads the data written so far, up to a limit that keeps the picture prompt."""
        from vpmm.watching import Figures

        until = time.monotonic() + max(self._options.interval, 1.0)
        while (events := self._follower.poll()) is not None:
            if self._follower.has_begun_anew:
                self._figures = Figures()
            for event in events:
                self._figures.apply(event)
            self._last_event_at = time.monotonic()
            if time.monotonic() > until and not self._options.once:
                break
        self._history.append(self._figures.live_bytes)
        del self._history[:-_MOST_HISTORY]

    def _has_ended(self) -> bool:
        from vpmm.watching.processes import is_running

        if self._follower.recording.end is not None:
            return True
        if self._options.pid is None or is_running(self._options.pid):
            return False
        self._catch_up()
        return True

    def _lines(self) -> list[str]:
        from vpmm.watching import frame

        size = shutil.get_terminal_size((100, 24))
        now_ns = self._figures.last_ns
        if self._follower.recording.end is None and not self._options.once:
            now_ns += int((time.monotonic() - self._last_event_at) * 1e9)
        return frame(
            self._follower.recording,
            self._figures,
            self._name,
            now_ns=now_ns,
            history=self._history,
            width=size.columns,
            height=size.lines,
        )

    def _draw(self, is_terminal: bool) -> None:
        lines = self._lines()
        if is_terminal:
            room = shutil.get_terminal_size((100, 24)).lines
            sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines[: room - 1]) + "\x1b[K\x1b[J")
        else:
            sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()
