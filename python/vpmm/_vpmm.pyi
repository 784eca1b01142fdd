"""
The compiled part: vpmm.h as classes and functions. Sizes are bytes, addresses ints.
"""

from collections.abc import Callable, Iterable
import os
import types
from typing import Any, Literal

import vpmm._memory_info
import vpmm._stats
import vpmm._streams
import vpmm._tags


def version() -> str:
    """The version of the library, such as "0.1.0"."""

def device_count() -> int:
    """
    The number of devices that the driver reports. Raises vpmm.Error if there is no driver.
    """

def parse_bytes(size: int | str) -> int:
    """
    Bytes, from a number or from a text in the syntax of the variables ("16GiB"). Raises vpmm.Error otherwise.
    """

def record_mark(text: str) -> None: ...

def as_dlpack(owner: object, ptr: int, size: int, device: int) -> Any:
    """
    A ``__dlpack__`` object for bytes at an address; it keeps `owner` alive. Orders no streams.
    """

def set_log(log: Callable[[str, int, int, int, int, float, float], None] | None) -> None: ...

class Allocation:
    """An allocation found by ``Pool.query``."""

    @property
    def begin(self) -> int:
        """The start address, which frees take."""

    @property
    def requested(self) -> int:
        """Bytes requested."""

    @property
    def usable(self) -> int:
        """Usable bytes: the request, rounded up."""

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Region:
    """
    A range of a pool's address space in one state, as ``Pool.snapshot`` lists them.
    """

    @property
    def begin(self) -> int:
        """The start address."""

    @property
    def bytes(self) -> int:
        """Its length in bytes."""

    @property
    def requested(self) -> int:
        """Bytes requested; 0 if the region is not allocated."""

    @property
    def state(self) -> str:
        """
        "allocated", "free", "hole" (nothing is mapped), "zombie" (an old mapping of moved memory, not yet
        unmapped), "in flight" or "suspended" (allocated, and not mapped).
        """

    @property
    def is_complete(self) -> bool:
        """Whether all work on the previous allocation there is known to be done."""

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Pool:
    """
    A pool of device memory: one that all libraries of a process share, or a private one.

    ``Pool.default()`` is the process-wide pool of a device. ``Pool(...)`` creates a private one, which ends with
    close(), with its ``with`` block or with its last reference. Sizes are bytes, or texts such as ``"16GiB"``;
    addresses are ints. Any thread may call any method, with any CUDA context current or none; calls that may wait
    release the GIL. Errors are vpmm.Error with a ``code``; an argument of a wrong type is a TypeError. Two objects
    for one process-wide pool are equal.
    """

    def __init__(self, device: int = 0, *, page_size: int | str = ..., va_size: int | str = ..., chunk_max: int | str = ..., release_threshold: int | str | None = ..., capacity: int | str | None = ..., pages: int = ..., max_mappings: int = ..., guard: int = ..., small: Literal['pool', 'stream_ordered'] = ..., any_stream: Literal['context', 'legacy', 'park'] = ..., prefer: Literal['footprint', 'balanced', 'latency'] = ..., fill: Literal['none', 'new', 'freed', 'new,freed'] = ..., log: Literal['quiet', 'error', 'warning', 'info', 'debug'] = ..., driver: Literal['cuda', 'sim', 'auto'] = ..., ipc_isolate: bool = ..., unnamed_free_on_allocating_stream: bool = ...) -> None:
        """
        Opens a private pool on the device with ordinal `device`.

        Settings that are not given come from environment variables: ``VPMM_`` and the keyword in capitals.

        - ``page_size``: the unit of chunks and mappings; "max" switches the pool off
        - ``va_size``: address space of one reservation
        - ``chunk_max``: size of the largest chunk of physical memory; "page": one chunk per page
        - ``release_threshold``: idle memory is released while more than this is mapped; None: it is kept
        - ``capacity``: most memory the pool may map, also as a share of the GPU's such as "80%"; None: what the GPU has
        - ``pages``: pages mapped ahead at the first allocation
        - ``max_mappings``: number of mappings above which the pool grows instead of moving memory
        - ``guard``: guards one allocation in so many, as VPMM_GUARD=1/100 does for 100; 0: none
        - ``small``: the allocator for requests below a page
        - ``any_stream``: the work that must finish before memory freed without a stream is reused
        - ``prefer``: how much memory the pool may spend to save driver calls
        - ``fill``: memory that is filled with bytes 0xFF
        - ``log``: which messages are written
        - ``driver``: the driver that the pool uses
        - ``ipc_isolate``: every allocation has its own pages, so that sharing one exposes no other
        - ``unnamed_free_on_allocating_stream``: a free without a stream uses the stream of the allocation

        Sizes are bytes, as an int or a text such as ``"16GiB"``. Raises vpmm.Error
        ("VPMM_ERROR_BAD_CONFIGURATION") for a value that is not allowed, and TypeError for an unknown keyword or a
        value of a wrong type.
        """

    @staticmethod
    def default(device: int = 0) -> Pool:
        """
        The process-wide pool of `device`. The first call opens it with the settings of the environment.

        All users of VPMM in the process share it, including C and C++ code. It is never closed. Raises vpmm.Error if
        the device or the driver is missing, or a variable has a value that is not allowed.
        """

    @staticmethod
    def configure(device: int = 0, *, page_size: int | str = ..., va_size: int | str = ..., chunk_max: int | str = ..., release_threshold: int | str | None = ..., capacity: int | str | None = ..., pages: int = ..., max_mappings: int = ..., guard: int = ..., small: Literal['pool', 'stream_ordered'] = ..., any_stream: Literal['context', 'legacy', 'park'] = ..., prefer: Literal['footprint', 'balanced', 'latency'] = ..., fill: Literal['none', 'new', 'freed', 'new,freed'] = ..., log: Literal['quiet', 'error', 'warning', 'info', 'debug'] = ..., driver: Literal['cuda', 'sim', 'auto'] = ..., ipc_isolate: bool = ..., unnamed_free_on_allocating_stream: bool = ...) -> Pool:
        """
        Opens the process-wide pool of `device` with the settings of Pool and returns it.

        Call it before anything else opens the pool. If the pool is open with other settings, vpmm.Error names the
        difference.
        """

    def close(self, discard: bool = False) -> None:
        """
        Closes a private pool: waits for the GPU and releases all memory. A second call does nothing.

        Raises vpmm.Error, and leaves the pool open, while the pool has live allocations, while other threads are
        inside its calls or a stream is captured, and for a process-wide pool. With `discard` True it also frees live
        allocations; their addresses are then invalid. A pool that is not closed is destroyed with its last reference
        and releases all memory.
        """

    def __enter__(self) -> Pool:
        """For a private pool: the end of the block closes it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        """
        Closes the pool. If the block raised and allocations are live, the pool is destroyed with its last reference.
        """

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""

    @property
    def is_private(self) -> bool:
        """False for the process-wide pool of a device."""

    @property
    def is_closed(self) -> bool:
        """Whether close() was called. Every other call then raises vpmm.Error."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    def allocate(self, bytes: int | str, stream: vpmm._streams.StreamLike, alignment: int | str = 0) -> int:
        """
        Allocates `bytes` bytes for work queued on `stream` after the call; returns the address, 0 for 0 bytes.

        `bytes` is a number or a text such as ``"64MiB"``. `stream` is a CUstream as an int, None for the default
        stream, or a stream object of Numba, CuPy, PyTorch or anything with ``__cuda_stream__``. The address is aligned
        to 256 bytes, from 512 KiB up to 64 KiB, or to `alignment`, a power of two. Other streams may use the memory
        once they are ordered behind `stream`. Waits for the GPU only if memory would otherwise run out. Raises
        vpmm.OutOfMemoryError.
        """

    def allocate_any_stream(self, bytes: int | str, alignment: int | str = 0) -> int:
        """
        Allocates memory that no work uses any more: work on any stream may use it at once. Returns the address.

        Keeps the GIL if complete memory is available. Raises vpmm.OutOfMemoryError.
        """

    def allocate_many(self, bytes: Iterable[int | str], stream: vpmm._streams.StreamLike) -> list[int]:
        """
        Allocates each size as allocate() does and returns the addresses: all, or none and vpmm.OutOfMemoryError.
        """

    def deallocate(self, ptr: int, stream: vpmm._streams.StreamLike) -> None:
        """
        Frees memory; work queued on `stream` so far is the last to use it. Address 0 does nothing.

        The same stream may reuse the memory at once, other streams when that work is done. Does not wait. Raises
        vpmm.Error ("VPMM_ERROR_INVALID_POINTER") if no allocation starts at `ptr`.
        """

    def deallocate_any_stream(self, ptr: int) -> None:
        """
        Frees memory; work queued on any stream so far may still use it. Address 0 does nothing.
        """

    def deallocate_deferred(self, ptr: int) -> None:
        """
        The same for finalizers and callbacks: takes no lock, makes no CUDA call, and fails for no address.

        A later call, on any thread, carries the free out; mistakes are counted in ``caller_mistakes``. Does nothing
        in a closed pool. A value that is not an address raises TypeError or vpmm.Error.
        """

    def deallocate_many(self, ptrs: Iterable[int], stream: vpmm._streams.StreamLike) -> None:
        """
        Calls deallocate() for each address. Frees all live ones; the error is the first failure's.
        """

    def record_use(self, ptr: int, stream: vpmm._streams.StreamLike) -> None:
        """
        Declares that work on `stream` uses the allocation that starts at `ptr`, too.

        Its free then also waits for the work queued on `stream` by that time. Raises vpmm.Error if no allocation
        starts at `ptr`; query() finds the start.
        """

    def stream_wait(self, waiting: vpmm._streams.StreamLike, first: vpmm._streams.StreamLike) -> None:
        """
        Makes work queued on `waiting` after the call wait, on the GPU, for the work already queued on `first`.

        For memory that passes from one stream to another. Raises vpmm.Error if either is not a stream of the device.
        """

    def query(self, ptr: int) -> Allocation:
        """
        The allocation that contains an address.

        Raises vpmm.Error ("VPMM_ERROR_INVALID_POINTER") if there is none.
        """

    def usable_size(self, ptr: int) -> int:
        """Usable bytes of the allocation that contains `ptr`; 0 for address 0."""

    def memory_info(self) -> vpmm._memory_info.MemoryInfo:
        """
        The named tuple ``(free, total)`` in bytes: free in the driver and in the pool; total of the device.

        Asks the driver.
        """

    def statistics(self) -> vpmm._stats.Stats:
        """
        The pool's statistics, a dictionary: vpmm.Stats has the names and their units.
        """

    def summary(self) -> str:
        """
        A few lines of text: capacity, and mapped, live, idle and trapped memory with peaks.
        """

    def reset_peaks(self) -> None:
        """Resets the ``peak_`` statistics to the current values."""

    def dump(self, json: bool = False) -> str:
        """Statistics and every region, as text or as one JSON object."""

    def explain(self, address: int) -> str:
        """
        Tells which guarded allocation holds an address, ends before it or begins behind it, as text.

        Its size, stream, tag, times and stacks, live or freed. With VPMM_GUARD only, also after the GPU has failed.
        """

    def snapshot(self) -> list[Region]:
        """Every region of the pool's address space, in ascending order."""

    def trim(self, bytes_to_keep: int | str = 0) -> int:
        """
        Releases idle memory to the device until at most `bytes_to_keep` are mapped; returns the bytes released.

        Memory in use stays, and so does memory that the device may still be using.
        """

    def preallocate(self, bytes: int | str) -> None:
        """
        Maps memory until at least `bytes` are mapped in all. Raises vpmm.OutOfMemoryError.
        """

    def set_capacity(self, bytes: int | str | None) -> None:
        """
        Limits the bytes that the pool may map: a size, a share of the device's such as "80%", None: what it has.

        Memory above the limit stays mapped.
        """

    def get_capacity(self) -> int | None:
        """
        The limit that was set last, at first that of the settings; None: what the device has.
        """

    def set_peer_access(self, device: int) -> None:
        """
        Gives work on another GPU access to all present and future memory of the pool, for the life of the pool.

        Raises vpmm.Error ("VPMM_ERROR_UNSUPPORTED") if the hardware does not support it.
        """

    def set_out_of_memory_callback(self, callback: Callable[[int, int], object] | None) -> None:
        """
        Sets `callback(device, bytes)`, which is called before a request fails; None removes it.

        It frees memory and returns True to have the request tried again. It runs on the allocating thread and may
        call the pool. An exception in it becomes the ``__cause__`` of the request's vpmm.OutOfMemoryError.
        """

    def synchronize(self) -> None:
        """
        Waits for all work of the device and of devices with access. Raises vpmm.Error
        ("VPMM_ERROR_CAPTURE_ACTIVE") while a stream is captured.
        """

    def reset(self) -> None:
        """
        Waits, then resets the device's primary context; allocations survive, streams do not.
        """

    def defer_cleanup_begin(self) -> None:
        """
        Defers cleanup: the pool unmaps and releases nothing on its own account and does not wait on the host.

        Pairs nest. The pool still releases memory rather than run out.
        """

    def defer_cleanup_end(self) -> None:
        """
        Ends what defer_cleanup_begin() began. Raises vpmm.Error without a begin.
        """

    def capture_begin(self) -> None:
        """
        Announces a capture on a stream that is never passed to the pool. Pairs nest.
        """

    def capture_end(self) -> None:
        """Ends the announced capture. Raises vpmm.Error if none was announced."""

    def record_start(self, path: str | os.PathLike[str], stacks: Literal['none', 'native', 'python', 'both'] = 'none', sample: int = 1, limit: int | str = 0, window_ns: int = 0) -> None:
        """
        Records this pool to a file, as vpmm.record() does for a process-wide pool.

        `stacks` is "none", "native", "python" or "both", `limit` is in bytes and `window_ns` in nanoseconds; 0: none.
        Raises vpmm.Error if the file cannot be created, an option is invalid, or a recording is running.
        """

    def record_mark(self, text: str) -> None:
        """
        Adds `text` to the recording, between the calls before and after it. Does nothing without a recording.
        """

    def record_stop(self) -> None:
        """Ends the recording and finishes the file."""

    def make_suspendable(self, tag: int | str, *, backup: bool = True, keep_host_copy: bool = False) -> None:
        """
        Makes memory of `tag` in this pool suspendable: it then shares no chunk with other memory.

        `tag` is a name, or a number from 1 on. With `backup` a suspend copies the contents to the host, otherwise it
        discards them. With `keep_host_copy` the copy stays allocated and pinned after a resume, for the next suspend.
        Call it before the tag is entered: memory that has the tag already stays as it is. A second call changes both
        switches. Raises vpmm.Error ("VPMM_ERROR_UNSUPPORTED") if the pool has no virtual memory.
        """

    def tag_enter(self, tag: int | str, thread: bool = False) -> None:
        """
        From here on requests in this pool have the tag: of all threads, or with `thread` of the calling thread.

        Tags nest, and the last one entered serves. tag_leave() ends it. vpmm.tag() does both for a block.
        """

    def set_tag_limit(self, tag: int | str, limit: int | str | None) -> None:
        """
        Limits the memory of a tag in this pool, in bytes or as a text such as "8GiB" or "25%", a share of the
        capacity or, without one, of the GPU's memory; None: no limit.

        A request that would bring the bytes that its live allocations asked for above the limit raises
        vpmm.OutOfMemoryError. Suspended memory counts. What the tag has already stays.
        """

    def tag_leave(self, tag: int | str, thread: bool = False) -> None:
        """
        Ends the last tag_enter() with these arguments. Raises vpmm.Error if there is none.
        """

    def tag_entered(self) -> str | int | None:
        """
        The tag that a request of the calling thread would have: its name, its number if it has no name, or None.
        """

    def suspend(self, tag: int | str | None = None, *, backup: bool | None = None, keep_host_copy: bool = False, to_driver: bool = False, stream: vpmm._streams.StreamLike | types.EllipsisType = ...) -> None:
        """
        Gives up the physical memory of a tag and keeps its addresses; all of it or none. None: all suspendable
        tags.

        `backup` True copies the contents to the host, False discards them, None does as make_suspendable() says.
        `keep_host_copy` keeps the copy allocated and pinned after the resume. `to_driver` returns the physical memory
        to the driver, for other processes; otherwise it stays idle in the pool. Waits for all work of the device.
        With `stream` it waits for the work queued there only: the caller states that all work that uses the memory is
        queued on `stream`, or is ordered before it. Memory that is suspended already stays so.

        Work on the GPU must not touch suspended memory, and its requests raise vpmm.Error ("VPMM_ERROR_SUSPENDED").
        Frees succeed. Raises vpmm.Error, without any change, while a stream is captured, while another process holds
        memory of the tag, and if the tag is not suspendable; vpmm.OutOfMemoryError if the host has less free memory
        than the copy takes; and the exception of a hook that refuses.
        """

    def prepare_suspend(self, tag: int | str | None = None) -> None:
        """
        Takes the host memory for the next copy now, as much as is live in the tag. None: all suspendable tags.

        The first suspend() is then as fast as later ones. Pins it if copies are kept. Raises vpmm.OutOfMemoryError,
        without any change, if the host has less free memory than that.
        """

    def resume(self, tag: int | str | None = None, *, zero: bool = False, copy: bool = True) -> None:
        """
        Gives a suspended tag physical memory at its addresses again; all of it or none. None: all
        suspendable tags.

        The contents are there when the call returns. `zero` sets memory without a host copy to zero; otherwise its
        contents are undefined. `copy` False drops the host copy, for memory that the caller overwrites. Does nothing
        for a tag that is not suspended. Raises vpmm.OutOfMemoryError, and everything stays suspended, if the memory
        does not fit; vpmm.Error while a stream is captured; and the exception of a hook, after the memory is back.
        """

    def add_suspend_hooks(self, tag: int | str, before_unmap: Callable[[int, str | int], object] | None = None, after_map: Callable[[int, str | int], object] | None = None) -> int:
        """
        Sets functions that are called around each suspend of a tag, as `before_unmap(device, tag)`. Returns an id.

        For libraries that registered memory of the tag. `before_unmap` is called before memory of the tag is
        suspended, in the order in which hooks were added. `after_map` is called in the reverse order when the contents
        are back, or when the suspend failed. They run on the thread that suspends or resumes, and may call the pool,
        but not suspend() and resume(). An exception of `before_unmap` refuses the suspend, which raises it. An
        exception of `after_map` is raised by the call that ran it; the memory is resumed all the same. The pool keeps
        both alive until remove_suspend_hooks(), or until a private pool ends.
        """

    def remove_suspend_hooks(self, id: int) -> None:
        """
        Removes what add_suspend_hooks() set. Waits until they do not run; a hook may remove itself. Raises vpmm.Error if there is no such id.
        """

    def suspendable_tags(self) -> tuple[str | int, ...]:
        """
        The names of the suspendable tags of this pool; the number of a tag without a name.
        """

    def suspended(self) -> tuple[str | int, ...]:
        """
        The names of the suspended tags of this pool; the number of a tag without a name.
        """

    def tag_info(self, tag: int | str) -> vpmm._tags.TagInfo:
        """State and sizes of a tag in this pool."""

    def tags(self) -> tuple[str | int, ...]:
        """
        The names of the tags with live memory in this pool, with a limit, or suspendable; the number of a tag without a name.
        """

    def is_suspended(self, ptr: int) -> bool:
        """
        Whether an address is in suspended memory. Raises vpmm.Error ("VPMM_ERROR_INVALID_POINTER") if it is not in live memory.
        """

    def host_copy(self, ptr: int, bytes: int | str) -> memoryview:
        """
        The contents of `bytes` bytes at `ptr` on the host, inside one allocation.

        While it is suspended they may be written. The view must not be used after a free, nor after a resume that does not
        keep the copy: its memory is then gone or reused. A kept copy can be read until the next suspend. Raises vpmm.Error
        ("VPMM_ERROR_INVALID_POINTER") if the memory has no host copy.
        """

def tag_with_name(tag: int | str) -> int:
    """The number of a tag. A name that no tag has yet gets a new one."""

def library_tag(name: str) -> int:
    """
    The tag for requests of this library, if VPMM_TAG_LIBRARIES or VPMM_LIMITS asks for one; 0: none.
    """

def allocate_tagged(pool: Pool, bytes: int, library: int, stream: int | None = None) -> int:
    """
    Memory with the tag of a library; without a stream as Pool.allocate_any_stream().
    """

def ipc_export(ptr: int, bytes: int) -> tuple[int, bytes, int, int, bytes]: ...

def ipc_export_end(handle: tuple[int, bytes, int, int, bytes]) -> None: ...

def ipc_open(handle: tuple[int, bytes, int, int, bytes], device: int = -1) -> int: ...

def ipc_open_staged(handle: tuple[int, bytes, int, int, bytes], pool: Pool) -> int: ...

def ipc_close(ptr: int) -> None: ...

def ipc_read_token(token: bytes) -> tuple[int, bytes, int, int, bytes]: ...

def compress(data: bytes) -> bytes:
    """A zstd frame with the bytes. Releases the GIL."""

def decompress(frame: bytes, size: int) -> bytes:
    """
    The `size` bytes of a zstd frame. Releases the GIL. Raises vpmm.Error ("VPMM_ERROR_BAD_FILE") if it is damaged or has another size.
    """

def cupy_connect(stream_module: object, out_of_memory: object, current: object, external_streams: object) -> None: ...

def cupy_allocate(bytes: int, device: int) -> int: ...

def cupy_free(ptr: int, device: int) -> None: ...

def cupy_functions() -> tuple[int, int]: ...

def open_messages() -> None: ...

def close_messages() -> None: ...

def next_message() -> tuple[int, str] | None: ...

def write_unraisable(error: BaseException, where: object) -> None: ...

def read_pickle(data: bytes) -> object:
    """
    The object in a pickle of protocol 2 to 5 that holds only plain data. Raises ValueError(reason, offset) for any other.
    """
