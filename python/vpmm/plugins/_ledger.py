# SPDX-License-Identifier: Apache-2.0
# plugins: the live memory of one of Numba's contexts, and finalizers that may run anywhere.

# ruff: noqa: ANN401  what Numba passes has no types

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vpmm._finalizers import may_call_cuda, process_ends
from vpmm._vpmm import Pool

_UNPIN = "cuMemHostUnregister"


class Block(NamedTuple):
    """Host or managed memory to be freed."""

    release: str  # the driver call
    address: int
    owner: Callable[[], object]  # returns the owner of pinned pages, if alive; see Note [Owners are held late]


def _weakly(owner: object) -> Callable[[], object]:
    try:
        return weakref.ref(owner)
    except TypeError:  # a list, bytes: no weak reference is possible
        return lambda: owner


class Ledger:
    """The memory that one manager has handed out and not got back, for its finalizers.

    Note [Finalizers run anywhere]: a finalizer runs on the thread that drops the last reference: one without a CUDA
    context, one of CUDA's callbacks, the collector inside an allocation of this manager, interpreter exit. So it makes
    only single operations on dicts and deques, which are atomic, and pushes device memory onto the pool's lock-free
    list: no lock, no CUDA, no exception. Only pages that were pinned in place are unpinned at once, if that is safe.

    Note [A serial is freed once]: a serial is in `device` or `host` from its allocation until its finalizer or a reset
    takes it out, and only that one frees it. An address that is handed out again has another serial.

    Note [Owners are held late]: an owner may refer to its own pin. So it is held only from a drop on a thread that may
    not call CUDA until the pages are unpinned; until the drop Numba's object holds it. An owner that is collected
    together with the pin is not held, and lives while the finalizer runs.

    Note [Unpin before pinning again]: Numba pins the same array repeatedly, and CUDA refuses a range that is still
    pinned. So when a finalizer or unpin() returns, no page that it had to unpin is still in progress on another thread:
    each finalizer unpins its own, and only one unpin() runs at a time.
    """

    def __init__(self, target: Any, context: Any) -> None:
        """`target` is a Numba's module cudadrv.driver; `context` one of its contexts, or None for no memory."""
        self._driver = target.driver
        self._relaxed = target.binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._handle = getattr(context, "handle", None)
        self._process = os.getpid()  # a forked child inherits everything here, and must not touch it
        self._serials = itertools.count()
        self._device: dict[int, int] = {}  # serial -> address
        self._host: dict[int, Block] = {}  # by serial
        self._roots: dict[int, object] = {}  # serial -> mapped or managed memory, alive until its finalizer runs
        self._pinned: deque[Block] = deque()  # pages to unpin, dropped on a thread that may not call CUDA
        self._unpinning = threading.RLock()  # the collector may run a __del__ inside, which pins
        self._holds: deque[None] = deque()  # one entry for each active hold()
        self.pool: Pool | None = None
        self.pending: deque[Block] = deque()  # host and managed memory to free at an ordinary call

    # --- device memory ---

    def add_device(self, address: int) -> Callable[[], None]:
        """The finalizer for device memory of the pool."""
        serial = next(self._serials)
        self._device[serial] = address
        return functools.partial(self._free_device, serial)

    def _free_device(self, serial: int) -> None:
        address = self._device.pop(serial, None)
        if address is None:
            return
        assert self.pool is not None  # the memory came from it
        self.pool.deallocate_deferred(address)

    # --- host and managed memory ---

    def add_host(self, release: str, address: int, owner: object) -> tuple[int, Callable[[], None]]:
        """Returns a serial, and the finalizer for memory that the driver call `release` frees.

        `owner` owns the pinned memory.
        """
        serial = next(self._serials)
        self._host[serial] = Block(release, address, _weakly(owner))
        return serial, functools.partial(self._free_host, serial)

    def keep(self, serial: int, memory: object) -> None:
        """Keeps `memory` alive until its finalizer runs or everything is reset."""
        self._roots[serial] = memory

    def _free_host(self, serial: int) -> None:
        block = self._host.pop(serial, None)
        if block is None:
            return
        owner = block.owner()
        if block.release != _UNPIN:
            self.pending.append(block)
        elif may_call_cuda():
            self._free(deque([block]))
        else:
            self._pinned.append(block._replace(owner=lambda: owner))
        self._roots.pop(serial, None)

    def unpin(self) -> None:
        """On an ordinary thread, unlocks pages that were dropped on a thread that may not call CUDA."""
        with self._unpinning:
            self._free(self._pinned)

    def settle(self) -> None:
        """On an ordinary thread, frees dropped host and managed memory, unless a hold() is active."""
        if not self._holds:
            self._free(self.pending)

    def settle_all(self) -> None:
        """The same, even if a hold() is active: memory has run out."""
        self.unpin()
        self._free(self.pending)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Suspends settle() inside the block. Nests; threads may overlap."""
        self._holds.append(None)
        try:
            yield
        finally:
            self._holds.pop()

    def _free(self, blocks: deque[Block]) -> None:
        if not blocks or process_ends() or os.getpid() != self._process:
            return
        # An error means that the context is broken or gone, and its memory with it. Its next user gets the error.
        with contextlib.suppress(Exception), self._in_context():
            while True:
                try:
                    block = blocks.popleft()
                except IndexError:  # another thread took the last one
                    return
                with contextlib.suppress(Exception):
                    getattr(self._driver, block.release)(block.address)

    @contextlib.contextmanager
    def _in_context(self) -> Iterator[None]:
        """Makes the context current, in relaxed mode: the frees inside end no graph capture of this thread."""
        self._driver.cuCtxPushCurrent(self._handle)
        try:
            before = self._driver.cuThreadExchangeStreamCaptureMode(self._relaxed)
            try:
                yield
            finally:
                self._driver.cuThreadExchangeStreamCaptureMode(before)
        finally:
            self._driver.cuCtxPopCurrent()

    # --- all of it ---

    def reset(self) -> None:
        """Frees all live memory; later finalizers find their serials gone.

        Memory that cannot be freed goes with the context, or is another process's.
        """
        for serial in list(self._device):
            self._free_device(serial)
        blocks: deque[Block] = deque()
        for serial in list(self._host):
            block = self._host.pop(serial, None)
            if block is not None:
                blocks.append(block)
                self._roots.pop(serial, None)
        for late in (self._pinned, self.pending):
            with contextlib.suppress(IndexError):
                while True:
                    blocks.append(late.popleft())
        self._free(blocks)
