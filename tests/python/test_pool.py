# SPDX-License-Identifier: Apache-2.0
"""tests: the class Pool: every operation, on the simulator."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import re
import tempfile
import unittest
import weakref
from collections.abc import Iterator
from pathlib import Path

import vpmm

MIB = 1 << 20


class PoolTest(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool()

    @contextlib.contextmanager
    def error(self, code: str, words: str) -> Iterator[None]:
        with self.assertRaisesRegex(vpmm.Error, words) as caught:
            yield
        self.assertEqual(caught.exception.code, code)


class Allocating(PoolTest):
    def test_memory_comes_and_goes_on_a_stream(self) -> None:
        small, large = self.pool.allocate(100, 0), self.pool.allocate(5 * MIB, 0)
        self.assertEqual(small % 256, 0)
        self.assertEqual(self.pool.statistics()["live_bytes"], 100 + 5 * MIB)
        self.pool.deallocate(small, 0)
        self.pool.deallocate(large, stream=0)
        self.assertEqual(self.pool.statistics()["live_allocations"], 0)

    def test_any_stream_memory_is_used_again_when_it_is_complete(self) -> None:
        first = self.pool.allocate_any_stream(64 * MIB)
        self.pool.deallocate_any_stream(first)
        self.pool.synchronize()
        self.assertEqual(self.pool.allocate_any_stream(64 * MIB), first)

    def test_zero_bytes_are_address_zero_which_every_free_takes(self) -> None:
        self.assertEqual(self.pool.allocate(0, 0), 0)
        self.assertEqual(self.pool.allocate_any_stream(0), 0)
        self.pool.deallocate(0, 0)
        self.pool.deallocate_any_stream(0)
        self.pool.deallocate_deferred(0)
        self.pool.record_use(0, 0)
        self.assertEqual(self.pool.usable_size(0), 0)
        self.assertEqual(self.pool.statistics()["deallocations"], 0)

    def test_alignment_is_as_asked(self) -> None:
        for alignment in (512, 4 * MIB):
            self.assertEqual(self.pool.allocate(3 * MIB, 0, alignment) % alignment, 0)
            self.assertEqual(self.pool.allocate_any_stream(3 * MIB, alignment=alignment) % alignment, 0)

    def test_a_deferred_free_is_carried_out_by_a_later_call(self) -> None:
        ptr = self.pool.allocate_any_stream(64 * MIB)
        self.pool.deallocate_deferred(ptr)
        self.assertEqual(self.pool.statistics()["live_allocations"], 1)
        self.pool.synchronize()
        self.assertEqual(self.pool.statistics()["live_allocations"], 0)

    def test_a_loop_of_deferred_frees_stays_small(self) -> None:
        for size in (80, MIB, 8 * MIB):
            for _ in range(1000):
                self.pool.deallocate_deferred(self.pool.allocate_any_stream(size))
        self.assertLessEqual(self.pool.statistics()["peak_mapped_bytes"], 200 * MIB)

    def test_a_mistaken_deferred_free_is_counted_and_not_reported(self) -> None:
        self.pool.allocate(1, 0)
        self.pool.deallocate_deferred(0x1000)
        self.pool.synchronize()
        self.assertEqual(self.pool.statistics()["caller_mistakes"], 1)

    def test_many_come_and_go_at_once(self) -> None:
        ptrs = self.pool.allocate_many([100, 0, 3 * MIB], 0)
        self.assertEqual((len(ptrs), ptrs[1]), (3, 0))
        self.assertEqual(self.pool.statistics()["live_allocations"], 2)
        self.pool.deallocate_many(ptrs, 0)
        self.assertEqual(self.pool.statistics()["live_allocations"], 0)

    def test_mistakes_are_errors_that_name_what_was_wrong(self) -> None:
        with self.error("VPMM_ERROR_INVALID_ARGUMENT", "alignment 384"):
            self.pool.allocate(100, 0, 384)
        with self.error("VPMM_ERROR_INVALID_POINTER", "0x4200"):
            self.pool.deallocate(0x4200, 0)
        with self.error("VPMM_ERROR_INVALID_POINTER", "0x4200"):
            self.pool.record_use(0x4200, 0)
        with self.error("VPMM_ERROR_OUT_OF_MEMORY", "more than the GPU has"):
            self.pool.allocate_any_stream(1 << 60)

    def test_an_address_inside_is_found(self) -> None:
        ptr = self.pool.allocate(3 * MIB, 0)
        found = self.pool.query(ptr + 5)
        self.assertEqual((found.begin, found.requested), (ptr, 3 * MIB))
        self.assertEqual(found.usable, self.pool.usable_size(ptr))
        self.assertGreaterEqual(found.usable, 3 * MIB)

    def test_memory_that_another_stream_uses_waits_for_it(self) -> None:
        ptr = self.pool.allocate(64 * MIB, 1)
        self.pool.record_use(ptr, 2)
        self.pool.deallocate(ptr, 1)
        self.assertGreater(self.pool.statistics()["pending_bytes"], 0)


class OutOfMemory(PoolTest):
    def setUp(self) -> None:
        self.pool = vpmm.Pool(capacity=16 * MIB, log="quiet")

    def test_it_is_a_memory_error_with_a_report(self) -> None:
        first_line = "asked for 64 MiB; 48 MiB are missing; live 0 bytes, free 0 bytes, limit 16 MiB"
        with self.assertRaisesRegex(MemoryError, first_line) as caught:
            self.pool.allocate_any_stream(64 * MIB)
        self.assertIsInstance(caught.exception, vpmm.OutOfMemoryError)
        self.assertIsInstance(caught.exception, RuntimeError)
        self.assertEqual(caught.exception.code, "VPMM_ERROR_OUT_OF_MEMORY")
        self.assertIsNone(caught.exception.__cause__)

    def test_the_callback_may_free_memory_and_have_it_tried_again(self) -> None:
        held = [self.pool.allocate(12 * MIB, 0)]
        asked = []

        def spill(device: int, size: int) -> bool:
            asked.append((device, size))
            if not held:
                return False
            self.pool.deallocate(held.pop(), 0)
            return True

        self.pool.set_out_of_memory_callback(spill)
        self.assertNotEqual(self.pool.allocate(12 * MIB, 0), 0)
        self.assertEqual(asked, [(0, 12 * MIB)])
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.pool.allocate(12 * MIB, 0)
        self.pool.set_out_of_memory_callback(None)
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.pool.allocate(12 * MIB, 0)
        self.assertEqual(len(asked), 2)

    def test_what_the_callback_raises_is_the_cause(self) -> None:
        def fail(device: int, size: int) -> bool:
            raise ValueError(f"{device} {size}")

        self.pool.set_out_of_memory_callback(fail)
        with self.assertRaises(vpmm.OutOfMemoryError) as caught:
            self.pool.allocate(64 * MIB, 0)
        self.assertIsInstance(caught.exception.__cause__, ValueError)
        self.assertEqual(str(caught.exception.__cause__), f"0 {64 * MIB}")
        self.pool.set_out_of_memory_callback(lambda device, size: False)
        with self.assertRaises(vpmm.OutOfMemoryError) as caught:
            self.pool.allocate(64 * MIB, 0)
        self.assertIsNone(caught.exception.__cause__, "of an earlier call")

    def test_an_interrupt_in_the_callback_goes_on(self) -> None:
        def interrupt(device: int, size: int) -> bool:
            raise KeyboardInterrupt

        self.pool.set_out_of_memory_callback(interrupt)
        with self.assertRaises(KeyboardInterrupt):
            self.pool.allocate_any_stream(64 * MIB)

    def test_a_callback_that_refers_to_its_private_pool_keeps_nothing_alive(self) -> None:
        def begin() -> weakref.ref[vpmm.Pool]:
            pool = vpmm.Pool(capacity=16 * MIB)
            pool.set_out_of_memory_callback(lambda device, size: pool.trim() > 0)
            return weakref.ref(pool)

        gone = begin()
        gc.collect()
        self.assertIsNone(gone())

    def test_what_a_callback_raised_in_a_call_of_others_is_no_cause_later(self) -> None:
        def interrupt(device: int, size: int) -> bool:
            raise KeyboardInterrupt

        pool = vpmm.Pool.default(0)
        pool.synchronize()
        pool.trim()  # what other tests left idle
        pool.set_capacity(16 * MIB)
        self.addCleanup(pool.set_capacity, None)
        pool.set_out_of_memory_callback(interrupt)
        self.addCleanup(pool.set_out_of_memory_callback, None)
        library = ctypes.CDLL(str(next(Path(vpmm.__file__).parent.glob("libvpmm.so*"))))
        handle, memory = ctypes.c_void_p(), ctypes.c_void_p()
        self.assertEqual(library.vpmm_default_pool(0, ctypes.byref(handle)), 0)
        allocate = library.vpmm_allocate
        allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        self.assertNotEqual(allocate(handle, 64 * MIB, None, ctypes.byref(memory)), 0)
        with self.error("VPMM_ERROR_INVALID_POINTER", "12345|0x3039"):
            pool.query(12345)

    def test_a_callback_may_replace_itself(self) -> None:
        def once(device: int, size: int) -> bool:
            self.pool.set_out_of_memory_callback(None)
            gc.collect()
            return True

        self.pool.set_out_of_memory_callback(once)
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.pool.allocate(64 * MIB, 0)


class Trapped(unittest.TestCase):
    def test_half_of_large_chunks_is_trapped_and_less_of_small_ones(self) -> None:
        for settings, trapped_gib in ({}, 68), ({"prefer": "footprint"}, 68), ({"chunk_max": 2 * MIB}, 10):
            with self.subTest(settings=settings), contextlib.ExitStack() as stack:
                pool = vpmm.Pool(0, **settings)
                stack.callback(pool.close, discard=True)
                for ptr in [pool.allocate(4096 * MIB, 0) for _ in range(34)]:
                    pool.deallocate(ptr, 0)
                pieces = [pool.allocate(16 * MIB, 0) for _ in range(34 * 256)]
                for ptr in pieces[::2]:
                    pool.deallocate(ptr, 0)
                self.assertEqual(pool.statistics()["trapped_bytes"], trapped_gib << 30)
                if trapped_gib == 10:
                    pool.allocate(4096 * MIB, 0)
                    continue
                with self.assertRaisesRegex(vpmm.OutOfMemoryError, "VPMM_CHUNK_MAX, down to 2MiB: 68 GiB are trapped"):
                    pool.allocate(4096 * MIB, 0)


class Limits(PoolTest):
    def test_idle_memory_can_be_given_back(self) -> None:
        self.pool.preallocate(32 * MIB)
        self.assertGreaterEqual(self.pool.statistics()["mapped_bytes"], 32 * MIB)
        self.assertGreaterEqual(self.pool.trim(), 32 * MIB)
        self.assertEqual(self.pool.statistics()["mapped_bytes"], 0)

    def test_capacity_can_change(self) -> None:
        self.pool.set_capacity(4 * MIB)
        self.assertEqual(self.pool.get_capacity(), 4 * MIB)
        with self.assertRaises(MemoryError):
            self.pool.allocate(64 * MIB, 0)
        self.pool.set_capacity(None)
        self.assertIsNone(self.pool.get_capacity())
        self.pool.allocate(64 * MIB, 0)

    def test_access_for_another_device_names_what_is_wrong(self) -> None:
        self.pool.set_peer_access(0)
        with self.error("VPMM_ERROR_INVALID_ARGUMENT", "device 7 does not exist"):
            self.pool.set_peer_access(device=7)

    def test_cleaning_up_is_put_off_between_begin_and_end(self) -> None:
        pool = vpmm.Pool(release_threshold=0)
        pool.defer_cleanup_begin()
        pool.deallocate(pool.allocate(8 * MIB, 0), 0)
        pool.synchronize()
        pool.deallocate(pool.allocate(8 * MIB, 0), 0)
        self.assertEqual(pool.statistics()["chunks_released"], 0)
        pool.defer_cleanup_end()
        with self.error("VPMM_ERROR_INVALID_ARGUMENT", "defer_cleanup_begin"):
            pool.defer_cleanup_end()

    def test_captures_pair(self) -> None:
        self.pool.capture_begin()
        self.pool.capture_end()
        with self.error("VPMM_ERROR_INVALID_ARGUMENT", "capture_end without"):
            self.pool.capture_end()

    def test_allocations_survive_a_reset(self) -> None:
        ptr = self.pool.allocate_any_stream(64 * MIB)
        self.pool.reset()
        self.assertEqual(self.pool.query(ptr).begin, ptr)
        self.pool.deallocate_any_stream(ptr)


class Observing(PoolTest):
    def test_statistics_are_those_of_the_reference_in_its_order(self) -> None:
        reference = Path(__file__).resolve().parents[2] / "docs/reference/statistics.md"
        rows = re.findall(r"^\| `(\w+)` \|", reference.read_text(), re.MULTILINE)
        sums = ["by_tag", "by_library"]
        self.assertEqual(list(self.pool.statistics()), rows + sums)
        self.assertEqual(list(vpmm.Stats.__annotations__), rows + sums)
        for name in sums:
            self.assertIn(f"- `{name}`", reference.read_text())

    def test_free_memory_counts_what_the_pool_could_hand_out_again(self) -> None:
        free, total = self.pool.memory_info()
        self.assertLessEqual(free, total)
        ptr = self.pool.allocate_any_stream(64 * MIB)
        self.assertLessEqual(self.pool.memory_info()[0], free - 64 * MIB)
        self.pool.deallocate_any_stream(ptr)
        self.assertEqual(self.pool.memory_info()[0], free)
        self.assertGreaterEqual(self.pool.statistics()["mapped_bytes"], 64 * MIB, "nothing was given back")

    def test_peaks_can_begin_anew(self) -> None:
        self.pool.deallocate(self.pool.allocate(64 * MIB, 0), 0)
        self.pool.reset_peaks()
        self.assertEqual(self.pool.statistics()["peak_live_bytes"], 0)

    def test_a_dump_is_text_or_json(self) -> None:
        self.pool.allocate(3 * MIB, 0)
        self.assertIn("live_bytes", self.pool.dump())
        self.assertIn("statistics", json.loads(self.pool.dump(json=True)))

    def test_a_snapshot_lists_regions_in_ascending_order(self) -> None:
        live = [self.pool.allocate(4 * MIB, stream) for stream in (1, 2) for _ in range(70)]
        for ptr in live[::2]:
            self.pool.deallocate(ptr, 1)
        regions = self.pool.snapshot()
        self.assertGreater(len(regions), 64)
        self.assertEqual(sorted(region.begin for region in regions), [region.begin for region in regions])
        allocated = {region.begin for region in regions if region.state == "allocated"}
        self.assertLessEqual(set(live[1::2]), allocated)
        self.assertEqual({region.state for region in regions} - {"allocated", "free", "hole"}, set())
        self.assertTrue(all(region.requested == 4 * MIB for region in regions if region.begin in live[1::2]))

    def test_a_recording_is_written_and_its_mistakes_are_errors(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.csv.gz")
            self.pool.record_start(str(path))
            self.pool.deallocate(self.pool.allocate(3 * MIB, 0), 0)
            with self.error("VPMM_ERROR_INVALID_ARGUMENT", "running already"):
                self.pool.record_start(str(path))
            self.pool.record_stop()
            self.assertGreater(path.stat().st_size, 0)
        with self.error("VPMM_ERROR_BAD_FILE", "/no/such/folder"):
            self.pool.record_start("/no/such/folder/trace.csv.gz")


class Identity(PoolTest):
    def test_the_default_pool_of_a_device_is_one(self) -> None:
        ptr = vpmm.Pool.default(0).allocate_any_stream(3 * MIB)
        self.assertEqual(vpmm.Pool.default().query(ptr).begin, ptr)
        vpmm.Pool.default().deallocate_any_stream(ptr)
        self.assertFalse(vpmm.Pool.default().is_private)

    def test_a_private_pool_is_its_own(self) -> None:
        ptr = self.pool.allocate_any_stream(3 * MIB)
        self.assertTrue(self.pool.is_private)
        self.assertEqual(self.pool.device, 0)
        with self.error("VPMM_ERROR_INVALID_POINTER", "not inside a live allocation"):
            vpmm.Pool.default().query(ptr)


if __name__ == "__main__":
    unittest.main()
