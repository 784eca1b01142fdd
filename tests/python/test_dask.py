# SPDX-License-Identifier: Apache-2.0
"""tests: Dask's workers on the pool, which spill results when memory runs out, with CPU workers on the simulator."""

from __future__ import annotations

import importlib.util
import tempfile
import unittest

from program import output_of

ABSENT = "" if importlib.util.find_spec("distributed") else "distributed not installed"
BEGIN = """
import warnings
warnings.simplefilter("ignore")
import logging
logging.disable(logging.CRITICAL)  # what fails is meant to
import dask, distributed
import vpmm, vpmm.dask
MIB = 1 << 20
class Array:
    def __init__(self, number, size=4 * MIB):
        self.number, self.size = number, size
        self.pool = vpmm.Pool.default(0)
        self.pointer = self.pool.allocate(size, 0)
    def __reduce__(self):
        return Array, (self.number, self.size)
    def __del__(self):
        if hasattr(self, "pointer"):
            self.pool.deallocate(self.pointer, 0)
def cluster(plugin):
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    made = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, memory_limit="4GiB"
    )
    client = distributed.Client(made)
    client.register_plugin(plugin)
    return client
"""
END = "\nclient.cluster.close()\nclient.close()\n"


@unittest.skipIf(ABSENT, ABSENT)
class Workers(unittest.TestCase):
    def output(self, code: str) -> str:
        return output_of(BEGIN + code + END)

    def test_results_that_do_not_fit_are_spilled_and_come_back(self) -> None:
        code = """
client = cluster(vpmm.dask.PoolPlugin(rmm=False, capacity=17 * MIB))
arrays = [client.submit(Array, number, pure=False) for number in range(12)]
distributed.wait(arrays)
print({array.status for array in arrays}, vpmm.stats()["live_allocations"] <= 4)
def read(array):
    return array.number
print([client.submit(read, array).result() for array in arrays])
"""
        self.assertEqual(self.output(code), f"{{'finished'}} True\n{list(range(12))}\n")

    def test_what_fits_not_even_then_fails_with_the_pools_report(self) -> None:
        code = """
client = cluster(vpmm.dask.PoolPlugin(rmm=False, capacity=17 * MIB))
kept = [client.submit(Array, number, pure=False) for number in range(3)]
distributed.wait(kept)
try:
    client.submit(Array, 0, 64 * MIB).result()
except MemoryError as error:
    print("asked for 64 MiB" in str(error), vpmm.stats()["live_allocations"])
"""
        self.assertEqual(self.output(code), "True 0\n")

    def test_a_spill_of_the_programs_is_asked_with_the_worker_and_the_bytes(self) -> None:
        code = """
asked = []
def spill(worker, size):
    asked.append((type(worker).__name__, size >= 64 * MIB))
    return len(asked) < 3
plugin = vpmm.dask.PoolPlugin(rmm=False, spill=spill, capacity=17 * MIB)
client = cluster(vpmm.dask.PoolPlugin(rmm=False, spill=None, capacity=17 * MIB))
plugin.setup(next(iter(client.cluster.workers.values())))
try:
    vpmm.Pool.default(0).allocate(64 * MIB, 0)
except MemoryError:
    print(asked)
plugin.teardown(None)
try:
    vpmm.Pool.default(0).allocate(64 * MIB, 0)
except MemoryError:
    print(len(asked))
"""
        self.assertEqual(self.output(code), f"{[('Worker', True)] * 3}\n3\n")

    def test_spilling_that_needs_memory_itself_is_not_asked_again(self) -> None:
        code = """
calls = []
def spill(worker, size):
    calls.append(size)
    try:
        vpmm.Pool.default(0).allocate(64 * MIB, 0)
    except MemoryError:
        calls.append("failed inside")
    return False
plugin = vpmm.dask.PoolPlugin(rmm=False, spill=spill, capacity=17 * MIB)
plugin.setup(None)
try:
    vpmm.Pool.default(0).allocate(32 * MIB, 0)
except MemoryError:
    print(len(calls), calls[1:])
client = cluster(vpmm.dask.PoolPlugin(rmm=False, spill=None))
"""
        self.assertEqual(self.output(code), "2 ['failed inside']\n")


class Results:
    """What dask-cuda keeps results in, as far as the plugin uses it."""


@unittest.skipIf(ABSENT, ABSENT)
class SpillOldest(unittest.TestCase):
    def worker(self, results: object) -> object:
        worker = Results()
        worker.data = results  # type: ignore[attr-defined]
        return worker

    def test_device_memory_of_dask_cuda_goes_to_the_host_until_none_is_left(self) -> None:
        import zict

        from vpmm.dask import spill_oldest

        results = Results()
        host: dict[str, int] = {}
        results.device_buffer = zict.Buffer({}, host, n=100)  # type: ignore[attr-defined]
        results.device_buffer.update(first=1, second=2)  # type: ignore[attr-defined]
        worker = self.worker(results)
        self.assertTrue(spill_oldest(worker, 1))
        self.assertEqual(host, {"first": 1})
        self.assertTrue(spill_oldest(worker, 1))
        self.assertFalse(spill_oldest(worker, 1))

    def test_results_of_dasks_own_buffer_go_to_disk_until_none_is_left(self) -> None:
        from distributed.spill import SpillBuffer

        from vpmm.dask import spill_oldest

        with tempfile.TemporaryDirectory() as folder:
            results = SpillBuffer(folder, target=1 << 20)
            results["first"] = 1
            worker = self.worker(results)
            self.assertTrue(spill_oldest(worker, 1))
            self.assertEqual(list(results.slow), ["first"])
            self.assertFalse(spill_oldest(worker, 1))

    def test_without_a_limit_of_device_memory_nothing_can_be_moved(self) -> None:
        from vpmm.dask import spill_oldest

        results = Results()
        results.device_buffer = {"first": 1}  # type: ignore[attr-defined]
        self.assertFalse(spill_oldest(self.worker(results), 1))
        self.assertFalse(spill_oldest(self.worker({"first": 1}), 1))


if __name__ == "__main__":
    unittest.main()
