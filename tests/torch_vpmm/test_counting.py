# SPDX-License-Identifier: Apache-2.0
"""tests: what memory_stats() counts, against tensors, snapshots and what other libraries have."""

from __future__ import annotations

import os
import random
import threading
import unittest
from pathlib import Path

from test_programs import run
from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

if not ABSENT:
    import figures
    import torch


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stats() -> dict[str, int]:
    return torch.cuda.memory_stats()


class Counting(VpmmCase):
    def test_free_memory_stays_within_a_fraction_of_the_device(self) -> None:
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(0.25)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        left = total // 4 - torch.cuda.memory_reserved()
        self.assertEqual(torch.cuda.mem_get_info(), (left, total))
        self.assertEqual(torch.cuda.memory.mem_get_info("cuda"), torch.accelerator.get_memory_info())
        del tensor
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertLessEqual(left, torch.cuda.mem_get_info(0)[0])
        self.assertGreater(free, left)

    def test_current_peak_and_requested_are_exact(self) -> None:
        before = stats()
        first, second = empty(1000), empty(3 * MIB + 1)
        now = stats()
        self.assertEqual(self.allocated(), 1024 + 3 * MIB + 512)
        names = ("allocation.small_pool.current", "requested_bytes.all.current")
        self.assertEqual([now[name] - before[name] for name in names], [1, 1000 + 3 * MIB + 1])
        del first, second
        self.assertEqual(torch.cuda.max_memory_allocated() - self.before, 1024 + 3 * MIB + 512)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), self.before)

    def test_what_was_given_back_is_no_peak_of_what_comes(self) -> None:
        tensor = empty(64 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), 64 * MIB)
        del tensor
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.assertLess(torch.cuda.max_memory_reserved(), 64 * MIB)

    def test_memory_that_comes_from_the_device_and_goes_back_is_counted(self) -> None:
        before = stats()
        tensor = empty(64 * MIB)
        taken = stats()
        self.assertGreater(taken["num_device_alloc"], before["num_device_alloc"])
        self.assertEqual(taken["num_device_free"], before["num_device_free"])
        del tensor
        torch.cuda.empty_cache()
        self.assertGreater(stats()["num_device_free"], taken["num_device_free"])
        self.assertEqual(stats()["num_device_alloc"], taken["num_device_alloc"])

    def test_what_the_pool_counts_itself_is_told_as_it_is(self) -> None:
        side = torch.cuda.Stream()
        self.limit(96 * MIB)
        used = empty(64 * MIB)
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        used.record_stream(side)
        del used
        before = stats()
        over = threading.Timer(0.2, side.synchronize)  # by itself the simulated GPU's work does not end
        over.start()
        empty(80 * MIB)  # waits for what the GPU still uses
        over.join()
        now, pools = stats(), vpmm.stats(0)
        self.assertGreater(now["num_sync_all_streams"], before["num_sync_all_streams"])
        for name, of_pool in (
            ("num_sync_all_streams", "host_waits"),
            ("num_device_alloc", "chunks_created"),
            ("num_device_free", "chunks_released"),
        ):
            self.assertEqual(now[name], pools[of_pool], name)
        self.assertEqual(now["max_split_size"], -1)

    def test_accumulated_figures_go_back_to_zero(self) -> None:
        tensor = empty(MIB)
        del tensor
        self.assertGreaterEqual(stats()["allocated_bytes.all.freed"], MIB)
        torch.cuda.reset_accumulated_memory_stats()
        self.assertEqual(stats()["allocated_bytes.all.freed"], 0)
        self.assertEqual(stats()["allocated_bytes.all.allocated"], 0)
        self.assertEqual((stats()["num_alloc_retries"], stats()["num_ooms"]), (0, 0))

    def test_figures_agree_with_the_snapshot_at_every_step(self) -> None:
        chance = random.Random(7)
        live: list[torch.Tensor] = []
        pool = torch.cuda.MemPool()
        for step in range(120):
            if live and chance.random() < 0.45:
                live.pop(chance.randrange(len(live)))
            elif chance.random() < 0.2:
                with torch.cuda.use_mem_pool(pool):
                    live.append(empty(int(2 ** chance.uniform(0, 22))))
            else:
                live.append(empty(int(2 ** chance.uniform(0, 25))))
            if step % 10 == 0:
                torch.cuda.empty_cache()
            self.assertEqual(figures.differences(), {}, step)

    def test_nothing_between_two_looks_is_lost(self) -> None:
        torch.cuda.reset_accumulated_memory_stats()
        before = stats()
        for _ in range(2):
            tensor = empty(96 * MIB)
            del tensor
            torch.cuda.empty_cache()
        after = stats()
        for pool in ("all", "large_pool"):
            name = f"reserved_bytes.{pool}"
            self.assertEqual(after[f"{name}.current"], before[f"{name}.current"])
            self.assertEqual(after[f"{name}.peak"] - before[f"{name}.current"], 96 * MIB, pool)
            self.assertEqual((after[f"{name}.allocated"], after[f"{name}.freed"]), (192 * MIB, 192 * MIB), pool)

    def test_segments_of_private_pools_and_what_is_idle_in_them_are_counted_at_every_change(self) -> None:
        torch.cuda.reset_accumulated_memory_stats()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensors = [empty(1000) for _ in range(3)]
        self.assertEqual(stats()["inactive_split.all.current"], 1)  # the rest of the page
        del tensors[1]
        now = stats()
        self.assertEqual((now["segment.large_pool.current"], now["inactive_split.large_pool.current"]), (1, 2))
        self.assertEqual(now["inactive_split_bytes.all.current"], 2 * MIB - 2048)
        self.assertEqual(figures.differences(), {})
        tensors.clear()
        self.assertEqual(stats()["inactive_split.all.current"], 0)  # all of it is one piece, and not split
        del pool
        torch.cuda.empty_cache()
        after = stats()
        self.assertEqual(
            [after[f"segment.all.{kind}"] for kind in ("current", "peak", "allocated", "freed")], [0, 1, 1, 1]
        )
        self.assertEqual(after["inactive_split.all.peak"], 2)
        self.assertEqual(after["inactive_split_bytes.all.peak"], 2 * MIB - 1024)
        self.assertEqual(figures.differences(), {})

    def test_memory_that_the_gpu_still_uses_goes_back_after_a_wait(self) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        used = empty(64 * MIB)
        used.record_stream(side)
        del used
        torch.cuda.empty_cache()
        self.assertEqual((self.reserved(), side.query()), (0, True))

    def test_memory_of_other_libraries_in_the_pool_is_theirs(self) -> None:
        empty(1)  # figures are of devices that PyTorch has used
        shared = vpmm.Pool.default(0)
        before = stats()
        ptr = shared.allocate(64 * MIB, 0)
        self.addCleanup(shared.deallocate, ptr, 0)
        now = stats()
        for name in ("allocated_bytes.all.current", "inactive_split_bytes.all.current"):
            self.assertEqual(now[name], before[name], name)
        blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == ptr]
        self.assertEqual([(b["state"], b["requested_size"]) for b in blocks], [("active_allocated", 64 * MIB)])
        self.assertEqual(blocks[0].get("frames", []), [])
        self.limit(now["reserved_bytes.all.current"] + 16 * MIB)
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            empty(64 * MIB)
        self.assertIn(", 64.00 MiB by other libraries in the same pool, and ", str(caught.exception))

    def test_small_memory_of_other_libraries_divides_no_segment(self) -> None:
        pool, opened = vpmm.Pool.default(0), empty(1)
        theirs = [pool.allocate(size, 0) for size in (256, 768, 256, 256)]
        found = {name: both for name, both in figures.differences().items() if name.startswith("reserved")}
        for each in theirs:
            pool.deallocate(each, 0)
        self.assertEqual((found, opened.numel()), ({}, 1))

    def test_memory_that_goes_takes_its_stack_along(self) -> None:
        code = """
import torch
def empty():
    return torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
def frames_at(place):
    return [len(s["frames"]) for s in torch.cuda.memory_snapshot() if s["address"] == place]
lower, upper = empty(), empty()
place, above = lower.data_ptr(), upper.data_ptr()
del lower
torch.cuda.empty_cache()
torch.cuda.memory._record_memory_history(context="all", stacks="python")
tensor = empty()
print(tensor.data_ptr() == place, above - place, frames_at(place))
del tensor
torch.cuda.empty_cache()
print(frames_at(above))
"""
        done = run(code)
        self.assertEqual((done.stdout, done.stderr), (f"True {48 * MIB} [2]\n[0]\n", ""))

    def test_memory_that_another_library_freed_already_is_told_once(self) -> None:
        code = """
import torch, vpmm
tensors = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
for tensor in tensors:
    vpmm.Pool.default(0).deallocate(tensor.data_ptr(), 0)
del tensor
tensors.clear()
print(torch.cuda.memory_allocated())
"""
        done = run(code)
        self.assertEqual((done.returncode, done.stdout), (0, "0\n"), done.stderr)
        self.assertEqual(done.stderr.count("VPMM: a free failed: "), 1, done.stderr)
        self.assertIn("it was freed already, or comes from elsewhere", done.stderr)

    def test_the_summary_is_printed(self) -> None:
        self.assertIn("Allocated memory", torch.cuda.memory_summary())

    def test_free_and_total_are_the_devices(self) -> None:
        free, total = torch.cuda.mem_get_info()
        self.assertTrue(0 < free <= total)
        self.assertEqual((free, total), tuple(torch.cuda.cudart().cudaMemGetInfo(0)))

    def test_nothing_is_free_under_a_limit_below_what_is_there(self) -> None:
        kept = empty(64 * MIB)
        self.limit(32 * MIB)
        self.assertEqual(torch.cuda.mem_get_info()[0], 0)
        del kept

    def test_the_kind_of_each_size_is_that_of_its_segment(self) -> None:
        def is_small(size: int) -> bool:
            before, kept = stats()["allocation.small_pool.current"], empty(size)
            self.assertEqual(figures.differences(), {}, size)
            return stats()["allocation.small_pool.current"] > before and kept.numel() == size

        small, large = 1, 4 * MIB  # the border is between them
        self.assertEqual((is_small(small), is_small(large)), (True, False))
        while large - small > 1:
            middle = (small + large) // 2
            small, large = (middle, large) if is_small(middle) else (small, middle)

    def test_guarded_memory_is_reserved_as_long_as_a_snapshot_has_it(self) -> None:
        code = """
import figures
import torch
import vpmm
def look(size):
    found = {name: both for name, both in figures.differences().items() if ".all." in name}
    print(found, torch.cuda.memory_reserved() >= size)
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 << 20)]
look(3 << 20)
del tensors[0]
torch.cuda.synchronize()
torch.cuda.empty_cache()
look(3 << 20)
tensors.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_reserved() < 3 << 20)
other = vpmm.Pool.default(0)
theirs = other.allocate(8 << 20, 0)
mine = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.set_per_process_memory_fraction((32 << 20) / torch.cuda.mem_get_info()[1])
try:
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    words = str(error).partition("Of the allocated memory ")[2]
    print(words.partition(" VPMM")[0])
"""
        words = (
            "5.00 MiB is allocated by PyTorch, 8.00 MiB by other libraries in the same pool, and 0 bytes is reserved "
            "by PyTorch but unallocated."
        )
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        done = run(code, VPMM_GUARD="1", PYTHONPATH=path)
        self.assertEqual(done.stdout, f"{{}} True\n{{}} True\nTrue\n{words}\n", done.stderr)

    def test_memory_without_events_that_others_had_before_is_not_counted_for_ever(self) -> None:
        code = """
import torch, vpmm
other = vpmm.Pool.default(0)
theirs = other.allocate(200_000, 0)
tensor = torch.empty(1, device="cuda")
other.deallocate(theirs, 0)
del tensor
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), len(torch.cuda.memory_snapshot()))
"""
        for settings in ({"VPMM_GUARD": "1"}, {"VPMM_SMALL": "stream_ordered"}):
            with self.subTest(settings):
                done = run(code, **settings)
                self.assertEqual((done.stdout, done.stderr), ("0 0\n", ""))

    def test_a_device_that_nobody_used_has_the_figures_of_nothing(self) -> None:
        code = "import torch\ntorch.cuda.init()\nprint([pair for pair in torch.cuda.memory_stats().items() if pair[1]])"
        done = run(code)
        self.assertEqual((done.stdout, done.stderr), ("[('max_split_size', -1)]\n", ""))


if __name__ == "__main__":
    unittest.main()
