# SPDX-License-Identifier: Apache-2.0
"""tests: RMM's logs, Nsight Systems' databases, Perfetto's traces, windows, and the formats' names."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import pickletools
import re
import sqlite3
import unittest
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vpmm import convert, recordings
from vpmm.convert import nsight, perfetto, rmm, window
from vpmm.convert.build import consistent
from vpmm.recordings import BadFile, Event, Kind, Recording

from convert_case import BASE, MIB, ConvertCase, mutations, random_recording, real_snapshot, recorded
from program import output_of

LOG = """Thread,Time,Action,Pointer,Size,Stream
7,23:59:59.999999,allocate,0x7f0000000000,1000,0x0
8,00:00:00.000001,allocate,0x7f0000000400,24,0x7ffd0010
8,00:00:00.000000,free,0x7f0000000400,24,0x7ffd0010
7,00:00:01.500000,allocate failure,(nil),99999999,0x0
"""
OLD_LOG = f"""{rmm.OLD_HEADER}Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location
Alloc,1,0x7f0000000000,0,1000,0,0,1,0.5,0.501,0.001,a.py:3
Free,1,0x7f0000000000,0,0,0,0,0,0.75,0.7501,0.0001,a.py:4
"""
# Sleeps twice: its memory stays in the pool, and goes to the driver.
SLEEPER = """import os
import vpmm
pool = vpmm.Pool.default()
with vpmm.tag("weights", suspendable=True), vpmm.record(os.environ["RECORDED"]):
    ptr = pool.allocate(3 << 20, 0)
    for to_driver in (False, True):
        vpmm.suspend("weights", to_driver=to_driver)
        vpmm.resume("weights")
    pool.deallocate(ptr, 0)
"""


def read_log(text: str, name: str = "log.csv") -> Recording:
    return rmm.read(text.encode(), name)


def facts(recording: Recording) -> list[tuple[object, ...]]:
    events = recording.events
    return [(Kind(each.kind).name, each.time_ns, each.address, each.bytes) for each in events]


class RmmLogs(ConvertCase):
    def test_a_log_is_read_over_midnight_and_with_threads_out_of_order(self) -> None:
        recording = read_log(LOG)
        self.assertEqual(
            facts(recording),
            [
                ("ALLOCATE", 0, BASE, 1000),
                ("ALLOCATE", 2000, BASE + 1024, 24),
                ("FREE", 2000, BASE + 1024, 24),
                ("ALLOCATE_FAILED", 1_500_001_000, 0, 99999999),
            ],
        )
        self.assertEqual(recording.streams, {0: "0", 1: "0x7ffd0010"})
        self.assertEqual(recording.threads, {0: "7", 1: "8"})

    def test_a_line_from_before_midnight_that_comes_after_it_adds_no_day(self) -> None:
        clocks = ["23:59:59.5", "00:00:00.5", "23:59:59.9", "00:00:01.5", "13:00:01.5", "00:00:01.5"]
        rows = "".join(f"1,{clock},allocate,{index + 1:#x}00000,1,0\n" for index, clock in enumerate(clocks))
        seconds = [0, 1, 1, 2, 46_802, 86_402]
        self.assertEqual(
            [each[1] for each in facts(read_log(f"{rmm.HEADER}\n{rows}"))], [each * 10**9 for each in seconds]
        )

    def test_a_day_between_two_lines_is_not_taken_for_a_late_one(self) -> None:
        rows = "1,08:00:00.0,allocate,0x100,1,0\n1,21:00:00.0,free,0x100,1,0\n1,20:00:00.0,allocate,0x100,1,0\n"
        times = [each[1] // 10**9 for each in facts(read_log(f"{rmm.HEADER}\n{rows}"))]
        self.assertEqual(times, [0, 13 * 3600, 13 * 3600])

    def test_a_log_that_was_cut_is_read_up_to_its_last_whole_line(self) -> None:
        whole = rmm.HEADER + "\n" + "".join(f"1,10:00:00.{i:06},allocate,{i:#x}0000,77,0\n" for i in range(1, 50))
        for length in range(len(rmm.HEADER) + 1, len(whole) + 1):
            recording = read_log(whole[:length])
            self.assertEqual(len(recording.events), whole[:length].count("\n") - 1)
            self.assertEqual("log.csv: the file is cut after line" in recording.warning, whole[length - 1] != "\n")
        packed = self.file(gzip.compress(whole.encode())[:-20], "log.csv.gz")
        recording = convert.load(packed)
        self.assertGreater(len(recording.events), 10)
        self.assertIn("is cut", recording.warning)

    def test_a_byte_order_mark_before_a_log_is_skipped(self) -> None:
        path = self.file(b"\xef\xbb\xbf" + LOG.encode(), "excel.csv")
        self.assertEqual(facts(convert.load(path)), facts(read_log(LOG)))

    def test_memory_whose_free_was_lost_ends_where_another_allocation_overlaps_it(self) -> None:
        rows = ["allocate,0x1000,4096", "allocate,0x3000,4096", "allocate,0x1800,8192", "free,0x1800,8192"]
        recording = read_log(rmm.HEADER + "\n" + "".join(f"1,10:00:00.0,{row},0\n" for row in rows))
        self.assertEqual(
            [each[0::2] for each in facts(recording)],
            [
                ("ALLOCATE", 0x1000),
                ("ALLOCATE", 0x3000),
                ("FREE", 0x1000),
                ("FREE", 0x3000),
                ("ALLOCATE", 0x1800),
                ("FREE", 0x1800),
            ],
        )

    def test_the_older_columns_and_those_of_csv_log_are_read(self) -> None:
        recording = read_log(OLD_LOG)
        self.assertEqual(facts(recording), [("ALLOCATE", 500_000_000, BASE, 1000), ("FREE", 750_000_000, BASE, 1000)])
        self.assertEqual({event.device for event in recording.events}, {1})

    def test_older_clocks_and_pointers_are_read(self) -> None:
        recording = read_log(rmm.HEADER + "\n1,10:00:00:000500,allocate,0xff,5,0\n1,10:00:00:000501,free,ff,5,12\n")
        self.assertEqual([each[1:3] for each in facts(recording)], [(0, 255), (1000, 255)])
        self.assertEqual(recording.streams, {0: "0", 1: "0xc"})

    def test_the_device_is_in_the_files_name(self) -> None:
        self.assertEqual(read_log(LOG, "rmm.dev3.csv").events[0].device, 3)

    def test_a_log_that_begins_late_or_lost_a_free_is_made_consistent(self) -> None:
        rows = ["free,0x100,5", "allocate,0x200,6", "allocate,0x200,7", "free,0x200,99", "free,0x200,7"]
        recording = read_log(rmm.HEADER + "\n" + "".join(f"1,10:00:00.0,{row},0\n" for row in rows))
        expected = [("ALLOCATE", 6), ("FREE", 6), ("ALLOCATE", 7), ("FREE", 7)]
        self.assertEqual([(each[0], each[3]) for each in facts(recording)], expected)
        self.assertIn("2 frees of what was allocated before the beginning", recording.warning)

    def test_errors_name_file_and_line(self) -> None:
        for row, reason in (
            ("1,2", "log.csv:2: 2 columns stand where 6 should"),
            ("1,12:00:00.0,borrow,0x1,1,0", "log.csv:2: `borrow` is no action: allocate, free or allocate failure"),
            ("1,noon,free,0x1,1,0", "log.csv:2: `noon` is no time, as in 12:34:56.789012"),
            ("1,12:00:00.0,free,zz,1,0", "log.csv:2: `zz` is no pointer"),
            ("1,12:00:00.0,free,0x1,-1,0", "log.csv:2: `-1` is no size"),
            ("1,12:00:00.0,free,0x1,1e3,0", "log.csv:2: `1e3` is no size"),
            ("1,12:00:00.0,free,0x1,1,0x10000000000000000", "log.csv:2: `0x10000000000000000` is no stream"),
            ('1,"12', "log.csv:2: unexpected end of data"),
        ):
            with self.assertRaises(BadFile) as raised:
                read_log(f"{rmm.HEADER}\n{row}\n")
            self.assertTrue(str(raised.exception).startswith(reason.split("unexp")[0]), raised.exception)
        with self.assertRaisesRegex(BadFile, "^log.csv:1: the columns are none of RMM's"):
            read_log("a,b\n")

    def test_logs_with_any_bytes_changed_are_read_or_refused(self) -> None:
        for text in (LOG, OLD_LOG):
            for data in mutations(text.encode(), 1500, 3):
                try:
                    rmm.read(data, "x")
                except BadFile as error:
                    self.assertRegex(str(error), r"^x:\d+: ")

    def test_what_is_written_is_read_back_without_tags_stacks_and_maps(self) -> None:
        for recording in (recorded(), convert.of_device(random_recording(4), 0)):
            file = io.StringIO()
            rmm.write(recording, file)
            again = read_log(file.getvalue())
            events, _ = consistent(recording.events)
            expected = [each for each in events if each.kind in (Kind.ALLOCATE, Kind.FREE, Kind.ALLOCATE_FAILED)]
            begin = expected[0].time_ns // 1000
            self.assertEqual(
                [(each.kind, each.time_ns // 1000, each.address, each.bytes) for each in again.events],
                [(each.kind, each.time_ns // 1000 - begin, each.address, each.bytes) for each in expected],
            )
            handles = [recording.stream_handle(each.stream) for each in expected]
            self.assertGreater(len(set(handles)), 1)
            self.assertEqual([again.stream_handle(each.stream) for each in again.events], handles)

    def test_a_written_log_is_as_rmm_writes_it(self) -> None:
        file = io.StringIO()
        rmm.write(recorded(), file)
        self.assertEqual(
            file.getvalue().splitlines()[:4],
            [
                rmm.HEADER,
                "0,22:13:20.000003,allocate,0x7f0000000000,3145728,0",
                f"0,22:13:20.000005,allocate,0x7f0000400000,100,{0x7F12}",
                "0,22:13:20.000006,free,0x7f0000000000,3145728,0",
            ],
        )

    def test_rmms_benchmark_can_read_each_column(self) -> None:
        recording = recorded()
        recording.threads = {0: 'loader, "7"\nü 7845', 1: "7846"}
        recording.streams = {0: "0", 1: "stream 13 (0x7f12)"}
        for row in columns_of(recording):
            thread, _, action, pointer, size, stream = row
            self.assertIn(action, ("allocate", "free", "allocate failure"))
            self.assertTrue(pointer == "(nil)" or 0 < int(pointer, 16) < 1 << 64)
            self.assertTrue(all(text.isascii() and text.isdigit() for text in (thread, size, stream)), row)
        self.assertEqual({row[0] for row in columns_of(recording)}, {"7845"})
        self.assertEqual({row[5] for row in columns_of(recording)}, {"0", str(0x7F12)})


def columns_of(recording: Recording) -> list[list[str]]:
    """A log's rows as RMM's benchmark splits them: at commas, without a meaning of quotes."""
    file = io.StringIO()
    rmm.write(recording, file)
    rows = [line.split(",") for line in file.getvalue().splitlines()[1:]]
    assert all(len(row) == 6 for row in rows), rows
    return rows


class NsightDatabases(ConvertCase):
    def database(self, rows: list[tuple[object, ...]], more: str = ", streamId integer") -> Path:
        path = self.folder / "report.sqlite"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute(
                f"create table {nsight.TABLE} (start integer, globalPid integer, deviceId integer, contextId integer, "
                f"address integer, pc integer, bytes integer, memKind integer, memoryOperationType integer{more})"
            )
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"insert into {nsight.TABLE} values ({marks})", rows)
        connection.close()
        return path

    def test_device_memory_of_the_busiest_process_is_read(self) -> None:
        pid = 42 << 24
        path = self.database(
            [
                (2000, pid, 1, 1, BASE, 0, 500, 2, 0, 7),
                (1000, pid, 1, 1, BASE + 4096, 0, 70, 2, 0, None),
                (1500, pid, 1, 1, 5, 0, 9, 1, 0, 7),  # pinned memory of the host
                (3000, pid, 1, 1, BASE, 0, 500, 2, 1, 7),
                (2500, pid + (1 << 24), 0, 1, BASE, 0, 1, 2, 0, 7),
            ]
        )
        recording = convert.load(path)
        self.assertEqual(
            facts(recording),
            [("ALLOCATE", 0, BASE + 4096, 70), ("ALLOCATE", 1000, BASE, 500), ("FREE", 2000, BASE, 500)],
        )
        self.assertEqual({event.device for event in recording.events}, {1})
        self.assertEqual(recording.streams, {0: "0", 1: "0x7"})
        self.assertEqual(recording.header["pid"], 42)
        self.assertIn("1 calls of others are left out", recording.warning)

    def test_older_databases_have_no_streams(self) -> None:
        path = self.database([(1, 1, 0, 1, BASE, 0, 5, 2, 0)], "")
        self.assertEqual(len(convert.load(path).events), 1)

    def test_what_is_no_such_database_is_refused_by_name(self) -> None:
        good = self.database([(1, 1, 0, 1, BASE, 0, 5, 2, 0, 7)]).read_bytes()
        for content, reason in (
            (good[:3000], "malformed|not a database"),
            (b"SQLite format 3\0" + b"x" * 200, "database"),
        ):
            with self.assertRaisesRegex(BadFile, f"bad.sqlite: .*{reason}"):
                convert.load(self.file(content, "bad.sqlite"))
        for row, reason in (
            ((1, 1, 0, 1, "text", 0, 5, 2, 0, 7), "row 1: a column holds no number"),
            ((1, 1, 0, 1, 5, 0, 5, 2, 9, 7), "9 is no operation"),
        ):
            with self.assertRaisesRegex(BadFile, reason):
                convert.load(self.database([row]))
        empty = self.folder / "empty.sqlite"
        with sqlite3.connect(empty) as connection:
            connection.execute(f"create view {nsight.TABLE} as select 1 as start")
        connection.close()
        with self.assertRaisesRegex(BadFile, "there is no table CUDA_GPU_MEMORY_USAGE_EVENTS: profile with"):
            convert.load(empty)

    def test_a_length_beyond_all_memory_is_refused_by_name(self) -> None:
        path = self.folder / "endless.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute("pragma page_size = 512")
            connection.execute(f"create table {nsight.TABLE} (start, address, bytes, memKind, memoryOperationType)")
        connection.close()
        good = path.read_bytes()
        cell = int.from_bytes(good[108:110], "big")  # the table's own entry
        path.write_bytes(good[:cell] + b"\xff" * 9 + good[cell + 9 :])
        with self.assertRaisesRegex(BadFile, "endless.sqlite: reading it takes more memory than there is"):
            convert.load(path)

    def test_databases_with_any_bytes_changed_are_read_or_refused(self) -> None:
        good = self.database([(at, 1, 0, 1, BASE + at, 0, 5, 2, 0, 7) for at in range(50)]).read_bytes()
        for data in mutations(good, 300, 8):
            try:
                nsight.read(self.file(data, "changed.sqlite"))
            except BadFile as error:
                self.assertIn("changed.sqlite: ", str(error))


# --- a reader of protobuf, for the test alone ---


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2, key
            length = varint()
            yield key >> 3, data[at : at + length]
            at += length
            assert at <= len(data)


def message(data: int | bytes) -> dict[int, int | bytes]:
    assert isinstance(data, bytes)
    return dict(fields_of(data))


def shown(recording: Recording) -> tuple[dict[int, str], list[tuple[int, int, str, object]]]:
    """Names of tracks, and events as time, type, track, value or name; each packet must be well formed."""
    file = io.BytesIO()
    perfetto.write(recording, file)
    tracks: dict[int, str] = {}
    events = []
    for at, (number, data) in enumerate(fields_of(file.getvalue())):
        packet = message(data)
        assert number == 1
        assert packet[10] == 1
        assert (packet.get(13) == 1) == (at == 0)
        if 60 in packet:
            track = message(packet[60])
            uuid = track[1]
            assert isinstance(uuid, int)
            tracks[uuid] = str(track.get(2, b"process"), "utf-8")  # type: ignore[arg-type]  # a text
            assert (8 in track) == tracks[uuid].endswith(("live", "mapped", "pending", "free")), tracks[uuid]
        else:
            event = message(packet[11])
            time, kind, uuid, value = packet[8], event[9], event[11], event.get(30, event.get(23))
            assert isinstance(time, int)
            assert isinstance(kind, int)
            assert isinstance(uuid, int)
            events.append((time, kind, tracks[uuid], value))
    return tracks, events


class PerfettoTraces(ConvertCase):
    def test_counters_instants_and_slices_are_what_the_recording_says(self) -> None:
        _, events = shown(recorded())
        begin = 1_700_000_000_000_000_000
        live = [(time - begin, value) for time, kind, track, value in events if track == "device 0: live"]
        self.assertEqual(live, [(3000, 3 * MIB), (5000, 3 * MIB + 100), (6000, 100), (9700, 4 * MIB + 100)])
        mapped = [value for _, _, track, value in events if track == "device 0: mapped"]
        self.assertEqual(mapped, [8 * MIB, 12 * MIB, 8 * MIB])
        rest = [
            (time - begin, kind, track, value)
            for time, kind, track, value in events
            if kind != 4 and "allocations" not in track
        ]
        self.assertEqual(
            rest,
            [
                (1100, 1, "device 0: driver, thread main", b"map"),
                (2000, 2, "device 0: driver, thread main", None),
                (4000, 3, "device 0: marks", b"step 1"),
                (7000, 3, "device 0: shortages", f"allocation failed: {1 << 40} bytes".encode()),
                (7000, 3, "device 0: shortages", f"out of memory: {1 << 40} bytes".encode()),
                (7500, 1, "device 0: waits for the GPU, thread main", b"pause"),
                (9000, 2, "device 0: waits for the GPU, thread main", None),
            ],
        )

    def test_allocations_are_slices_on_the_track_of_their_stream(self) -> None:
        _, events = shown(recorded())
        begin = 1_700_000_000_000_000_000
        slices = [(time - begin, kind, track, value) for time, kind, track, value in events if "allocations" in track]
        first, second = "device 0: allocations, stream 7 (0x0)", "device 0: allocations, stream 13 (0x7f12)"
        self.assertEqual(
            slices,
            [
                (3000, 1, first, b"weights"),
                (5000, 1, second, b"main"),
                (6000, 2, first, None),
                (9700, 1, second, b"allocation"),
                (9800, 2, second, None),
                (9800, 2, second, None),
            ],
        )

    def test_a_slice_has_size_tag_and_stack(self) -> None:
        file = io.BytesIO()
        perfetto.write(recorded(), file)
        packets = [message(data) for _, data in fields_of(file.getvalue())]
        begins = [packet[11] for packet in packets if 11 in packet and message(packet[11])[9] == 1]
        (slice_,) = [each for each in begins if message(each).get(23) == b"weights"]
        notes = [message(data) for number, data in fields_of(slice_) if number == 4]
        self.assertEqual(
            {note[10]: note.get(3, note.get(6)) for note in notes},
            {b"bytes": 3 * MIB, b"taken": 4 * MIB, b"tag": b"weights", b"stack": b"inner (a.py:3)\nouter (b.py:9)"},
        )

    def test_slices_that_overlap_are_on_different_tracks_and_only_the_largest_are_written(self) -> None:
        events = [Event(Kind.ALLOCATE, at, BASE + at, 100 + at) for at in range(4)]
        events += [Event(Kind.FREE, 4, BASE + 3), Event(Kind.ALLOCATE, 5, BASE + 9, 1000), Event(Kind.MARK, 9)]
        recording = Recording(events=events)
        tracks, _ = shown(recording)
        self.assertEqual(list(tracks.values()).count("device 0: allocations, no stream"), 4)
        with unittest.mock.patch.object(perfetto, "_MOST_SLICES", 1):
            _, shown_events = shown(recording)
        slices = [(time, kind) for time, kind, track, _ in shown_events if "allocations" in track]
        self.assertEqual(slices, [(5, 1), (9, 2)])

    def test_samples_of_the_pool_are_believed(self) -> None:
        sample = Event(kind=Kind.SAMPLE, time_ns=5, address=100, bytes=30, value=20)
        _, events = shown(Recording({}, [sample], {}, {}, {}, {}, {}, None, ""))
        self.assertEqual(
            [(track, value) for _, _, track, value in events],
            [("device 0: mapped", 100), ("device 0: pending", 30), ("device 0: free", 20)],
        )

    def test_numbers_of_all_sizes_are_encoded(self) -> None:
        for number in (0, 1, 127, 128, 300, 1 << 35, (1 << 64) - 1):
            self.assertEqual(list(fields_of(perfetto.field(5, number))), [(5, number)])
        self.assertEqual(list(fields_of(perfetto.field(5, "ä" * 100))), [(5, ("ä" * 100).encode())])

    def test_memory_that_sleeps_has_a_track_of_instants_and_lives_on(self) -> None:
        path = self.folder / "run.vpmm"
        output_of(SLEEPER, RECORDED=str(path))
        _, events = shown(recordings.read(path))
        self.assertEqual(
            [(kind, value) for _, kind, track, value in events if track == "device 0: suspended memory"],
            [
                (3, b"suspend weights: 4194304 bytes"),
                (3, b"resume weights: 4194304 bytes"),
                (3, b"suspend weights: 4194304 bytes"),
                (3, b"resume weights: 4194304 bytes"),
            ],
        )
        live = [value for _, _, track, value in events if track == "device 0: live"]
        self.assertEqual(live, [3 * MIB, 0])


class Windows(ConvertCase):
    def test_a_window_begins_with_what_lived_and_was_mapped(self) -> None:
        whole = recorded()
        part = window.cut(whole, window.moment(whole, "step 1"), window.moment(whole, "9.6us"))
        kinds = [Kind(event.kind).name for event in part.events]
        self.assertEqual(
            kinds,
            ["MAP", "LIVE", "MARK", "ALLOCATE", "FREE", "ALLOCATE_FAILED", "OUT_OF_MEMORY", "PAUSE", "MAP"],
        )
        self.assertEqual([event.time_ns for event in part.events[:4]], [0, 0, 0, 1000])
        self.assertEqual(part.header["started_unix_ns"], 1_700_000_000_000_004_000)
        self.assertIs(part.header["is_window"], True)
        self.assertEqual(part.events[1].tag, 1)

    def test_what_lives_at_the_end_is_the_same_for_every_cut(self) -> None:
        whole = random_recording(9)
        for at in range(0, 40_000, 3700):
            self.assertEqual(living(window.cut(whole, at, None)), living(whole), at)

    def test_a_moment_that_is_none_is_named_with_the_marks_there_are(self) -> None:
        with self.assertRaisesRegex(ValueError, "`noon` is neither a time such as 1.5s or 300ms nor a mark: `step 1`"):
            window.moment(recorded(), "noon")
        with self.assertRaisesRegex(ValueError, "the recording has none"):
            window.moment(random_recording(1, 3), "5")
        self.assertEqual(window.moment(recorded(), "1.5ms"), 1_500_000)


def living(recording: Recording) -> dict[tuple[int, int], int]:
    live: Counter[tuple[int, int]] = Counter()
    for event in recording.events:
        if event.kind in (Kind.ALLOCATE, Kind.LIVE):
            live[event.device, event.address] = event.bytes
        elif event.kind == Kind.FREE:
            live.pop((event.device, event.address), None)
    return dict(live)


class Formats(ConvertCase):
    def test_formats_are_known_by_content_and_by_name(self) -> None:
        self.assertEqual(convert.load(self.file(real_snapshot("native"), "a.bin")).header["source"], "pytorch")
        packed = gzip.compress(real_snapshot("native"))
        self.assertEqual(convert.load(self.file(packed, "b.bin")).header["source"], "pytorch")
        self.assertEqual(convert.load(self.file(LOG, "c.bin")).header["source"], "rmm")
        self.assertEqual(convert.load(self.file(gzip.compress(LOG.encode()), "d.bin")).header["source"], "rmm")
        names = {
            "a.pickle": "memory_viz",
            "a.perfetto-trace": "perfetto",
            "a.rmm.csv": "rmm",
            "a.csv.gz": "csv",
            "a": "vpmm",
            "a.VPMM": "vpmm",
            "/dev/stdout": "vpmm",
        }
        self.assertEqual({name: convert.format_for(Path(name)) for name in names}, names)
        with self.assertRaisesRegex(ValueError, "report.html: no format .* `vpmm report` writes HTML"):
            convert.format_for(Path("report.html"))
        for name in ("out.foo", "out.pickle.gz", "out.json"):
            with self.assertRaisesRegex(ValueError, rf"{name}: no format has the ending .*\.pickle, .*\.vpmm; --to"):
                convert.format_for(Path(name))

    def test_a_file_of_another_kind_is_refused_with_what_it_is(self) -> None:
        contents = {"segments": [], "device_traces": []}
        sqlite = self.folder / "torch.sqlite"
        with sqlite3.connect(sqlite) as connection:
            connection.execute("create table blocks (address integer)")
        for content, words in (
            (b"", "an empty file"),
            (pickle.dumps(contents, 0), "a pickle of protocol 0 or 1"),
            (pickle.dumps(contents, 1), "a pickle of protocol 0 or 1"),
            (pickle.dumps([contents], 0), "a pickle of protocol 0 or 1"),
            (pickle.dumps({"allocated_bytes.all.peak": 7}, 4), "no snapshot of PyTorch: neither `segments` nor"),
            (pickle.dumps({}, 2), "no snapshot of PyTorch"),
            (pickle.dumps({"rank0": contents}, 4), "write one of them to a file of its own"),
            (json.dumps(contents).encode(), "JSON"),
            (b'[{"segments": 1}]', "JSON"),
            (b'{"traceEvents": []}', "Perfetto or Chrome"),
            (b"PK\3\4" + bytes(40), "a ZIP archive"),
            (b"<!DOCTYPE html><html>", "an HTML page"),
            ("op,id,bytes".encode("utf-16"), "UTF-16"),
            (b"(\xb5/\xfd" + bytes(9), "Zstandard data"),
            (b"\x0a\x10" + bytes(range(256)), "binary data of an unknown kind"),
            (gzip.compress(b"hello\n"), "text that begins with `hello`"),
            (sqlite.read_bytes(), "an SQLite database with the tables blocks"),
        ):
            path = self.file(content, "file")
            with self.assertRaisesRegex(BadFile, re.escape(str(path))) as raised:
                convert.load(path)
            self.assertIn(words, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))

    def test_numbers_of_any_size_reach_every_reader(self) -> None:
        for number in (0, 1, 1 << 31, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1):
            recording = recorded()
            small = min(number, (1 << 32) - 2)
            recording.events += [
                Event(Kind.ALLOCATE_FAILED, time_ns=number, bytes=number, stream=small, thread=small),
                Event(
                    Kind.ALLOCATE, time_ns=number, address=number, bytes=min(number, (1 << 64) - number), stream=small
                ),
            ]
            recording.events.sort(key=lambda each: each.time_ns)
            recording.streams[small] = hex(number)
            for format in convert.OUTPUTS:
                path = self.folder / f"out.{format}"
                convert.save(recording, path, format)
                if format in ("vpmm", "csv"):
                    recordings.read(path)
            for opcode, value, _ in pickletools.genops((self.folder / "out.memory_viz").read_bytes()):
                if opcode.name.startswith("LONG"):
                    self.assertTrue(-(1 << 63) <= value < 1 << 63, value)
            for thread, _, _, pointer, size, stream in columns_of(recording):
                self.assertLess(
                    max(int(thread), int(size), int(stream), int(pointer, 16) if "x" in pointer else 0), 1 << 64
                )

    def test_a_compressed_file_that_is_cut_or_damaged_is_refused(self) -> None:
        packed = gzip.compress(real_snapshot("native"))
        for content in (packed[:-2000], packed[:5000] + b"xxxxxxxx" + packed[5008:], packed[:12]):
            with self.assertRaisesRegex(BadFile, r"a.gz:\d+: "):
                convert.load(self.file(content, "a.gz"), "torch")

    def test_a_file_is_written_whole_or_not_at_all(self) -> None:
        bad = recorded()
        bad.events.append(Event(kind=Kind.ALLOCATE, address=1, bytes="nonsense"))  # type: ignore[arg-type]
        with self.assertRaises(TypeError):
            convert.save(bad, self.folder / "out.pickle")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_formats_without_devices_hold_one_and_say_so(self) -> None:
        path = self.folder / "out.rmm.csv"
        (warning,) = convert.save(random_recording(3), path)
        self.assertIn("rmm knows no devices: only device", warning)

    def test_a_snapshot_that_browsers_cannot_show_is_warned_of(self) -> None:
        much, convert.memory_viz.MUCH = convert.memory_viz.MUCH, 100
        try:
            (warning,) = convert.save(recorded(), self.folder / "out.pickle")
        finally:
            convert.memory_viz.MUCH = much
        self.assertIn("--after and --before cut it", warning)


if __name__ == "__main__":
    unittest.main()
