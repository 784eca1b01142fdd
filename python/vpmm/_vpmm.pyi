"""
The compiled part: vpmm.h as classes and functions. Sizes are bytes, addresses ints.
"""

from collections.abc import Callable, Iterable
import os
import types
from typing import Any, Literal

import vpmm._streams


def version() -> str:
    """Of the library: "0.1.0"."""

def device_count() -> int:
    """
    Devices that the driver shows. Raises vpmm.Error where there is no driver.
    """

def parse_bytes(size: int | str) -> int:
    """
    Bytes, from a number or from a text as the variables take it ("16GiB"). Raises vpmm.Error for what is no size.
    """

def record_mark(text: str) -> None: ...

def as_dlpack(owner: object, ptr: int, size: int, device: int) -> Any:
    """
    Bytes at an address as an object with ``__dlpack__``, which keeps `owner` alive. Orders no streams.
    """

def set_log(log: Callable[[str, int, int, int, int, float, float], None] | None) -> None: ...

class Allocation:
    """An allocation, as ``Pool.query`` found it."""

    @property
    def begin(self) -> int:
        """The address where it starts, which is the one that frees take."""

    @property
    def requested(self) -> int:
        """Bytes that were asked for."""

    @property
    def usable(self) -> int:
        """Bytes that may be used: the request rounded up."""

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Region:
    """
    A stretch of a pool's address space in one state, as ``Pool.snapshot`` lists them.
    """

    @property
    def begin(self) -> int:
        """The address where it starts."""

    @property
    def bytes(self) -> int:
        """Its length in bytes."""

    @property
    def requested(self) -> int:
        """Bytes that were asked for; 0 where nothing is allocated."""

    @property
    def state(self) -> str:
        """
        "allocated", "free", "hole" (nothing is mapped), "zombie" (left by memory that moved, not yet
        unmapped) or "in flight".
        """

    @property
    def is_complete(self) -> bool:
        """Whether all work on what was there last is known to be done."""

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class Pool:
    """
    Device memory that all libraries of a process can share, or a private pool of its own.

    ``Pool.default()`` is the process-wide pool of a device, ``Pool(...)`` makes a private one, which ends with
    close(), with its ``with`` block or with its last reference. Sizes are bytes, or texts such as ``"16GiB"``;
    addresses are ints. Any thread may call any method, with any CUDA context current or none; calls that may wait
    let other Python threads run. Errors are vpmm.Error with a ``code``, TypeError where an argument has a wrong
    type. Two of one process-wide pool are equal.
    """

    def __init__(self, device: int = 0, *, page_size: int | str = ..., va_size: int | str = ..., chunk_max: int | str = ..., release_threshold: int | str | None = ..., capacity: int | str | None = ..., pages: int = ..., max_mappings: int = ..., small: Literal['pool', 'stream_ordered'] = ..., any_stream: Literal['context', 'legacy', 'park'] = ..., prefer: Literal['footprint', 'balanced', 'latency'] = ..., log: Literal['quiet', 'error', 'warning', 'info', 'debug'] = ..., driver: Literal['cuda', 'sim', 'auto'] = ..., ipc_isolate: bool = ..., unnamed_free_on_allocating_stream: bool = ...) -> None:
        """
        Opens a private pool on `device`, an ordinal.

        What is not named comes from the variables, whose names are those of the keywords in capitals behind ``VPMM_``:

        - ``page_size``: the rounding unit; "max" switches the pool off
        - ``va_size``: address space of one reservation
        - ``chunk_max``: largest piece of physical memory; "page": one piece per page
        - ``release_threshold``: idle memory is given back while more is mapped; None: it is kept
        - ``capacity``: most memory the pool may map; None: what the GPU has
        - ``pages``: pages mapped ahead at the first allocation
        - ``max_mappings``: mappings from which on the pool grows instead of moving memory
        - ``small``: who serves requests below a page
        - ``any_stream``: what must finish before memory freed without a stream is used again
        - ``prefer``: how much memory may be spent to spare driver calls
        - ``log``: which messages are written
        - ``driver``: the driver that the pool talks to
        - ``ipc_isolate``: every allocation has pages of its own, so that sharing one shares no other
        - ``unnamed_free_on_allocating_stream``: a free that names no stream means the one it was allocated on
        Sizes are bytes as an int, or texts such as ``"16GiB"``. Raises vpmm.Error
        ("VPMM_ERROR_BAD_CONFIGURATION") for a value that is not allowed, and TypeError for a keyword that
        does not exist or a value of a wrong type.
        """

    @staticmethod
    def default(device: int = 0) -> Pool:
        """
        The process-wide pool of `device`, opened from the environment at the first call.

        All that the process does with VPMM uses it, C and C++ too. It is never closed. Raises vpmm.Error where the
        device or the driver is missing, or a variable has a value that is not allowed.
        """

    @staticmethod
    def configure(device: int = 0, *, page_size: int | str = ..., va_size: int | str = ..., chunk_max: int | str = ..., release_threshold: int | str | None = ..., capacity: int | str | None = ..., pages: int = ..., max_mappings: int = ..., small: Literal['pool', 'stream_ordered'] = ..., any_stream: Literal['context', 'legacy', 'park'] = ..., prefer: Literal['footprint', 'balanced', 'latency'] = ..., log: Literal['quiet', 'error', 'warning', 'info', 'debug'] = ..., driver: Literal['cuda', 'sim', 'auto'] = ..., ipc_isolate: bool = ..., unnamed_free_on_allocating_stream: bool = ...) -> Pool:
        """
        Opens the process-wide pool of `device` with settings, which are those of Pool, and returns it.

        Call it before anything else opens the pool: where it is open with other settings, vpmm.Error names the
        difference.
        """

    def close(self, discard: bool = False) -> None:
        """
        Waits for the GPU and gives all memory of a private pool back. A second call does nothing.

        Raises vpmm.Error, and the pool stays open, while allocations live in it (`discard` True gives them back, too:
        their addresses are nobody's from then on), while other threads are in its calls, while a stream is captured,
        and for a process-wide pool. A pool that is never closed ends with its last reference, and gives everything
        back.
        """

    def __enter__(self) -> Pool:
        """For a private pool, which the block's end closes."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        """
        Closes the pool. Where the block raised and allocations live, the pool ends with its last reference.
        """

    @property
    def device(self) -> int:
        """The ordinal of its device."""

    @property
    def is_private(self) -> bool:
        """False for the process-wide pool of a device."""

    @property
    def is_closed(self) -> bool:
        """Whether close() was called: every other call raises vpmm.Error then."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    def allocate(self, bytes: int | str, stream: vpmm._streams.StreamLike, alignment: int | str = 0) -> int:
        """
        The address of `bytes` bytes for work queued on `stream` after the call; 0 bytes have the address 0.

        `bytes` is a number or a text such as ``"64MiB"``; `stream` a CUstream as an int, None for the default stream,
        or a stream object of Numba, CuPy, PyTorch or anything with ``__cuda_stream__``. Aligned to 256 bytes, from a
        page up to pages, or to `alignment`, a power of two. Other streams may use the memory once they are ordered
        behind `stream`. Waits for the GPU only where memory would run out otherwise. Raises vpmm.OutOfMemoryError.
        """

    def allocate_any_stream(self, bytes: int | str, alignment: int | str = 0) -> int:
        """
        The address of memory that nothing uses any more: work on any stream may have it at once.

        Keeps the interpreter's lock where complete memory is at hand. Raises vpmm.OutOfMemoryError.
        """

    def allocate_many(self, bytes: Iterable[int | str], stream: vpmm._streams.StreamLike) -> list[int]:
        """
        An address for each size, as allocate() gives it: all, or none and vpmm.OutOfMemoryError.
        """

    def deallocate(self, ptr: int, stream: vpmm._streams.StreamLike) -> None:
        """
        Frees memory that work queued on `stream` so far is the last to use. Address 0 does nothing.

        The same stream may have it again at once, others when that work is done. Waits for nothing. Raises vpmm.Error
        ("VPMM_ERROR_INVALID_POINTER") where no allocation starts at `ptr`.
        """

    def deallocate_any_stream(self, ptr: int) -> None:
        """
        Frees memory that work queued on any stream so far may use. Address 0 does nothing.
        """

    def deallocate_deferred(self, ptr: int) -> None:
        """
        The same for finalizers and callbacks: takes no lock, calls no CUDA, and raises for no address.

        A later call of anybody carries it out; mistakes are counted in ``caller_mistakes``. In a closed pool it does
        nothing.
        """

    def deallocate_many(self, ptrs: Iterable[int], stream: vpmm._streams.StreamLike) -> None:
        """
        deallocate() for each; all that are live are freed, and the error is that of the first that is not.
        """

    def record_use(self, ptr: int, stream: vpmm._streams.StreamLike) -> None:
        """
        Work on `stream` uses the allocation that starts at `ptr`, too: its free waits for what is queued
        there by then.

        Raises vpmm.Error where no allocation starts there; query() finds the start.
        """

    def stream_wait(self, waiting: vpmm._streams.StreamLike, first: vpmm._streams.StreamLike) -> None:
        """
        Work queued on `waiting` after the call waits on the GPU for what is queued on `first` by now.

        For memory that goes from one stream to another. Raises vpmm.Error for what is no stream of the device.
        """

    def query(self, ptr: int) -> Allocation:
        """
        The allocation around an address. Raises vpmm.Error ("VPMM_ERROR_INVALID_POINTER") where there is none.
        """

    def usable_size(self, ptr: int) -> int:
        """
        Bytes that may be used of the allocation around `ptr`; 0 for address 0.
        """

    def memory_info(self) -> tuple[int, int]:
        """
        (free, total) in bytes: what the driver has free and the pool could hand out, and what the device
        has.

        Asks the driver.
        """

    def statistics(self) -> dict[str, int]:
        """
        The figures of the pool by the names of docs/reference/statistics.md, in bytes, counts and nanoseconds.
        """

    def reset_peaks(self) -> None:
        """The ``peak_`` figures begin anew with what is there now."""

    def dump(self, json: bool = False) -> str:
        """Figures and every region, as text or as one JSON object."""

    def snapshot(self) -> list[Region]:
        """Every region of the pool's address space, in ascending order."""

    def trim(self, bytes_to_keep: int | str = 0) -> int:
        """
        Gives idle memory back to the device until at most so many bytes are mapped; returns the bytes given
        back.

        Memory in use, or that the device may still be using, stays.
        """

    def preallocate(self, bytes: int | str) -> None:
        """
        Maps memory until at least so many bytes are mapped in all. Raises vpmm.OutOfMemoryError.
        """

    def set_capacity(self, bytes: int | str | None) -> None:
        """
        The most bytes that the pool may map from now on; None: what the device has. What is mapped stays.
        """

    def set_peer_access(self, device: int) -> None:
        """
        Lets work on another GPU use all memory of the pool, present and future, as long as the pool lives.

        Raises vpmm.Error ("VPMM_ERROR_UNSUPPORTED") where the hardware cannot.
        """

    def set_out_of_memory_callback(self, callback: Callable[[int, int], object] | None) -> None:
        """
        `callback(device, bytes)` is asked before a request fails: it frees something and returns True to
        have it tried again.

        It runs on the thread that allocates and may call the pool. What it raises becomes the ``__cause__`` of the
        request's vpmm.OutOfMemoryError. None takes it away.
        """

    def synchronize(self) -> None:
        """
        Waits for all work of the device, and of devices with access. Raises vpmm.Error
        ("VPMM_ERROR_CAPTURE_ACTIVE") while a stream is captured.
        """

    def reset(self) -> None:
        """
        Waits, then resets the device's primary context; allocations survive, streams do not.
        """

    def defer_cleanup_begin(self) -> None:
        """
        From now on the pool unmaps and releases nothing by itself, and does not wait on the host; pairs
        nest.

        Running out of memory comes first.
        """

    def defer_cleanup_end(self) -> None:
        """
        Ends what defer_cleanup_begin() began. Raises vpmm.Error where nothing did.
        """

    def capture_begin(self) -> None:
        """
        Announces a capture on a stream that is never passed to the pool; pairs nest.
        """

    def capture_end(self) -> None:
        """The capture is over. Raises vpmm.Error where none was announced."""

    def record_start(self, path: str | os.PathLike[str], stacks: str = 'none', sample: int = 1, limit: int | str = 0, window_ns: int = 0) -> None:
        """
        Writes what happens in this pool to a file, as vpmm.record() does for a process-wide one.

        `stacks` is "none", "native", "python" or "both", `limit` is in bytes and `window_ns` in nanoseconds; 0: none.
        Raises vpmm.Error where the file cannot be made, an option is wrong, or a recording is running.
        """

    def record_mark(self, text: str) -> None:
        """
        Puts `text` between the calls before and after it. Without a recording it does nothing.
        """

    def record_stop(self) -> None:
        """Ends the recording and finishes the file."""

def ipc_export(ptr: int, bytes: int) -> tuple[int, bytes, int, int, bytes]: ...

def ipc_export_end(handle: tuple[int, bytes, int, int, bytes]) -> None: ...

def ipc_open(handle: tuple[int, bytes, int, int, bytes], device: int = -1) -> int: ...

def ipc_open_staged(handle: tuple[int, bytes, int, int, bytes], pool: Pool) -> int: ...

def ipc_close(ptr: int) -> None: ...

def ipc_read_token(token: bytes) -> tuple[int, bytes, int, int, bytes]: ...

def cupy_connect(stream_module: object, out_of_memory: object, current: object, external_streams: object) -> None: ...

def cupy_allocate(bytes: int, device: int) -> int: ...

def cupy_free(ptr: int, device: int) -> None: ...

def cupy_functions() -> tuple[int, int]: ...

def open_messages() -> None: ...

def close_messages() -> None: ...

def next_message() -> tuple[int, str] | None: ...
