# SPDX-License-Identifier: Apache-2.0
# vpmm: a plugin for Dask's workers: they allocate from the pool and spill results when memory runs out.

"""``client.register_plugin(vpmm.dask.PoolPlugin())`` opens the pool on every worker (docs/guides/rmm.md)."""

# ruff: noqa: ANN401  workers and what they keep have no type here

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import vpmm
from vpmm._vpmm import Pool
from vpmm.errors import MissingPackageError

try:
    from distributed import WorkerPlugin
except ModuleNotFoundError as error:
    raise MissingPackageError("vpmm.dask", "distributed", error) from error

__all__ = ["PoolPlugin", "spill_oldest"]


def spill_oldest(worker: Any, size: int) -> bool:
    """Moves the worker's least recently used result out of device memory, through the worker's result store.

    The store is dask-cuda's ``DeviceHostFile``, created with a ``device_memory_limit``, which moves the result to the
    host, or Dask's own ``SpillBuffer``, which writes it to disk. Returns False if no result is left or the store cannot
    move one. `size`, the number of missing bytes, is ignored: if one result is not enough, the pool asks again.
    """
    del size
    results = worker.data
    device = getattr(results, "device_buffer", None)  # dask-cuda's; its other results are in host memory
    try:
        if device is None:
            evict = getattr(results, "evict", None)
            return evict is not None and evict() >= 0
        newest = getattr(device, "fast", None)
        if newest is None:
            return False
        newest.evict()
        return True
    except KeyError:  # none is left, or another thread has just moved the last
        return False


class PoolPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types in some versions
    """The process-wide pool on each worker of a cluster, for RMM and every other user of the pool.

    When memory runs out for any user, the pool has the worker spill results until the request fits; only then does the
    request fail. Spilling runs on the requesting thread, without a lock of the pool.
    """

    name = "vpmm"

    def __init__(
        self,
        *,
        device: int = 0,
        rmm: bool | None = None,
        spill: Callable[[Any, int], bool] | None = spill_oldest,
        **settings: Any,
    ) -> None:
        """`device` is the ordinal of the worker's GPU in its process: 0 under dask-cuda.

        `rmm` True makes RMM use the pools, too; None: if RMM is installed. `spill(worker, bytes)` frees memory and
        returns whether it did; None: nothing is spilled. `settings` are those of ``vpmm.configure``.
        """
        self._device = device
        self._rmm = rmm
        self._spill = spill
        self._settings = settings
        self._spilling: threading.local | None = None  # set in setup(), because it cannot be pickled

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker. Raises vpmm.Error if the pool is open with other settings."""
        pool = vpmm.configure(self._device, **self._settings) if self._settings else Pool.default(self._device)
        if self._rmm or (self._rmm is None and importlib.util.find_spec("rmm") is not None):
            vpmm.use_for_rmm()
        if self._spill is not None:
            self._spilling = threading.local()
            pool.set_out_of_memory_callback(lambda device, size: self._free(worker, size))

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker closes or the plugin is removed; the pool stays open."""
        del worker
        if self._spilling is not None:
            Pool.default(self._device).set_out_of_memory_callback(None)

    def _free(self, worker: Any, size: int) -> bool:
        # Moving a result may itself need memory. If that request fails, moving another result would not help it.
        if self._spill is None or self._spilling is None or getattr(self._spilling, "is_active", False):
            return False
        self._spilling.is_active = True
        try:
            return self._spill(worker, size)
        finally:
            self._spilling.is_active = False
