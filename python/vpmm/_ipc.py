# vpmm: memory in other processes: handles that can be pickled, and what is opened with them.

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from vpmm import _vpmm
from vpmm._exported import Layout, Range, range_of
from vpmm._finalizers import at_death, may_call_cuda, process_ends
from vpmm._vpmm import Pool
from vpmm.errors import Error

__all__ = ["IpcHandle", "OpenedMemory", "StagedMemory", "ipc_export", "ipc_open", "opening"]

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
# A finalizer runs on any thread and inside anything of Python's, but inside no call of the library: those run without
# the interpreter's lock, or make no Python objects, and the out-of-memory callback is called with no lock of ours held.
# So it may end an export, which takes locks of the library, wherever CUDA may be called; it does that without the
# interpreter's lock, like any call. Elsewhere, in a callback of a stream, it puts it off. Closing waits for the GPU,
# and that breaks captures of graphs: it is always put off. What is put off is done by the next call about handles.
_late: deque[tuple[Callable[[Any], None], Any]] = deque()


def _finish() -> None:
    """Does what finalizers put off; the first that cannot be done yet waits on."""
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
        with contextlib.suppress(Exception):  # nobody is there to be told
            _vpmm.ipc_export_end(parts)
    else:
        _late.append((_vpmm.ipc_export_end, parts))


def _close_collected(ptr: int) -> None:
    _late.append((_vpmm.ipc_close, ptr))


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """What is wrong with the handle itself is a ValueError, as in Numba; everything else stays a vpmm.Error."""
    try:
        yield
    except Error as error:
        if error.code != "VPMM_ERROR_INVALID_ARGUMENT":
            raise
        raise ValueError(str(error)) from error


class _Memory:
    """Device memory with an end; arrays of any library are made of it through ``__cuda_array_interface__``.

    The interface has shape, strides and type of the array that was exported, where those are known, and is bytes
    otherwise. It names no stream: what the exporter wrote is there when the exporter says so, not before.
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
        """Bytes."""
        return self._size

    @property
    def is_closed(self) -> bool:
        """Whether it was closed: the address is nobody's, or somebody else's, from then on."""
        return not self._end.alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.is_closed:
            raise ValueError(f"this {type(self).__name__} is closed")
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
    """Memory of another process, made by IpcHandle.open(): what either process writes, the other sees.

    It ends with close(), with its ``with`` block, or when it is collected; arrays made of it keep it alive. What is
    collected is given back by the next call about handles, of any thread, for that waits for the GPU.
    """

    def __init__(self, ptr: int, size: int, layout: Layout | None) -> None:
        super().__init__(ptr, size, layout, at_death(self, _close_collected, ptr))

    def close(self) -> None:
        """Waits for the work of the device's context, then gives the memory back. A second call does nothing.

        Raises vpmm.Error, and the memory stays open, while a stream of the context is being captured.
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

    Work queued by then on any stream may be the last to use it.
    """

    def __init__(self, pool: Pool, ptr: int, size: int, layout: Layout | None) -> None:
        super().__init__(ptr, size, layout, at_death(self, pool.deallocate_deferred, ptr))

    def close(self) -> None:
        """Frees it now. A second call does nothing."""
        self._end()


class IpcHandle:
    """Names memory to other processes of the same user on the same machine; made by vpmm.ipc_export().

    Can be pickled, hashed and compared. The one that ipc_export() returned holds the memory: what is freed meanwhile is
    not used again before end_export(), or before this handle is collected, and before the last process that has it
    open lets go. Copies and unpickled ones hold nothing, and nothing is opened when they are made.
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
        """The handle for the 64 bytes alone, without device and array. ValueError: they are none of a pool's memory."""
        with opening():
            return IpcHandle(_vpmm.ipc_read_token(bytes(token)))

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self._parts.size

    @property
    def offset(self) -> int:
        """Bytes from the begin of its allocation."""
        return self._parts.offset

    @property
    def kind(self) -> str:
        """ "pool", or "legacy" for plain driver memory, which goes by CUDA's own IPC."""
        return _KINDS.get(self._parts.kind, "unknown")

    @property
    def token(self) -> bytes:
        """64 bytes; enough to open memory of a pool. For legacy memory a CUipcMemHandle."""
        return self._parts.token

    @property
    def device_uuid(self) -> bytes:
        """The 16 bytes of the UUID of the device that it is on; all 0 where that is not known."""
        return self._parts.device_uuid

    # --- the exporter's side ---

    def _begin_export(self, owner: object) -> None:
        self._export = at_death(self, _end_collected, self._parts)
        if self.kind == "legacy":
            self._owner = owner  # nothing else keeps it

    def end_export(self) -> None:
        """Lets the memory go, as collecting this handle does. Where it is open it stays valid.

        A second call does nothing, nor does one on a handle that ipc_export() has not returned in this process.
        """
        export = self._export and self._export.detach()
        if export:
            self._owner = None
            _vpmm.ipc_export_end(self._parts)
        _finish()

    # --- the importer's side ---

    def open(self, device: int | None = None) -> OpenedMemory:
        """The memory, mapped for work on `device`; None: the one that it is on.

        Opening it again through another handle gives the same address. Waits for the exporter, VPMM_IPC_TIMEOUT at
        most. Raises ValueError for a handle that is open already, was exported by this process or is damaged, and
        vpmm.Error where the exporter is gone or has freed the memory ("VPMM_ERROR_NOT_SHARED"), and where `device`
        cannot reach it ("VPMM_ERROR_UNSUPPORTED"): open_staged() can.
        """
        if self._export is not None:
            raise ValueError(_FROM_HERE)
        if self._open_memory() is not None:
            raise ValueError("IpcHandle is already opened")
        _finish()
        with opening():
            ptr = _vpmm.ipc_open(self._parts, -1 if device is None else device)
        memory = OpenedMemory(ptr, self.size, self._layout)
        self._opened = weakref.ref(memory)
        return memory

    def open_staged(self, device: int = 0) -> StagedMemory:
        """A copy in the process-wide pool of `device`, which need not reach the memory. Complete when it returns."""
        if self._export is not None:
            raise ValueError(_FROM_HERE)
        _finish()
        pool = Pool.default(device)
        with opening():
            ptr = _vpmm.ipc_open_staged(self._parts, pool)
        return StagedMemory(pool, ptr, self.size, self._layout)

    def close(self) -> None:
        """Closes what open() opened. Raises ValueError where that is not open, or was collected."""
        memory = self._open_memory()
        if memory is None:
            raise ValueError("IpcHandle not opened")
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
    """A handle of the memory of `obj`, for other processes.

    `obj` is an array with ``__cuda_array_interface__`` or DLPack, a cuda.core.Buffer, or an address, for which alone
    `size` says how many bytes are meant. Memory of any pool of this process, its begin or a part of it; or plain driver
    memory, for which a CUDA context of its device must be current, and which the handle keeps alive. Wait for what
    writes to it, or tell the other process an event, before that reads it.

    Raises ValueError for an array with gaps, of no bytes or of another device than CUDA's, TypeError for what has no
    memory, and vpmm.Error for memory that cannot be shared.
    """
    exported: Range = range_of(obj, size)
    _finish()
    handle = IpcHandle(_vpmm.ipc_export(exported.ptr, exported.size), exported.layout)
    handle._begin_export(obj)
    return handle


def ipc_open(handle: IpcHandle, device: int | None = None) -> OpenedMemory:
    """handle.open(device)."""
    if not isinstance(handle, IpcHandle):
        raise TypeError(f"handle is {handle!r}: must be an IpcHandle, as vpmm.ipc_export() makes them")
    return handle.open(device)
