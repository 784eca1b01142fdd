# SPDX-License-Identifier: Apache-2.0
# plugins: makes CuPy allocate device memory from the pools, through its allocators of C functions.

"""CuPy on VPMM: ``vpmm.use_for_cupy()``, or ``VPMM_CUPY=1`` in the environment. docs/guides/cupy.md is the guide."""

# ruff: noqa: ANN401  CuPy's objects have no types here

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from vpmm import _vpmm
from vpmm.errors import Error, warn

__all__ = ["allocator", "install", "is_installed"]

_LIMIT = "CUPY_GPU_MEMORY_LIMIT"  # of CuPy's own pool
_LEAST = 13  # the oldest major version of CuPy
_RAISES = (14, 1, 1)  # from this version on CuPy turns exceptions of a C function into Python errors


def install() -> None:
    """Makes CuPy allocate all device memory from the process-wide pools, from now on.

    Existing allocations of CuPy stay where they are. The first allocation on a device opens its pool, with the settings
    of the VPMM_ variables or of ``vpmm.configure()``. Calling it again does nothing. Raises vpmm.Error if CuPy is
    missing or older than 13, and ValueError inside ``cupy.cuda.using_allocator``. Warns of a limit of CuPy's own pool.
    """
    cupy = _import_cupy()
    if os.environ.get(_LIMIT) and not is_installed():
        warn(f"{_LIMIT} has no effect: VPMM_CAPACITY limits the pool (docs/guides/cupy.md)", stacklevel=2)
    cupy.cuda.set_allocator(allocator())


def is_installed() -> bool:
    """Whether CuPy currently allocates from the pools in this thread. Imports nothing."""
    if allocator.cache_info().currsize == 0:  # nobody has asked for it
        return False
    return bool(_import_cupy().cuda.get_allocator() == allocator())


@functools.lru_cache(maxsize=1)
def allocator() -> Callable[[int], Any]:
    """The allocator itself, for ``cupy.cuda.using_allocator``: takes bytes, returns a ``cupy.cuda.MemoryPointer``.

    The memory is for work on the current stream. It keeps that Stream object alive and is freed in the order of the
    stream; for a cupy.cuda.ExternalStream it is freed after the work of all streams. Raises CuPy's OutOfMemoryError,
    whose cause is vpmm.OutOfMemoryError with the pool's report. Raises vpmm.Error as install() does.
    """
    cupy = _import_cupy()
    from cupy_backends.cuda import stream

    cuda = cupy.cuda
    _vpmm.cupy_connect(stream, cuda.memory.OutOfMemoryError, cuda.get_current_stream, cuda.ExternalStream)
    if _version_of(cupy) >= _RAISES:
        allocate, free = _vpmm.cupy_functions()
        made = cupy.cuda.CFunctionAllocator(0, allocate, free, _vpmm)
    else:
        made = cupy.cuda.PythonFunctionAllocator(_vpmm.cupy_allocate, _vpmm.cupy_free)
    found: Callable[[int], Any] = made.malloc
    return found


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise Error(f"CuPy cannot be imported ({error})", "VPMM_ERROR_UNSUPPORTED") from error
    if _version_of(cupy)[0] < _LEAST:
        raise Error(f"CuPy {cupy.__version__} is not supported: {_LEAST} or newer is needed", "VPMM_ERROR_UNSUPPORTED")
    return cupy


def _version_of(cupy: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in cupy.__version__.split(".")[:3] if part.isdigit())
