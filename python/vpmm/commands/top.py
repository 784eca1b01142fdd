# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm top`: a live view of a program's pools, from the recording that it writes or from its answers.

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpmm.watching import Source

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
        description="Shows live, mapped, pending and free memory, rates and tags of a running program, and of one that "
        "records with VPMM_RECORD=FILE streams, marks and failures, too. q or Ctrl-C ends it.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("pid", nargs="?", type=int, metavar="PID", help="a program of this user")
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
        file, pid = options.file, options.pid
        source = watching.Recorded(file, None) if file is not None else watching.source_of(pid)
        try:
            _Screen(source, options).show()
        finally:
            source.close()
    except KeyboardInterrupt:  # how one ends it
        pass
    return 0


class _Screen:
    def __init__(self, source: Source, options: argparse.Namespace) -> None:
        self._source = source
        self._options = options
        self._history: list[int] = []
        self._last_event_at = time.monotonic()

    def show(self) -> None:
        from vpmm.watching.terminal import Terminal

        self._catch_up()
        if self._options.once:
            print("\n".join(self._lines()))
            return
        terminal = Terminal()
        with terminal.screen():
            while True:
                self._draw(terminal.is_one)
                if self._source.has_ended() or not terminal.wait(self._options.interval):
                    break
                self._catch_up()
        if terminal.is_one:  # what was on the screen is gone
            print("\n".join(self._lines()))

    def _catch_up(self) -> None:
        """Up to a limit that keeps the picture prompt."""
        last_ns = self._source.figures.last_ns
        self._source.catch_up(None if self._options.once else max(self._options.interval, 1.0))
        if self._source.figures.last_ns != last_ns:
            self._last_event_at = time.monotonic()
        self._history.append(self._source.figures.live_bytes)
        del self._history[:-_MOST_HISTORY]

    def _lines(self) -> list[str]:
        from vpmm.watching import frame

        source = self._source
        size = shutil.get_terminal_size((100, 24))
        now_ns = source.figures.last_ns
        if source.recording.end is None and not self._options.once:
            now_ns += int((time.monotonic() - self._last_event_at) * 1e9)
        return frame(
            source.recording,
            source.figures,
            source.name,
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
