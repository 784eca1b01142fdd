# SPDX-License-Identifier: Apache-2.0
# vpmm: sends the library's messages to Python's logging.

from __future__ import annotations

import atexit
import logging
import os
import threading

from vpmm import _vpmm

__all__ = ["log_to_logging"]

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}

_lock = threading.Lock()
_thread: threading.Thread | None = None


def _deliver() -> None:
    logger = logging.getLogger("vpmm")
    while (message := _vpmm.next_message()) is not None:
        level, text = message
        try:
            logger.log(_LEVELS.get(level, logging.INFO), "%s", text)
        except BaseException as error:  # of a handler or a filter: it concerns one message
            _vpmm.write_unraisable(error, logger)


def _start() -> None:
    global _thread
    _vpmm.open_messages()
    _thread = threading.Thread(target=_deliver, name="vpmm messages", daemon=True)
    _thread.start()


def _finish() -> None:
    _vpmm.close_messages()
    if _thread is not None:
        _thread.join()


def log_to_logging() -> None:
    """See vpmm.log_to_logging()."""
    with _lock:
        if _thread is not None:
            return
        _start()
        atexit.register(_finish)
        os.register_at_fork(after_in_child=_start)
