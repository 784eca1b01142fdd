# SPDX-License-Identifier: Apache-2.0
# plugins: Numba's external memory manager (NBEP 7): Numba's arrays and kernel arguments come from the pool.

"""The memory manager for numba-cuda 0.25 and newer and for numba-cuda-mlir.

There are three ways to select it, before the first CUDA context of the process:

- ``NUMBA_CUDA_MEMORY_MANAGER=vpmm`` in the environment;
- ``vpmm.use_for_numba()``;
- ``numba.cuda.set_memory_manager(vpmm.NumbaMemoryManager)``.

Importing this module imports no Numba and makes no CUDA call. docs/guides/numba.md says what changes for a program.
"""

# ruff: noqa: ANN401  what Numba and cuda.core pass has no types

from __future__ import annotations

import abc
import contextlib
import functools
import importlib
import operator
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

import vpmm
from vpmm import _vpmm
from vpmm._vpmm import Pool
from vpmm.errors import warn
from vpmm.plugins import _numba_ipc
from vpmm.plugins._extents import Extents
from vpmm.plugins._ledger import Ledger

__all__ = ["make_memory_manager", "use_for_numba"]

_KERNEL_ARGUMENTS = "VPMM_NUMBA_KERNEL_ARGUMENTS"
_TARGETS = ("numba.cuda", "numba_cuda_mlir.cuda")

# The arguments of use_for_numba; None: the environment decides.
_order: Literal["context", "legacy"] | None = None
_kernel_arguments: bool | None = None


class _Manager:
    """The nine operations of NBEP 7 and managed memory; make_memory_manager() adds a target's base class.

    There is one per CUDA context; the managers of one device share its process-wide pool. Numba calls all methods, from
    any thread, and those that allocate with the context current. The base is Numba's plain class and not the host-only
    one: its tables are keyed by address, its finalizers call CUDA from any thread, and its queue has no lock.
    """

    context: Any
    interface_version = 1
    _target: Any  # the module cudadrv.driver of the target
    _extents: Extents  # one for the target
    _out_of_memory: type[Exception]

    def __init__(self, *, context: Any) -> None:
        """`context` is Numba's Context; None for the instance from which Numba reads the version. Calls no CUDA."""
        super().__init__(context=context)  # type: ignore[call-arg]  # the base that make_memory_manager() adds
        self._ledger = Ledger(self._target, context)
        self._weak_context = None if context is None else weakref.proxy(context)
        self._ready = False
        self._starting = threading.RLock()  # the collector may run a __del__ inside, which uses CUDA
        self._core_device: Any = None  # the cuda.core Device whose memory resource we hold
        self._library = 0  # the tag of requests; 0: none

    # --- lifecycle ---

    def initialize(self) -> None:
        """Numba calls this before nearly every operation, under its own lock: after the first call it is one test."""
        if not self._ready:
            self._start()

    def _start(self) -> Pool:
        takes_kernel_arguments = _takes_kernel_arguments()  # before any change, because the variable may be invalid
        self._library = _vpmm.library_tag("numba")
        with self._starting:
            pool = self._ledger.pool
            if pool is None:
                # Not self.context.device.id: in a context that another library created, the device may be a bare
                # CUdevice.
                device = int(self._target.driver.cuCtxGetDevice())
                pool = Pool.default(device) if _order is None else Pool.configure(device, any_stream=_order)
                self._ledger.pool = pool
            if not self._ready:
                self._extents.hold(self, pool)
                _numba_ipc.handle_class(self._target)  # open_ipc_array() asks no manager
                if takes_kernel_arguments:
                    self._hold_resource(pool)
            self._ready = True
        return pool

    def _pool(self) -> Pool:
        return self._ledger.pool or self._start()

    def _hold_resource(self, pool: Pool) -> None:
        device = getattr(self.context.device, "_dev", None)
        if device is not None:
            from vpmm.plugins.cuda_core import hold_resource

            hold_resource(self, device, pool.device)
            self._core_device = device

    def _release_resource(self) -> Any:
        device, self._core_device = self._core_device, None
        if device is None:
            return None
        from vpmm.plugins.cuda_core import release_resource

        return release_resource(self, device)

    def reset(self) -> None:
        """Frees the memory that this manager allocated; other memory stays.

        The memory resource of cuda.core's device, and kernel arguments from it, end with the last manager that holds
        it. May precede initialize(), may be called twice, and with no context current. Device memory is reused when all
        work queued so far is done. Host memory is freed at once, and arrays over it must not be used any more.
        """
        with self._starting:
            self._ready = False
            self._extents.release(self)
            resource = self._release_resource()
        if resource is not None:
            resource.abandon()  # may run destructors of the streams' owners
        self._ledger.reset()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Defers cleanup in the block: nothing is unmapped, released or waited for, host memory is not freed. Nests.

        Freed device memory is still reused, and the pool still releases memory rather than run out.
        """
        pool = self._pool()
        pool.defer_cleanup_begin()
        try:
            with self._ledger.hold():
                yield
        finally:
            pool.defer_cleanup_end()

    # --- allocating ---

    def memalloc(self, size: int) -> Any:
        """`size` bytes of device memory for immediate use on any stream, as a MemoryPointer.

        When memory runs out, raises an error that is a MemoryError, a vpmm.Error and Numba's CudaAPIError.
        """
        ledger = self._ledger
        if ledger.pending:
            ledger.settle()
        pool = ledger.pool or self._start()
        try:
            if self._library == 0:
                address = pool.allocate_any_stream(operator.index(size))
            else:
                address = _vpmm.allocate_tagged(pool, operator.index(size), self._library)
        except vpmm.OutOfMemoryError as error:
            raise self._out_of_memory(error) from error
        target = self._target
        if address == 0:
            return target.MemoryPointer(self._weak_context, target.binding.CUdeviceptr(0), 0)
        finalizer = ledger.add_device(address)
        return target.MemoryPointer(self._weak_context, target.binding.CUdeviceptr(address), size, finalizer=finalizer)

    def memallocmanaged(self, size: int, attach_global: bool = True) -> Any:
        """`size` bytes that host and device share, from the driver: only the device can access a pool's memory."""
        flags = self._target.binding.CUmemAttach_flags
        flag = flags.CU_MEM_ATTACH_GLOBAL if attach_global else flags.CU_MEM_ATTACH_HOST
        pointer = self._from_driver("cuMemAllocManaged", size, flag.value)
        return self._host_memory(self._target.ManagedMemory, pointer, size, "cuMemFree")

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """`size` bytes of page-locked host memory from the driver, mapped for the device if `mapped`."""
        binding = self._target.binding
        flags = binding.CU_MEMHOSTALLOC_DEVICEMAP if mapped else 0
        flags |= binding.CU_MEMHOSTALLOC_PORTABLE if portable else 0
        flags |= binding.CU_MEMHOSTALLOC_WRITECOMBINED if wc else 0
        pointer = self._from_driver("cuMemHostAlloc", size, flags)
        return self._host_memory(self._page_locked(mapped), pointer, size, "cuMemFreeHost")

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Page-locks `owner`'s memory until the result is dropped, which unlocks it at once."""
        self._pool()
        self._ledger.unpin()  # the range may be one that another thread dropped
        flags = self._target.binding.CU_MEMHOSTREGISTER_DEVICEMAP if mapped else 0
        self._from_driver("cuMemHostRegister", pointer, size, flags)
        return self._host_memory(self._page_locked(mapped), pointer, size, "cuMemHostUnregister", owner)

    def _page_locked(self, mapped: bool) -> Any:
        return self._target.MappedMemory if mapped else self._target.PinnedMemory

    def _from_driver(self, call: str, *arguments: int) -> Any:
        """Makes a driver call that needs memory; if it runs out, retries once after releasing all idle memory here."""
        pool, ledger = self._pool(), self._ledger
        ledger.settle()
        allocate = getattr(self._target.driver, call)
        try:
            return allocate(*arguments)
        except self._target.CudaAPIError as error:
            if error.code != self._target.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise
        ledger.settle_all()
        with contextlib.suppress(vpmm.Error):
            pool.trim()
        return allocate(*arguments)

    def _host_memory(self, kind: Any, pointer: Any, size: int, release: str, owner: Any = None) -> Any:
        serial, finalizer = self._ledger.add_host(release, int(pointer), owner)
        try:
            memory = kind(self._weak_context, pointer, size, owner=owner, finalizer=finalizer)
        except BaseException:
            finalizer()
            raise
        if kind is self._target.PinnedMemory:
            return memory
        # Numba counts references to these objects and frees at zero, where a new one begins: so the first reference
        # needs an owner, and the object must live as long as there is a reference.
        self._ledger.keep(serial, memory)
        return memory.own()

    # --- asking ---

    def get_memory_info(self) -> Any:
        """(free, total) bytes of the device; free includes the idle memory that the pool could hand out."""
        pool = self._pool()
        self._ledger.settle()
        free, total = pool.memory_info()
        return self._target.MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """A handle for other processes, as Numba's own, for memory of a pool, a view of it, or other memory.

        The handle holds memory of a pool until the handle is collected. Raises vpmm.Error for host and managed memory,
        and for memory that CUDA cannot share.
        """
        device = self.context.device
        # A context that another library created may have a bare CUdevice.
        identity = device.get_device_identity() if hasattr(device, "get_device_identity") else None
        return _numba_ipc.export(self._target, memory, identity)


def _takes_kernel_arguments() -> bool:
    if _kernel_arguments is not None:
        return _kernel_arguments
    value = os.environ.get(_KERNEL_ARGUMENTS, "")
    if value not in ("", "on", "off"):
        raise vpmm.InvalidArgumentError(f'{_KERNEL_ARGUMENTS}={value}: must be "on" or "off"')
    return value != "off"


# --- the class for a target ---


def _out_of_memory_error(target: ModuleType) -> type[Exception]:
    """Out of memory as a MemoryError, a vpmm.Error and, as in Numba itself, a CudaAPIError with its code."""

    def __init__(self: Any, error: vpmm.OutOfMemoryError) -> None:  # noqa: N807
        self.__dict__.update(error.__dict__)
        target.CudaAPIError.__init__(self, target.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY, error.report)

    def __reduce__(self: Any) -> tuple[object, ...]:  # noqa: N807
        """As vpmm's own error, for this class exists where Numba's is."""
        return vpmm.OutOfMemoryError, (self.report, "VPMM_ERROR_OUT_OF_MEMORY", self.requested, self.capacity)

    members = {
        "__init__": __init__,
        "__reduce__": __reduce__,
        "__module__": __name__,
        "__doc__": _out_of_memory_error.__doc__,
    }
    return type("NumbaOutOfMemoryError", (vpmm.OutOfMemoryError, target.CudaAPIError), members)


def driver_module(cuda: ModuleType) -> Any:
    """The module cudadrv.driver of `numba.cuda` or `numba_cuda_mlir.cuda`."""
    target = getattr(getattr(cuda, "cudadrv", None), "driver", None)
    if not hasattr(target, "BaseCUDAMemoryManager"):
        raise vpmm.Error(
            f"{cuda.__name__} has no memory managers: this is Numba's CUDA simulator (NUMBA_ENABLE_CUDASIM), or a "
            "version older than numba-cuda 0.25",
            "VPMM_ERROR_UNSUPPORTED",
        )
    return target


@functools.cache
def make_memory_manager(cuda: ModuleType) -> type[Any]:
    """The memory manager class for `numba.cuda` or `numba_cuda_mlir.cuda`; the same one at each call.

    Raises vpmm.Error when `cuda` is Numba's simulator, which has no memory managers.
    """
    target = driver_module(cuda)
    members = {
        "__module__": __name__,
        "__doc__": _Manager.__doc__,
        "_target": target,
        "_extents": Extents(target),
        "_out_of_memory": _out_of_memory_error(target),
    }
    return abc.ABCMeta("NumbaMemoryManager", (_Manager, target.BaseCUDAMemoryManager), members)


def _asking_target() -> str | None:
    """The Numba in the call stack: both packages read the same variable, and each accepts only its own classes."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        for target in _TARGETS:
            if name.startswith(target.partition(".")[0] + "."):
                return target
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def _cuda() -> ModuleType:
    """The Numba that asks, else one that is already imported, else an installed one."""
    asking = _asking_target()
    loaded = [target for target in _TARGETS if target in sys.modules]
    for target in [asking] if asking else loaded + [name for name in _TARGETS if name not in loaded]:
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name is None or not target.startswith(error.name):
                raise  # it is installed, and something that it needs is not
    raise vpmm.Error(
        "vpmm's Numba plugin needs the package numba-cuda (0.25 or newer) or numba-cuda-mlir, and neither is installed",
        "VPMM_ERROR_UNSUPPORTED",
    )


def __getattr__(name: str) -> Any:
    """Numba reads `_numba_memory_manager`; the classes are created on demand, so that Numba is optional."""
    if name in ("_numba_memory_manager", "NumbaMemoryManager"):
        return make_memory_manager(_cuda())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def use_for_numba(
    *,
    order: Literal["context", "legacy"] | None = None,
    kernel_arguments: bool | None = None,
    _stacklevel: int = 2,
) -> None:
    """Makes Numba allocate from the pool from the next CUDA context on. Call it before the first; makes no CUDA call.

    `order` is the work that must be done before freed memory is reused. "context" is all work of the device's context.
    "legacy" is all work of blocking streams; every stream that Numba creates is one. None: as VPMM_ANY_STREAM says. If
    a pool is already open with another order, the first context raises vpmm.Error. `kernel_arguments` False leaves host
    arrays that are passed to kernels to cuda.core; None: as VPMM_NUMBA_KERNEL_ARGUMENTS says.

    Warns and does nothing if NUMBA_CUDA_MEMORY_MANAGER names another manager (NBEP 7) or Numba runs its simulator.
    Warns if a context exists, because that context keeps its manager. Raises vpmm.Error if Numba is not installed.
    """
    global _order, _kernel_arguments
    if order not in (None, "context", "legacy"):
        raise vpmm.InvalidArgumentError(f'order={order!r}: must be "context" or "legacy"')
    chosen = os.environ.get("NUMBA_CUDA_MEMORY_MANAGER", "default")
    if chosen not in ("default", "", "vpmm", __name__):
        warn(f"NUMBA_CUDA_MEMORY_MANAGER={chosen} is set: vpmm is not used", stacklevel=_stacklevel)
        return
    cuda = _cuda()
    try:
        manager = make_memory_manager(cuda)
    except vpmm.Error as error:
        warn(f"vpmm is not used: {error}", stacklevel=_stacklevel)
        return
    _order, _kernel_arguments = order, kernel_arguments
    if any(device.primary_context is not None for device in manager._target.driver.devices.values()):
        message = "a CUDA context exists already and keeps its memory manager; numba.cuda.close() ends it"
        warn(message, stacklevel=_stacklevel)
    cuda.set_memory_manager(manager)
