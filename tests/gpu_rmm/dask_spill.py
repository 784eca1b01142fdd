#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dask on all GPUs here: results that are more than the pool may hold are spilled on each worker, and come back intact.

    python3 tests/gpu_rmm/dask_spill.py [--capacity-mib 1024] [--results 24]

A worker process for each GPU, whose results are RMM's buffers of 128 MiB each, under vpmm.dask.PoolPlugin. `vpmm`,
`rmm` and `distributed` must be importable. Ends with 0 if every result has its bytes, and each worker spilled.
"""

# ruff: noqa: ANN401  RMM and distributed have no types

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import vpmm
import vpmm.dask

MIB = 1 << 20
SIZE = 128 * MIB


def make(number: int) -> Any:
    import rmm

    return rmm.DeviceBuffer.to_device(bytes([number % 251]) * SIZE)


def check(number: int, buffer: Any) -> bool:
    return bytes(buffer.tobytes()) == bytes([number % 251]) * SIZE


def figures(dask_worker: Any) -> tuple[int, int]:
    """What the worker's pool mapped at most, and how many of its results are on disk."""
    return vpmm.stats()["peak_mapped_bytes"], len(getattr(dask_worker.data, "disk", ()))


async def spill_on_each_gpu(gpus: int, capacity: int, results: int) -> bool:
    from distributed import Client, Nanny, Scheduler

    # Nothing is spilled because the host's memory is full.
    host = {"memory_limit": "64GiB", "nthreads": 1}
    async with Scheduler(port=0, dashboard_address=":0") as scheduler:
        environments = [{"CUDA_VISIBLE_DEVICES": str(gpu)} for gpu in range(gpus)]
        nannies = [await Nanny(scheduler.address, env=each, **host) for each in environments]
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.register_plugin(vpmm.dask.PoolPlugin(capacity=capacity))
            workers = [nanny.worker_address for nanny in nannies]
            placed = {n: client.submit(make, n, workers=workers[n % gpus], pure=False) for n in range(results)}
            await client.gather([client.submit(lambda _: None, made) for made in placed.values()])
            found = await client.run(figures)
            intact = await client.gather([client.submit(check, n, made) for n, made in placed.items()])
        for nanny in nannies:
            await nanny.close()
    for worker, (peak, on_disk) in found.items():
        print(f"{worker}: {peak // MIB} MiB mapped at most, {on_disk} results on disk")
    print(f"{sum(intact)} of {results} results have their bytes")
    return all(intact) and all(on_disk > 0 and peak <= capacity for peak, on_disk in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity-mib", type=int, default=1024)
    parser.add_argument("--results", type=int, default=24, help="together more than the workers' pools may hold")
    options = parser.parse_args()
    gpus = vpmm.device_count()
    return 0 if asyncio.run(spill_on_each_gpu(gpus, options.capacity_mib * MIB, options.results)) else 1


if __name__ == "__main__":
    sys.exit(main())
