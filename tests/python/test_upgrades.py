# SPDX-License-Identifier: Apache-2.0
"""tests: a recording that an earlier version of VPMM wrote is read for ever, and means the same.

Each file of fixtures/ is of one version of the format, or lines. They were recorded on the simulator. version_1.vpmm:
three allocations and one of a suspendable tag, a suspend and a resume, a request that fails, two marks, frees and a
trim. version_1_streams: what fixtures/streams.py does, in the format and as lines.
"""

from __future__ import annotations

import pickle
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from vpmm import recordings
from vpmm.recordings import Kind

from program import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
import sim_gpu

MIB = 1 << 20
FIXTURES = Path(__file__).with_name("fixtures")
OURS = {  # what the program did; the others are the pool's own
    Kind.ALLOCATE: 5,
    Kind.FREE: 4,
    Kind.ALLOCATE_FAILED: 1,
    Kind.OUT_OF_MEMORY: 1,
    Kind.SUSPEND: 1,
    Kind.RESUME: 1,
    Kind.MARK: 2,
    Kind.TRIM: 1,
}


def allocated_in_snapshot(path: Path) -> list[int]:
    traces = pickle.loads(path.read_bytes())["device_traces"]
    return [event["size"] for trace in traces for event in trace if event["action"] == "alloc"]


def allocated_in_log(path: Path) -> list[int]:
    return [int(size) for size in re.findall(r",allocate,\w+,(\d+),", path.read_text())]


def allocated_in_recording(path: Path) -> list[int]:
    return [event.bytes for event in recordings.read(path).events if event.kind == Kind.ALLOCATE]


SIZES = {
    "memory_viz": allocated_in_snapshot,
    "rmm": allocated_in_log,
    "csv": allocated_in_recording,
    "vpmm": allocated_in_recording,
}


def varint(number: int) -> bytes:
    """As protobuf has it."""
    low = number & 0x7F
    return bytes([low | 0x80]) + varint(number >> 7) if number > low else bytes([low])


class Recordings(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_every_version_is_here(self) -> None:
        names = ["version_1.vpmm", "version_1_streams.csv", "version_1_streams.vpmm"]
        self.assertEqual([path.name for path in sorted(FIXTURES.glob("version_*"))], names)

    def test_what_the_program_did_is_read(self) -> None:
        recording = recordings.read(FIXTURES / "version_1.vpmm")
        counts = Counter(event.kind for event in recording.events)
        self.assertEqual({kind: counts[kind] for kind in OURS}, OURS)
        allocated = [event.bytes for event in recording.events if event.kind == Kind.ALLOCATE]
        self.assertEqual(allocated, [300, 70_000, 5 << 20, 6 << 20, 12 << 20])
        tags = [recording.tags.get(event.tag) for event in recording.events if event.kind == Kind.ALLOCATE]
        self.assertEqual(tags, [None, None, None, "weights", None])
        marks = [recording.text_of(event) for event in recording.events if event.kind == Kind.MARK]
        self.assertEqual(marks, ["first phase", "second phase"])
        (failed,) = (event for event in recording.events if event.kind == Kind.ALLOCATE_FAILED)
        self.assertRegex(recording.text_of(failed), r"^out of device memory: asked for 1 GiB; 974 MiB are missing")
        self.assertEqual([frame.line for frame in recording.stacks[failed.stack]], [11])
        end = recording.end or {}
        self.assertEqual((end["lost"], end["ended"], end["peak_live_bytes"]), (0, "stopped", 18 << 20))
        self.assertEqual((recording.header["capacity"], recording.warning), (64 << 20, ""))

    def test_every_verb_reads_them(self) -> None:
        # The most that lived, also had all requests been served, and an address.
        for name, peak, served, address in (
            ("version_1.vpmm", "18.00 MiB", "1.01 GiB", "0x77a90c800005"),
            ("version_1_streams.vpmm", "53.00 MiB", "53.00 MiB", "0x77bc02e00005"),
            ("version_1_streams.csv", "50.00 MiB", "50.00 MiB", "0x10006200005"),
        ):
            path = str(FIXTURES / name)
            verbs = [
                (["report", "--text", path], peak),
                (["top", "--once", "--file", path], peak),
                (["replay", path], peak),
                (["fit", path], served),
                (["try", path], served),
                (["explain", "--stream", "-1", path], "12.00 MiB (12582912 bytes)"),
                (["explain", address, path], "at byte 5 of 6.00 MiB (6291456 bytes)"),
            ]
            for verb, said in verbs:
                if verb[0] == "top" and name.endswith(".csv"):
                    continue  # it watches files in the binary format
                with self.subTest(verb=verb):
                    done = run("-m", "vpmm", *verb)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(said, done.stdout)

    def test_each_is_converted_with_all_that_it_allocated(self) -> None:
        out = Path(self.folder, "out")
        for path in sorted(FIXTURES.glob("version_*")):
            events = recordings.read(path).events
            sizes = [event.bytes for event in events if event.kind == Kind.ALLOCATE]
            for to, read in SIZES.items():
                with self.subTest(path=path.name, to=to):
                    done = run("-m", "vpmm", "convert", "--to", to, str(path), str(out))
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(f" as {to}, ", done.stdout)
                    self.assertEqual(read(out)[-len(sizes) :], sizes)  # after those that lived before
            done = run("-m", "vpmm", "convert", "--to", "perfetto", str(path), str(out))
            self.assertIn(" as perfetto, ", done.stdout)
            written = out.read_bytes()
            self.assertEqual([size for size in sizes if size >= MIB and varint(size) not in written], [])


class OfStreams(unittest.TestCase):
    OURS = (Kind.LIVE, Kind.ALLOCATE, Kind.RECORD_USE, Kind.FREE, Kind.TRIM)

    def setUp(self) -> None:
        self.recording = recordings.read(FIXTURES / "version_1_streams.vpmm")

    def of(self, *kinds: Kind, recording: recordings.Recording | None = None) -> list[recordings.Event]:
        return [event for event in (recording or self.recording).events if event.kind in kinds]

    def test_what_lived_before_is_read(self) -> None:
        live, freed = self.of(Kind.LIVE), self.of(Kind.FREE)
        self.assertEqual([(event.bytes, event.value) for event in live], [(3 * MIB, 3 * MIB), (500, 512)])
        self.assertEqual([self.recording.tags[event.tag] for event in live], ["before"] * 2)
        self.assertEqual([event.address for event in freed[-3:-1]], [event.address for event in live])

    def test_a_use_on_another_stream_and_the_wait_for_it_are_read(self) -> None:
        (use,), (pause,) = self.of(Kind.RECORD_USE), self.of(Kind.PAUSE)
        used, later = self.of(Kind.ALLOCATE)[:2]
        self.assertEqual((use.address, use.bytes), (used.address, 40 * MIB))
        names = [self.recording.streams[event.stream] for event in (used, use) if event.stream is not None]
        self.assertEqual(names, ["stream 9 (0x50000000)", "stream 10 (0x50000100)"])
        self.assertEqual((later.bytes, later.stream, later.address), (50 * MIB, None, used.address))
        self.assertTrue(0 < pause.value < 10**9 and use.time_ns < pause.time_ns < later.time_ns, pause)

    def test_parts_of_an_arena_that_went_back_are_read(self) -> None:
        grown, shrunk = self.of(Kind.ARENA_GROW), self.of(Kind.ARENA_SHRINK)
        self.assertEqual([event.bytes // MIB for event in grown], [8, 6, 12])
        places = [(event.address, event.bytes, event.arena) for event in grown]
        self.assertEqual([(event.address, event.bytes, event.arena) for event in shrunk], places[::2])
        cached = self.of(Kind.ALLOCATE)[2:]
        self.assertEqual([(event.address, event.bytes, event.arena) for event in cached], places)
        self.assertEqual({self.recording.tags[event.tag] for event in cached}, {"cache"})

    def test_lines_are_read(self) -> None:
        lines = recordings.read(FIXTURES / "version_1_streams.csv")
        calls = [(event.kind, event.bytes // MIB) for event in lines.events if event.kind == Kind.ALLOCATE]
        self.assertEqual(calls, [(Kind.ALLOCATE, size) for size in (40, 50, 8, 6, 12)])
        addresses = {event.address for event in self.of(Kind.ALLOCATE, recording=lines)}
        self.assertEqual({event.address for event in self.of(Kind.FREE, recording=lines)}, addresses)
        times = [event.time_ns for event in lines.events]
        self.assertEqual((times, len(times), lines.warning), (sorted(times), 10, ""))

    @unittest.skipIf(sim_gpu.missing(), sim_gpu.missing())
    def test_the_program_records_the_same_today(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("version_1_streams.vpmm", "version_1_streams.csv"):
                path = Path(folder, name)
                done = sim_gpu.run(str(FIXTURES / "streams.py"), str(path))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                then, now = (
                    [(event.kind, event.bytes, event.stream) for event in self.of(*self.OURS, recording=read)]
                    for read in (recordings.read(FIXTURES / name), recordings.read(path))
                )
                self.assertEqual(now, then, name)


if __name__ == "__main__":
    unittest.main()
