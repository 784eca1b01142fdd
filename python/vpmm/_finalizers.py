# vpmm: what finalizers may do: they run on any thread, inside anything, and while the process ends.

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
    """Whether exit handlers run or ran: streams may be gone by now, and CUDA is not called from finalizers any more."""
    return _process_ends


# Exit handlers run last in, first out, and weakref.finalize has one, from its first use on, that runs what is still
# alive. For ours to run before that one, it has to be registered after it.
weakref.finalize(_note_exit, _note_exit).detach()
atexit.register(_note_exit)


def may_call_cuda() -> bool:
    """Whether this is one of Python's own threads: CUDA's callbacks come on threads that it has not started."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # enumerate() takes a lock
    return thread is not None and not isinstance(thread, threading._DummyThread)


def at_death(thing: object, call: Callable[[Any], None], argument: object) -> weakref.finalize[..., Any]:
    """Calls `call(argument)` when `thing` is collected, but not at exit, for the system takes everything back."""
    finalizer = weakref.finalize(thing, call, argument)
    finalizer.atexit = False
    return finalizer
