# SPDX-License-Identifier: Apache-2.0
# vpmm: tags of the process-wide pools: blocks that tag memory, suspend and resume.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType, TracebackType
from typing import Any, Literal

from vpmm import _vpmm
from vpmm._exported import range_of
from vpmm._streams import StreamLike, address_of
from vpmm._vpmm import Pool, device_count
from vpmm.errors import Error

__all__ = [
    "SuspendHooks",
    "Tag",
    "TagInfo",
    "add_suspend_hooks",
    "host_copy",
    "is_suspended",
    "pool_of",
    "prepare_suspend",
    "resume",
    "suspend",
    "suspended",
    "tag",
    "tag_info",
    "tags",
]

SuspendHook = Callable[[int, "str | int"], object]
"""A function of the device and of the tag: its name, or its number if it has no name."""


@dataclass(frozen=True)
class TagInfo:
    """State and sizes, in bytes, of a tag in the pool of one device."""

    name: str | int
    """The number, if the tag has no name."""
    number: int
    limit_bytes: int | None
    """The most that `live_bytes` may be; None: no limit."""
    suspendable: bool
    """Whether vpmm.suspend() can give up its physical memory."""
    state: Literal["live", "suspended", "discarded", "changing"]
    """"suspended" is with a host copy, "discarded" without one. "changing": a thread suspends or resumes it."""
    backup: bool
    """Whether a suspend copies the contents to the host if the call does not say."""
    keep_host_copy: bool
    """Whether the host copy stays allocated and pinned after a resume."""
    live_bytes: int
    """Of its allocations as requested, suspended or not."""
    mapped_bytes: int
    """Of its physical memory; 0 for a tag that is not suspendable, since its memory shares chunks with others."""
    suspended_bytes: int
    """Of its addresses without physical memory."""
    host_bytes: int
    """Of its host copies, kept ones included."""
    library_bytes: int
    """Of live allocations of the library with this name, as requested, whichever tags they have; with
    VPMM_TAG_LIBRARIES=1, or a limit of its own in VPMM_LIMITS. 0: none."""


class Tag:
    """A ``with`` block whose memory has a tag, made by vpmm.tag()."""

    def __init__(
        self,
        name: str | int,
        limit: int | str | None,
        suspendable: bool,
        backup: bool,
        keep_host_copy: bool,
        thread: bool,
        device: int,
    ) -> None:
        self._name = name
        self._number = _vpmm.tag_with_name(name)
        self._limit = limit
        self._suspendable = suspendable
        self._backup = backup
        self._keep_host_copy = keep_host_copy
        self._thread = thread
        self._device = device

    @property
    def name(self) -> str | int:
        """The name or the number that the tag was made with."""
        return self._name

    @property
    def number(self) -> int:
        """The number of the tag."""
        return self._number

    def __enter__(self) -> Tag:
        pool = Pool.default(self._device)
        if self._limit is not None:
            pool.set_tag_limit(self._number, self._limit)
        if self._suspendable:
            pool.make_suspendable(self._number, backup=self._backup, keep_host_copy=self._keep_host_copy)
        pool.tag_enter(self._number, self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Pool.default(self._device).tag_leave(self._number, self._thread)

    def __repr__(self) -> str:
        return f"<vpmm.Tag {self._name!r} of device {self._device}>"


def tag(
    name: str | int,
    *,
    limit: int | str | None = None,
    suspendable: bool = False,
    backup: bool = True,
    keep_host_copy: bool = False,
    thread: bool = False,
    device: int = 0,
) -> Tag:
    """A context manager: requests in the process-wide pool of `device` have this tag until the block ends.

    That is memory of **all** threads and of all libraries that use the pool, such as those of loaders and of autograd;
    with `thread` it is that of the thread of the block. Blocks nest, the innermost serves, and the object may be
    entered again, also by several threads. `name` is a name, or a number from 1 on.

    With `limit`, in bytes or as a text such as "8GiB" or "25%" (of the capacity, else of the GPU's memory), a request
    fails that would bring the bytes that live allocations of the tag asked for above it; None leaves the tag's limit as
    it is.

    `suspendable` gives the tag chunks of its own, which vpmm.suspend() can give up. With `backup` a suspend copies the
    contents to the host, otherwise it discards them. With `keep_host_copy` the copy stays allocated and pinned after a
    resume, for the next suspend. These hold for all memory of the tag; the block entered last determines them. A block
    without `suspendable` leaves a tag as it is. Memory that has the tag already when it becomes suspendable stays
    where it is. Raises vpmm.Error if the pool has no virtual memory.
    """
    return Tag(name, limit, suspendable, backup, keep_host_copy, thread, device)


def suspend(
    tag: str | int | None = None,
    *,
    backup: bool | None = None,
    keep_host_copy: bool = False,
    to_driver: bool = False,
    stream: StreamLike | EllipsisType = ...,
    device: int = 0,
) -> None:
    """Gives up the physical memory of a tag and keeps its addresses: all of it, or none and an exception.

    `tag` is a name or a number; None: all suspendable tags of the process-wide pool of `device`. `backup` True copies
    the contents to the host, False discards them, None does as the tag says. `keep_host_copy` keeps the copy allocated
    and pinned after the resume, for the next suspend. `to_driver` returns the physical memory to the driver, for other
    processes; otherwise it stays idle in the pool, for its next requests.

    Waits for all work of the device, without the GIL. With `stream` it waits for the work queued there only: the caller
    then states that all work that uses the memory is queued on `stream`, or is ordered before it.

    While memory is suspended, work on the GPU must not touch it; captured graphs stay valid, but must not be launched.
    Requests with the tag raise vpmm.Error ("VPMM_ERROR_SUSPENDED"). Frees succeed. Memory that is suspended already
    stays so. Any thread may call it. Raises vpmm.Error while a stream is captured, while another process holds memory
    of the tag, or if the tag is not suspendable; vpmm.OutOfMemoryError if the host has less free memory than the copy
    takes; and the exception of a hook that refuses.
    """
    Pool.default(device).suspend(tag, backup=backup, keep_host_copy=keep_host_copy, to_driver=to_driver, stream=stream)


def prepare_suspend(tag: str | int | None = None, device: int = 0) -> None:
    """Takes the host memory for the next copy of a tag now: as much as is live in it.

    `tag` is a name or a number; None: all suspendable tags of the process-wide pool of `device`. Taking fresh memory
    from the system can last longer than a copy; called beforehand, as while weights are loaded, the first suspend() is
    as fast as later ones. Pins the memory if copies are kept; a resume that does not keep the copy gives it back. Works
    without the GIL, by several threads, and does not wait for the GPU. Raises vpmm.OutOfMemoryError, without any
    change, if the host has less free memory than that, and vpmm.Error if the tag is not suspendable.
    """
    Pool.default(device).prepare_suspend(tag)


def resume(tag: str | int | None = None, *, zero: bool = False, copy: bool = True, device: int = 0) -> None:
    """Gives a suspended tag physical memory at its addresses again: all of it, or none and an exception.

    `tag` is a name or a number; None: all suspendable tags of the process-wide pool of `device`. The contents are there
    when the call returns. `zero` sets memory without a host copy to zero; otherwise its contents are undefined. `copy`
    False drops the host copy, for memory that the caller overwrites. Does nothing for a tag that is not suspended.
    Releases the GIL while it waits; any thread may call it. Raises vpmm.OutOfMemoryError, and everything stays
    suspended, if the memory does not fit; vpmm.Error while a stream is captured; and the exception of a hook, after the
    memory is back.
    """
    Pool.default(device).resume(tag, zero=zero, copy=copy)


def suspended(device: int = 0) -> tuple[str | int, ...]:
    """The names of the suspended tags of the process-wide pool of `device`; the number of a tag without a name."""
    return Pool.default(device).suspended()


def tag_info(tag: str | int, device: int = 0) -> TagInfo:
    """State and sizes of a tag in the process-wide pool of `device`."""
    return Pool.default(device).tag_info(tag)


def tags(device: int = 0) -> tuple[TagInfo, ...]:
    """All tags with live memory in the process-wide pool of `device`, or of a library of that name, with a limit, or
    suspendable."""
    pool = Pool.default(device)
    return tuple(pool.tag_info(name) for name in pool.tags())


class SuspendHooks:
    """Functions that are called around each suspend of a tag, set by vpmm.add_suspend_hooks()."""

    def __init__(
        self, tag: str | int, before_unmap: SuspendHook | None, after_map: SuspendHook | None, device: int
    ) -> None:
        self._tag = tag
        self._pool = Pool.default(device)
        self._id: int | None = self._pool.add_suspend_hooks(tag, before_unmap, after_map)

    def remove(self) -> None:
        """Removes them. Waits until they do not run; a hook may remove itself. A second call does nothing."""
        id, self._id = self._id, None
        if id is not None:
            self._pool.remove_suspend_hooks(id)

    def __repr__(self) -> str:
        state = "" if self._id is not None else ", removed"
        return f"<vpmm.SuspendHooks of {self._tag!r} on device {self._pool.device}{state}>"


def add_suspend_hooks(
    tag: str | int,
    before_unmap: SuspendHook | None = None,
    after_map: SuspendHook | None = None,
    device: int = 0,
) -> SuspendHooks:
    """Sets functions that are called around each suspend of a tag, until remove() of the object that it returns.

    For libraries that registered memory of the tag elsewhere. ``before_unmap(device, tag)`` is called before the first
    memory of the tag is suspended, in the order in which hooks were added. ``after_map(device, tag)`` is called in the
    reverse order when all contents are back, or when the suspend failed and left nothing suspended. The second argument
    is the name of the tag, or its number if it has no name. They run on the thread that suspends or resumes, with the
    GIL and without any lock of the pool. They may call any function but suspend() and resume().

    An exception of `before_unmap` refuses the suspend, which raises it. An exception of `after_map` is raised by the
    call that ran it, and the memory is resumed all the same. Further exceptions of the same call go to
    ``sys.unraisablehook``. The hooks stay set if the object is dropped, and keep alive what they refer to.
    """
    return SuspendHooks(tag, before_unmap, after_map, device)


# --- memory ---


def pool_of(address: int, device: int | None) -> tuple[Pool, int]:
    """The process-wide pool with this address, and the start of its allocation there; None: of any device.

    Raises vpmm.Error for memory that is in none of these pools.
    """
    pools = [Pool.default(device)] if device is not None else (Pool.default(i) for i in range(device_count()))
    missing: Error | None = None
    for pool in pools:
        try:
            return pool, pool.query(address).begin
        except Error as error:
            missing = missing or error
    raise missing or Error("there is no device", "VPMM_ERROR_NO_DRIVER")


def is_suspended(array: Any, device: int | None = None) -> bool:  # noqa: ANN401  any library's array
    """Whether the memory of `array` is suspended.

    `array` is a tensor of PyTorch, has ``__cuda_array_interface__``, or is a cuda.core.Buffer or an address. The memory
    must come from the process-wide pool of `device`; without it, every device is searched and its pool is opened.
    Raises TypeError for an argument of another type, and vpmm.Error for memory that is in none of these pools.
    """
    address = address_of(array)
    return pool_of(address, device)[0].is_suspended(address)


def host_copy(
    array: Any,  # noqa: ANN401  any library's array
    size: int | None = None,
    device: int | None = None,
) -> memoryview:
    """The contents of a suspended array on the host: its bytes, which may be read and written.

    `array` is as in vpmm.is_suspended(), without gaps; `size`, in bytes, is for addresses only. A resume copies back
    what was written. The view does not own the memory: it must not be used after the array is freed, nor after a resume
    that does not keep the copy. A kept copy (`keep_host_copy`) can be read until the next suspend. Raises
    vpmm.InvalidArgumentError for an array with gaps, and vpmm.Error if the memory has no host copy.
    """
    if getattr(array, "requires_grad", False) is True:  # such tensors of PyTorch show no interface
        array = array.detach()
    memory = range_of(array, size)
    pool, _ = pool_of(memory.ptr, device)
    return pool.host_copy(memory.ptr, memory.size)
