# SPDX-License-Identifier: Apache-2.0
"""tests: what libraries add to PyTorch's allocator in C++, on VPMM: trackers of its events, callbacks for shortages.

What is attached here stays for the rest of the process, so this file comes last in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import unittest

from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

if not ABSENT:
    import probe
    import torch
    from torch.cuda import _gpu_trace


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def overlap(at: int, size: int, begin: int, length: int) -> int:
    return max(0, min(at + size, begin + length) - max(at, begin))


class ProbeCase(VpmmCase):
    def setUp(self) -> None:
        self.probe = probe.load()
        self.addCleanup(self.probe.refuse_nothing)
        super().setUp()


class Shortages(ProbeCase):
    def test_a_callback_that_frees_memory_is_asked_and_the_request_is_met(self) -> None:
        self.probe.hold(300 * MIB)
        self.limit(400 * MIB)
        self.assertEqual(empty(200 * MIB).numel(), 200 * MIB)
        self.assertEqual((self.probe.shortages(), self.allocated()), (1, 0))

    def test_a_callback_that_frees_too_little_does_not_help_and_the_error_is_of_afterwards(self) -> None:
        before = self.probe.shortages()
        self.probe.hold(10 * MIB)
        self.limit(64 * MIB)
        kept = empty(30 * MIB)
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            empty(50 * MIB)
        self.assertEqual((self.probe.shortages(), self.allocated()), (before + 1, 30 * MIB))
        live = re.search(r"; live ([\d.]+) MiB", str(caught.exception))
        self.assertIsNotNone(live, str(caught.exception))
        self.assertAlmostEqual(float(live[1]), vpmm.stats()["live_bytes"] / MIB, delta=0.1)
        del kept


class Caches(ProbeCase):
    def test_one_memory_pool_gives_its_idle_memory_back_and_others_keep_theirs(self) -> None:
        pools = [torch.cuda.MemPool() for _ in range(2)]
        for pool in pools:
            with torch.cuda.use_mem_pool(pool):
                empty(6 * MIB)
        self.probe.empty_cache((0, 1 << 40))  # there is none
        self.probe.empty_cache(pools[0].id)
        self.assertEqual([sum(s["total_size"] for s in pool.snapshot()) for pool in pools], [0, 6 * MIB])

    def test_an_exception_where_one_memory_pool_gives_memory_back_is_a_warning(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            empty(6 * MIB)
        self.probe.refuse("segment_free")
        self.probe.empty_cache(pool.id)  # destructors of memory pools call it
        self.assertIn("a tracker of memory events failed: the tracker refuses it", self.probe.warning())
        self.assertEqual(pool.snapshot(), [])

    def test_a_memory_pool_that_is_over_has_no_users(self) -> None:
        pool = torch.cuda.MemPool()
        pool_id = pool.id
        self.assertEqual(self.probe.users(pool_id), 1)
        del pool
        self.assertEqual(self.probe.users(pool_id), 0)

    def test_segments_of_memory_pools_have_the_order_of_their_making_and_others_none(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            made = [empty(4 * MIB) for _ in range(3)]
        first = self.probe.order(made[0].data_ptr())
        self.assertGreater(first, 0)
        self.assertEqual([self.probe.order(tensor.data_ptr()) - first for tensor in made], [0, 1, 2])
        empty(20 * MIB)
        others = [s["address"] for s in torch.cuda.memory_snapshot() if s["is_expandable"]]
        self.assertEqual({self.probe.order(address) for address in others}, {0})

    def test_expandable_segments_are_those_of_the_snapshot_in_no_memory_pool(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            kept = [empty(6 * MIB)]
        kept += [empty(1000), empty(20 * MIB)]
        found = {"small": 0, "large": 0}
        for segment in torch.cuda.memory_snapshot():
            found[segment["segment_type"]] += segment["total_size"] if segment["is_expandable"] else 0
        self.assertEqual(self.probe.expandable(), found)
        self.assertTrue(all(found.values()))

    def test_the_largest_request_without_new_memory_is_that_of_the_pool_and_any_that_of_the_device(self) -> None:
        kept = empty(MIB)
        empty(64 * MIB)
        largest = self.probe.largest(1)
        self.assertTrue(64 * MIB <= largest <= torch.cuda.memory_reserved(), largest)
        self.assertEqual(self.probe.largest(1 << 45), 1 << 45)
        self.assertGreater(self.probe.largest(0), torch.cuda.memory_reserved())
        del kept


class Peers(ProbeCase):
    def test_access_is_given_once_or_twice_and_an_error_of_cuda_is_the_programs(self) -> None:
        if torch.cuda.device_count() > 1:
            self.assertEqual([self.probe.peer(1, 0) for _ in range(2)], ["", ""])
            enable = ctypes.CDLL("libcudart.so.13").cudaDeviceEnablePeerAccess
            with torch.cuda.device(1):
                self.assertEqual(enable(0, 0), 704)  # it is enabled already, for memory of cudaMalloc
                self.assertEqual(torch.cuda.current_device(), 1)
            ctypes.CDLL("libcudart.so.13").cudaGetLastError()
        self.assertIn("CUDA error", self.probe.peer(0, 0))


class Compiling(ProbeCase):
    def test_the_end_of_a_context_that_never_began_does_nothing(self) -> None:
        self.probe.pop_compile_context()


class Trackers(ProbeCase):
    def test_they_hear_of_mapped_memory_before_what_lies_in_it(self) -> None:
        self.probe.listen()
        tensor = empty(64 * MIB)
        begin = tensor.data_ptr()
        del tensor
        torch.cuda.empty_cache()
        events = self.probe.events()
        where = [action for action, *_ in events]
        allocation = where.index("alloc")
        self.assertEqual(events[allocation], ("alloc", begin, 64 * MIB, (0, 0)))
        mapped = [(at, size) for action, at, size, _ in events[:allocation] if action == "segment_map"]
        seen = sum(overlap(at, size, begin, 64 * MIB) for at, size in mapped)
        self.assertGreater(seen, 0, "what was not mapped before")
        self.assertEqual(where[allocation + 1 : allocation + 3], ["free_requested", "free_completed"])
        unmapped = [(at, size) for action, at, size, _ in events[allocation:] if action == "segment_unmap"]
        self.assertLessEqual(set(mapped), set(unmapped))

    def test_they_hear_on_after_the_end_of_a_history(self) -> None:
        torch.cuda.memory._record_memory_history(context=None)
        torch.cuda.memory._record_memory_history(None)
        self.probe.listen()
        empty(1000)
        self.assertEqual([what for what, *_ in self.probe.events() if what == "alloc"], ["alloc"])

    def test_without_a_history_no_stack_is_taken_for_them(self) -> None:
        torch.cuda.memory._record_memory_history(False, record_context=True)
        tensor = empty(48 * MIB)
        blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
        (found,) = (block for block in blocks if block["address"] == tensor.data_ptr())
        self.assertEqual(found.get("frames", []), [])

    def test_they_hear_of_the_very_segments_of_a_pool_while_these_are_mapped(self) -> None:
        pool = torch.cuda.MemPool()
        self.probe.listen()
        with torch.cuda.use_mem_pool(pool):
            tensors = [empty(5 * MIB), empty(1000)]
        segments = {(s["address"], s["total_size"], pool.id) for s in pool.snapshot()}
        del tensors
        torch.cuda.empty_cache()
        events = self.probe.events()
        for action in ("segment_alloc", "segment_free"):
            self.assertEqual({(at, size, of) for what, at, size, of in events if what == action}, segments)
        self.assertEqual([of for what, _, _, of in events if what == "alloc"], [pool.id, pool.id])
        for begin, _, _ in segments:
            order = [what for what, at, _, _ in events if at == begin and what.startswith("segment")]
            self.assertEqual(order, ["segment_map", "segment_alloc", "segment_free", "segment_unmap"])

    def test_an_exception_at_a_segment_reaches_the_program_and_the_memory_goes_back(self) -> None:
        pool = torch.cuda.MemPool()
        for action, where in (
            ("segment_map", contextlib.nullcontext()),
            ("segment_alloc", torch.cuda.use_mem_pool(pool)),
        ):
            self.probe.refuse(action)
            with where, self.assertRaisesRegex(RuntimeError, "the tracker refuses it"):
                empty(48 * MIB)
            self.assertEqual(self.allocated(), 0)
            torch.cuda.empty_cache()
            self.assertEqual(self.reserved(), 0, action)

    def test_an_exception_at_an_allocation_reaches_the_program_and_the_memory_goes_back(self) -> None:
        self.probe.refuse("alloc")
        with self.assertRaisesRegex(RuntimeError, "the tracker refuses it"):
            empty(48 * MIB)
        torch.cuda.empty_cache()
        self.assertEqual((self.allocated(), self.reserved()), (0, 0))

    def test_an_exception_in_the_middle_of_a_restore_takes_back_what_was_restored(self) -> None:
        pool_id = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
        kept = [empty(1000) for _ in range(3)]
        torch._C._cuda_endAllocateToPool(0, pool_id)
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        kept.pop()
        self.probe.refuse("alloc", after=1)
        with self.assertRaisesRegex(RuntimeError, "the tracker refuses it"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        live = {tensor.data_ptr() for tensor in kept}
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, live))
        self.assertEqual(self.allocated(), 2048)
        kept.clear()
        torch._C._cuda_releasePool(0, pool_id)

    def test_an_exception_at_a_free_is_a_warning_where_it_cannot_reach_the_program(self) -> None:
        tensor = empty(48 * MIB)
        self.probe.refuse("free_requested")
        del tensor  # a destructor
        self.assertIn("a tracker of memory events failed: the tracker refuses it", self.probe.warning())
        raw = torch.cuda.caching_allocator_alloc(48 * MIB)
        self.probe.refuse("free_completed")
        with self.assertRaisesRegex(RuntimeError, "the tracker refuses it"):
            torch.cuda.caching_allocator_delete(raw)
        self.assertEqual(self.allocated(), 0)
        self.probe.refuse("segment_unmap")
        with self.assertRaisesRegex(RuntimeError, "the tracker refuses it"):
            torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 0)

    def test_of_several_exceptions_in_one_call_the_first_reaches_the_program(self) -> None:
        tensors = [empty(48 * MIB) for _ in range(3)]
        tensors.clear()
        self.probe.refuse("segment_unmap", times=2)
        with self.assertRaisesRegex(RuntimeError, "the tracker refuses it!$"):
            torch.cuda.empty_cache()
        self.assertEqual((self.probe.refusals(), self.reserved()), (0, 0))

    def test_an_exception_in_another_librarys_call_is_a_warning(self) -> None:
        empty(1)  # events are of devices that PyTorch has used
        self.probe.refuse("segment_map")
        pool = vpmm.Pool.default(0)
        pool.deallocate(pool.allocate(48 * MIB, 0), 0)
        self.assertIn("a tracker of memory events failed: the tracker refuses it", self.probe.warning())


class Traces(VpmmCase):
    def test_they_hear_of_every_way_to_allocate(self) -> None:
        heard: list[tuple[str, int]] = []
        _gpu_trace.register_callback_for_memory_allocation(lambda pointer: heard.append(("allocate", pointer)))
        _gpu_trace.register_callback_for_memory_deallocation(lambda pointer: heard.append(("free", pointer)))
        self.addCleanup(_gpu_trace.MemoryAllocationCallbacks.callback_list.clear)
        self.addCleanup(_gpu_trace.MemoryDeallocationCallbacks.callback_list.clear)
        torch._C._activate_gpu_trace()
        raw = [torch.cuda.caching_allocator_alloc(MIB), torch.cuda.caching_allocator_alloc(MIB, 0, torch.cuda.Stream())]
        tensor = empty(MIB)
        torch.cuda.caching_allocator_enable(False)
        try:
            uncached = empty(MIB)
            made = [*raw, tensor.data_ptr(), uncached.data_ptr()]
            del uncached
        finally:
            torch.cuda.caching_allocator_enable(True)
        del tensor
        for pointer in raw:
            torch.cuda.caching_allocator_delete(pointer)
        self.assertEqual([pointer for what, pointer in heard if what == "allocate"], made)
        self.assertEqual(sorted(pointer for what, pointer in heard if what == "free"), sorted(made))


if __name__ == "__main__":
    unittest.main()
