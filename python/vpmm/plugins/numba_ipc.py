# plugins: to be imported by a process that is sent the 64 bytes of a handle only, and has no memory manager of ours.

"""Importing this module lets ``cuda.open_ipc_array()`` open memory of a pool, whatever memory manager Numba has.

A process that has the manager, or unpickles a handle, needs no import. It imports Numba, and touches no CUDA.
"""

from __future__ import annotations

from vpmm.plugins._numba_ipc import handle_class
from vpmm.plugins.numba import _cuda, driver_module

handle_class(driver_module(_cuda()))
