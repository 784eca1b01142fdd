# SPDX-License-Identifier: Apache-2.0
# plugins: a pool as a memory resource of cuda.core; Numba also takes the memory of kernel arguments through it.

# ruff: noqa: ANN401  what Numba and cuda.core pass has no types

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, NamedTuple

from cuda.core import Buffer, Stream
from cuda.core import MemoryResource as _Base

import vpmm
from vpmm._finalizers import process_ends
from vpmm._streams import stream_handle
from vpmm._vpmm import Pool

__all__ = ["MemoryResource", "exchange_resource", "hold_resource", "release_resource"]

_LEGACY, _PER_THREAD = 1, 2  # CU_STREAM_LEGACY and CU_STREAM_PER_THREAD


def _default_stream() -> int:
    """The stream that handle 0 means; cuda.bindings reads this variable once, when it is imported."""
    value = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "")
    return _PER_THREAD if value.strip().isdigit() and int(value) else _LEGACY


def _from_handle_takes_stream() -> bool:
    """From cuda-core 1.2 on a Buffer knows the stream of its free; without an owner this makes no CUDA call."""
    try:
        Buffer.from_handle(0, 0, stream=None)
    except TypeError:
        return False
    return True


_DEFAULT_STREAM = _default_stream()
_TAKES_STREAM = _from_handle_takes_stream()


def _handle(stream: Any) -> int:
    """The CUstream of any stream that stream_handle() accepts, or of a GraphBuilder; None and 0: the default."""
    if stream is not None and not hasattr(stream, "__cuda_stream__"):
        stream = getattr(stream, "stream", stream)  # a GraphBuilder's
    return stream_handle(stream) or _DEFAULT_STREAM


def _core_stream(stream: Any, handle: int) -> Stream:
    """`stream` as a cuda.core Stream, so that a Buffer is freed on another library's stream, not on the default."""
    known = getattr(stream, "stream", stream)  # a GraphBuilder's
    return known if isinstance(known, Stream) else Stream.from_handle(handle)


class MemoryResource(_Base):  # type: ignore[misc]  # cuda.core has no types in some versions
    """Memory of a device from its process-wide pool, for ``Device.memory_resource`` or for direct use.

    Stream-ordered: a Buffer is for work queued on its stream, or ordered after that work. If the thread that allocated
    it frees it on that stream, its memory is reused at once. If another thread (a callback's or a collector's, for
    example) or another stream frees it, its memory is reused when all work queued so far is done. Any thread may call
    any method. No CUDA context needs to be current, except, from cuda-core 1.2 on, for a Buffer of a default stream.
    Works with cuda-core 0.5.1 to 1.x.
    """

    def __init__(self, device: int = 0) -> None:
        """Opens the pool of the device with this ordinal if necessary. Raises vpmm.Error if that is not possible."""
        self._device = int(getattr(device, "device_id", device))
        self._pool = Pool.default(self._device)
        # address -> (stream, thread, object that keeps the stream alive), from an allocation to its free
        self._live: dict[int, tuple[int, int, object]] = {}
        self._abandoned = False

    def allocate(self, size: int, stream: Any = None) -> Buffer:
        """`size` bytes for `stream`, owned by the Buffer; None is the default stream. 0 bytes have the address 0.

        Raises vpmm.OutOfMemoryError, which is a MemoryError, and TypeError if `stream` is no stream.
        """
        if size == 0:
            return Buffer.from_handle(0, 0, self)
        handle = _handle(stream)
        pointer = self._pool.allocate(size, handle)
        self._live[pointer] = (handle, threading.get_ident(), stream)
        try:
            if _TAKES_STREAM:
                return Buffer.from_handle(pointer, size, self, stream=_core_stream(stream, handle))
            return Buffer.from_handle(pointer, size, self)
        except BaseException:
            self.deallocate(pointer, size, stream)
            raise

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Frees a Buffer's memory; cuda.core calls this when the Buffer is closed or collected.

        `stream` None is the stream of the allocation. Address 0 does nothing. Raises vpmm.Error for an address that
        this resource has not allocated, and TypeError if `stream` is no stream; then nothing is freed.
        """
        pointer = int(ptr or 0)
        if pointer == 0:
            return
        freed_on = None if stream is None else _handle(stream)
        entry = self._live.pop(pointer, None)
        if entry is None:
            if self._abandoned:
                return
            raise vpmm.Error(f"{pointer:#x} is not allocated from this memory resource, or was freed before")
        handle, thread, _ = entry
        # Note [Frees on the allocating thread]: a Buffer may end on any thread. The thread that allocated it may call
        # CUDA, which a callback's thread must not; and only there the per-thread default stream is the same stream.
        if process_ends() or thread != threading.get_ident() or freed_on not in (None, handle):
            self._pool.deallocate_deferred(pointer)
        else:
            try:
                self._pool.deallocate(pointer, handle)
            except vpmm.Error:  # nothing changed: the stream or its context is gone, or the process is ending
                self._pool.deallocate_deferred(pointer)

    def abandon(self) -> None:
        """Frees all allocations once all work queued so far is done; later frees by their Buffers are ignored.

        For a CUDA context that is being reset: the streams of the Buffers will no longer exist.
        """
        self._abandoned = True
        while self._live:
            try:
                pointer, _ = self._live.popitem()
            except KeyError:  # another thread took the last one
                return
            self._pool.deallocate_deferred(pointer)

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def is_managed(self) -> bool:
        """False."""
        return False

    @property
    def device_id(self) -> int:
        """The ordinal of the resource's device."""
        return self._device

    def __repr__(self) -> str:
        return f"<vpmm.cuda_core.MemoryResource of device {self._device}>"


def exchange_resource(device: Any, resource: Any) -> Any:
    """Sets the memory resource of a cuda.core Device and returns the previous one; None is the default resource.

    The public getter would create that default, a driver pool that nothing uses.
    """
    if hasattr(device, "_memory_resource"):
        previous = device._memory_resource
        if resource is None:
            device._memory_resource = None
            return previous
    else:
        previous = device.memory_resource
    device.memory_resource = resource
    return previous


# --- one resource of ours for a cuda.core Device, for all managers that have contexts on it ---


class _Installed(NamedTuple):
    device: Any
    resource: MemoryResource
    replaced: Any
    holders: dict[int, Any]  # by id, with the finalizer of those that die without release_resource()


_installed: dict[int, _Installed] = {}  # by the id of the device
_installing = threading.RLock()  # the collector may run a release inside


def hold_resource(holder: object, device: Any, ordinal: int) -> None:
    """Keeps a resource of ours on a cuda.core Device until its last holder releases it or dies; twice does nothing.

    If the program itself has set a MemoryResource of vpmm, it stays, and there are no holders.
    """
    with _installing:
        place = _installed.get(id(device))
        if place is None:
            if isinstance(getattr(device, "_memory_resource", None), MemoryResource):
                return
            resource = MemoryResource(ordinal)
            place = _Installed(device, resource, exchange_resource(device, resource), {})
            _installed[id(device)] = place
        if id(holder) not in place.holders:
            at_death = weakref.finalize(holder, _release_and_abandon, id(holder), id(device))
            at_death.atexit = False
            place.holders[id(holder)] = at_death


def release_resource(holder: object, device: Any) -> MemoryResource | None:
    """Restores the previous resource of the device at the last holder's release, unless it was changed since.

    Returns the resource without holders, for the caller to abandon; None while other holders remain.
    """
    return _release(id(holder), id(device))


def _release(holder: int, device: int) -> MemoryResource | None:
    with _installing:
        place = _installed.get(device)
        at_death = place and place.holders.pop(holder, None)
        if place is None or at_death is None:
            return None
        at_death.detach()
        if place.holders:
            return None
        del _installed[device]
        current = exchange_resource(place.device, place.replaced)
        if current is not place.resource:  # the program has set its own since
            exchange_resource(place.device, current)
        return place.resource


def _release_and_abandon(holder: int, device: int) -> None:
    resource = _release(holder, device)
    if resource is not None:
        resource.abandon()
