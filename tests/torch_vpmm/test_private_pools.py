# SPDX-License-Identifier: Apache-2.0
"""tests: private pools of PyTorch on VPMM: routing, what goes back, options, checkpoints."""

from __future__ import annotations

import ctypes
import threading
import unittest
from typing import Any

from vpmm_case import ABSENT, MIB, VpmmCase

if not ABSENT:
    import probe
    import torch


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class PrivatePools(VpmmCase):
    def pool_segments(self, pool: torch.cuda.MemPool) -> list[dict[str, Any]]:
        return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool.id]

    def test_what_is_allocated_inside_lies_in_the_pools_segments(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = [empty(1000), empty(3 * MIB)]
        outside = empty(1000)
        addresses = {b["address"] for s in self.pool_segments(pool) for b in s["blocks"]}
        self.assertTrue({t.data_ptr() for t in inside} <= addresses)
        self.assertNotIn(outside.data_ptr(), addresses)
        self.assertEqual(pool.use_count(), 1)
        self.assertEqual(len(pool.snapshot()), len(self.pool_segments(pool)))

    def test_the_stream_of_a_segment_is_that_of_its_first_tensor_on_any(self) -> None:
        pool, streams = torch.cuda.MemPool(), [torch.cuda.Stream() for _ in range(2)]
        with torch.cuda.use_mem_pool(pool):
            tensors = [empty(1000)]
            for stream in streams:
                with torch.cuda.stream(stream):
                    tensors.append(empty(1000))
        (segment,) = pool.snapshot()
        self.assertEqual([t.data_ptr() for t in tensors], [b["address"] for b in segment["blocks"]][:3])
        self.assertEqual(segment["stream"], streams[0].cuda_stream)

    def test_what_is_freed_inside_serves_the_pool_again_and_goes_back_with_it(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            first = empty(3 * MIB)
            address = first.data_ptr()
            del first
        outside = empty(3 * MIB)
        self.assertNotEqual(outside.data_ptr(), address)
        with torch.cuda.use_mem_pool(pool):
            again = empty(3 * MIB)
        self.assertEqual(again.data_ptr(), address)
        del again, pool, outside
        torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 0)

    def ranges_of(self, pool_id: tuple[int, int]) -> list[tuple[int, int]]:
        segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool_id]
        return [(s["address"], s["address"] + s["total_size"]) for s in segments]

    def test_memory_of_a_deleted_pool_that_a_graph_used_stays_until_the_graph_is_gone(self) -> None:
        for is_reset in (True, False):
            pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(2):
                    with torch.cuda.use_mem_pool(pool):
                        inside = empty(20 * MIB)
                    del inside
                empty(3 * MIB)
            (used,) = self.ranges_of(pool.id)
            del pool
            torch.cuda.empty_cache()
            taken = [empty(4 * MIB) for _ in range(20)]
            for tensor in taken:
                self.assertFalse(used[0] <= tensor.data_ptr() < used[1], "memory of a live graph")
            if is_reset:
                graph.reset()
            del graph, taken, tensor
            torch.cuda.empty_cache()
            self.assertEqual(self.reserved(), 0)

    def test_a_capture_reuses_what_it_freed_also_if_its_own_stream_was_named(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                tensor = empty(20 * MIB)
                tensor.record_stream(torch.cuda.current_stream())
                del tensor
        self.assertLess(self.reserved(), 30 * MIB)
        graph.reset()

    def test_tensors_outlive_their_pool(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.arange(1000, dtype=torch.int32).to("cuda")
        del pool
        self.assertTrue(torch.equal(tensor.cpu(), torch.arange(1000, dtype=torch.int32)))
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 0)

    def test_only_the_thread_that_opened_it_is_routed(self) -> None:
        pool = torch.cuda.MemPool()
        other: list[torch.Tensor] = []
        with torch.cuda.use_mem_pool(pool):
            thread = threading.Thread(target=lambda: other.append(empty(MIB)))
            thread.start()
            thread.join()
        self.assertEqual(self.pool_segments(pool), [])

    def test_idle_memory_of_a_pool_is_no_reason_to_run_out(self) -> None:
        pool = torch.cuda.MemPool()
        self.limit(128 * MIB)
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(100 * MIB)
            del tensor
        self.assertEqual(empty(100 * MIB).numel(), 100 * MIB)

    def test_without_splits_each_tensor_has_a_segment(self) -> None:
        pool = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            tensors = [empty(100) for _ in range(3)]
        segments = [segment["address"] for segment in pool.snapshot()]
        self.assertEqual(segments, sorted(tensor.data_ptr() for tensor in tensors))

    def test_only_a_pool_for_shortages_serves_others_with_what_it_must_keep(self) -> None:
        for serves in (False, True):
            pool = torch.cuda.MemPool(use_on_oom=serves)
            with torch.cuda.use_mem_pool(pool):
                tensor = empty(100 * MIB)
            address = tensor.data_ptr()
            torch._C._cuda_getCheckpointState(0, pool.id)  # from now on its memory stays
            del tensor
            self.limit(150 * MIB)
            if serves:
                self.assertEqual(empty(90 * MIB).data_ptr(), address)
            else:
                self.assertRaises(torch.OutOfMemoryError, empty, 90 * MIB)
            del pool
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.assertEqual(self.reserved(), 0)

    def test_memory_of_a_destroyed_stream_is_freed_while_a_pool_is_in_use_and_while_none_is(self) -> None:
        pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
        with self.foreign_stream() as foreign, torch.cuda.use_mem_pool(pool), torch.cuda.stream(foreign):
            tensors = [empty(MIB) for _ in range(2)]
        with torch.cuda.use_mem_pool(other):
            tensors.pop()
        tensors.pop()
        with self.foreign_stream() as foreign, torch.cuda.stream(foreign):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
            tensors = [empty(MIB)]
        tensors.pop()
        torch._C._cuda_endAllocateToPool(0, pool.id)
        torch._C._cuda_releasePool(0, pool.id)
        self.assertEqual(self.allocated(), 0)

    def test_requests_at_one_moment_make_one_arena(self) -> None:
        library = probe.load()
        for number in range(300):
            pool = (1 << 40, number)  # no MemPool: PyTorch 2.11 crashes at a snapshot of one whose number is above 256
            torch._C._cuda_beginAllocateToPool(0, pool)
            made = library.allocate_at_once(2, 1000)
            torch._C._cuda_endAllocateToPool(0, pool)
            torch._C._cuda_getCheckpointState(0, pool)  # from now on memory of its arena stays
            for each in made:
                torch.cuda.caching_allocator_delete(each)
            torch.cuda.empty_cache()
            begins = {each & -(2 * MIB) for each in made}
            orders = [library.order(each) for each in begins]
            torch._C._cuda_releasePool(0, pool)
            self.assertNotIn(-1, orders)

    def test_a_request_of_another_thread_just_before_the_capture_leaves_it_its_pool(self) -> None:
        library, runtime = probe.load(), ctypes.CDLL("libcudart.so.13")
        pool, stream, graph = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), ctypes.c_void_p()
        handle, relaxed = ctypes.c_void_p(stream.cuda_stream), 2
        with torch.cuda.stream(stream):
            library.begin_capture_route(pool)
            thread = threading.Thread(target=empty, args=(MIB,))
            thread.start()
            thread.join()
            began = runtime.cudaStreamBeginCapture(handle, relaxed)
            tensor = empty(3 * MIB)
            ended = runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)), runtime.cudaGraphDestroy(graph)
        torch._C._cuda_endAllocateToPool(0, pool)
        (of,) = (s["segment_pool_id"] for s in torch.cuda.memory_snapshot() if s["address"] == tensor.data_ptr())
        del tensor
        torch._C._cuda_releasePool(0, pool)
        self.assertEqual((began, ended, of), (0, (0, 0), pool))

    def test_a_capture_on_a_foreign_stream_reuses_what_it_freed(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with self.foreign_stream() as foreign, torch.cuda.graph(graph, stream=foreign):
            addresses = {empty(20 * MIB).data_ptr() for _ in range(10)}
        self.assertEqual(len(addresses), 1)
        graph.reset()

    def test_a_capture_on_a_foreign_stream_reuses_what_its_pool_had_before(self) -> None:
        pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        with self.foreign_stream() as foreign:
            with torch.cuda.stream(foreign), torch.cuda.use_mem_pool(pool):
                earlier = [empty(20 * MIB)]
            address = earlier[0].data_ptr()
            with torch.cuda.graph(graph, pool=pool.id, stream=foreign):
                earlier.clear()
                self.assertEqual(empty(20 * MIB).data_ptr(), address)
        graph.reset()

    def test_a_pool_of_one_stream_stays_open_while_its_thread_uses_another(self) -> None:
        pool, stream = (1 << 41, 0), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch._C._cuda_beginAllocateCurrentStreamToPool(0, pool)
        self.addCleanup(torch._C._cuda_releasePool, 0, pool)
        try:
            elsewhere = empty(MIB)
            with torch.cuda.stream(stream):
                inside = empty(MIB)
        finally:
            torch._C._cuda_endAllocateToPool(0, pool)
        pools = {
            block["address"]: tuple(segment["segment_pool_id"])
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
        }
        self.assertEqual([pools[each.data_ptr()] for each in (elsewhere, inside)], [(0, 0), pool])

    def test_a_foreign_stream_that_joined_a_capture_reuses_what_it_freed(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with self.foreign_stream() as foreign, torch.cuda.graph(graph):
            own = torch.cuda.current_stream()
            foreign.wait_stream(own)
            with torch.cuda.stream(foreign):
                addresses = {empty(20 * MIB).data_ptr() for _ in range(10)}
            own.wait_stream(foreign)
        self.assertEqual(len(addresses), 1)
        graph.reset()

    def test_of_several_pools_for_shortages_one_that_has_room_serves(self) -> None:
        pools = [torch.cuda.MemPool(use_on_oom=True) for _ in range(3)]
        addresses = []
        for pool, size in zip(pools, (20, 100, 20), strict=True):
            with torch.cuda.use_mem_pool(pool):
                addresses.append(empty(size * MIB).data_ptr())
            torch._C._cuda_getCheckpointState(0, pool.id)  # from now on its memory stays
        self.limit(150 * MIB)
        served = empty(90 * MIB)
        self.assertEqual(served.data_ptr(), addresses[1])
        (block,) = (b for s in pools[1].snapshot() for b in s["blocks"] if b["requested_size"] == 90 * MIB)
        self.assertEqual(block["address"], addresses[1])
        self.assertRaises(torch.OutOfMemoryError, empty, 90 * MIB)

    def test_what_a_pool_cannot_give_no_other_serves(self) -> None:
        spare, small = torch.cuda.MemPool(use_on_oom=True), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(spare):
            empty(100 * MIB)
        torch._C._cuda_getCheckpointState(0, spare.id)
        self.limit(150 * MIB)
        with torch.cuda.use_mem_pool(small), self.assertRaises(torch.OutOfMemoryError):
            empty(90 * MIB)

    def test_calls_about_a_pool_that_is_not_there_name_it(self) -> None:
        missing, call = (0, 1 << 40), torch._C
        for name, ask in (
            ("releasePool", lambda: call._cuda_releasePool(0, missing)),
            ("getCheckpointState", lambda: call._cuda_getCheckpointState(0, missing)),
            ("checkPoolLiveAllocations", lambda: call._cuda_checkPoolLiveAllocations(0, missing, set())),
        ):
            with self.assertRaisesRegex(
                RuntimeError, rf"^{name}: there is no memory pool \(0, {1 << 40}\) on device 0"
            ):
                ask()

    def test_a_checkpoint_is_not_restored_into_a_pool_without_memory(self) -> None:
        pool_id, kept = self.open_pool([1000])
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        kept.clear()
        torch._C._cuda_releasePool(0, pool_id)
        with self.assertRaisesRegex(RuntimeError, "^setCheckpointPoolState: there is no memory pool"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.open_pool([], pool_id)
        with self.assertRaisesRegex(RuntimeError, "^the memory pool of the checkpoint is over"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        torch._C._cuda_releasePool(0, pool_id)

    def test_a_checkpoint_of_nothing_is_restored_without_memory(self) -> None:
        pool_id, _ = self.open_pool([])
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set()))
        torch._C._cuda_releasePool(0, pool_id)

    def test_live_allocations_are_exactly_those_expected(self) -> None:
        pool_id, kept = self.open_pool([1000, 3 * MIB])
        first, second = (tensor.data_ptr() for tensor in kept)
        for expected, is_right in (
            ({first, second}, True),
            ({first}, False),
            ({first, second + 512}, False),
            ({first, second, 512}, False),
            (set(), False),
        ):
            self.assertEqual(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, expected), is_right, expected)
        kept.clear()
        torch._C._cuda_releasePool(0, pool_id)

    def test_a_checkpoint_brings_the_same_addresses_back(self) -> None:
        pool_id = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
        kept = [empty(1000), empty(3 * MIB)]
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        addresses = [t.data_ptr() for t in kept]
        later = [empty(500), empty(8 * MIB)]
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, {t.data_ptr() for t in kept + later}))
        self.assertFalse(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set(addresses)))
        torch._C._cuda_endAllocateToPool(0, pool_id)
        stale = [t.untyped_storage()._cdata for t in kept + later]
        torch._C._cuda_setCheckpointPoolState(0, state, stale, [])
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set(addresses)))
        del later, kept  # their storages own nothing any more
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set(addresses)))
        for address in addresses:
            torch.cuda.caching_allocator_delete(address)
        torch._C._cuda_releasePool(0, pool_id)
        self.assertEqual(self.allocated(), 0)

    def test_storages_that_are_named_at_a_restore_own_what_it_brought_back(self) -> None:
        pool_id, kept = self.open_pool([3 * MIB, 1000])
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        address = kept[0].data_ptr()
        stale = [tensor.untyped_storage()._cdata for tensor in kept]
        storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda", 0), 3 * MIB)
        other = kept[1].data_ptr()
        torch._C._cuda_setCheckpointPoolState(0, state, stale, [storage._cdata])
        del storage, kept
        self.assertEqual(self.allocated(), 1024)
        torch.cuda.caching_allocator_delete(other)
        torch._C._cuda_releasePool(0, pool_id)

    def test_a_checkpoint_is_restored_although_the_cache_was_emptied(self) -> None:
        pool_id, kept = self.open_pool([8 * MIB, 8 * MIB, 100])
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        addresses = {t.data_ptr() for t in kept}
        kept.clear()
        torch.cuda.empty_cache()
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, addresses))
        for address in addresses:
            torch.cuda.caching_allocator_delete(address)
        torch._C._cuda_releasePool(0, pool_id)

    def test_memory_that_a_checkpoint_kept_goes_back_when_its_pool_is_over_although_a_tensor_lives(self) -> None:
        pool_id, kept = self.open_pool([6 * MIB, 6 * MIB])
        torch._C._cuda_getCheckpointState(0, pool_id)
        kept.pop()
        torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 12 * MIB)
        torch._C._cuda_releasePool(0, pool_id)
        torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 6 * MIB)

    def test_a_restore_that_fails_leaves_all_as_it_was(self) -> None:
        pool_id, kept = self.open_pool([8 * MIB, 8 * MIB])
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        kept.clear()
        torch._C._cuda_releasePool(0, pool_id)
        _, others = self.open_pool([8 * MIB, 1000], pool_id)  # another pool of that name, where the first one was
        addresses = {t.data_ptr() for t in others}
        with self.assertRaisesRegex(RuntimeError, "a checkpoint could not be restored"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, addresses))
        self.assertEqual(self.allocated(), 8 * MIB + 1024)
        others.clear()
        self.assertEqual(self.allocated(), 0)
        torch._C._cuda_releasePool(0, pool_id)

    def open_pool(
        self, sizes: list[int], pool_id: tuple[int, int] | None = None
    ) -> tuple[tuple[int, int], list[torch.Tensor]]:
        """A pool without a capture, as graph trees use it for what they record first, and tensors in it."""
        pool_id = pool_id or torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
        tensors = [empty(size) for size in sizes]
        torch._C._cuda_endAllocateToPool(0, pool_id)
        return pool_id, tensors

    def test_each_chunk_of_a_pool_is_a_segment(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensors = [empty(4 * MIB) for _ in range(4)]
        addresses = sorted(tensor.data_ptr() for tensor in tensors)
        self.assertEqual([segment["address"] for segment in pool.snapshot()], addresses)

    def test_a_pool_is_not_opened_twice_and_not_closed_without_being_open(self) -> None:
        pool_id = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
        with self.assertRaisesRegex(RuntimeError, "already recording"):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
        torch._C._cuda_endAllocateToPool(0, pool_id)
        with self.assertRaisesRegex(RuntimeError, "not currently recording"):
            torch._C._cuda_endAllocateToPool(0, pool_id)
        for _ in range(2):
            torch._C._cuda_releasePool(0, pool_id)


if __name__ == "__main__":
    unittest.main()
