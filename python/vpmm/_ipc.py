# SPDX-License-Identifier: Apache-2.0
# vpmm: memory in other processes: handles that can be pickled, and the memory that they open.

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from vpmm import _vpmm
from vpmm._exported import Layout, Range, range_of
from vpmm._finalizers import at_death, may_call_cuda, process_ends
from vpmm._vpmm import Pool
from vpmm.errors import Error, InvalidArgumentError

__all__ = ["IpcHandle", "OpenedMemory", "StagedMemory", "ipc_export", "ipc_open"]

_KINDS = {1: "legacy", 2: "pool"}
_FROM_HERE = "opening IpcHandle from original process: use the memory itself"


class _Parts(NamedTuple):
    """A vpmm_ipc_handle."""

    kind: int
    token: bytes
    size: int
    offset: int
    device_uuid: bytes


# Note [Collected handles and memory]
# A finalizer runs on any thread and inside any Python code, but never inside a call of the library: those run without
# the GIL or create no Python objects, and the out-of-memory callback is called without a lock of ours. So a finalizer
# may end an export, which takes locks of the library, on any thread that may call CUDA; it releases the GIL for that,
# as every call does. On other threads, in a callback of a stream, it defers the call. Closing waits for the GPU, which
# would break captures of graphs: it is always deferred. The next call about handles carries out deferred calls.
_late: deque[tuple[Callable[[Any], None], Any]] = deque()


def _finish() -> None:
    """Carries out the calls that finalizers deferred; stops at the first that is not possible yet."""
    while True:
        try:
            call, argument = _late.popleft()
        except IndexError:
            return
        try:
            call(argument)
        except Error as error:
            if error.code == "VPMM_ERROR_CAPTURE_ACTIVE":
                _late.appendleft((call, argument))
                return


def _end_collected(parts: _Parts) -> None:
    if process_ends():
        return
    if may_call_cuda():
        with contextlib.suppress(Exception):  # a finalizer cannot report errors
            _vpmm.ipc_export_end(parts)
    else:
        _late.append((_vpmm.ipc_export_end, parts))


def _close_collected(ptr: int) -> None:
    _late.append((_vpmm.ipc_close, ptr))


class _Memory:
    """Device memory that can be closed; arrays of any library are made of it through ``__cuda_array_interface__``.

    The interface has the shape, strides and type of the exported array if they are known, and is bytes otherwise. It
    names no stream: data is ready when the exporter says so, not before.
    """

    def __init__(self, ptr: int, size: int, layout: Layout | None, end: weakref.finalize[..., Any]) -> None:
        self._ptr = ptr
        self._size = size
        self._layout = layout or Layout((size,), None, "|u1")
        self._end = end

    @property
    def ptr(self) -> int:
        """The address on the device."""
        return self._ptr

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._size

    @property
    def is_closed(self) -> bool:
        """Whether it was closed. The address is then invalid or reused."""
        return not self._end.alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.is_closed:
            raise InvalidArgumentError(f"this {type(self).__name__} is closed")
        layout = self._layout
        return {
            "shape": layout.shape,
            "strides": layout.strides,
            "typestr": layout.typestr,
            "data": (self._ptr, False),
            "version": 3,
            "stream": None,
        }

    def __repr__(self) -> str:
        state = " (closed)" if self.is_closed else ""
        return f"<vpmm.{type(self).__name__} of {self._size} bytes at {self._ptr:#x}{state}>"


class OpenedMemory(_Memory):
    """Memory of another process, made by IpcHandle.open(): both processes see each other's writes.

    It ends with close(), with its ``with`` block, or when it is collected; arrays made of it keep it alive. Closing
    waits for the GPU, so the next call about handles, on any thread, closes collected memory.
    """

    def __init__(self, ptr: int, size: int, layout: Layout | None) -> None:
        super().__init__(ptr, size, layout, at_death(self, _close_collected, ptr))

    def close(self) -> None:
        """Waits for the work of the device's context, then unmaps the memory. A second call does nothing.

        Raises vpmm.Error, and leaves the memory open, while a stream of the context is being captured.
        """
        if self._end.detach() is None:
            return
        try:
            _vpmm.ipc_close(self._ptr)
        except BaseException:
            self._end = at_death(self, _close_collected, self._ptr)
            raise
        _finish()

    def __enter__(self) -> OpenedMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StagedMemory(_Memory):
    """A copy of another process's memory in a pool of this one, made by IpcHandle.open_staged(); freed when collected.

    Work queued by then on any stream may still use it.
    """

    def __init__(self, pool: Pool, ptr: int, size: int, layout: Layout | None) -> None:
        super().__init__(ptr, size, layout, at_death(self, pool.deallocate_deferred, ptr))

    def close(self) -> None:
        """Frees the copy now. A second call does nothing."""
        self._end()


class IpcHandle:
    """Names memory to other processes of the same user on the same machine; made by vpmm.ipc_export().

    Handles can be pickled, hashed and compared. The handle that ipc_export() returned holds the memory: freed memory is
    not reused until end_export() is called or the handle is collected, and until the last process closes it. Copies and
    unpickled handles hold nothing, and creating them opens nothing.
    """

    def __init__(self, parts: tuple[int, bytes, int, int, bytes], layout: Layout | None = None) -> None:
        """For ipc_export(), from_token() and pickle."""
        self._parts = _Parts(*parts)
        self._layout = layout
        self._opened: weakref.ref[OpenedMemory] | None = None
        self._export: weakref.finalize[..., Any] | None = None
        self._owner: object = None

    @staticmethod
    def from_token(token: bytes) -> IpcHandle:
        """A handle from the 64 bytes alone, without device and array. Any other bytes raise InvalidArgumentError."""
        return IpcHandle(_vpmm.ipc_read_token(bytes(token)))

    @property
    def size(self) -> int:
        """The size of the memory in bytes."""
        return self._parts.size

    @property
    def offset(self) -> int:
        """Bytes from the start of its allocation."""
        return self._parts.offset

    @property
    def kind(self) -> str:
        """ "pool", or "legacy" for plain driver memory, which uses CUDA's own IPC."""
        return _KINDS.get(self._parts.kind, "unknown")

    @property
    def token(self) -> bytes:
        """64 bytes that are enough to open memory of a pool. For legacy memory, a CUipcMemHandle."""
        return self._parts.token

    @property
    def device_uuid(self) -> bytes:
        """The 16 bytes of the UUID of the device that holds the memory; all 0 if it is not known."""
        return self._parts.device_uuid

    # --- the exporter's side ---

    def _begin_export(self, owner: object) -> None:
        self._export = at_death(self, _end_collected, self._parts)
        if self.kind == "legacy":
            self._owner = owner  # nothing else keeps it alive

    def end_export(self) -> None:
        """Ends the export, as collecting this handle does. Memory that is open elsewhere stays valid there.

        Does nothing for a second call, or for a handle that ipc_export() did not return in this process.
        """
        export = self._export and self._export.detach()
        if export:
            self._owner = None
            _vpmm.ipc_export_end(self._parts)
        _finish()

    # --- the importer's side ---

    def open(self, device: int | None = None) -> OpenedMemory:
        """Maps the memory for work on `device`; None: the device that holds it.

        Opening the memory again through another handle gives the same address. Waits for the exporter, VPMM_IPC_TIMEOUT
        at most. Raises vpmm.InvalidArgumentError if the handle is already open, was exported by this process or is
        damaged. Raises vpmm.Error if the exporter no longer exists or has freed the memory ("VPMM_ERROR_NOT_SHARED"),
        has suspended it ("VPMM_ERROR_SUSPENDED"), or `device` cannot access it ("VPMM_ERROR_UNSUPPORTED");
        open_staged() works in that last case.
        """
        if self._export is not None:
            raise InvalidArgumentError(_FROM_HERE)
        if self._open_memory() is not None:
            raise InvalidArgumentError("IpcHandle is already opened")
        _finish()
        ptr = _vpmm.ipc_open(self._parts, -1 if device is None else device)
        memory = OpenedMemory(ptr, self.size, self._layout)
        self._opened = weakref.ref(memory)
        return memory

    def open_staged(self, device: int = 0) -> StagedMemory:
        """Copies the memory into the process-wide pool of `device`, which need not have access. Complete on return."""
        if self._export is not None:
            raise InvalidArgumentError(_FROM_HERE)
        _finish()
        pool = Pool.default(device)
        ptr = _vpmm.ipc_open_staged(self._parts, pool)
        return StagedMemory(pool, ptr, self.size, self._layout)

    def close(self) -> None:
        """Closes the memory that open() opened. Raises vpmm.InvalidArgumentError if it is not open or was collected."""
        memory = self._open_memory()
        if memory is None:
            raise InvalidArgumentError("IpcHandle not opened")
        memory.close()

    def _open_memory(self) -> OpenedMemory | None:
        memory = None if self._opened is None else self._opened()
        return None if memory is None or memory.is_closed else memory

    def __enter__(self) -> OpenedMemory:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        memory = self._open_memory()
        if memory is not None:
            memory.close()

    # --- as a value ---

    def _value(self) -> tuple[_Parts, Layout | None]:
        return self._parts, self._layout

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, IpcHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value())

    def __reduce__(self) -> tuple[type[IpcHandle], tuple[_Parts, Layout | None]]:
        return IpcHandle, self._value()

    def __repr__(self) -> str:
        return f"<vpmm.IpcHandle of {self.size} bytes at offset {self.offset}, {self.kind}>"


def ipc_export(obj: Any, size: int | None = None) -> IpcHandle:  # noqa: ANN401  any library's
    """Makes a handle for the memory of `obj`, for other processes.

    `obj` is an array with ``__cuda_array_interface__`` or DLPack, a cuda.core.Buffer, or an address. `size`, in bytes,
    is for addresses only. The memory is an allocation of any pool of this process, or a part of one, or plain driver
    memory. Plain driver memory needs a current CUDA context of its device, and the handle keeps `obj` alive. Before the
    other process reads the memory, wait for the work that writes it, or pass an event to that process.

    Raises vpmm.InvalidArgumentError for an array with gaps, without bytes, or on a device that is not CUDA's; TypeError
    for an object without memory; and vpmm.Error for memory that cannot be shared, or if the folder VPMM_IPC_DIR cannot
    be used. A folder or socket that something removed is made anew.
    """
    exported: Range = range_of(obj, size)
    _finish()
    handle = IpcHandle(_vpmm.ipc_export(exported.ptr, exported.size), exported.layout)
    handle._begin_export(obj)
    return handle


def ipc_open(handle: IpcHandle, device: int | None = None) -> OpenedMemory:
    """Returns handle.open(device)."""
    if not isinstance(handle, IpcHandle):
        raise TypeError(f"handle is {handle!r}: must be an IpcHandle, as vpmm.ipc_export() makes them")
    return handle.open(device)
