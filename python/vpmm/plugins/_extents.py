# SPDX-License-Identifier: Apache-2.0
# plugins: answers Numba's queries for the start and size of an allocation.

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import vpmm
from vpmm._vpmm import Pool

_CALL = "cuMemGetAddressRange"


class Extents:
    """Answers cuMemGetAddressRange for a pool's memory, in place of a Numba's driver object, while there are holders.

    Numba asks for the size of a device array, for example to fill all of it. For mapped memory the driver knows only
    the mapping, which is a chunk of the pool: it may be smaller than the allocation, or hold others. Queries for other
    memory go to the driver, and so do all queries that do not use that object.
    """

    def __init__(self, target: Any) -> None:  # noqa: ANN401
        """`target` is a Numba's module cudadrv.driver."""
        self._target = target
        self._lock = threading.RLock()  # the collector may run a reset inside
        self._holders: dict[int, tuple[Pool, Any]] = {}  # by id, with the finalizer of those that die without release()
        self._original: Any = None
        self._is_in_place = False  # or another function covers ours and may call it

    def hold(self, holder: object, pool: Pool) -> None:
        """Queries `pool` first from now on; a second call by the same holder changes nothing."""
        with self._lock:
            if not self._is_in_place:
                self._original = getattr(self._target.driver, _CALL)
                setattr(self._target.driver, _CALL, self._answer)
                self._is_in_place = True
            if id(holder) not in self._holders:
                at_death = weakref.finalize(holder, self._release, id(holder))
                at_death.atexit = False
                self._holders[id(holder)] = pool, at_death

    def release(self, holder: object) -> None:
        """Restores the driver object's own function after the last holder's release or death.

        If another function covers ours by then, both stay, and ours passes everything on.
        """
        self._release(id(holder))

    def _release(self, holder: int) -> None:
        with self._lock:
            _, at_death = self._holders.pop(holder, (None, None))
            if at_death is None:
                return
            at_death.detach()
            if not self._holders and vars(self._target.driver).get(_CALL) == self._answer:
                setattr(self._target.driver, _CALL, self._original)
                self._is_in_place = False

    def _answer(self, pointer: Any) -> tuple[Any, int]:  # noqa: ANN401
        for pool in {pool.device: pool for pool, _ in list(self._holders.values())}.values():
            with contextlib.suppress(vpmm.Error):
                found = pool.query(int(pointer))
                return self._target.binding.CUdeviceptr(found.begin), found.requested
        original: tuple[Any, int] = self._original(pointer)
        return original
