# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch on VPMM, in a process where it is installed: on the simulated GPU or on a real one.

What PyTorch's own tests check of its allocator, in our words: counts, snapshots, history, running out of memory.
"""

from __future__ import annotations

import gc
import json
import pickle
import random
import re
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from typing import Any

from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

if not ABSENT:
    import figures
    import probe
    import torch


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stats(device: int = 0) -> dict[str, int]:
    return torch.cuda.memory_stats(device)


class Allocating(VpmmCase):
    def test_the_backend_is_vpmm_and_both_ways_to_it_are_the_same(self) -> None:
        self.assertEqual(torch.cuda.get_allocator_backend(), "vpmm")
        tensor = empty(MIB)
        self.assertEqual(torch.accelerator.memory_allocated(), torch.cuda.memory_allocated())
        del tensor

    def test_no_bytes_are_no_allocation(self) -> None:
        tensor = empty(0)
        self.assertEqual((tensor.data_ptr(), self.allocated()), (0, 0))
        self.assertEqual(str(tensor.device), "cuda:0")

    def test_every_size_is_aligned_to_512_bytes_and_counted_in_512(self) -> None:
        for size in [*range(1, 9000, 97), 2**14 + 1, 100_000, MIB + 1, 2 * MIB - 1, 5 * MIB + 3]:
            tensor = empty(size)
            self.assertEqual(tensor.data_ptr() % 512, 0, size)
            self.assertEqual(self.allocated(), (size + 511) // 512 * 512, size)
            del tensor
        self.assertEqual(self.allocated(), 0)

    def test_a_freed_block_serves_the_same_stream_again_at_once(self) -> None:
        for size in (100, 70_000, 3 * MIB, 40 * MIB):
            torch.cuda.empty_cache()  # else a cache of the last size may go back in between, and leave a better place
            first = empty(size)
            address = first.data_ptr()
            del first
            again = empty(size)
            self.assertEqual(again.data_ptr(), address, size)
            del again

    def test_without_the_cache_one_byte_is_memory_and_none_is_not(self) -> None:
        torch.cuda.caching_allocator_enable(False)
        library, free = probe.load(), torch.cuda.cudart().cudaMemGetInfo
        self.assertFalse(library.is_enabled())
        before = free(0)[0]
        try:
            one, none, much = empty(1), empty(0), empty(64 * MIB)
        finally:
            torch.cuda.caching_allocator_enable(True)
        self.assertTrue(library.is_enabled())
        self.assertEqual((one.data_ptr() != 0, none.data_ptr(), self.allocated()), (True, 0, 0))
        self.assertLessEqual(free(0)[0], before - 64 * MIB)
        del one, none, much
        self.assertGreater(free(0)[0], before - 64 * MIB)

    def test_contents_survive_copies(self) -> None:
        source = torch.arange(100_000, dtype=torch.int32)
        on_gpu = source.to("cuda")
        self.assertTrue(torch.equal(on_gpu.cpu(), source))

    def test_raw_memory_for_other_libraries_is_counted_and_freed(self) -> None:
        stream = torch.cuda.Stream()
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB, 0, stream)
        self.assertEqual(self.allocated(), 3 * MIB)
        torch.cuda.caching_allocator_delete(pointer)
        self.assertEqual(self.allocated(), 0)

    def test_raw_memory_of_the_current_stream_serves_it_again_at_once(self) -> None:
        stream, addresses = torch.cuda.Stream(), set()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**9)
            for _ in range(3):
                addresses.add(torch.cuda.caching_allocator_alloc(3 * MIB, 0, stream))
                torch.cuda.caching_allocator_delete(max(addresses))
        self.assertEqual((len(addresses), stream.query()), (1, False))

    def test_memory_of_a_foreign_stream_outlives_it(self) -> None:
        mine = torch.cuda.Stream()
        with torch.cuda.stream(torch.cuda.ExternalStream(mine.cuda_stream)):
            tensor = empty(MIB)
        del tensor
        self.assertEqual(self.allocated(), 0)

    def test_memory_goes_back_to_the_device(self) -> None:
        tensors = [empty(random.Random(i).randrange(1, 8 * MIB)) for i in range(30)]
        self.assertGreater(torch.cuda.memory_reserved(), 30 * MIB)
        del tensors
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_reserved(), 0)

    def test_a_stream_that_uses_memory_from_elsewhere_or_none_changes_nothing(self) -> None:
        tensor, side = empty(1000), torch.cuda.Stream()
        view = torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=tensor.__cuda_array_interface__))
        self.assertEqual(view.data_ptr(), tensor.data_ptr())
        for each in (view, empty(0)):
            each.record_stream(side)
        del view, tensor
        self.assertEqual(self.allocated(), 0)

    def test_threads_allocate_and_free_at_the_same_time(self) -> None:
        probe.load().churn(4, 20_000)
        self.assertEqual(self.allocated(), 0)

    def test_threads_allocate_and_free_each_others_memory(self) -> None:
        made: list[torch.Tensor] = []
        lock = threading.Lock()

        def work(seed: int) -> None:
            chance = random.Random(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(200):
                    tensor = empty(chance.randrange(1, MIB))
                    with lock:
                        made.append(tensor)
                        if len(made) > 20:
                            made.pop(chance.randrange(len(made)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made.clear()
        gc.collect()
        self.assertEqual(self.allocated(), 0)


class Snapshots(VpmmCase):
    def test_blocks_tile_their_segments(self) -> None:
        keep = [empty(size) for size in (10, 700, 50_000, MIB, 3 * MIB, 30 * MIB)]
        segments = torch.cuda.memory_snapshot()
        self.assertEqual(figures.untiled(segments), [])
        found = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
        for tensor in keep:
            self.assertEqual(found[tensor.data_ptr()], tensor.numel())

    def test_history_has_events_in_order_with_stacks(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=10_000)
        try:
            tensor = empty(12 * MIB + 5)
            address = tensor.data_ptr()
            inside = torch.cuda.memory._snapshot()
            del tensor
            torch.cuda.empty_cache()
            events = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        block = next(b for s in inside["segments"] for b in s["blocks"] if b["address"] == address)
        self.assertTrue(any("with_stacks" in frame["name"] for frame in block["frames"]))
        mine = [e["action"] for e in events if e["addr"] == address and e["action"] in ("alloc", "free_requested")]
        self.assertEqual(mine, ["alloc", "free_requested"])
        alloc = next(i for i, e in enumerate(events) if e["addr"] == address and e["action"] == "alloc")
        self.assertEqual(events[alloc]["size"], 12 * MIB + 5)
        self.assertTrue(any("with_stacks" in frame["name"] for frame in events[alloc]["frames"]))
        self.check_events_lie_in_mapped_memory(events, address, address + 12 * MIB + 5)

    def check_events_lie_in_mapped_memory(self, events: list[dict[str, Any]], begin: int, end: int) -> None:
        """At the allocation all of it is mapped, by events that came before; afterwards it is unmapped."""
        mapped: list[tuple[int, int]] = []
        seen = False
        for event in events:
            first, last = event["addr"], event["addr"] + event["size"]
            if event["action"] == "segment_map":
                mapped.append((first, last))
            if event["action"] == "alloc" and first == begin:
                seen = True
                covered = sum(max(0, min(b, end) - max(a, begin)) for a, b in mapped)
                self.assertEqual(covered, end - begin)
        self.assertTrue(seen)
        self.assertTrue(any(e["action"] == "segment_unmap" and e["addr"] <= begin for e in events))

    def test_history_is_a_ring_of_the_size_that_was_asked_for(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=8, stacks="python", context=None)
        try:
            for _ in range(30):
                empty(1000)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            self.assertEqual(len(events), 8)
            self.assertLess(abs(events[-1]["time_us"] / 1e6 - time.time()), 60)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def test_a_ring_that_becomes_smaller_keeps_the_newest_events(self) -> None:
        try:
            for entries in (100, 8):
                torch.cuda.memory._record_memory_history(max_entries=entries, context=None)
                if entries == 100:
                    for size in range(1000, 1030):
                        empty(size)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        sizes = [event["size"] for event in events if event["action"] == "alloc"]
        self.assertEqual((len(events), sizes), (8, [1028, 1029]))

    def test_segments_and_their_events_have_the_stack_of_the_call_that_grew_the_pool(self) -> None:
        def names_of(entry: dict[str, Any]) -> set[str]:
            return {frame["name"] for frame in entry["frames"]}

        def grow() -> torch.Tensor:
            return empty(48 * MIB)

        def give_back() -> None:
            torch.cuda.empty_cache()

        pool = torch.cuda.MemPool()
        torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=1000)
        try:
            tensor = grow()
            with torch.cuda.use_mem_pool(pool):
                inside = grow()
            addresses = (tensor.data_ptr(), inside.data_ptr())
            segments = [
                segment
                for segment in torch.cuda.memory._snapshot()["segments"]
                if any(0 <= address - segment["address"] < segment["total_size"] for address in addresses)
            ]
            del tensor, inside
            give_back()
            events = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        self.assertEqual({tuple(segment["segment_pool_id"]) for segment in segments}, {(0, 0), pool.id})
        for segment in segments:
            self.assertIn("grow", names_of(segment))
        for action, function in (("segment_map", "grow"), ("segment_unmap", "give_back")):
            of_kind = [event for event in events if event["action"] == action]
            self.assertGreater(len(of_kind), 0)
            for event in of_kind:
                self.assertIn(function, names_of(event))

    def test_metadata_is_the_threads(self) -> None:
        seen: list[str] = []

        def work() -> None:
            seen.append(torch.cuda.memory._get_memory_metadata())
            torch.cuda.memory._set_memory_metadata("its")
            empty(2000)

        torch.cuda.memory._record_memory_history(max_entries=1000)
        torch.cuda.memory._set_memory_metadata("mine")
        try:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            empty(3000)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            self.assertEqual((seen, torch.cuda.memory._get_memory_metadata()), ([""], "mine"))
        finally:
            torch.cuda.memory._set_memory_metadata("")
            torch.cuda.memory._record_memory_history(enabled=None)
        labels = {event["size"]: event["user_metadata"] for event in events if event["action"] == "alloc"}
        self.assertEqual(labels, {2000: "its", 3000: "mine"})

    def test_a_dump_opens_in_pytorchs_own_viewer(self) -> None:
        from torch.cuda import _memory_viz

        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            keep = [empty(size) for size in (1000, 3 * MIB)]
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "dump.pickle"
                torch.cuda.memory._dump_snapshot(str(path))
                dump = pickle.loads(path.read_bytes())
            del keep
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        self.assertIn("allocated", _memory_viz.segsum(dump))
        self.assertIn("segment_map", _memory_viz.trace(dump))
        self.assertIn("html", _memory_viz.trace_plot(dump))

    def test_the_profiler_sees_memory_and_how_much_there_is(self) -> None:
        kept = empty(MIB)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            tensor = empty(5 * MIB)
            totals = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
            del tensor
        self.assertIn(5 * MIB, [event.device_memory_usage for event in profile.events()])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        events = [event["args"] for event in events if event["name"] == "[memory]"]
        said = [(each["Total Allocated"], each["Total Reserved"]) for each in events if abs(each["Bytes"]) == 5 * MIB]
        self.assertEqual(said, [totals, (totals[0] - 5 * MIB, totals[1])])
        del kept

    def test_the_profiler_hears_of_a_request_that_fails(self) -> None:
        self.limit(64 * MIB)
        kept = empty(5 * MIB)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.assertRaises(torch.OutOfMemoryError, empty, 100 * MIB)
            totals = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        (event,) = (event["args"] for event in events if event["name"] == "[OutOfMemory]")
        said = (event["Bytes"], event["Device Id"], event["Total Allocated"], event["Total Reserved"])
        self.assertEqual(said, (100 * MIB, 0, *totals))
        del kept


class RunningOut(VpmmCase):
    def setUp(self) -> None:
        super().setUp()
        torch.cuda.reset_accumulated_memory_stats()

    def tearDown(self) -> None:
        gc.collect()
        torch.cuda.set_per_process_memory_fraction(1.0)

    def test_the_error_has_pytorchs_type_and_words_and_leaves_all_usable(self) -> None:
        self.limit(64 * MIB)
        keep = empty(40 * MIB)
        retries, failures = stats()["num_alloc_retries"], stats()["num_ooms"]
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            empty(30 * MIB)
        words = str(caught.exception)
        self.assertRegex(words, r"^CUDA out of memory\. Tried to allocate 30\.00 MiB\. GPU 0 has a total capacity of ")
        self.assertRegex(words, r"of which .* is free\. 64\.00 MiB allowed; Of the allocated memory 4\d\.\d\d MiB is")
        self.assertIn("is reserved by PyTorch but unallocated", words)
        for of_others in ("private pools", "by other libraries"):
            self.assertNotIn(of_others, words)
        self.assertEqual((stats()["num_alloc_retries"], stats()["num_ooms"]), (retries + 1, failures + 1))
        del keep
        self.assertEqual(empty(60 * MIB).numel(), 60 * MIB)

    def test_what_nobody_has_is_an_error_not_a_crash(self) -> None:
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            empty(1 << 50)
        self.assertNotIn("allowed", str(caught.exception).partition("VPMM: ")[0])
        with self.assertRaisesRegex(torch.OutOfMemoryError, "more than 1EB"):
            torch.empty(1 << 61, dtype=torch.uint8, device="cuda")

    def test_observers_hear_of_it(self) -> None:
        heard: list[tuple[int, ...]] = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: heard.append(told))
        self.limit(64 * MIB)
        with self.assertRaises(torch.OutOfMemoryError):
            empty(100 * MIB)
        self.assertEqual(heard[-1][:2], (0, 100 * MIB))
        self.assertLessEqual(abs(heard[-1][2] - 64 * MIB), 1)

    def test_the_fraction_is_what_was_set_and_wrong_ones_are_refused(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.25)
        self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 0.25)
        for wrong in (-0.1, 1.5):
            with self.assertRaises((ValueError, RuntimeError)):
                torch.cuda.set_per_process_memory_fraction(wrong)

    def test_a_fraction_of_1_is_as_if_it_was_never_set(self) -> None:
        pool = vpmm.Pool.default(0)
        before = pool.get_capacity()
        for limit in (1.0, 64 * MIB / torch.cuda.mem_get_info()[1], 1.0):
            torch.cuda.set_per_process_memory_fraction(limit)
            self.assertEqual(pool.get_capacity() == before, limit == 1.0)
            self.assertEqual(torch.cuda.get_per_process_memory_fraction(), limit)

    def test_the_error_has_the_figures_of_each_holder(self) -> None:
        self.limit(128 * MIB)
        pool, other = torch.cuda.MemPool(), vpmm.Pool.default(0)
        with torch.cuda.use_mem_pool(pool):
            inside = [empty(6 * MIB), empty(2 * MIB)]
        mine = empty(40 * MIB)
        theirs = [other.allocate(size * MIB, 0) for size in (10, 6)]
        idle = empty(8 * MIB)
        del idle
        allocated = self.allocated() + self.before
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            empty(100 * MIB)
        total = torch.cuda.mem_get_info()[1]
        words = str(caught.exception).partition(" VPMM: ")[0]
        parts = (
            f"CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of {total / (1 << 30):.2f} "
            "GiB of which ",
            " is free. 128.00 MiB allowed; Of the allocated memory "
            f"{allocated / MIB:.2f} MiB is allocated by PyTorch, with 8.00 MiB allocated in private pools (e.g., CUDA "
            "Graphs), 16.00 MiB by other libraries in the same pool, and ",
            " is reserved by PyTorch but unallocated.",
        )
        self.assertRegex(words, f"^{r'[0-9.]+ (bytes|[KMG]iB)'.join(map(re.escape, parts))}$")
        for ptr in theirs:
            other.deallocate(ptr, 0)
        del inside, mine

    def test_failures_and_retries_are_counted_from_the_last_reset_on(self) -> None:
        self.limit(64 * MIB)
        for expected in (1, 2):
            self.assertRaises(torch.OutOfMemoryError, empty, 100 * MIB)
            self.assertEqual((stats()["num_alloc_retries"], stats()["num_ooms"]), (expected, expected))
            if expected == 1:
                torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        self.assertEqual((stats()["num_alloc_retries"], stats()["num_ooms"]), (0, 0))

    def test_of_no_part_of_the_memory_nothing_is_served(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.0)
        self.assertLessEqual(torch.cuda.mem_get_info()[0], 1)  # a limit of no byte is none, so it is of one
        self.assertRaises(torch.OutOfMemoryError, empty, 3 * MIB)

    def test_idle_memory_of_another_shape_is_no_reason_to_run_out(self) -> None:
        self.limit(128 * MIB)
        small = [empty(6 * MIB) for _ in range(20)]
        del small[::2]
        small = []
        self.assertEqual(empty(120 * MIB).numel(), 120 * MIB)


if __name__ == "__main__":
    unittest.main()
