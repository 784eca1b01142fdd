# SPDX-License-Identifier: Apache-2.0
"""tests: MemPools of PyTorch on VPMM whose memory comes from an allocator of the program's."""

from __future__ import annotations

import unittest

from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

if not ABSENT:
    import probe
    import torch
    from torch.cuda.memory import CUDAPluggableAllocator

ENDS = ("segment_free", "given_back")


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class ForeignAllocators(VpmmCase):
    """As NCCL's and those of sleep modes."""

    def setUp(self) -> None:
        super().setUp()
        self.probe = probe.load()
        self.allocator = self.allocator_of("foreign_malloc", "foreign_free")
        self.crooked = self.allocator_of("crooked_malloc", "crooked_free")
        self.counts_before = self.probe.foreign_counts()

    def allocator_of(self, malloc: str, free: str) -> CUDAPluggableAllocator:
        return CUDAPluggableAllocator(str(self.probe.path), f"probe_{malloc}", f"probe_{free}")

    def counts(self) -> tuple[int, int]:
        """Pieces that were made and given back since the test began."""
        made, given_back = (
            now - then for now, then in zip(self.probe.foreign_counts(), self.counts_before, strict=True)
        )
        return made, given_back

    def test_its_memory_is_divided_used_again_and_given_back(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            small = [torch.empty(1000, device="cuda") for _ in range(20)]
            large = torch.arange(MIB, dtype=torch.int32).to("cuda")
            self.assertEqual(self.counts(), (2, 0))
            address = large.data_ptr()
            self.assertTrue(torch.equal(large.cpu(), torch.arange(MIB, dtype=torch.int32)))
            del large
            again = torch.empty(MIB, dtype=torch.int32, device="cuda")
            self.assertEqual((again.data_ptr(), self.counts()), (address, (2, 0)))
        segments = pool.snapshot()
        self.assertEqual(sum(segment["total_size"] for segment in segments), 6 * MIB)
        del small, again
        del pool
        torch.cuda.empty_cache()
        self.assertEqual((self.counts(), self.allocated(), self.reserved()), ((2, 2), 0, 0))

    def test_what_it_cannot_give_is_out_of_memory(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        total, asked = torch.cuda.mem_get_info()[1], self.probe.foreign_asked()
        with torch.cuda.use_mem_pool(pool), self.assertRaises(torch.OutOfMemoryError):
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        self.assertEqual((self.probe.foreign_asked() - asked, self.counts()), (1, (0, 0)))
        del pool

    def test_memory_that_is_not_aligned_is_refused_and_goes_back(self) -> None:
        pool = torch.cuda.MemPool(self.crooked.allocator())
        with torch.cuda.use_mem_pool(pool), self.assertRaisesRegex(RuntimeError, "512"):
            torch.empty(1000, device="cuda")
        self.assertEqual((self.counts(), self.reserved()), ((1, 1), 0))
        warned = self.probe.warning()
        del pool
        torch.cuda.empty_cache()
        self.assertEqual((self.counts(), self.reserved(), self.probe.warning()), ((1, 1), 0, warned))

    def test_memory_goes_back_when_the_gpu_does_not_use_it_any_more(self) -> None:
        pool, side = torch.cuda.MemPool(self.allocator.allocator()), torch.cuda.Stream()
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(3 * MIB)
        self.probe.watch(side.cuda_stream)
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        tensor.record_stream(side)
        del tensor, pool
        torch.cuda.empty_cache()
        self.assertEqual((self.probe.watch(0), self.counts()), (False, (1, 1)))

    def test_memory_that_a_graph_used_goes_back_after_the_graph(self) -> None:
        pool, graph = torch.cuda.MemPool(self.allocator.allocator()), torch.cuda.CUDAGraph()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1000, device="cuda")
        with torch.cuda.graph(graph), torch.cuda.use_mem_pool(pool):
            for _ in range(2):
                torch.empty(1000, device="cuda")
        del pool
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 0))
        graph.reset()
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 1))

    def test_tensors_outlive_the_pool(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        del pool
        self.assertEqual(self.counts(), (1, 0))
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 1))

    def test_memory_of_a_pool_that_is_over_is_no_reason_to_run_out(self) -> None:
        most = torch.cuda.mem_get_info()[0] // 10 * 6
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(most, dtype=torch.uint8, device="cuda")
        del pool, tensor  # in this order, and nothing empties the cache
        self.assertEqual(self.counts(), (1, 0))
        self.assertEqual(torch.empty(most, dtype=torch.uint8, device="cuda").numel(), most)
        self.assertEqual(self.counts(), (1, 1))

    def test_memory_that_a_graph_used_is_no_reason_to_run_out(self) -> None:
        most = torch.cuda.mem_get_info()[0] // 10 * 6
        pool, graph = torch.cuda.MemPool(self.allocator.allocator()), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
            address = empty(most).data_ptr()
        with torch.cuda.graph(graph, pool=pool.id, stream=stream):
            tensor = empty(most)
        self.assertEqual(tensor.data_ptr(), address)
        graph.reset()
        del pool, tensor  # in this order, and nothing empties the cache
        self.assertEqual(self.counts(), (1, 0))
        self.probe.listen()
        self.assertEqual(empty(most).numel(), most)
        self.assertEqual(self.counts(), (1, 1))
        # Libraries hear of the segment's end before its memory goes back.
        heard = [name for name, begin, *_ in self.probe.events() if begin == address and name in ENDS]
        self.assertEqual(heard, ["segment_free", "given_back"])

    def test_the_end_of_a_pool_whose_memory_lives_waits_for_nothing(self) -> None:
        pool, side = torch.cuda.MemPool(self.allocator.allocator()), torch.cuda.Stream()
        with torch.cuda.use_mem_pool(pool):
            kept = empty(4 * MIB)  # a piece
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        del pool
        self.assertFalse(side.query())
        side.synchronize()
        del kept

    def test_a_request_is_not_repeated_if_no_piece_went_back(self) -> None:
        torch.cuda.ipc_collect()
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(3 * MIB)
        del pool
        self.limit(64 * MIB)
        before = vpmm.stats()["failed_allocations"]
        self.assertRaises(torch.OutOfMemoryError, empty, 100 * MIB)
        self.assertEqual((vpmm.stats()["failed_allocations"] - before, self.counts()), (1, (1, 0)))
        del tensor

    def test_an_exception_of_a_tracker_in_a_request_that_fails_is_its_error(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(3 * MIB)
        del pool, tensor
        self.limit(64 * MIB)
        self.addCleanup(self.probe.refuse_nothing)
        self.probe.refuse("segment_free")
        with self.assertRaisesRegex(RuntimeError, "^the tracker refuses it$"):
            empty(100 * MIB)
        self.assertEqual((self.probe.refusals(), self.counts()), (0, (1, 1)))

    def test_pieces_without_tensors_go_back_although_others_of_the_pool_are_used(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
        kept = tensors.pop()
        del pool, tensors
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (4, 3))
        del kept
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (4, 4))

    def test_each_piece_is_a_segment_and_emptying_the_cache_leaves_a_living_pool_alone(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        addresses = sorted(tensor.data_ptr() for tensor in tensors)
        self.assertEqual([segment["address"] for segment in pool.snapshot()], addresses)
        del tensors
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (3, 0))
        del pool
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (3, 3))

    def test_what_fits_into_no_piece_gets_a_new_one_of_whole_units(self) -> None:
        for size, reserved, has_splits in (
            (1, 2 * MIB, True),
            (MIB, 2 * MIB, True),
            (MIB + 1, 2 * MIB, True),
            (2 * MIB + 1, 4 * MIB, True),
            (5 * MIB, 6 * MIB, True),
            (1, 2 * MIB, False),
            (3 * MIB, 4 * MIB, False),
        ):
            pool = torch.cuda.MemPool(self.allocator.allocator(), no_split=not has_splits)
            with torch.cuda.use_mem_pool(pool):
                first = empty(size)
                self.assertEqual(self.reserved(), reserved, size)
                second = empty(1)
            pieces = 1 if has_splits and size + 512 <= reserved else 2
            self.assertEqual(len(pool.snapshot()), pieces, (size, has_splits))
            del pool, first, second
            torch.cuda.empty_cache()
            self.assertEqual(self.reserved(), 0)
        self.assertEqual(self.counts()[0], self.counts()[1])

    def test_the_history_has_its_pieces_with_the_stacks_of_those_calls(self) -> None:
        def fill(pool: torch.cuda.MemPool) -> torch.Tensor:
            with torch.cuda.use_mem_pool(pool):
                return empty(3 * MIB)

        def give_back(pools: list[torch.cuda.MemPool]) -> None:
            pools.clear()

        pools = [torch.cuda.MemPool(self.allocator.allocator())]
        torch.cuda.memory._record_memory_history(context="all", stacks="python", clear_history=True)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)
        self.probe.listen()
        address, pool_id = fill(pools[0]).data_ptr(), pools[0].id
        (segment,) = pools[0].snapshot()
        self.assertIn("fill", [frame["name"] for frame in segment["frames"]])
        give_back(pools)
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        found = [event for event in events if event["action"].startswith("segment") and event["addr"] == address]
        self.assertEqual(
            [(e["action"], e["size"]) for e in found], [("segment_alloc", 4 * MIB), ("segment_free", 4 * MIB)]
        )
        for event, function in zip(found, ("fill", "give_back"), strict=True):
            self.assertIn(function, [frame["name"] for frame in event["frames"]])
        heard = [(what, size, of) for what, at, size, of in self.probe.events() if at == address and "segment" in what]
        self.assertEqual(heard, [("segment_alloc", 4 * MIB, pool_id), ("segment_free", 4 * MIB, pool_id)])

    def test_an_allocator_that_says_that_it_has_no_memory_is_out_of_memory(self) -> None:
        pool = torch.cuda.MemPool(self.allocator_of("empty_malloc", "foreign_free").allocator())
        with torch.cuda.use_mem_pool(pool), self.assertRaisesRegex(torch.OutOfMemoryError, "Tried to allocate 1000"):
            empty(1000)
        self.assertEqual((self.counts(), self.allocated(), self.reserved()), ((0, 0), 0, 0))

    def test_an_exception_of_an_allocator_that_takes_memory_back_is_a_warning(self) -> None:
        pool = torch.cuda.MemPool(self.allocator_of("foreign_malloc", "stubborn_free").allocator())
        with torch.cuda.use_mem_pool(pool):
            empty(1000)
        del pool
        torch.cuda.empty_cache()
        self.assertEqual((self.counts(), self.reserved()), ((1, 1), 0))
        self.assertIn("did not go back to its allocator: it is stubborn", self.probe.warning())

    def test_a_pool_that_was_never_used_goes_without_a_trace(self) -> None:
        pool = torch.cuda.MemPool(self.allocator.allocator())
        del pool
        torch.cuda.empty_cache()
        self.assertEqual((self.counts(), self.reserved()), ((0, 0), 0))

    def test_a_pool_that_exists_is_given_no_other_allocator(self) -> None:
        pool = torch.cuda.MemPool()
        error = "a memory pool that exists cannot be given another allocator"
        self.assertEqual((self.probe.share_pool(pool.id), pool.use_count()), (error, 1))

    def check_a_request_outlives_its_pool(self, malloc: str, counts: tuple[int, int]) -> None:
        made: list[torch.Tensor] = []
        pool = torch.cuda.MemPool(self.allocator_of(malloc, "foreign_free").allocator())
        pool_id, before = pool.id, self.counts()
        torch.cuda.empty_cache()

        def allocate() -> None:
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool_id)
            made.append(empty(1000))

        with self.probe.paused_allocation(allocate):
            torch._C._cuda_endAllocateToPool(0, pool_id)
            torch._C._cuda_releasePool(0, pool_id)
            del pool
            torch.cuda.empty_cache()
            found = tuple(now - then for now, then in zip(self.counts(), before, strict=True))
            self.assertEqual(found, counts)
        torch.cuda.empty_cache()
        found = tuple(now - then for now, then in zip(self.counts(), before, strict=True))
        self.assertEqual((found, self.allocated(), self.reserved()), ((1, 0), 1024, 2 * MIB))
        made.clear()
        torch.cuda.empty_cache()
        found = tuple(now - then for now, then in zip(self.counts(), before, strict=True))
        self.assertEqual((found, self.allocated(), self.reserved()), ((1, 1), 0, 0))

    def test_what_another_thread_is_about_to_get_stays_although_the_pool_is_deleted(self) -> None:
        self.check_a_request_outlives_its_pool("foreign_malloc", (1, 0))
        self.check_a_request_outlives_its_pool("waiting_malloc", (0, 0))


if __name__ == "__main__":
    unittest.main()
