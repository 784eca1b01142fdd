# SPDX-License-Identifier: Apache-2.0
# plugins: names the options of PyTorch's allocator that a program sets and VPMM does not use

"""Options of PYTORCH_ALLOC_CONF, which programs also set with ``torch._C._accelerator_setAllocatorSettings``.

PyTorch reads them itself, and an unknown key is its error. Those that VPMM does not use are named in a warning, once in
a process.
"""

# ruff: noqa: ANN401  PyTorch's module has no type here

from __future__ import annotations

import functools
import os
import re
import threading
from typing import Any

from vpmm.errors import warn

# Those that have their effect: the limit; what the pool always does (it extends what is mapped at any place); and those
# of PyTorch's allocator of host memory, which stays as it is.
_USED = {"per_process_memory_fraction", "throw_on_cudamalloc_oom", "expandable_segments"}
_HOST = "pinned_"
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # PyTorch reads the first one that is set
_LEAST_MINOR = {"throw_on_cudamalloc_oom": 12}

_lock = threading.Lock()
_named: set[str] = set()


def unused_in(settings: str, minor: int) -> list[str]:
    """The options among `settings` that VPMM does not use under PyTorch 2.`minor`, in their order."""
    pairs = re.sub(r"\[[^\]]*\]", "", settings).replace(" ", "").split(",")
    options = dict(pair.partition(":")[::2] for pair in pairs if pair)
    return [
        name
        for name, value in options.items()
        if not (name in _USED and minor >= _LEAST_MINOR.get(name, 0))
        and not name.startswith(_HOST)
        and (name, value) != ("backend", "native")
    ]


def name_unused(settings: str, source: str, minor: int) -> None:
    """Warns of options that VPMM does not use and that no earlier warning has named. Any thread."""
    with _lock:
        new = [name for name in unused_in(settings, minor) if name not in _named]
        _named.update(new)
    if new:
        message = f"{source}: VPMM does not use {', '.join(new)} (docs/guides/pytorch.md)"
        warn(message, stacklevel=4)


def watch(torch: Any, minor: int) -> None:
    """Names those in the environment now, and those that the program sets later when it sets them."""
    for variable in _VARIABLES:
        if variable in os.environ:
            name_unused(os.environ[variable], variable, minor)
            break
    set_them = torch._C._accelerator_setAllocatorSettings  # every other way calls it
    if hasattr(set_them, "__wrapped__"):
        return

    @functools.wraps(set_them)
    def set_allocator_settings(env: str) -> None:
        set_them(env)
        name_unused(env, "the settings of PyTorch's allocator", minor)

    torch._C._accelerator_setAllocatorSettings = set_allocator_settings
