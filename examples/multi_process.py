# SPDX-License-Identifier: Apache-2.0
"""Shares an array of the pool between two processes without a copy: the first exports it, the second adds to it.

Runs on the simulated GPU, where the host can read device memory: VPMM_DRIVER=sim python examples/multi_process.py
On a real GPU, use a library such as CuPy instead of ctypes: array = cupy.asarray(memory).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os

import vpmm

COUNT = 1000


def numbers(memory: vpmm.OpenedMemory | vpmm.StagedMemory) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * COUNT).from_address(memory.ptr)


def work(handle: vpmm.IpcHandle) -> None:
    """Runs in the other process."""
    with handle as memory:
        array = numbers(memory)
        for i in range(COUNT):
            array[i] += 1
        copy = handle.open_staged()
    print("the copy is valid after closing:", numbers(copy)[0])


def main() -> None:
    if os.environ.get("VPMM_DRIVER") != "sim":
        raise SystemExit(
            "this example reads device memory on the host, which only the simulated GPU allows: set VPMM_DRIVER=sim"
        )
    pool = vpmm.Pool.default()
    ptr = pool.allocate_any_stream(8 * COUNT)
    array = (ctypes.c_int64 * COUNT).from_address(ptr)
    array[:] = range(COUNT)
    handle = vpmm.ipc_export(ptr, 8 * COUNT)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(handle,))
    process.start()
    process.join()
    print("after the other process added 1:", array[0], "to", array[COUNT - 1])
    handle.end_export()
    pool.deallocate_any_stream(ptr)


if __name__ == "__main__":
    main()
