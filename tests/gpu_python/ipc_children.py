# SPDX-License-Identifier: Apache-2.0
"""tests: what other processes do with memory that test_ipc.py sends them; they are sent these functions by name.

Nothing of vpmm is imported here: a child has it when what it is sent brings it.
"""

# ruff: noqa: ANN401  handles and arrays have no types

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

Executor = concurrent.futures.ProcessPoolExecutor


@contextlib.contextmanager
def child() -> Iterator[Callable[..., Any]]:
    """A fresh process that runs functions of this module, for a parent's `with`; without the parent's manager."""
    with Executor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result(100)


def manager() -> str:
    from numba import cuda

    return type(cuda.current_context().memory_manager).__name__


def read(handle: Any) -> Any:
    """A NumPy array of an IpcArrayHandle's bytes."""
    with handle as array:
        return array.copy_to_host()


def is_range(handle: Any, begin: int) -> bool:
    """Whether a large array counts from `begin`; it is too large to be sent back."""
    import numpy as np

    with handle as array:
        host = array.copy_to_host()
    return bool((host == np.arange(begin, begin + host.size, dtype=host.dtype)).all())


def overwrite(handle: Any, begin: int) -> None:
    """Makes it count from `begin`."""
    import numpy as np
    from numba import cuda

    with handle as array:
        array.copy_to_device(np.arange(begin, begin + array.size, dtype=array.dtype))
        cuda.synchronize()


def read_often(handle: Any, times: int) -> bool:
    """Whether each opening shows what the first did."""
    first = read(handle)
    return all((read(handle) == first).all() for _ in range(times))


def errors(handle: Any) -> list[str]:
    """What opening twice and closing what is closed say."""
    said = []
    for call in (handle.close, handle.open, handle.open, handle.close, handle.close):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said


def read_bytes(reserved: Any, size: int) -> bytes:
    """By Numba's open_ipc_array, from 64 bytes."""
    from numba import cuda

    with cuda.open_ipc_array(reserved, shape=size, dtype="u1") as array:
        return array.copy_to_host().tobytes()


def read_bytes_after_import(reserved: bytes, size: int) -> bytes:
    import vpmm.plugins.numba_ipc  # noqa: F401

    return read_bytes(reserved, size)


def read_staged(handle: Any, device: int) -> bytes:
    """A copy on a device, read after the handle is closed."""
    import numpy as np
    from numba import cuda

    with cuda.gpus[device]:
        pointer = handle.open_staged(cuda.current_context())
        handle.close()
        host = np.zeros(handle.size, np.uint8)
        cuda.cudadrv.driver.device_to_host(host, pointer, handle.size)
        return host.tobytes()


def read_ours(handle: Any) -> Any:
    """A NumPy array of a vpmm.IpcHandle."""
    from numba import cuda

    cuda.current_context()
    with handle as memory:
        return cuda.as_cuda_array(memory).copy_to_host()


def read_our_copy(handle: Any) -> Any:
    from numba import cuda

    cuda.current_context()
    copy = handle.open_staged()
    return cuda.as_cuda_array(copy).copy_to_host()


def seconds_to_read(handle: Any, started: float) -> float:
    """From `started`, a time.time(), until the child has its data."""
    read(handle)
    return time.time() - started


opened: list[Any] = []


def hold(handle: Any) -> Any:
    """Opens it and keeps it open."""
    opened.append((handle, handle.open()))
    return opened[-1][1].copy_to_host()


def read_held() -> Any:
    return opened[-1][1].copy_to_host()


def let_go() -> None:
    handle, array = opened.pop()
    del array
    handle.close()


def write_on_and_on(handle: Any) -> int:
    """Opens it and starts a kernel that writes -1 to all of it until the process is killed; the process's number."""
    import numpy as np

    vars(np).setdefault("row_stack", np.vstack)  # as in test_stress.py
    from numba import cuda

    @cuda.jit
    def write(array: Any, rounds: int) -> None:
        for _ in range(rounds):
            for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
                array[i] = -1

    array = handle.open()
    write[256, 256](array, 1)
    cuda.synchronize()
    write[256, 256](array, 1 << 40)
    opened.append((handle, array))
    return os.getpid()


def die() -> None:
    """Ends the process as a crash would: nothing is closed."""
    os._exit(9)
