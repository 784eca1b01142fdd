# SPDX-License-Identifier: Apache-2.0
"""tests: a pool, a CUDA driver and a context that write down what Numba's plugin asks of them; no GPU needed."""

# ruff: noqa: ANN401  what Numba and cuda.core pass has no types

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RELAXED = "relaxed"


def missing(*modules: str) -> str:
    """Which of these cannot be imported, as a reason to skip; empty when all can."""
    absent = []
    for module in modules:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            absent.append(module)
    return f"{', '.join(absent)} not installed" if absent else ""


class RecordingPool:
    """As vpmm.Pool, on addresses that nobody touches; the last address freed is the first handed out again."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[int] = []
        self.live: dict[int, int] = {}
        self.free: list[int] = []
        self.next = 0x7F00_0000_0000
        self.out_of_memory = False
        self.while_allocating: list[Any] = []  # run inside an allocation

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads.append(threading.get_ident())

    def _hand_out(self, size: int) -> int:
        import vpmm

        for action in self.while_allocating:
            action()
        if self.out_of_memory:
            raise vpmm.OutOfMemoryError(f"{size} bytes are not there")
        if size == 0:
            return 0
        if self.free:
            address = self.free.pop()
        else:
            address, self.next = self.next, self.next + 0x100000
        self.live[address] = size
        return address

    def _take_back(self, address: int) -> None:
        if self.live.pop(address, None) is None:
            raise AssertionError(f"{address:#x} is freed and not allocated")
        self.free.append(address)

    def allocate(self, size: int, stream: int, alignment: int = 0) -> int:
        self._note("allocate", size, stream)
        return self._hand_out(size)

    def allocate_any_stream(self, size: int, alignment: int = 0) -> int:
        self._note("allocate_any_stream", size)
        return self._hand_out(size)

    def deallocate(self, address: int, stream: int) -> None:
        self._note("deallocate", address, stream)
        self._take_back(address)

    def deallocate_deferred(self, address: int) -> None:
        self._note("deallocate_deferred", address)
        self._take_back(address)

    def query(self, address: int) -> Any:
        import vpmm

        for begin, size in self.live.items():
            if begin <= address < begin + size:
                return types.SimpleNamespace(begin=begin, requested=size)
        raise vpmm.Error(f"{address:#x} is not allocated from this pool", "VPMM_ERROR_INVALID_POINTER")

    def memory_info(self) -> tuple[int, int]:
        self._note("memory_info")
        return 600, 1000

    def trim(self, keep: int = 0) -> int:
        self._note("trim", keep)
        return 0

    def defer_cleanup_begin(self) -> None:
        self._note("defer_cleanup_begin")

    def defer_cleanup_end(self) -> None:
        self._note("defer_cleanup_end")

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


class Pools:
    """Stands for the class vpmm.Pool: one pool per device."""

    def __init__(self) -> None:
        self.by_device: dict[int, RecordingPool] = {}
        self.settings: dict[str, object] = {}

    def configure(self, device: int, **settings: object) -> RecordingPool:
        self.settings = settings
        return self.default(device)

    def default(self, device: int) -> RecordingPool:
        return self.by_device.setdefault(device, RecordingPool(device))


class RecordingCuda:
    """The driver calls that the plugin makes, in place of those of Numba's driver object. Host memory is real."""

    def __init__(self, target: Any, device: int = 0) -> None:
        self.target = target
        self.device = device
        self.calls: list[tuple[Any, ...]] = []
        self.current: list[Any] = []  # contexts that the plugin has pushed
        self.host: dict[int, Any] = {}
        self.pinned: set[int] = set()
        self.failing: dict[str, list[int]] = {}  # call -> error codes for the next ones
        self.modes = ["global"]

    def functions(self) -> list[str]:
        return [name for name in dir(self) if name.startswith("cu") and name[2].isupper()]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        codes = self.failing.get(call[0])
        if codes:
            raise self.target.CudaAPIError(codes.pop(0), f"{call[0]} was told to fail")

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def cuCtxGetDevice(self) -> int:  # noqa: N802
        self._note("cuCtxGetDevice")
        return self.device

    def cuCtxPushCurrent(self, context: Any) -> None:  # noqa: N802
        self._note("cuCtxPushCurrent", context)
        self.current.append(context)

    def cuCtxPopCurrent(self) -> Any:  # noqa: N802
        self._note("cuCtxPopCurrent")
        return self.current.pop()

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:  # noqa: N802
        self._note("cuThreadExchangeStreamCaptureMode", mode)
        self.modes.append(mode)
        return self.modes[-2]

    def _new(self, size: int) -> int:
        memory = ctypes.create_string_buffer(max(size, 1))
        address = ctypes.addressof(memory)
        self.host[address] = memory
        return address

    def cuMemHostAlloc(self, size: int, flags: int) -> int:  # noqa: N802
        self._note("cuMemHostAlloc", size, flags)
        return self._new(size)

    def cuMemAllocManaged(self, size: int, flags: int) -> Any:  # noqa: N802
        self._note("cuMemAllocManaged", size, flags)
        return self.target.binding.CUdeviceptr(self._new(size))

    def cuMemHostRegister(self, pointer: int, size: int, flags: int) -> None:  # noqa: N802
        self._note("cuMemHostRegister", pointer, size, flags)
        if pointer in self.pinned:
            code = self.target.binding.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            raise self.target.CudaAPIError(code, "registered already")
        self.pinned.add(pointer)

    def cuMemHostUnregister(self, pointer: int) -> None:  # noqa: N802
        self._note("cuMemHostUnregister", pointer)
        self.pinned.remove(pointer)

    def cuMemFreeHost(self, pointer: int) -> None:  # noqa: N802
        self._note("cuMemFreeHost", pointer)
        del self.host[pointer]

    def cuMemFree(self, pointer: int) -> None:  # noqa: N802
        self._note("cuMemFree", int(pointer))
        del self.host[int(pointer)]

    def cuMemGetAddressRange(self, pointer: int) -> tuple[Any, int]:  # noqa: N802
        self._note("cuMemGetAddressRange", pointer)
        return self.target.binding.CUdeviceptr(pointer - 16), 1 << 21

    def cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> Any:  # noqa: N802
        self._note("cuMemHostGetDevicePointer", pointer)
        return self.target.binding.CUdeviceptr(pointer)


class CoreDevice:
    """As far as cuda.core.Device matters here."""

    def __init__(self) -> None:
        self._memory_resource: Any = None

    @property
    def memory_resource(self) -> Any:
        return self._memory_resource

    @memory_resource.setter
    def memory_resource(self, resource: Any) -> None:
        assert resource is not None, "cuda.core takes memory resources only"
        self._memory_resource = resource


class StandInBuffer:
    """What the memory resource asks of cuda.core.Buffer, and needs no driver; it frees when it is closed."""

    def __init__(self, ptr: int, size: int, mr: Any, stream: Any) -> None:
        self.handle, self.size, self.memory_resource, self.stream = ptr, size, mr, stream

    @staticmethod
    def from_handle(ptr: int, size: int, mr: Any = None, *, stream: Any = None) -> StandInBuffer:
        return StandInBuffer(ptr, size, mr, stream)

    def close(self) -> None:
        self.memory_resource.deallocate(self.handle, self.size, self.stream)


class NumbaDevice:
    def __init__(self) -> None:
        self._dev = CoreDevice()
        self.id = 0


class Context:
    """A Context of Numba: a device, a handle, and nothing of the manager's business."""

    def __init__(self, device: Any = None, handle: Any = "context") -> None:
        self.device = NumbaDevice() if device is None else device
        self.handle = handle


@contextmanager
def attributes(thing: Any, **values: Any) -> Iterator[None]:
    """Sets attributes and puts back what was in the object's own dict, without asking for what was not."""
    before = {name: vars(thing)[name] for name in values if name in vars(thing)}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(thing, name, before[name])
            else:
                delattr(thing, name)


@contextmanager
def recording_cuda(target: Any, device: int = 0) -> Iterator[RecordingCuda]:
    cuda = RecordingCuda(target, device)
    with attributes(target.driver, **{name: getattr(cuda, name) for name in cuda.functions()}):
        yield cuda


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, with warnings as errors; `variables` are added to the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "VPMM_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment.update(variables)
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
