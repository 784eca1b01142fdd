"""An array of the pool that two processes work on: the first shares it, the second adds to it, nothing is copied.

Runs on a simulated GPU as it is, where device memory can be read by anybody: VPMM_DRIVER=sim python multi_process.py
On a real one, a library such as CuPy would do the work: array = cupy.asarray(memory).
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
    """In the other process."""
    with handle as memory:
        array = numbers(memory)
        for i in range(COUNT):
            array[i] += 1
        copy = handle.open_staged()
    print("the copy outlives the opening:", numbers(copy)[0])


def main() -> None:
    if os.environ.get("VPMM_DRIVER") != "sim":
        raise SystemExit("this example reads device memory as if it were the host's: set VPMM_DRIVER=sim")
    pool = vpmm.Pool.default()
    ptr = pool.allocate_any_stream(8 * COUNT)
    array = (ctypes.c_int64 * COUNT).from_address(ptr)
    array[:] = range(COUNT)
    handle = vpmm.ipc_export(ptr, 8 * COUNT)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(handle,))
    process.start()
    process.join()
    print("the other process made it", array[0], "to", array[COUNT - 1])
    handle.end_export()
    pool.deallocate_any_stream(ptr)


if __name__ == "__main__":
    main()
