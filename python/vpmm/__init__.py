# vpmm: the package as users see it.

"""One GPU memory pool for everything in a process.

Importing this package touches no CUDA and imports no other library; a device's pool is opened by the first call that
needs it. Sizes are in bytes. A device is an ordinal as CUDA counts them. All functions may be called from any thread,
and the CUDA context that is current stays current; calls that may wait let other Python threads run meanwhile. Errors
are ``vpmm.Error``; when memory runs out ``vpmm.OutOfMemoryError``, which is a ``MemoryError``, too; an argument of a
wrong type is a ``TypeError``. Where a size is taken, so is a text such as ``"16GiB"``. Where a stream is taken, so is
None for the default stream, and a stream object of Numba, CuPy, PyTorch or anything with ``__cuda_stream__``.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import numbers
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, NamedTuple, TextIO

from vpmm import _csv_log, _vpmm
from vpmm._buffer import Buffer
from vpmm._folders import cmake_dir, include_dir
from vpmm._ipc import IpcHandle, OpenedMemory, StagedMemory, ipc_export, ipc_open
from vpmm._streams import StreamLike, address_of, stream_handle
from vpmm._vpmm import Allocation, Pool, Region, device_count
from vpmm.errors import Error, MissingPackageError, OutOfMemoryError

__all__ = [
    "Allocation",
    "Buffer",
    "Error",
    "IpcHandle",
    "MemoryInfo",
    "OpenedMemory",
    "OutOfMemoryError",
    "Pool",
    "Recording",
    "Region",
    "StagedMemory",
    "__version__",
    "capture",
    "cmake_dir",
    "configure",
    "csv_log",
    "device_count",
    "dump",
    "include_dir",
    "ipc_export",
    "ipc_open",
    "log_to_logging",
    "memory_info",
    "record",
    "record_mark",
    "record_use",
    "stats",
    "trim",
    "use_for_cupy",
    "use_for_numba",
    "use_for_rmm",
    "use_for_torch",
]

__version__ = _vpmm.version()

Stacks = Literal["none", "native", "python", "both"]


class MemoryInfo(NamedTuple):
    """Bytes of a device: free for the pool, which is what the driver has free and what the pool could hand out; all."""

    free: int
    total: int


def memory_info(device: int = 0) -> MemoryInfo:
    """What is free for the process-wide pool of `device`, and what the device has. Asks the driver."""
    return MemoryInfo(*Pool.default(device).memory_info())


def stats(device: int = 0) -> dict[str, int]:
    """The figures of the process-wide pool of `device`, by the names of docs/reference/statistics.md."""
    return Pool.default(device).statistics()


def dump(device: int = 0, json: bool = False) -> str:
    """The state of the process-wide pool of `device`: its figures and every region, as text or as JSON."""
    return Pool.default(device).dump(json)


def trim(bytes_to_keep: int | str = 0, device: int = 0) -> int:
    """Gives idle memory of the process-wide pool back to the device until at most `bytes_to_keep` are mapped.

    Returns the bytes given back. Memory that is in use, or that the device may still be using, stays.
    """
    return Pool.default(device).trim(bytes_to_keep)


# Opens the process-wide pool of a device with settings over those of the environment, and returns it.
configure = Pool.configure


class Recording:
    """A recording in progress, made by vpmm.record(); ends with stop() or as a context manager."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: int,
        stacks: Stacks,
        sample: int,
        limit: int | str,
        window_ns: int,
    ) -> None:
        self._pool = Pool.default(device)
        self._path = path
        self._is_running = False
        self._pool.record_start(path, stacks, sample, limit, window_ns)
        self._is_running = True

    def stop(self) -> None:
        """Ends the recording and finishes the file. A second call does nothing."""
        if self._is_running:
            self._is_running = False
            self._pool.record_stop()

    def __repr__(self) -> str:
        state = "" if self._is_running else ", stopped"
        return f"<vpmm.Recording of device {self._pool.device} to {os.fspath(self._path)}{state}>"

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def record(
    path: str | os.PathLike[str],
    device: int = 0,
    *,
    stacks: bool | Stacks = False,
    sample: int = 1,
    limit: int | str | None = None,
    window: float | None = None,
) -> Recording:
    """Writes what happens in the process-wide pool of `device` to a file, from now on.

    ``vpmm replay`` reads it. A name that ends in .csv or .csv.gz gives lines of allocations and frees, any other events
    in blocks (docs/reference/recording.md), for which the rest is: `stacks` of allocations, True for those of Python
    and C++ or "native" or "python" for one of them; `sample`: one allocation in so many; `limit` in bytes: a longer
    file loses its older part; `window` in seconds: what is more than twice as old is left out. Use it in a ``with``
    statement or call ``stop()``; a recording that is not stopped is finished when the process exits. One at a time for
    each device. Raises vpmm.Error where the file cannot be made, or an option is wrong.
    """
    if not isinstance(stacks, bool | str):
        raise TypeError(f'stacks is {stacks!r}: must be True, False, "native" or "python"')
    kinds: Stacks = stacks if isinstance(stacks, str) else "both" if stacks else "none"
    return Recording(path, device, kinds, sample, 0 if limit is None else limit, _nanoseconds(window, "window"))


def _nanoseconds(seconds: float | None, name: str) -> int:
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"{name} is {seconds!r}: must be a number of seconds, or None")
    if not 0 <= seconds < math.inf:
        raise Error(f"{name} is {seconds!r}: must be a number of seconds, 0 or more")
    return round(seconds * 1e9)


def record_mark(text: str) -> None:
    """Puts `text` into each recording of the process, between the calls before and after it, as in "step 12".

    Without a recording it does nothing, but before the first pool is opened it is kept for the recording that
    VPMM_RECORD asks for. ``Pool.record_mark`` is for that of one pool.
    """
    _vpmm.record_mark(text)


@contextlib.contextmanager
def capture(device: int = 0) -> Iterator[None]:
    """Announces, for a ``with`` block, stream captures on streams that are never passed to the pool.

    Captures on streams that allocations name need no announcement. Nests; threads may overlap.
    """
    pool = Pool.default(device)
    pool.capture_begin()
    try:
        yield
    finally:
        pool.capture_end()


def log_to_logging() -> None:
    """Makes the library's messages records of ``logging.getLogger("vpmm")`` instead of lines on standard error.

    For the process and its forked children; a second call does nothing. A thread of the package makes the records, some
    time after what they tell of, at the latest at exit. VPMM_LOG says which messages there are, the logger what becomes
    of them; more than a thousand that wait are left out and counted.
    """
    importlib.import_module("vpmm._messages").log_to_logging()


def record_use(array: Any, stream: StreamLike, device: int | None = None) -> None:  # noqa: ANN401  any library's array
    """Says that work on `stream` uses the memory too: once freed, it waits for what is queued there by then.

    `array` has ``__cuda_array_interface__``, or is a cuda.core.Buffer or an address; it may be a part of an allocation.
    `stream` is a CUstream as an int, None for the default stream, or a stream object of Numba, CuPy, PyTorch or
    anything with ``__cuda_stream__``. The memory must be of the process-wide pool of `device`. Give it where there are
    several GPUs: without it all are looked through, and each one's pool is opened. Raises TypeError for what is
    neither, and vpmm.Error for memory that is in none of these pools.
    """
    address = address_of(array)
    handle = stream_handle(stream)
    if address == 0:
        return
    pools = [Pool.default(device)] if device is not None else (Pool.default(i) for i in range(device_count()))
    missing: Error | None = None
    for pool in pools:
        try:
            begin = pool.query(address).begin
        except Error as error:
            missing = missing or error
            continue
        pool.record_use(begin, handle)
        return
    raise missing or Error("there is no device", "VPMM_ERROR_NO_DRIVER")


def csv_log(
    path_or_file: str | os.PathLike[str] | TextIO, locations: bool = False, memory: bool = False
) -> _csv_log.CsvLog:
    """Logs, until it is stopped, every allocation and free made through this package, Numba's included.

    Use it in a ``with`` statement or call ``stop()``; a log that is not stopped is finished when the process exits, and
    a file object that is passed in is never closed. The columns are those of NBEP 7: Event Type, Device ID, Address,
    Stream (0: none was named), Size (bytes; 0 for a free), Free Memory, Total Memory, Current Allocs (since the log
    began), Start, End and Elapsed in seconds, Location. `locations`: the line of the program that allocated, or that
    dropped the last reference. `memory`: asks at each allocation what is free, which costs a driver call; otherwise
    both columns are 0. A free shows what was free at the last allocation. Rows reach the file every thousand rows, and
    at the end.
    """
    return _csv_log.CsvLog(path_or_file, locations, memory)


def _numba_plugin(name: str) -> Any:  # noqa: ANN401  a class or a function of the plugin
    try:
        return getattr(importlib.import_module("vpmm.plugins.numba"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "numba_cuda", "cuda", "numpy"):
            raise
        raise MissingPackageError(f"vpmm.{name.removeprefix('_')}", "numba-cuda", error) from error


def use_for_numba(*, order: Literal["context", "legacy"] | None = None, kernel_arguments: bool | None = None) -> None:
    """Makes Numba draw its device memory from the process-wide pools. Call it before Numba makes a context.

    `order` says what must be done before freed memory is used again: "context", all work of the device's context, or
    "legacy", all work of blocking streams, which all streams are that Numba makes; None: VPMM_ANY_STREAM says it.
    `kernel_arguments` False leaves host arrays that are passed to kernels to cuda.core; None: as
    VPMM_NUMBA_KERNEL_ARGUMENTS says. Warns and does nothing where Numba is told to use another manager or simulates.
    Raises vpmm.Error where no Numba is installed.
    """
    plugin = _numba_plugin("use_for_numba")
    plugin(order=order, kernel_arguments=kernel_arguments, _stacklevel=3)  # warnings name the caller's line


def use_for_cupy() -> None:
    """Makes CuPy draw its device memory from the process-wide pools, from now on; what it has stays where it is.

    The variable VPMM_CUPY=1 does the same at ``import cupy``. Raises vpmm.Error when CuPy is missing or too old.
    """
    importlib.import_module("vpmm.plugins.cupy").install()


def use_for_rmm() -> None:
    """Makes RMM, and so cuDF and cuML, draw the memory of all devices from the process-wide pools.

    Builds the resource for the RMM that is here when this is its first use (about ten seconds). The variable VPMM_RMM=1
    does the same when RMM is imported, in child processes, too. Raises vpmm.Error when it cannot be done.
    """
    importlib.import_module("vpmm.plugins.rmm").install()


def use_for_torch() -> None:
    """Makes PyTorch draw its CUDA memory from the process-wide pools. Call it before PyTorch's first CUDA call.

    Builds the allocator for the PyTorch that is here when this is its first use (about twenty seconds). The variable
    VPMM_TORCH=1 does the same at ``import torch``, in child processes, too. Raises vpmm.Error when it cannot be done.
    """
    importlib.import_module("vpmm.plugins.torch").install()


def __getattr__(name: str) -> Any:  # noqa: ANN401  what Numba asks for, when it does
    if name in ("_numba_memory_manager", "NumbaMemoryManager"):
        return _numba_plugin(name)
    raise AttributeError(f"module 'vpmm' has no attribute {name!r}")
