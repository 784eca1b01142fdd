# SPDX-License-Identifier: Apache-2.0
"""tests: processes that share memory of a pool on the simulator, and what those at the other end do."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import multiprocessing
import os
import time
import unittest
from collections.abc import Callable
from typing import Any

import vpmm

MIB = 1 << 20


class Array:
    """What libraries call an array, as far as sharing needs it."""

    def __init__(
        self, ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, **more: object
    ) -> None:
        data: dict[str, object] = {
            "shape": shape,
            "strides": strides,
            "typestr": "<i8",
            "data": (ptr, False),
            "version": 3,
        }
        self.__cuda_array_interface__ = data | more


def fill(ptr: int, text: bytes) -> None:
    ctypes.memmove(ptr, text, len(text))


def read(ptr: int, size: int) -> bytes:
    return ctypes.string_at(ptr, size)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true: what another process lets go of is known a moment later."""
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# --- what children do; they are sent these by name ---

held: list[Any] = []


def read_all(handle: vpmm.IpcHandle) -> bytes:
    with handle as memory:
        return read(memory.ptr, memory.size)


def exchange(handle: vpmm.IpcHandle, text: bytes) -> bytes:
    with handle as memory:
        before = read(memory.ptr, len(text))
        fill(memory.ptr, text)
        return before


def add_one(handle: vpmm.IpcHandle, index: int) -> int:
    with handle as memory:
        cell = ctypes.c_int64.from_address(memory.ptr + 8 * index)
        cell.value += 1
    return os.getpid()


def interface_of(handle: vpmm.IpcHandle) -> dict[str, Any]:
    with handle as memory:
        interface = memory.__cuda_array_interface__
        assert interface["data"] == (memory.ptr, False)
        return {name: value for name, value in interface.items() if name != "data"}


def hold(handle: vpmm.IpcHandle) -> bytes:
    held.append(handle.open())
    return read(held[-1].ptr, handle.size)


def let_go() -> None:
    held.pop().close()


def drop() -> None:
    held.clear()
    gc.collect()


def do_any_call() -> None:
    vpmm.IpcHandle((2, bytes(64), 0, 0, bytes(16))).end_export()


def misuse(handle: vpmm.IpcHandle) -> list[str]:
    said = []

    def note(call: Callable[[], object]) -> None:
        try:
            call()
        except ValueError as error:
            said.append(str(error))

    note(handle.close)
    memory = handle.open()
    note(handle.open)
    note(handle.__enter__)
    handle.close()
    handle.open().close()
    note(handle.close)
    note(lambda: memory.__cuda_array_interface__)
    memory.close()  # a second time does nothing
    return said


def open_twice(handle: vpmm.IpcHandle) -> tuple[bool, bytes]:
    first, second = handle.open(), vpmm.IpcHandle.from_token(handle.token).open()
    same = first.ptr == second.ptr
    first.close()
    text = read(second.ptr, 4)
    second.close()
    return same, text


def staged(handle: vpmm.IpcHandle, text: bytes) -> tuple[bytes, int, int]:
    copy = handle.open_staged()
    before = read(copy.ptr, len(text))
    fill(copy.ptr, text)
    count = vpmm.stats()["live_allocations"]
    del copy
    vpmm.Pool.default().synchronize()
    return before, count, vpmm.stats()["live_allocations"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def code_of(handle: vpmm.IpcHandle) -> str:
    try:
        handle.open()
    except vpmm.Error as error:
        return error.code
    return "opened"


class Sharing(unittest.TestCase):
    """`self.child` is another process, which lives as long as the test."""

    def setUp(self) -> None:
        self.pool = vpmm.Pool()
        self.child = self.process()

    def process(self) -> concurrent.futures.ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn)
        self.addCleanup(executor.shutdown)
        return executor

    def ask(self, function: Callable[..., Any], *arguments: object, child: Any = None) -> Any:  # noqa: ANN401
        return (child or self.child).submit(function, *arguments).result(60)

    def memory(self, size: int = MIB, text: bytes = b"") -> int:
        ptr = self.pool.allocate_any_stream(size)
        fill(ptr, text)
        return ptr

    def live(self) -> int:
        self.pool.synchronize()
        return self.pool.statistics()["live_allocations"]
