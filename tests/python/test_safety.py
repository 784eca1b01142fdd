# SPDX-License-Identifier: Apache-2.0
"""tests: threads, the garbage collector, exit and fork: no deadlock, no crash, no warning."""

from __future__ import annotations

import gc
import gzip
import tempfile
import threading
import unittest
import weakref

import vpmm

from program import output_of, run

MIB = 1 << 20

# An array as libraries make them: it frees when it is collected.
ARRAY = """
import gc, os, sys, threading, weakref
import vpmm

class Array:
    def __init__(self, pool, size):
        ptr = pool.allocate_any_stream(size)
        weakref.finalize(self, pool.deallocate_deferred, ptr)

pool = vpmm.Pool.default()
"""


class Array:
    def __init__(self, pool: vpmm.Pool, size: int) -> None:
        self.me: Array | None = None
        self.ptr = pool.allocate_any_stream(size)
        weakref.finalize(self, pool.deallocate_deferred, self.ptr)


class GarbageCollection(unittest.TestCase):
    def test_the_collector_may_free_inside_an_allocation(self) -> None:
        pool = vpmm.Pool(capacity=64 * MIB, log="quiet")
        collected = 0

        def collect(device: int, size: int) -> bool:
            nonlocal collected
            collected += gc.collect()
            return collected > 0

        pool.set_out_of_memory_callback(collect)
        for _ in range(50):
            array = Array(pool, 8 * MIB)
            array.me = array  # only the collector ends it
            del array
        pool.set_out_of_memory_callback(None)
        self.assertGreater(pool.statistics()["deallocations"], 0)

    def test_a_pool_lives_as_long_as_finalizers_need_it(self) -> None:
        pool = vpmm.Pool()
        array = Array(pool, 80)
        gone = weakref.ref(pool)
        del pool
        gc.collect()
        self.assertIsNotNone(gone())
        del array
        gc.collect()
        self.assertIsNone(gone())


class Threads(unittest.TestCase):
    def test_threads_share_a_pool(self) -> None:
        pool = vpmm.Pool()
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                live: list[int] = []
                for i in range(2000):
                    size = (i * 7919 + seed * 104729) % (3 * MIB) + 1
                    live.append(pool.allocate_any_stream(size) if i % 2 else pool.allocate(size, 0))
                    if len(live) > 20:
                        ptr = live.pop((i * 31) % len(live))
                        (pool.deallocate_deferred, pool.deallocate_any_stream)[i % 3 == 0](ptr)
                for ptr in live:
                    pool.deallocate_deferred(ptr)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        pool.synchronize()
        self.assertEqual(pool.statistics()["live_allocations"], 0)
        self.assertEqual(pool.statistics()["caller_mistakes"], 0)

    def test_other_threads_run_while_a_call_waits(self) -> None:
        pool = vpmm.Pool(capacity=8 * MIB, log="quiet")
        held = pool.allocate(8 * MIB, 0)
        is_waiting, may_go_on = threading.Event(), threading.Event()

        def spill(device: int, size: int) -> bool:
            is_waiting.set()
            may_go_on.wait(60)
            pool.deallocate(held, 0)
            return True

        pool.set_out_of_memory_callback(spill)
        allocated: list[int] = []
        thread = threading.Thread(target=lambda: allocated.append(pool.allocate(8 * MIB, 0)))
        thread.start()
        self.assertTrue(is_waiting.wait(60))
        self.assertEqual(pool.statistics()["live_allocations"], 1, "no lock is held while the callback runs")
        may_go_on.set()
        thread.join(60)
        self.assertEqual(len(allocated), 1)


class Ending(unittest.TestCase):
    def test_arrays_that_live_until_exit_are_freed_silently(self) -> None:
        self.assertEqual(output_of(ARRAY + "keep = [Array(pool, size) for size in (80, 1 << 20, 8 << 20)]"), "")

    def test_private_pools_and_their_arrays_may_live_until_exit(self) -> None:
        code = "private = vpmm.Pool()\nkeep = Array(private, 80)\nkeep.me = keep\nkeep.pool = private"
        self.assertEqual(output_of(ARRAY + code), "")

    def test_frees_after_the_interpreter_began_to_end_are_silent(self) -> None:
        code = """
import atexit
early = []
atexit.register(early.clear)
early.append(Array(pool, 8 << 20))
sys.late = Array(pool, 8 << 20)
"""
        self.assertEqual(output_of(ARRAY + code), "")

    def test_threads_may_allocate_while_the_process_exits(self) -> None:
        code = """
def work():
    while True:
        Array(pool, 80)
        Array(pool, 8 << 20)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
"""
        self.assertEqual(output_of(ARRAY + code), "")

    def test_a_recording_that_is_not_stopped_is_finished(self) -> None:
        code = """
vpmm.record(os.environ["TRACE"])
pool.allocate(12345, 0)
"""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace.csv.gz"
            output_of(ARRAY + code, TRACE=path)
            with gzip.open(path, "rt") as file:
                self.assertIn("12345", file.read())


class Fork(unittest.TestCase):
    def test_in_a_child_frees_do_nothing_and_allocations_are_errors(self) -> None:
        code = """
array = Array(pool, 80)
child = os.fork()
if child == 0:
    del array
    pool.deallocate_deferred(0x1000)
    pool.deallocate(0x1000, 0)
    pool.deallocate_any_stream(0x1000)
    pool.defer_cleanup_begin()
    pool.defer_cleanup_end()
    try:
        pool.allocate_any_stream(80)
    except vpmm.Error as error:
        assert error.code == "VPMM_ERROR_PROCESS_ENDING", error
        try:
            vpmm.Pool.default().memory_info()
        except vpmm.Error as error:
            assert error.code == "VPMM_ERROR_PROCESS_ENDING", error
            sys.exit(7)
    sys.exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert vpmm.stats()["live_allocations"] == 1
assert vpmm.stats()["caller_mistakes"] == 0
"""
        self.assertEqual(output_of(ARRAY + code), "")

    def test_a_child_of_a_process_with_busy_threads_ends(self) -> None:
        code = """
def work():
    while not stop:
        Array(pool, 80)
        Array(pool, 8 << 20)
stop = False
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            Array(pool, 80)
        except vpmm.Error:
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
stop = True
for thread in threads: thread.join()
"""
        # Newer Pythons warn of any fork beside threads; that is what is tested.
        self.assertEqual(output_of("import warnings; warnings.simplefilter('ignore')\n" + ARRAY + code), "")


class Children(unittest.TestCase):
    def test_only_the_first_process_maps_pages_ahead(self) -> None:
        code = """
import os, subprocess, sys, vpmm
pool = vpmm.Pool(0) if 'private' in sys.argv else vpmm.Pool.default()
pool.deallocate_deferred(pool.allocate_any_stream(80))
print(pool.statistics()['mapped_bytes'] >> 20, flush=True)
if 'child' not in sys.argv:
    for environment in (None, dict(os.environ)):
        subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[1], 'child'], env=environment, check=True)
"""
        for kind in ("default", "private"):
            with self.subTest(kind=kind):
                done = run("-c", code, code, kind, VPMM_PAGES="7")
                self.assertEqual((done.stdout, done.stderr), ("14\n8\n8\n", ""))


if __name__ == "__main__":
    unittest.main()
