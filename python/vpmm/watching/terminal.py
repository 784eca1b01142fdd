# SPDX-License-Identifier: Apache-2.0
# vpmm: a screen of its own for `vpmm top`, which is given back however the program ends.

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import FrameType

_ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """Standard output, a terminal or not; if standard input is one too, keys are read as they are pressed."""

    def __init__(self) -> None:
        self.is_one = sys.stdout.isatty()
        has_keys = self.is_one and sys.stdin is not None and sys.stdin.isatty()
        self._keys = sys.stdin.fileno() if has_keys else None
        self._modes = termios.tcgetattr(self._keys) if self._keys is not None else []

    @contextlib.contextmanager
    def screen(self) -> Iterator[None]:
        """Restores the terminal at the end, also after an exception, SIGTERM or SIGHUP, and while the program stops."""
        if not self.is_one:
            yield
            return
        handlers = {number: signal.signal(number, self._end) for number in _ENDS}
        handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        # A shell without job control lets what it starts with & ignore Ctrl-C.
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._enter()
            yield
        finally:
            self._leave()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Returns false, at once, if `q` was pressed or the terminal is gone; true after `seconds`."""
        if self._keys is None:
            time.sleep(seconds)
            return True
        until = time.monotonic() + seconds
        while select.select([self._keys], [], [], max(until - time.monotonic(), 0))[0]:
            try:
                keys = os.read(self._keys, 64)
            except OSError:
                return False
            if not keys or b"q" in keys.lower():
                return False
        return True

    def _enter(self) -> None:
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSANOW)  # the default discards keys that were pressed before
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _leave(self) -> None:
        if self._keys is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._modes)
        with contextlib.suppress(OSError):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # goes on here after SIGCONT
        signal.signal(number, self._stop)
        self._enter()
