# SPDX-License-Identifier: Apache-2.0
"""tests: the history of PyTorch's memory on VPMM: fields of its events, stacks, annotations, and what is left out."""

from __future__ import annotations

import contextlib
import time
import unittest
from collections.abc import Iterator
from typing import Any

from vpmm_case import ABSENT, MIB, VERSION, VpmmCase

if not ABSENT:
    import probe
    import torch

STAGES = ("START", "START", "END", "END")
SLACK_US = 1_000_000  # of the clock of events


def empty(size: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def record(enabled: str | None = "all", **options: Any) -> None:  # noqa: ANN401
    torch.cuda.memory._record_memory_history(enabled, **({"context": None, "stacks": "python"} | options))


@contextlib.contextmanager
def recording(**options: Any) -> Iterator[None]:  # noqa: ANN401
    record(**({"clear_history": True} | options))
    try:
        yield
    finally:
        record(None)


def events(device: int = 0) -> list[dict[str, Any]]:
    return torch.cuda.memory._snapshot()["device_traces"][device]


def actions() -> list[str]:
    return [event["action"] for event in events()]


class HistoryCase(VpmmCase):
    def check_times(self, found: list[dict[str, Any]], begin: int, end: int) -> None:
        """They are in order, and between two looks at the clock, in nanoseconds."""
        times = [begin // 1000 - SLACK_US, *(each["time_us"] for each in found), end // 1000 + SLACK_US]
        self.assertEqual(times, sorted(times))


class Events(HistoryCase):
    def test_each_kind_has_its_fields(self) -> None:
        empty(1)  # pages for it are there
        stream = torch.cuda.Stream()
        self.limit(64 * MIB)
        begin = time.time_ns()
        with recording():
            with torch.cuda.stream(stream):
                tensor = empty(1000)
            address = tensor.data_ptr()
            large = empty(20 * MIB)
            large_address = large.data_ptr()
            active = torch.cuda.memory_allocated()
            events()
            del tensor, large
            free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
            with self.assertRaises(torch.OutOfMemoryError):
                empty(100 * MIB)
            found = [event for event in events() if not event["action"].startswith("segment")]
        end = time.time_ns()
        wanted = [
            ("alloc", address, 1000, stream.cuda_stream),
            ("alloc", large_address, 20 * MIB, 0),
            ("snapshot", 0, active, 0),
            ("free_requested", address, 1000, stream.cuda_stream),
            ("free_completed", address, 1000, stream.cuda_stream),
            ("free_requested", large_address, 20 * MIB, 0),
            ("free_completed", large_address, 20 * MIB, 0),
            ("oom", free, 100 * MIB, 0),
            ("snapshot", 0, active - 1024 - 20 * MIB, 0),
        ]
        places = [event.get("addr", event.get("device_free")) for event in found]
        self.assertEqual(
            [(e["action"], at, e["size"], e["stream"]) for e, at in zip(found, places, strict=True)], wanted
        )
        self.check_times(found, begin, end)
        for event in found:
            self.assertEqual((event["compile_context"], event["user_metadata"]), ("", ""))

    def test_raw_memory_is_of_the_stream_that_was_named(self) -> None:
        current, side = torch.cuda.Stream(), torch.cuda.Stream()
        asked = (current, side)
        with recording(), torch.cuda.stream(current):
            made = [torch.cuda.caching_allocator_alloc(3 * MIB, 0, stream) for stream in asked]
            nothing = [torch.cuda.caching_allocator_alloc(0, 0, stream) for stream in asked]
            for pointer in made + nothing:
                torch.cuda.caching_allocator_delete(pointer)
            found = [
                (e["action"], e["addr"], e["stream"]) for e in events() if e["action"] in ("alloc", "free_completed")
            ]
        wanted = [(pointer, stream.cuda_stream) for pointer, stream in zip(made, asked, strict=True)]
        self.assertEqual(found, [(action, *each) for action in ("alloc", "free_completed") for each in wanted])
        self.assertEqual(nothing, [0, 0])

    @unittest.skipUnless(not ABSENT and torch.cuda.device_count() > 1, "needs two GPUs")
    def test_each_device_has_its_own(self) -> None:
        empty(1, "cuda:1")
        with recording():
            address = empty(3000, "cuda:1").data_ptr()
            found = [[e for e in events(device) if e["action"] != "snapshot"] for device in range(2)]
        self.assertEqual(found[0], [])
        self.assertEqual(
            [(e["action"], e["addr"], e["size"]) for e in found[1]],
            [(action, address, 3000) for action in ("alloc", "free_requested", "free_completed")],
        )

    def test_kinds_that_are_skipped_are_left_out_and_unknown_ones_refused(self) -> None:
        tensor = empty(1000)
        for skipped, wanted in (
            ([], ["snapshot", "alloc", "free_requested", "free_completed", "snapshot"]),
            (["free_requested", "snapshot"], ["alloc", "free_completed"]),
            (["alloc", "free_completed"], ["snapshot", "free_requested", "snapshot"]),
        ):
            with recording(skip_actions=skipped):
                actions()
                empty(1000)
                self.assertEqual(actions(), wanted, skipped)
        with self.assertRaisesRegex((RuntimeError, ValueError), "no_such_action"):
            record(skip_actions=["no_such_action"])
        self.assertEqual(actions(), [])
        del tensor

    def test_the_newest_are_kept_until_the_history_is_cleared_or_ends(self) -> None:
        with recording(max_entries=0, skip_actions=["snapshot"]):  # one, as natively
            empty(1000)
            self.assertEqual(actions(), ["free_completed"])
        left_out = ["snapshot", "free_requested", "free_completed"]
        with recording(skip_actions=left_out):
            for size in (1000, 2000, 3000):
                empty(size)
            for options, wanted in (
                ({"max_entries": 100}, [1000, 2000, 3000]),
                ({"max_entries": 2}, [2000, 3000]),
                ({"max_entries": 2, "clear_history": True}, []),
            ):
                record(skip_actions=left_out, **options)
                self.assertEqual([event["size"] for event in events()], wanted, options)
            for size in (4000, 5000, 6000):
                empty(size)
            self.assertEqual([event["size"] for event in events()], [5000, 6000])
        self.assertEqual(events(), [])
        record(skip_actions=left_out)
        self.assertEqual(events(), [])
        record(None)

    def test_the_stacks_are_those_that_were_asked_for(self) -> None:
        for context, wanted in (
            (None, (False, False, False)),
            ("state", (True, False, False)),
            ("alloc", (True, True, False)),
            ("all", (True, True, True)),
        ):
            with recording(context=context):
                tensor = empty(24 * MIB)
                address = tensor.data_ptr()
                snapshot = torch.cuda.memory._snapshot()
                del tensor
                of_address = [e for e in events() if e.get("addr") == address]
                blocks = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == address]
                found = {event["action"]: bool(event.get("frames")) for event in of_address}
                self.assertEqual(found["free_requested"], found["free_completed"])
                self.assertEqual((bool(blocks[0]["frames"]), found["alloc"], found["free_requested"]), wanted, context)

    def test_the_error_of_a_request_has_its_stack(self) -> None:
        self.limit(64 * MIB)
        with recording(context="all"):
            with self.assertRaises(torch.OutOfMemoryError):
                empty(100 * MIB)
            (found,) = (event for event in events() if event["action"] == "oom")
        self.assertIn("empty", [frame["name"] for frame in found["frames"]])

    def test_segments_of_memory_pools_have_no_events_of_their_own(self) -> None:
        pool = torch.cuda.MemPool()
        with recording():
            with torch.cuda.use_mem_pool(pool):
                address = empty(5 * MIB).data_ptr()
            del pool
            torch.cuda.empty_cache()
            found = [(e["action"], e["addr"]) for e in events() if e["action"].startswith("segment")]
        self.assertEqual(
            [action for action, at in found if at == address], ["segment_map", "segment_unmap"], "that of its memory"
        )
        self.assertEqual({action for action, _ in found}, {"segment_map", "segment_unmap"})

    def test_a_snapshot_has_the_events_only_if_asked(self) -> None:
        with recording():
            empty(1000)
            for asked in (True, False):
                traces = torch._C._cuda_memorySnapshot((0, 0, asked))["device_traces"]
                self.assertEqual((len(traces), bool(traces[0])), (torch.cuda.device_count(), asked))

    def test_stacks_without_a_way_to_take_them_are_refused(self) -> None:
        self.assertEqual(probe.load().record_stacks_without_a_way(), "stacks are asked for without a way to take them")
        self.assertFalse(torch._C._cuda_isHistoryEnabled())

    def test_it_is_known_whether_one_is_recorded(self) -> None:
        with recording():
            self.assertTrue(torch._C._cuda_isHistoryEnabled())
        self.assertFalse(torch._C._cuda_isHistoryEnabled())

    def test_the_innermost_compilation_is_named(self) -> None:
        library = probe.load()
        with recording(skip_actions=["free_requested", "free_completed", "snapshot"]):
            for name in ("outer", "inner"):
                library.push_compile_context(name)
                empty(1000)
            for _ in range(2):
                library.pop_compile_context()
                empty(1000)
            names = [event["compile_context"] for event in events() if event["action"] == "alloc"]
        self.assertEqual(names, ["outer", "inner", "outer", ""])


class Growth(VpmmCase):
    """Each part of a segment has the stack of the call that mapped it, which the first part of it shows."""

    def stack_at(self, tensor: torch.Tensor) -> str:
        """The function that grew the pool for the first part of the tensor's segment."""
        segments = (s for s in torch.cuda.memory_snapshot() if 0 <= tensor.data_ptr() - s["address"] < s["total_size"])
        names = [frame["name"] for frame in next(segments)["frames"]]
        return next((name for name in names if name.startswith("grow")), "")

    def test_what_is_left_of_a_mapping_keeps_its_stack_and_new_memory_has_another(self) -> None:
        def grow_first(size: int) -> torch.Tensor:
            return empty(size)

        def grow_later(size: int) -> torch.Tensor:
            return empty(size)

        for kept in (0, 3, 7):
            with recording(context="all"):
                first = grow_first(64 * MIB)
                begin = first.data_ptr()
                del first
                parts = [empty(8 * MIB) for _ in range(8)]
                self.assertEqual([part.data_ptr() - begin for part in parts], [8 * MIB * i for i in range(8)])
                keep = parts[kept]
                parts.clear()
                torch.cuda.empty_cache()
                self.assertEqual(self.stack_at(keep), "grow_first", kept)
                more = grow_later(64 * MIB)
                is_behind = keep.data_ptr() < more.data_ptr()
                self.assertEqual(self.stack_at(keep), "grow_first" if is_behind else "grow_later", kept)
                del keep, more
            torch.cuda.empty_cache()

    def test_a_segment_whose_first_part_has_no_stack_shows_that_of_the_next(self) -> None:
        def grow(size: int) -> torch.Tensor:
            return empty(size)

        plain = empty(64 * MIB)
        self.assertEqual(self.stack_at(plain), "")
        with recording(context="all"):
            more = grow(64 * MIB)
            self.assertEqual(more.data_ptr(), plain.data_ptr() + 64 * MIB)
            self.assertEqual(self.stack_at(plain), "grow")

    def test_memory_that_is_mapped_again_without_a_stack_has_none(self) -> None:
        def grow(size: int) -> torch.Tensor:
            return empty(size)

        with recording(context="all"):
            first = grow(64 * MIB)
            address = first.data_ptr()
            self.assertEqual(self.stack_at(first), "grow")
            del first
            torch.cuda.empty_cache()
        again = empty(64 * MIB)
        self.assertEqual((again.data_ptr(), self.stack_at(again)), (address, ""))


class Annotations(HistoryCase):
    def test_blocks_of_the_profiler_begin_and_end_on_their_device(self) -> None:
        device = torch.cuda.device_count() - 1
        begin = time.time_ns()
        with torch.cuda.device(device), recording(global_record_annotations=True):
            with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
                pass
            found = torch.cuda.memory._snapshot()["external_annotations"]
        end = time.time_ns()
        self.assertEqual(
            [(each["stage"], each["name"], each["device"]) for each in found],
            [(*each, device) for each in zip(STAGES, ("outer", "inner", "inner", "outer"), strict=True)],
        )
        self.check_times(found, begin, end)

    def named(self) -> list[str]:
        return [each["name"] for each in torch.cuda.memory._snapshot()["external_annotations"]]

    def test_as_many_are_kept_as_events_and_none_without_a_history(self) -> None:
        library = probe.load()
        library.annotate("name", "early")
        self.assertEqual(self.named(), [])
        with recording(max_entries=3, clear_history=False):
            self.assertEqual(self.named(), [])
            for number in range(5):
                library.annotate("name", str(number))
                self.assertEqual(self.named(), [str(i) for i in range(max(0, number - 2), number + 1)])
            record(max_entries=3)
            self.assertEqual(self.named(), ["2", "3", "4"])
            record(max_entries=3, clear_history=True)
            self.assertEqual(self.named(), [])
            library.annotate("name", "late")
        self.assertEqual(self.named(), [])


class Snapshots(VpmmCase):
    def test_the_settings_are_the_pools(self) -> None:
        self.assertEqual(
            torch.cuda.memory._snapshot()["allocator_settings"],
            {
                "PYTORCH_CUDA_ALLOC_CONF": "backend:vpmm",
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": True,
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "graph_capture_record_stream_reuse": False,
                "roundup_power2_divisions": {},
                **({"max_round_threshold": -1, "max_cached_size": -1} if VERSION >= [2, 13] else {}),
            },
        )

    def test_segments_and_blocks_have_all_their_fields(self) -> None:
        before = {segment["address"] for segment in torch.cuda.memory_snapshot()}
        pool, stream = torch.cuda.MemPool(), torch.cuda.Stream()
        with torch.cuda.use_mem_pool(pool):
            first = empty(1000)
            with torch.cuda.stream(stream):
                second = empty(3000)
        large = empty(5 * MIB)
        found = {s["address"]: s for s in torch.cuda.memory_snapshot() if s["address"] not in before}
        for segment in found.values():
            for part in (segment, *segment["blocks"]):
                self.assertEqual(part.pop("frames"), [])
        at = first.data_ptr()
        self.assertEqual(second.data_ptr(), at + 1024)
        self.assertEqual(
            found[at],
            {
                "device": 0,
                "address": at,
                "total_size": 2 * MIB,
                "allocated_size": 4096,
                "active_size": 4096,
                "requested_size": 4000,
                "stream": stream.cuda_stream,
                "segment_type": "large",
                "segment_pool_id": pool.id,
                "is_expandable": False,
                "blocks": [
                    {"address": at, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
                    {"address": at + 1024, "size": 3072, "requested_size": 3000, "state": "active_allocated"},
                    {"address": at + 4096, "size": 2 * MIB - 4096, "requested_size": 0, "state": "inactive"},
                ],
            },
        )
        (around,) = (s for s in found.values() if 0 <= large.data_ptr() - s["address"] < s["total_size"])
        self.assertEqual(
            (around["segment_type"], around["segment_pool_id"], around["is_expandable"], around["stream"]),
            ("large", (0, 0), True, 0),
        )
        only = pool.snapshot()
        self.assertEqual([segment["address"] for segment in only], [at])
        del first, second, large


if __name__ == "__main__":
    unittest.main()
