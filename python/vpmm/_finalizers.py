# SPDX-License-Identifier: Apache-2.0
# vpmm: rules for finalizers, which run on any thread, inside any code, and while the process exits.

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["at_death", "may_call_cuda", "process_ends"]

_process_ends = False


def _note_exit() -> None:
    global _process_ends
    _process_ends = True


def process_ends() -> bool:
    """Whether exit handlers run or have run. Streams may no longer exist, and finalizers must not call CUDA."""
    return _process_ends


# Exit handlers run last in, first out. weakref.finalize registers one at its first use, which runs the remaining
# finalizers. Ours is registered after that one, so that it runs before it.
weakref.finalize(_note_exit, _note_exit).detach()
atexit.register(_note_exit)


def may_call_cuda() -> bool:
    """Whether this is one of Python's own threads: CUDA's callbacks run on threads that Python did not start."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # enumerate() takes a lock
    return thread is not None and not isinstance(thread, threading._DummyThread)


def at_death(thing: object, call: Callable[[Any], None], argument: object) -> weakref.finalize[..., Any]:
    """Calls `call(argument)` when `thing` is collected, but not at exit, where the system reclaims everything."""
    finalizer = weakref.finalize(thing, call, argument)
    finalizer.atexit = False
    return finalizer
