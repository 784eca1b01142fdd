# SPDX-License-Identifier: Apache-2.0
"""tests: Numba's handles for other processes: the real pool on the simulated GPU, and stand-ins for CUDA itself."""

# ruff: noqa: ANN401  what Numba passes has no types

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import multiprocessing
import pickle
import sys
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from numba_stand_ins import Context, attributes, missing, recording_cuda, run_python

ABSENT = missing("vpmm._vpmm", "numba", "numba_cuda", "cuda.core", "numpy")
MIB = 1 << 20
IDENTITY = {"pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 2}


def numba_target() -> Any:
    from numba import cuda

    return cuda.cudadrv.driver


class IpcMemHandle(ctypes.Structure):
    """A CUipcMemHandle of cuda-bindings, for versions whose own has no attribute."""

    _fields_ = (("data", ctypes.c_uint8 * 64),)

    @property
    def reserved(self) -> bytes:
        return bytes(self.data)

    @reserved.setter
    def reserved(self, data: bytes) -> None:
        self.data[:] = data

    def getPtr(self) -> int:  # noqa: N802
        return ctypes.addressof(self)


def complete(target: Any) -> Any:
    """Puts in place of what cuda-bindings lacks what it should have."""
    real = target.binding.CUipcMemHandle
    return attributes(target.binding, CUipcMemHandle=real if hasattr(real, "reserved") else IpcMemHandle)


class OpenContext(Context):
    """A context as far as opening needs it; its methods are Numba's own."""

    def __init__(self) -> None:
        super().__init__()
        self.device.get_device_identity = lambda: IDENTITY
        self.target = numba_target()

    def open_ipc_handle(self, handle: Any, size: int) -> Any:
        return self.target.Context.open_ipc_handle(self, handle, size)


# --- what children do: Numba, and vpmm only as far as unpickling a handle imports it ---


for_good = ExitStack()


def prepare() -> Any:
    """A context that is current, in a process where CUDA is not there."""
    target = numba_target()
    for_good.enter_context(complete(target))
    target.driver.cuCtxGetDevice = lambda: 0
    context = OpenContext()
    from numba.cuda import api
    from numba.cuda.cudadrv import devicearray, devices

    api.current_context = lambda: context
    devicearray.devices = types.SimpleNamespace(get_context=lambda: context, require_context=devices.require_context)
    return context


def read(pointer: Any, size: int) -> bytes:
    return ctypes.string_at(int(pointer.device_pointer), size)


def has_manager() -> bool:
    return "vpmm.plugins.numba" in sys.modules


def open_direct(handle: Any) -> tuple[bytes, list[str], bool]:
    context = prepare()
    said = []

    def note(call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except ValueError as error:
            said.append(str(error))

    note(handle.close)
    text = read(handle.open(context), handle.size)
    for again in (handle.open, handle.open_direct, handle.open_staged):
        note(again, context)
    handle.close()
    note(handle.close)
    assert read(handle.open_direct(context), handle.size) == text
    handle.close()
    return text, said, has_manager()


def open_staged(handle: Any) -> tuple[bytes, list[str], int, int]:
    import vpmm

    context = prepare()
    pointer = handle.open_staged(context)
    said = []
    for again in (handle.open, handle.open_staged):
        try:
            again(context)
        except ValueError as error:
            said.append(str(error))
    handle.close()
    text = read(pointer, handle.size)  # it is the caller's, and outlives close()
    count = vpmm.stats()["live_allocations"]
    del pointer
    gc.collect()
    vpmm.Pool.default().synchronize()
    return text, said, count, vpmm.stats()["live_allocations"]


def open_array(array_handle: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str, list[int], str]:
    prepare()
    with array_handle as array:
        items = (ctypes.c_int64 * array.size).from_address(int(array.gpu_data.device_pointer))
        said = ""
        try:
            array_handle.open()
        except ValueError as error:
            said = str(error)
        return array.size, array.shape, array.strides, str(array.dtype), list(items), said


def open_bytes(reserved: Any, size: int, start: str) -> bytes:
    """Numba's open_ipc_array; `start` is what makes Numba know our bytes."""
    exec(start, {"reserved": reserved})
    prepare()
    import contextlib

    from numba import cuda

    # Below the decorators: one of them asks for a real context.
    open_ipc_array = contextlib.contextmanager(cuda.open_ipc_array.__wrapped__.__wrapped__)
    with open_ipc_array(reserved, shape=size, dtype="u1") as array:
        return read(array.gpu_data, size)


def refusal_of(handle: Any) -> tuple[str, str]:
    context = prepare()
    kinds = []
    for _ in range(2):  # a failed opening leaves the handle closed
        try:
            handle.open_direct(context)
        except Exception as error:
            kinds.append(f"{type(error).__name__} {getattr(error, 'code', '')}")
    return kinds[0], kinds[1]


@unittest.skipIf(ABSENT, ABSENT)
class NumbaIpc(unittest.TestCase):
    """`self.manager` has the process-wide pool; `ask` has a function run in a process that has no manager."""

    def setUp(self) -> None:
        import vpmm

        self.target = numba_target()
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.cuda = stack.enter_context(recording_cuda(self.target))
        stack.enter_context(complete(self.target))
        self.context = OpenContext()
        self.manager = vpmm.NumbaMemoryManager(context=self.context)
        self.manager.initialize()
        self.addCleanup(self.manager.reset)
        self.renew()

    def renew(self) -> None:
        """Another child."""
        spawn = multiprocessing.get_context("spawn")
        self.child = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn)
        self.addCleanup(self.child.shutdown)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.child.submit(function, *arguments).result(60)

    def memory(self, size: int = 80) -> Any:
        memory = self.manager.memalloc(size)
        begin = int(memory.handle)
        ctypes.memmove(begin, bytes(i % 256 for i in range(min(size, 4096))), min(size, 4096))
        return memory

    def live(self) -> int:
        import vpmm

        self.manager.get_memory_info()
        vpmm.Pool.default().synchronize()
        return vpmm.stats()["live_allocations"]

    def test_a_handle_is_numbas_and_survives_pickling(self) -> None:
        import vpmm

        memory = self.memory()
        handle = self.manager.get_ipc_handle(memory)
        self.assertIsInstance(handle, self.target.IpcHandle)
        self.assertIs(handle.base, memory)
        self.assertIsInstance(handle.handle, self.target.binding.CUipcMemHandle)
        self.assertEqual((handle.size, handle.offset, handle.source_info), (80, 0, IDENTITY))
        again = pickle.loads(pickle.dumps(handle))
        self.assertIs(type(again), type(handle))
        self.assertIs(again.base, None)
        self.assertEqual(again.handle.reserved, handle.handle.reserved)
        self.assertEqual((again.size, again.offset, again.source_info), (80, 0, IDENTITY))
        self.assertEqual(bytes(handle.handle.reserved), handle.shared.token)
        self.assertEqual(vpmm.IpcHandle.from_token(bytes(again.handle.reserved)).size, 80)

    def test_it_opens_where_there_is_no_manager_with_numbas_errors(self) -> None:
        for size in (80, MIB, 64 * MIB):
            with self.subTest(size=size):
                handle = self.manager.get_ipc_handle(self.memory(size))
                text, said, had_manager = self.ask(open_direct, handle)
                self.assertEqual(text[:80], bytes(range(80)))
                self.assertFalse(had_manager)
                opened, closed = "IpcHandle is already opened", "IpcHandle not opened"
                self.assertEqual(said, [closed, opened, opened, opened, closed])

    def test_views_and_views_of_views_name_their_part(self) -> None:
        memory = self.memory()
        view = memory.own().view(16, 64)
        for part, expected in ((view, range(16, 64)), (view.view(8, 24), range(24, 40))):
            handle = self.manager.get_ipc_handle(part)
            self.assertEqual((handle.size, handle.offset), (len(expected), 0))
            self.assertEqual(self.ask(open_direct, handle)[0], bytes(expected))

    def test_a_pointer_of_others_into_a_pool_is_shared_by_its_address(self) -> None:
        memory = self.memory()
        pointer = self.target.binding.CUdeviceptr(int(memory.handle) + 24)
        foreign = self.target.MemoryPointer(self.context, pointer, 16, owner=object())
        text = self.ask(open_direct, self.manager.get_ipc_handle(foreign))[0]
        self.assertEqual(text, bytes(range(24, 40)))

    def test_a_staged_copy_is_its_callers_and_outlives_the_handles_close(self) -> None:
        handle = self.manager.get_ipc_handle(self.memory())
        expected = (bytes(range(80)), 2 * ["IpcHandle is already opened"], 1, 0)
        self.assertEqual(self.ask(open_staged, handle), expected)

    def test_an_array_handle_arrives_with_shape_strides_and_type(self) -> None:
        import numpy as np
        from numba.cuda.cudadrv.devicearray import DeviceNDArray, IpcArrayHandle

        memory = self.memory()
        expected = np.frombuffer(bytes(range(80)), np.int64).reshape(2, 5)
        array = DeviceNDArray((2, 5), (40, 8), np.int64, gpu_data=memory)
        handle = IpcArrayHandle(
            self.manager.get_ipc_handle(array.gpu_data), {"shape": (2, 5), "strides": (40, 8), "dtype": array.dtype}
        )
        size, shape, strides, dtype, items, said = self.ask(open_array, handle)
        self.assertEqual((size, shape, strides, dtype), (10, (2, 5), (40, 8), "int64"))
        self.assertEqual(items, expected.ravel().tolist())
        self.assertEqual(said, "IpcHandle is already opened")

    def test_numbas_open_ipc_array_knows_our_bytes_with_the_manager_or_the_import(self) -> None:
        handle = self.manager.get_ipc_handle(self.memory())
        by_manager = """
import vpmm
from numba_stand_ins import Context, recording_cuda
from numba import cuda
with recording_cuda(cuda.cudadrv.driver):
    vpmm.NumbaMemoryManager(context=Context()).initialize()
"""
        token = bytes(handle.handle.reserved)
        for start in ("import vpmm.plugins.numba_ipc", by_manager):
            with self.subTest(start=start):
                self.renew()
                self.assertEqual(self.ask(open_bytes, token, 80, start), bytes(range(80)))

    def test_bytes_that_were_pickled_need_neither(self) -> None:
        handle = self.manager.get_ipc_handle(self.memory())
        sent = handle.handle.reserved
        self.assertEqual(self.ask(open_bytes, sent, 80, "assert type(reserved) is bytes"), bytes(range(80)))
        self.assertEqual(pickle.loads(pickle.dumps(sent)), handle.shared.token)

    def test_the_handle_holds_the_memory_and_lets_it_go(self) -> None:
        before = self.live()
        handle = self.manager.get_ipc_handle(self.memory())
        sent = pickle.dumps(handle)
        shared = handle.shared
        handle.base = None  # as after a reset: the array itself is gone
        gc.collect()
        self.assertEqual(self.live(), before + 1)
        self.assertEqual(self.ask(open_direct, pickle.loads(sent))[0], bytes(range(80)))
        del handle, shared
        gc.collect()
        refused = ("Error VPMM_ERROR_NOT_SHARED", "Error VPMM_ERROR_NOT_SHARED")
        self.assertEqual(self.ask(refusal_of, pickle.loads(sent)), refused)

    def test_the_exporting_process_opens_nothing(self) -> None:
        handle = self.manager.get_ipc_handle(self.memory())
        for own in (handle, pickle.loads(pickle.dumps(handle))):
            for way in (own.open_direct, own.open_staged):
                for _ in range(2):
                    with self.assertRaisesRegex(ValueError, "original process|process that exported it"):
                        way(self.context)
            with self.assertRaisesRegex(ValueError, "IpcHandle not opened"):
                own.close()

    def test_host_and_managed_memory_is_refused_by_name(self) -> None:
        import vpmm

        memories = [
            self.manager.memhostalloc(80),
            self.manager.memhostalloc(80, mapped=True),
            self.manager.memallocmanaged(80),
        ]
        for memory in memories:
            with self.assertRaisesRegex(vpmm.Error, f"{type(memory).__name__} is not shared"):
                self.manager.get_ipc_handle(memory)

    def test_plain_driver_memory_has_numbas_own_handle(self) -> None:
        import vpmm
        from vpmm.plugins import _numba_ipc

        memory = types.SimpleNamespace(handle=0x5000, size=40)
        legacy = vpmm.IpcHandle((1, bytes(range(64)), 40, 16, bytes(16)))
        with attributes(_numba_ipc, vpmm=types.SimpleNamespace(ipc_export=lambda address, size: legacy)):
            handle = _numba_ipc.export(self.target, memory, IDENTITY)
        self.assertIs(type(handle), self.target.IpcHandle)
        self.assertEqual((handle.base, handle.size, handle.offset), (memory, 40, 16))
        self.assertEqual((bytes(handle.handle.reserved), handle.source_info), (bytes(range(64)), IDENTITY))


class Driver:
    """Numba's driver object: what it has not got yet is made when it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> str:
            self.calls.append((name, *arguments))
            return f"from {name}"

        self.made.append(name)
        setattr(self, name, call)
        return call


@unittest.skipIf(missing("vpmm._vpmm"), "vpmm._vpmm not installed")
class NumbaIpcHooks(unittest.TestCase):
    def setUp(self) -> None:
        from vpmm.plugins._numba_ipc import Hooks

        self.driver: Any = Driver()
        self.target = types.SimpleNamespace(driver=self.driver, binding=types.SimpleNamespace(CUdeviceptr=int))
        self.hooks = Hooks(self.target)

    def test_installing_asks_the_driver_nothing(self) -> None:
        self.hooks.install()
        self.assertEqual((self.driver.made, self.driver.calls), ([], []))

    def test_what_is_not_ours_goes_to_numbas_function_each_time(self) -> None:
        self.hooks.install()
        handle = IpcMemHandle()
        for _ in range(2):
            self.assertEqual(self.driver.cuIpcOpenMemHandle(handle, 1), "from cuIpcOpenMemHandle")
            self.assertEqual(self.driver.cuIpcCloseMemHandle(0x5000), "from cuIpcCloseMemHandle")
        opened, closed = ("cuIpcOpenMemHandle", handle, 1), ("cuIpcCloseMemHandle", 0x5000)
        self.assertEqual(self.driver.calls, [opened, closed, opened, closed])
        self.assertEqual(self.driver.made, ["cuIpcOpenMemHandle", "cuIpcCloseMemHandle"])
        self.assertEqual(vars(self.driver)["cuIpcOpenMemHandle"], self.hooks._open)

    def test_functions_that_were_there_are_called_and_not_replaced(self) -> None:
        self.driver.cuIpcCloseMemHandle = lambda pointer: f"theirs {pointer}"
        self.hooks.install()
        self.assertEqual(self.driver.cuIpcCloseMemHandle(7), "theirs 7")
        self.assertEqual(self.driver.made, [])

    def test_numbas_class_of_drivers_is_as_this_one(self) -> None:
        """Its __getattr__ puts what it makes where our function is; the hook takes its place again."""
        if ABSENT:
            self.skipTest(ABSENT)
        code = """
from numba.cuda.cudadrv import driver as target
from vpmm.plugins._numba_ipc import Hooks, handle_class
handle_class(target)
target.driver.is_initialized, target.driver.initialization_error = True, None  # as where CUDA is
target._logger = target.make_logger()
target.binding.cuIpcCloseMemHandle = lambda pointer: (target.binding.CUresult.CUDA_SUCCESS, pointer + 1)
print(target.driver.cuIpcCloseMemHandle(7), target.driver.cuIpcCloseMemHandle(8))
print(type(vars(target.driver)['cuIpcCloseMemHandle'].__self__) is Hooks)
"""
        done = run_python(code, VPMM_DRIVER="sim")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "8 9\nTrue\n", ""))


if __name__ == "__main__":
    unittest.main()
