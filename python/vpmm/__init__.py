# SPDX-License-Identifier: Apache-2.0
# vpmm: the package as users see it.

"""One GPU memory pool for everything in a process.

Importing this package makes no CUDA call and imports no other library; the first call that needs a device's pool opens
it. Sizes are in bytes; a text such as ``"16GiB"`` is accepted wherever a size is. A device is a CUDA ordinal. A stream
argument accepts a CUstream as an int, None for the default stream, or a stream object of Numba, CuPy, PyTorch or
anything with ``__cuda_stream__``. Any thread may call any function, and the current CUDA context stays current; calls
that may wait release the GIL. Errors are ``vpmm.Error``. Running out of memory is ``vpmm.OutOfMemoryError``, which is
also a ``MemoryError``. A value that is not allowed is ``vpmm.InvalidArgumentError``, which is also a ``ValueError``. An
argument of a wrong type is a ``TypeError``.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import numbers
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, TextIO

from vpmm import _csv_log, _vpmm
from vpmm._buffer import Buffer
from vpmm._folders import cmake_dir, include_dir
from vpmm._ipc import IpcHandle, OpenedMemory, StagedMemory, ipc_export, ipc_open
from vpmm._memory_info import MemoryInfo
from vpmm._stats import Stats
from vpmm._streams import StreamLike, address_of, stream_handle
from vpmm._tags import (
    SuspendHooks,
    Tag,
    TagInfo,
    add_suspend_hooks,
    host_copy,
    is_suspended,
    pool_of,
    prepare_suspend,
    resume,
    suspend,
    suspended,
    tag,
    tag_info,
    tags,
)
from vpmm._vpmm import Allocation, Pool, Region, device_count
from vpmm.errors import Error, InvalidArgumentError, MissingPackageError, OutOfMemoryError, VpmmWarning

__all__ = [
    "Allocation",
    "Buffer",
    "Error",
    "InvalidArgumentError",
    "IpcHandle",
    "MemoryInfo",
    "MissingPackageError",
    "OpenedMemory",
    "OutOfMemoryError",
    "Pool",
    "Recording",
    "Region",
    "StagedMemory",
    "Stats",
    "SuspendHooks",
    "Tag",
    "TagInfo",
    "VpmmWarning",
    "__version__",
    "add_suspend_hooks",
    "capture",
    "cmake_dir",
    "configure",
    "csv_log",
    "device_count",
    "dump",
    "explain",
    "host_copy",
    "include_dir",
    "ipc_export",
    "ipc_open",
    "is_suspended",
    "log_to_logging",
    "memory_info",
    "prepare_suspend",
    "record",
    "record_mark",
    "record_use",
    "resume",
    "stats",
    "suspend",
    "suspended",
    "tag",
    "tag_info",
    "tags",
    "trim",
    "use_for_cupy",
    "use_for_numba",
    "use_for_rmm",
    "use_for_torch",
]

__version__ = _vpmm.version()
"""The version of the library, such as "0.1.0"."""

Stacks = Literal["none", "native", "python", "both"]
"""Which stacks a recording keeps: none, those of C++ ("native"), those of Python, or both."""


def memory_info(device: int = 0) -> MemoryInfo:
    """Free bytes for the process-wide pool of `device`, within its capacity; and the device's total, or the capacity if
    that is less. Asks the driver."""
    return Pool.default(device).memory_info()


def stats(device: int = 0) -> Stats:
    """The statistics of the process-wide pool of `device`, a dictionary: vpmm.Stats has the names and their units."""
    return Pool.default(device).statistics()


def dump(device: int = 0, json: bool = False) -> str:
    """The state of the process-wide pool of `device`: its statistics and every region, as text or as JSON."""
    return Pool.default(device).dump(json)


def explain(address: int, device: int = 0) -> str:
    """Which guarded allocation of the process-wide pool holds `address`, or ends before it or begins behind it.

    Text with its size, stream, tag, times and stacks. With VPMM_GUARD only; works also after the GPU has failed.
    """
    return Pool.default(device).explain(address)


def trim(bytes_to_keep: int | str = 0, device: int = 0) -> int:
    """Releases idle memory of the process-wide pool to the device until at most `bytes_to_keep` are mapped.

    Returns the bytes released. Memory in use stays, and so does memory that the device may still be using.
    """
    return Pool.default(device).trim(bytes_to_keep)


configure = Pool.configure
"""Opens the process-wide pool of a device with settings, and returns it: ``vpmm.configure(capacity="16GiB")``.

Its parameters are those of ``Pool.configure``: `device`, and keywords for the settings, which override the
environment's. Call it before anything else opens the pool. If the pool is open with other settings, vpmm.Error names
the difference.
"""


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
    """Records the process-wide pool of `device` to a file, from now on.

    ``vpmm replay`` reads the file. A name that ends in .csv or .csv.gz records allocations and frees as lines. Any
    other name records events in blocks (docs/reference/recording.md), to which these options apply. `stacks` records
    the stacks of allocations: True for Python and C++, "native" or "python" for one of them. `sample` records one
    allocation in so many; 1: all. `limit`, in bytes, drops the older part of a longer file. `window`, in seconds, drops
    events more than twice as old. Use the recording in a ``with`` statement or call ``stop()``; a recording that is not
    stopped is finished when the process exits. A device has at most one recording at a time. Raises vpmm.Error if the
    file cannot be created or an option is invalid.
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
        raise InvalidArgumentError(f"{name} is {seconds!r}: must be a number of seconds, 0 or more")
    return round(seconds * 1e9)


def record_mark(text: str) -> None:
    """Adds `text`, such as "step 12", to each recording of the process, between the calls before and after it.

    Without a recording it does nothing, with one exception: before the first pool is opened, the text is kept for the
    recording that VPMM_RECORD requests. ``Pool.record_mark`` marks the recording of one pool.
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
    """Sends the library's messages to ``logging.getLogger("vpmm")`` instead of standard error.

    It applies to the process and its forked children; a second call does nothing. A thread of the package delivers the
    messages with a delay, at the latest at exit. VPMM_LOG selects the messages; the logger decides where they go. When
    more than a thousand messages are pending, further ones are dropped and counted.
    """
    importlib.import_module("vpmm._messages").log_to_logging()


def record_use(array: Any, stream: StreamLike, device: int | None = None) -> None:  # noqa: ANN401  any library's array
    """Declares that work on `stream` uses the memory: a free then waits for the work queued on `stream` by that time.

    `array` is a tensor of PyTorch, has ``__cuda_array_interface__``, or is a cuda.core.Buffer or an address; it may be
    part of an allocation. `stream` is a CUstream as an int, None for the default stream, or a stream object of Numba,
    CuPy, PyTorch or anything with ``__cuda_stream__``. The memory must come from the process-wide pool of `device`.
    Pass `device` on a machine with several GPUs: without it, every device is searched and its pool is opened. Raises
    TypeError for an argument of another type, and vpmm.Error for memory that is in none of these pools.
    """
    address = address_of(array)
    handle = stream_handle(stream)
    if address == 0:
        return
    pool, begin = pool_of(address, device)
    pool.record_use(begin, handle)


def csv_log(
    path_or_file: str | os.PathLike[str] | TextIO, locations: bool = False, memory: bool = False
) -> _csv_log.CsvLog:
    """Logs every allocation and free made through this package, Numba's included, until it is stopped.

    Use it in a ``with`` statement or call ``stop()``; a log that is not stopped is finished when the process exits. A
    file object that you pass is never closed. The columns are those of NBEP 7: Event Type, Device ID, Address, Stream
    (0: none was named), Size (bytes; 0 for a free), Free Memory, Total Memory, Current Allocs (since the log began),
    Start, End and Elapsed in seconds, Location. `locations` adds the line of the program that allocated or dropped the
    last reference. `memory` asks the driver for free memory at each allocation; a free repeats the figures of the last
    allocation. Without `memory` both columns are 0. Rows are written to the file every thousand rows, and at the end.
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
    """Makes Numba allocate its device memory from the process-wide pools. Call it before Numba creates a context.

    `order` is the work that must be done before freed memory is reused. "context" is all work of the device's context.
    "legacy" is all work of blocking streams; every stream that Numba creates is one. None: as VPMM_ANY_STREAM says.
    `kernel_arguments` False leaves host arrays that are passed to kernels to cuda.core; None: as
    VPMM_NUMBA_KERNEL_ARGUMENTS says. If Numba is configured to use another manager or its simulator, this warns and
    does nothing. Raises vpmm.Error if Numba is not installed.
    """
    plugin = _numba_plugin("use_for_numba")
    plugin(order=order, kernel_arguments=kernel_arguments, _stacklevel=3)  # warnings name the caller's line


def use_for_cupy() -> None:
    """Makes CuPy allocate its device memory from the process-wide pools from now on; existing allocations stay.

    The variable VPMM_CUPY=1 does the same at ``import cupy``. Raises vpmm.Error if CuPy is missing or too old.
    """
    importlib.import_module("vpmm.plugins.cupy").install()


def use_for_rmm() -> None:
    """Makes RMM, and thus cuDF and cuML, allocate the memory of all devices from the process-wide pools.

    Where the package holds no resource compiled for the installed RMM, the first use builds it (about ten seconds). The
    variable VPMM_RMM=1 does the same when RMM is imported, also in child processes. Raises vpmm.Error if that fails.
    """
    importlib.import_module("vpmm.plugins.rmm").install()


def use_for_torch() -> None:
    """Makes PyTorch allocate its CUDA memory from the process-wide pools. Call it before PyTorch's first CUDA call.

    Where the package holds no allocator compiled for the installed PyTorch, the first use builds it (about twenty
    seconds). The variable VPMM_TORCH=1 does the same at ``import torch``, also in child processes. Raises vpmm.Error if
    that fails.
    """
    importlib.import_module("vpmm.plugins.torch").install()


_LAZY = ("cuda_core", "cupy", "dask", "rmm", "torch", "torch_memory_saver", "vllm")
"""Modules of the package that are imported at their first use, for most programs use none or one."""
_NEEDED_BY = {"cuda_core": "cuda.core", "dask": "distributed"}
"""Packages without which the import of a module fails."""


def _is_installed(package: str) -> bool:
    try:
        return importlib.import_module("importlib.util").find_spec(package) is not None
    except (ImportError, ValueError):  # the package around it, or a stand-in for it without a spec
        return False


def __getattr__(name: str) -> Any:  # noqa: ANN401  a module, or what Numba asks for, when it does
    if name in _LAZY:
        return importlib.import_module(f"vpmm.{name}")
    if name in ("_numba_memory_manager", "NumbaMemoryManager"):
        return _numba_plugin(name)
    raise AttributeError(f"module 'vpmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    # A module that cannot be imported would end help(vpmm), which looks at each name.
    return sorted([*__all__, *(name for name in _LAZY if name not in _NEEDED_BY or _is_installed(_NEEDED_BY[name]))])


# Where Python did not read the file beside the package when it started: the package is on PYTHONPATH.
if any(map(os.environ.get, ("VPMM_USE", "VPMM_CUPY", "VPMM_RMM"))):
    importlib.import_module("vpmm_autoload").start_late()
