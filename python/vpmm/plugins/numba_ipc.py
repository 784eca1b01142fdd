# SPDX-License-Identifier: Apache-2.0
# plugins: for a process that receives only the 64 bytes of a handle and does not have our memory manager.

"""Importing this module lets ``cuda.open_ipc_array()`` open memory of a pool, with any memory manager of Numba.

A process that has the manager, or unpickles a handle, does not need the import. It imports Numba and makes no CUDA
call.
"""

from __future__ import annotations

from vpmm.plugins._numba_ipc import handle_class
from vpmm.plugins.numba import _cuda, driver_module

handle_class(driver_module(_cuda()))
