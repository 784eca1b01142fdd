# SPDX-License-Identifier: Apache-2.0
# plugins: Numba's handles for other processes over ours; both sides need it, with any memory manager.

# ruff: noqa: ANN401  what Numba passes has no types

from __future__ import annotations

import ctypes
import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import vpmm
from vpmm import _vpmm

__all__ = ["Hooks", "export", "handle_class"]


_TOKEN = 64  # the bytes of a CUipcMemHandle, which has no other fields


# By address, because cuda-bindings 13.5 has no attribute for the bytes, and Numba's own handles do not work with it.
def _bytes_of(handle: Any) -> bytes:
    return ctypes.string_at(int(handle.getPtr()), _TOKEN)


def _with_bytes(handle: Any, token: bytes) -> Any:
    ctypes.memmove(int(handle.getPtr()), token, _TOKEN)
    return handle


class _Token(bytes):
    """The 64 bytes. A process that unpickles them installs the hooks and gets plain bytes."""

    target: str

    def __reduce__(self) -> Any:
        return _rebuild_token, (self.target, bytes(self))


def _rebuild_token(target: str, token: bytes) -> bytes:
    handle_class(importlib.import_module(target))
    return token


@functools.cache
def _struct_class(target: Any) -> Any:
    """CUipcMemHandle, whose bytes can be sent to a process that does not use vpmm yet."""

    def reserved(self: Any) -> _Token:
        token = _Token(_bytes_of(self))
        token.target = target.__name__
        return token

    return type("IpcMemHandle", (target.binding.CUipcMemHandle,), {"reserved": property(reserved)})


class Hooks:
    """Lets a Numba's driver object open and close memory of pools by the 64 bytes of a CUipcMemHandle.

    ``cuda.open_ipc_array()`` has only those bytes, and asks no memory manager. The driver object's functions are its
    attributes. Other handles go to the previous functions, or to those that the driver object makes on demand, which
    needs CUDA.
    """

    _CALLS = ("cuIpcOpenMemHandle", "cuIpcCloseMemHandle")

    def __init__(self, target: Any) -> None:
        """`target` is a Numba's module cudadrv.driver. Calls no CUDA."""
        self._driver = target.driver
        self._pointer = target.binding.CUdeviceptr
        self._opened: list[int] = []  # an address for each opening
        self._originals: dict[str, Callable[..., Any]] = {}
        self._hooks = dict(zip(self._CALLS, (self._open, self._close), strict=True))

    def install(self) -> None:
        """Installs the hooks for the life of the driver object."""
        for name, hook in self._hooks.items():
            if name in vars(self._driver):
                self._originals[name] = vars(self._driver)[name]
            setattr(self._driver, name, hook)

    def _original(self, name: str) -> Callable[..., Any]:
        original = self._originals.get(name)
        if original is None:
            # Numba makes a missing function and stores it in the place of ours.
            original = type(self._driver).__getattr__(self._driver, name)
            setattr(self._driver, name, self._hooks[name])
            self._originals[name] = original
        return original

    def _open(self, handle: Any, flags: int) -> Any:
        try:
            parts = _vpmm.ipc_read_token(_bytes_of(handle))
        except vpmm.Error:
            return self._original("cuIpcOpenMemHandle")(handle, flags)
        address = _vpmm.ipc_open(parts, int(self._driver.cuCtxGetDevice()))
        self._opened.append(address)
        return self._pointer(address)

    def _close(self, pointer: Any) -> Any:
        address = int(pointer)
        try:
            self._opened.remove(address)
        except ValueError:
            return self._original("cuIpcCloseMemHandle")(pointer)
        try:
            return _vpmm.ipc_close(address)
        except BaseException:
            self._opened.append(address)
            raise


class _Staged:
    """Replaces Numba's implementation of an open handle: only the caller owns a copy."""

    def close(self) -> None:
        """Does nothing: the source was closed when the copy was complete."""


class _Handle:
    """Numba's IpcHandle for memory of a pool; handle_class() joins it with a target's class.

    All work is that class's, which opens and closes through the hooks, except copies: the library makes them. It waits
    for them before it closes the source, and needs no peer access.
    """

    _target: Any
    _impl: Any
    shared: vpmm.IpcHandle  # in the exporting process it holds the memory while this handle exists

    @classmethod
    def _of(cls, base: Any, shared: vpmm.IpcHandle, source_info: Any) -> Any:
        handle = _with_bytes(_struct_class(cls._target)(), shared.token)
        made: Any = cls(base, handle, shared.size, source_info)  # type: ignore[call-arg]  # of the base
        made.shared = shared
        return made

    def _require_closed(self) -> None:
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")

    def open_direct(self, context: Any) -> Any:
        """Maps the memory; returns a pointer that is valid until close()."""
        self._require_closed()
        try:
            return super().open_direct(context)  # type: ignore[misc]
        except BaseException:
            self._impl = None
            raise

    def open_staged(self, context: Any) -> Any:
        """Copies the memory to the context's device. The copy lives as long as the pointer, even after close()."""
        self._require_closed()
        if self.base is not None:  # type: ignore[attr-defined]
            raise ValueError("opening IpcHandle from original process")
        device = int(self._target.driver.cuCtxGetDevice()) if context is None else int(context.device.id)
        copy = self.shared.open_staged(device)
        self._impl = _Staged()
        return self._target.MemoryPointer(
            weakref.proxy(context), self._target.binding.CUdeviceptr(copy.ptr), copy.size, finalizer=copy.close
        )

    def __reduce__(self) -> Any:
        return _rebuild, (self._target.__name__, self.shared, self.source_info)  # type: ignore[attr-defined]


def _rebuild(target: str, shared: vpmm.IpcHandle, source_info: Any) -> Any:
    """Called by pickle, also in a process without our memory manager."""
    return handle_class(importlib.import_module(target))._of(None, shared, source_info)


@functools.cache
def handle_class(target: Any) -> Any:
    """The class of handles for a target, a Numba's module cudadrv.driver; the first call installs the hooks."""
    Hooks(target).install()
    members = {"__module__": __name__, "__doc__": _Handle.__doc__, "_target": target}
    return type("NumbaIpcHandle", (_Handle, target.IpcHandle), members)


def export(target: Any, memory: Any, source_info: Any) -> Any:
    """Our handle for memory of a pool, and Numba's own for plain driver memory."""
    kinds = ("MappedMemory", "MappedOwnedPointer", "ManagedMemory", "ManagedOwnedPointer", "PinnedMemory")
    if isinstance(memory, tuple(getattr(target, kind) for kind in kinds if hasattr(target, kind))):
        raise vpmm.Error(
            f"{type(memory).__name__} is not shared between processes: only device memory is", "VPMM_ERROR_UNSUPPORTED"
        )
    shared = vpmm.ipc_export(int(memory.handle), memory.size)
    if shared.kind == "pool":
        return handle_class(target)._of(memory, shared, source_info)
    handle = _with_bytes(target.binding.CUipcMemHandle(), shared.token)
    return target.IpcHandle(memory, handle, shared.size, source_info, offset=shared.offset)
