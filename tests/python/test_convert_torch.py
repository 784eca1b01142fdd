# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch's snapshots as recordings, and recordings as snapshots for its viewer."""

from __future__ import annotations

import io
import pickle
import unittest
from collections import Counter
from typing import Any

from vpmm.convert import memory_viz, viewer_rules
from vpmm.convert.pickles import loads
from vpmm.convert.torch_snapshot import read
from vpmm.recordings import BadFile, Event, Frame, Kind, Recording

from convert_case import (
    BASE,
    MIB,
    ConvertCase,
    block,
    entry,
    mutations,
    random_recording,
    real_snapshot,
    recorded,
    segment,
    snapshot,
)

Fields = dict[str, Any]


def viewed(recording: Recording) -> Fields:
    """What the viewer gets to see; its rules must hold."""
    file = io.BytesIO()
    memory_viz.write(recording, file)
    found = viewer_rules.broken_in_pickle(file.getvalue())
    shown = loads(file.getvalue(), "written")
    assert isinstance(shown, dict)
    found += viewer_rules.broken(shown)
    if found:
        raise AssertionError(f"{len(found)} rules are broken: {found[:3]}")
    return shown


def calls(recording: Recording) -> list[tuple[str, int, int]]:
    return [(Kind(event.kind).name, event.address - BASE, event.bytes) for event in recording.events]


class Reading(ConvertCase):
    def test_what_lived_before_the_history_is_found_by_going_backwards(self) -> None:
        # At the end the first MiB lives, since before; the second was freed, the third came and went, the fourth came.
        blocks = [block(MIB, "active_allocated", 1000), block(MIB), block(MIB), block(MIB, "active_allocated", 77)]
        trace = [
            entry("free_requested", BASE + MIB, 500, time_us=100),
            entry("free_completed", BASE + MIB, 500, time_us=100),
            entry("alloc", BASE + 2 * MIB, 600, time_us=200),
            entry("free_requested", BASE + 2 * MIB, 600, time_us=300),
            entry("alloc", BASE + 3 * MIB, 77, time_us=400),
        ]
        recording = read(snapshot([segment(BASE, blocks)], trace), "x")
        self.assertEqual(
            calls(recording),
            [
                ("MAP", 0, 4 * MIB),
                ("LIVE", 0, 1000),
                ("LIVE", MIB, 500),
                ("FREE", MIB, 500),
                ("ALLOCATE", 2 * MIB, 600),
                ("FREE", 2 * MIB, 600),
                ("ALLOCATE", 3 * MIB, 77),
            ],
        )
        self.assertEqual([event.time_ns for event in recording.events[1:]], [0, 0, 1000, 101_000, 201_000, 301_000])
        self.assertIs(recording.header["is_window"], True)
        self.assertEqual(recording.warning, "the history begins late: 2 allocations lived already")

    def test_segments_that_came_and_went_are_mapped_and_unmapped(self) -> None:
        trace = [
            entry("segment_free", BASE, MIB),
            entry("segment_alloc", BASE + 8 * MIB, MIB),
            entry("segment_map", BASE + 9 * MIB, MIB),
            entry("segment_unmap", BASE + 9 * MIB, MIB),
        ]
        recording = read(snapshot([segment(BASE + 8 * MIB, [block(MIB)])], trace), "x")
        names = ["MAP", "UNMAP", "MAP", "MAP", "UNMAP"]
        self.assertEqual([call[0] for call in calls(recording)], names)
        self.assertEqual(calls(recording)[0], ("MAP", 0, MIB))

    def test_running_out_of_memory_is_a_failed_request_and_a_report(self) -> None:
        trace = [{"action": "oom", "size": 5 * MIB, "stream": 16, "device_free": 77, "frames": [], "time_us": 3}]
        recording = read(snapshot([], trace), "x")
        report, failed = recording.events
        self.assertEqual((failed.kind, failed.address, failed.bytes), (Kind.ALLOCATE_FAILED, 0, 5 * MIB))
        self.assertEqual((report.kind, report.bytes), (Kind.OUT_OF_MEMORY, 5 * MIB))
        self.assertIn("the device had 77 B free", recording.strings[failed.value])
        self.assertEqual(recording.streams[failed.stream or 0], "0x10")

    def test_stacks_tags_streams_and_annotations_are_kept(self) -> None:
        frames = [{"filename": "a.py", "line": 3, "name": "inner"}, {"filename": "b.py", "line": 4, "name": "outer"}]
        trace = [
            entry("alloc", BASE, 5, frames=frames, stream=0x70, user_metadata="weights", time_us=10),
            entry("alloc", BASE + 512, 6, frames=frames, user_metadata={"step": 1}, time_us=12),
            entry("snapshot", 0, 0, time_us=13),
        ]
        notes = [{"device": 0, "time_us": 11, "stage": "START", "name": "step 1"}]
        blocks = [block(512, "active_allocated", 5), block(512, "active_allocated", 6)]
        recording = read(snapshot([segment(BASE, blocks)], trace, external_annotations=notes), "x")
        _, first, note, second, mark = recording.events
        self.assertEqual(recording.stacks[first.stack], (Frame("a.py", 3, "inner"), Frame("b.py", 4, "outer")))
        self.assertEqual(first.stack, second.stack)
        self.assertEqual((recording.tags[first.tag], recording.tags[second.tag]), ("weights", "step=1"))
        self.assertEqual(recording.streams[first.stream or 0], "0x70")
        self.assertEqual((first.value, second.value), (512, 512), "what they take with rounding")
        self.assertEqual(recording.strings[note.value], "START step 1")
        self.assertEqual(recording.strings[mark.value], "snapshot")

    def test_devices_keep_apart_and_their_events_are_in_the_order_of_time(self) -> None:
        data = pickle.dumps(
            {
                "segments": [segment(BASE, [block(MIB)]), segment(BASE, [block(MIB)], device=1)],
                "device_traces": [
                    [entry("alloc", BASE, 1, time_us=10), entry("free_requested", BASE, 1, time_us=30)],
                    [entry("alloc", BASE, 2, time_us=20), entry("free_requested", BASE, 2, time_us=40)],
                ],
            }
        )
        events = read(data, "x").events[2:]
        self.assertEqual([(event.device, event.bytes) for event in events], [(0, 1), (1, 2), (0, 1), (1, 2)])

    def test_the_shapes_of_1_13_and_2_0_are_read(self) -> None:
        frames = [{"filename": "a.py", "line": 3, "name": "inner"}]
        old = {
            "size": 1024,
            "state": "active_allocated",
            "history": [{"addr": BASE, "real_size": 700, "frames": frames}],
        }
        pending = {"size": 512, "state": "active_awaiting_free"}
        segments = [{"address": BASE, "total_size": 1536, "stream": 0, "blocks": [old, pending]}]
        for data in (pickle.dumps(segments), pickle.dumps({"segments": segments, "device_traces": []}, 2)):
            recording = read(data, "x")
            self.assertEqual(calls(recording), [("MAP", 0, 1536), ("LIVE", 0, 700)])
            self.assertEqual(recording.stacks, {1: (Frame("a.py", 3, "inner"),)})
            self.assertIn("has no history", recording.warning)
        trace = [entry("alloc", BASE, 700), entry("free_requested", BASE, 700), entry("free_completed", BASE, 700)]
        recording = read(pickle.dumps({"segments": [], "device_traces": [trace]}), "x")
        self.assertEqual([event.time_ns for event in recording.events], [1000, 2000], "a microsecond each")

    def test_an_address_that_was_written_as_a_negative_number_is_one(self) -> None:
        recording = read(snapshot([], [entry("alloc", -4096, 10)]), "x")
        self.assertEqual(recording.events[0].address, (1 << 64) - 4096)

    def test_a_wrong_member_is_named(self) -> None:
        good = segment(BASE, [block(MIB)])
        for content, reason in (
            (5, "x: the snapshot: a int stands where a dictionary should"),
            ({"segments": 5}, "x: segments: a int stands where a list should"),
            ({"segments": [5]}, "x: segments[0]: a int stands where a dictionary should"),
            ({"segments": [good | {"address": None}]}, "x: segments[0].address: is missing"),
            ({"segments": [good | {"address": "a"}]}, "x: segments[0].address: 'a' is no number of 64 bits"),
            ({"segments": [good | {"total_size": 5}]}, "x: segments[0]: its blocks are longer than itself"),
            ({"segments": [good | {"total_size": 1 << 64}]}, "x: segments[0].total_size: "),
            ({"segments": [good | {"blocks": [{"size": 1}]}]}, "x: segments[0].blocks[0]: 'None' is no state"),
            ({"device_traces": [5]}, "x: device_traces[0]: is no trace"),
            ({"device_traces": [[5]]}, "x: device_traces[0][0]: a int stands"),
            ({"device_traces": [[{}]]}, "x: device_traces[0][0]: has no action"),
            ({"device_traces": [[entry("alloc", 1, 1, frames=5)]]}, "x: device_traces: frames are no list"),
            ({"device_traces": [[entry("alloc", 1.5, 1)]]}, "x: device_traces[0][0].addr: '1.5' is no number"),
            ({"device_traces": [[entry("alloc", (1 << 64) - 1, 2)]]}, "x: device_traces[0][0]: reaches beyond"),
        ):
            with self.assertRaises(BadFile) as raised:
                read(pickle.dumps(content), "x")
            self.assertTrue(str(raised.exception).startswith(reason), f"{raised.exception} is not {reason}")

    def test_a_small_file_that_repeats_itself_is_refused_before_it_takes_long(self) -> None:
        blocks = [block(1) for _ in range(3000)]
        same = segment(BASE, blocks)
        with self.assertRaisesRegex(BadFile, "the snapshot repeats itself"):
            read(pickle.dumps({"segments": [same] * 100_000}), "x")

    def test_texts_that_hold_themselves_a_million_times_do_no_harm(self) -> None:
        label: object = "x"
        for _ in range(60):
            label = [label, label]
        frames = [{"filename": label, "line": 1, "name": "f"}]
        trace = [entry("alloc", BASE, 5, user_metadata={"a": label}, frames=frames), entry("free_requested", BASE, 5)]
        notes = [{"name": label}]
        data = snapshot([], trace, allocator_settings={"a": label}, external_annotations=notes)
        recording = read(data, "x")
        self.assertEqual(recording.tags, {1: "a=list"})
        with self.assertRaisesRegex(BadFile, "'list' is no number"):
            read(snapshot([], [entry("alloc", BASE, 5) | {"size": label}]), "x")

    def test_real_snapshots_with_any_bytes_changed_are_read_or_refused(self) -> None:
        trace = [entry("alloc", BASE, 100, time_us=5), entry("free_requested", BASE, 100), entry("oom", 0, 9)]
        small = snapshot([segment(BASE, [block(MIB), block(MIB, "active_allocated", 9)])], trace)
        outcomes: Counter[bool] = Counter()
        for data in (*mutations(small, 3000, 5), *mutations(real_snapshot("native"), 3, 6)):
            try:
                read(data, "x")
                outcomes[True] += 1
            except BadFile as error:
                self.assertRegex(str(error), r"^x:(\d+:)? ")
                outcomes[False] += 1
        self.assertGreater(min(outcomes.values()), 50, outcomes)


class Writing(ConvertCase):
    def test_a_real_snapshot_comes_back_as_it_was_but_for_names_of_pools(self) -> None:
        for name in ("native", "oom"):
            data = real_snapshot(name)
            real, ours = loads(data, name), viewed(read(data, name))
            assert isinstance(real, dict)
            self.assertEqual(viewer_rules.broken(real), [])
            (expected,), (trace,) = real["device_traces"], ours["device_traces"]
            kept = ("action", "addr", "size", "stream", "time_us", "frames", "user_metadata")
            for theirs, written in zip(expected, trace, strict=True):
                lost = {"frames", "time_us"} if theirs["action"] == "free_completed" else set()
                for key in set(kept) - lost:
                    self.assertEqual(written.get(key), theirs.get(key), (key, theirs))
            self.assertEqual(sizes(ours), sizes(real))
            self.assertEqual(ours["external_annotations"], sorted(real["external_annotations"], key=time_of))

    def test_what_a_snapshot_loses_is_known(self) -> None:
        blocks = [block(MIB), block(MIB, "active_pending_free", 5)]
        trace = [
            entry("alloc", BASE, 5, time_us=10, compile_context="graph", pool_id=(1, 2)),
            entry("free_requested", BASE, 5, time_us=20),
            entry("free_completed", BASE, 5, time_us=90),
            {"action": "oom", "size": 7, "stream": 0, "device_free": 77, "frames": [], "time_us": 95},
        ]
        shown = viewed(read(snapshot([segment(BASE, blocks, segment_type="small")], trace), "x"))
        alloc, requested, completed, oom = shown["device_traces"][0]
        self.assertEqual(alloc["compile_context"], "N/A")
        self.assertNotIn("pool_id", alloc)
        self.assertEqual((requested["time_us"], completed["time_us"]), (20, 20), "when a free was complete")
        self.assertEqual(oom["device_free"], 0)
        self.assertEqual(shown["segments"][0]["segment_type"], "large")
        self.assertEqual([each["state"] for each in shown["segments"][0]["blocks"]], ["inactive"], "what was pending")

    def test_reading_what_was_written_gives_the_same_recording(self) -> None:
        for name in ("native", "oom"):
            first = read(real_snapshot(name), name)
            file = io.BytesIO()
            memory_viz.write(first, file)
            again = read(file.getvalue(), name)
            self.assertEqual(again.events, first.events)
            for table in ("stacks", "tags", "streams"):
                self.assertEqual(getattr(again, table), getattr(first, table))
            self.assertEqual(list(again.strings), list(first.strings))

    def test_a_pools_recording_obeys_the_viewer(self) -> None:
        shown = viewed(recorded())
        (trace,) = shown["device_traces"]
        actions = Counter(each["action"] for each in trace)
        self.assertEqual(
            actions,
            {"segment_map": 2, "alloc": 3, "free_requested": 1, "free_completed": 1, "oom": 1, "segment_unmap": 1},
        )
        self.assertEqual(next(each for each in trace if each["action"] == "alloc")["user_metadata"], "weights")
        self.assertEqual(next(each for each in trace if each["action"] == "oom")["device_free"], 56 * MIB)
        self.assertEqual(
            shown["external_annotations"],
            [{"device": 0, "time_us": 1_700_000_000_000_004, "stage": "MARK", "name": "step 1"}],
        )

    def test_any_order_of_calls_obeys_the_viewer(self) -> None:
        for seed in range(100):
            viewed(random_recording(seed))

    def test_a_recording_without_maps_maps_memory_where_it_is_first_used(self) -> None:
        events = [
            Event(kind=Kind.ALLOCATE, time_ns=1, address=4096, bytes=100),
            Event(kind=Kind.ALLOCATE, time_ns=2, address=4196, bytes=50),
            Event(kind=Kind.FREE, time_ns=3, address=4096, bytes=100),
            Event(kind=Kind.ALLOCATE, time_ns=4, address=4096, bytes=90),
        ]
        shown = viewed(Recording({}, events, {}, {}, {}, {}, {}, None, ""))
        (trace,) = shown["device_traces"]
        maps = [(each["addr"], each["size"]) for each in trace if each["action"] == "segment_map"]
        self.assertEqual(maps, [(4096, 100), (4196, 50)])
        (whole,) = shown["segments"]
        self.assertEqual((whole["address"], whole["total_size"]), (4096, 150))


class Rules(unittest.TestCase):
    """The checker finds what it is for."""

    def test_each_broken_rule_is_found(self) -> None:
        live = [block(MIB, "active_allocated", 9)]

        def found(segments: list[Fields], trace: list[Fields]) -> str:
            return " ".join(viewer_rules.broken({"segments": segments, "device_traces": [trace]}))

        good = segment(BASE, live)
        self.assertEqual(found([good], [entry("segment_alloc", BASE, MIB), entry("alloc", BASE, 9)]), "")
        self.assertIn("do not fill", found([good | {"total_size": 2 * MIB}], []))
        self.assertIn("a block begins at", found([good | {"blocks": [live[0] | {"address": 5}]}], []))
        self.assertIn("requested", found([good | {"blocks": [live[0] | {"requested_size": 2 * MIB}]}], []))
        self.assertIn("segments overlap", found([good, good], []))
        self.assertIn(
            "nothing is mapped yet", found([good], [entry("alloc", BASE, 9), entry("segment_alloc", BASE, MIB)])
        )
        self.assertIn("is not live behind it", found([good], [entry("alloc", BASE + 5, 9)]))
        self.assertIn(
            "is in no segment", found([], [entry("free_requested", BASE, 9), entry("free_completed", BASE, 9)])
        )
        self.assertIn("never completed", found([good], [entry("free_requested", BASE, 9)]))
        self.assertIn("is mapped behind it", found([good], [entry("segment_free", BASE, MIB)]))
        self.assertIn("without `unknown`", found([good], [entry("alloc", BASE, 9, category="a")]))
        self.assertIn("without device_free", found([good], [entry("oom", 0, 9)]))
        self.assertEqual(viewer_rules.broken_in_pickle(pickle.dumps(b"x", 4)), ["11: SHORT_BINBYTES"])


def sizes(shown: Fields) -> list[tuple[object, ...]]:
    keys = ("address", "total_size", "stream", "allocated_size", "active_size", "requested_size", "is_expandable")
    return sorted((*(each[key] for key in keys), len(each["blocks"])) for each in shown["segments"])


def time_of(note: Fields) -> int:
    return int(note["time_us"])


if __name__ == "__main__":
    unittest.main()
