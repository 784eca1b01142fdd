# plugins: what Numba is told when it asks the driver where an allocation begins and how large it is.

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import vpmm
from vpmm._vpmm import Pool

_CALL = "cuMemGetAddressRange"


class Extents:
    """Answers cuMemGetAddressRange for a pool's memory, in place of a Numba's driver object, while somebody holds it.

    Numba asks it for the size of a device array, for one in order to fill all of it. Of memory that is mapped the
    driver knows the mapping alone, which is a chunk of the pool: others' allocations, and less than a large one. What
    is no pool's goes to the driver, as does the question of anybody who does not ask through that object.
    """

    def __init__(self, target: Any) -> None:  # noqa: ANN401
        """`target` is the module cudadrv.driver of a Numba."""
        self._target = target
        self._lock = threading.RLock()  # the collector may run a reset inside
        self._holders: dict[int, tuple[Pool, Any]] = {}  # by id, with the finalizer of those that die without release()
        self._original: Any = None
        self._is_in_place = False  # or somebody has put a function over ours that may call it

    def hold(self, holder: object, pool: Pool) -> None:
        """From now on `pool` is asked first; again by the same holder, nothing changes."""
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
        """After the last holder's, or its death, the driver object has its own function again.

        A function that somebody has put over ours meanwhile stays, and ours beneath it, which passes everything on.
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
