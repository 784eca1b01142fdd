# SPDX-License-Identifier: Apache-2.0
"""tests: recordings as objects, in both formats, and files that are no recordings."""

from __future__ import annotations

import codecs
import gzip
import os
import random
import re
import stat
import struct
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

import vpmm
from vpmm import _vpmm, recordings
from vpmm.recordings import BadFile, Event, Frame, Kind, Recording, binary, model

from program import run

TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces"
BLOCK = struct.Struct("<4sIIII")
PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/recording.md").read_text()
HEADER = PAGE.partition("**Header**")[2].partition("**Definitions**")[0]


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def sample(events: int = 200) -> Recording:
    rng = random.Random(1)
    recording = Recording(
        header={"source": "vpmm", "pid": 7, "page_size": 2 << 20, "settings": {"VPMM_PREFER": "balanced"}},
        strings={1: "step 1", 2: "out of device memory\nasked for 5 GiB"},
        stacks={1: (Frame("train.py", 12, "step"), Frame("train.py", 40, "<module>"))},
        tags={5: "optimizer"},
        streams={0: "0x0", 1: "0x7f00"},
        threads={0: "main"},
        end={"lost": 0, "ended": "stopped"},
    )
    for time_ns in range(events):
        kind = rng.choice(list(Kind))
        event = Event(kind, time_ns * 1000, rng.randrange(1 << 47), rng.randrange(1 << 34), stack=rng.choice([0, 1]))
        event.stream = rng.choice([None, 0, 1])
        event.value = rng.choice([0, 1, 2])
        event.tag, event.arena, event.thread = rng.choice([0, 5]), rng.choice([0, 3]), 0
        recording.events.append(event)
    return recording


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "run.vpmm"


class CommaSeparated(Files):
    def test_a_recorded_program_comes_back_call_by_call(self) -> None:
        before = recordings.read(TRACES / "gnn.csv.gz")
        for name in ("again.csv", "again.csv.gz"):
            recordings.write(before, self.folder / name)
            after = recordings.read(self.folder / name)
            self.assertEqual(after.events, before.events)
        self.assertEqual(sum(each.kind is Kind.ALLOCATE for each in before.events), 9150)

    def test_live_allocations_have_addresses_of_their_own(self) -> None:
        live: dict[int, int] = {}
        for event in recordings.read(TRACES / "serve_streams.csv.gz").events:
            if event.kind is Kind.FREE:
                self.assertEqual(live.pop(event.address), event.bytes)
            else:
                self.assertNotIn(event.address, live)
                live[event.address] = event.bytes
        reached = 0
        for address in sorted(live):
            self.assertLessEqual(reached, address)
            reached = address + live[address]

    def test_a_compressed_file_that_is_cut_is_read_as_far_as_it_goes(self) -> None:
        data = (TRACES / "gnn.csv.gz").read_bytes()
        path = self.folder / "cut.csv.gz"
        path.write_bytes(data[: len(data) // 2])
        recording = recordings.read(path)
        self.assertGreater(len(recording.events), 1000)
        self.assertIn("is cut", recording.warning)
        self.assertIsNone(recording.end)

    def test_lines_that_a_killed_program_left_are_read_up_to_the_last_whole_one(self) -> None:
        head = "op,id,bytes,stream,time_us\n"
        whole = head + "".join(f"a,{i},{1000 + i},0,{5000 + i}\n" for i in range(30))
        for length in range(len(head), len(whole) + 1):
            path = self.folder / "run.csv"
            path.write_text(whole[:length])
            recording = recordings.read(path)
            self.assertEqual(len(recording.events), whole[:length].count("\n") - 1)
            is_cut = whole[length - 1] != "\n"
            self.assertEqual((is_cut, is_cut), ("is cut" in recording.warning, recording.end is None))
            self.assertTrue(all(each.bytes == 1000 + i for i, each in enumerate(recording.events)))

    def test_streams_that_are_handles_and_times_of_any_length_fit_the_binary_format(self) -> None:
        head = "op,id,bytes,stream,time_us\n"
        for number in (0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1):
            path = self.folder / "run.csv"
            path.write_text(f"{head}a,{number},{number},{number},{number}\na,{number ^ 1},5,0,{number}\n")
            recording = recordings.read(path)
            recordings.write(recording, self.folder / "run.vpmm")
            again = recordings.read(self.folder / "run.vpmm")
            self.assertEqual(again.events, recording.events)
            self.assertEqual([again.stream_handle(each.stream) for each in again.events], [number, 0])

    def test_what_is_no_recording_is_named_with_file_and_line(self) -> None:
        head = "op,id,bytes,stream,time_us\n"
        for text, line, reason in (
            ("", 1, "an empty file"),
            ("hello\n", 1, "text that begins with `hello`"),
            (head[:9], 1, "cut inside its first line"),
            (head.strip() + "s\n", 1, "text that begins with"),
            (head + "a,1,2,3\n", 2, "op,id,bytes"),
            (head + "x,1,2,3,4\n", 2, "op a or f"),
            (head + "a,1,-2,3,4\n", 2, "no number"),
            (head + "a,1,2,3,99999999999999999999\n", 2, "no number"),
            (head + "a,1,2,3," + "9" * 5000 + "\n", 2, "no number"),
            (head + "a,1,²,3,4\n", 2, "no number"),
            (head + "a,1,2,0,9\na,2,2,0,8\n", 3, "backwards"),
            (head + "a,1,2,0,9\na,1,2,0,9\n", 3, "twice"),
            (head + "f,1,2,0,9\n", 2, "not live"),
        ):
            with self.subTest(text):
                path = self.folder / "bad.csv"
                path.write_text(text)
                with self.assertRaisesRegex(BadFile, reason) as caught:
                    recordings.read(path)
                self.assertEqual((caught.exception.path, caught.exception.offset), (str(path), line))

    def test_with_any_byte_changed_or_cut_anywhere_it_is_read_or_an_error_with_its_place(self) -> None:
        rng = random.Random(2)
        lines = "".join(f"a,{i},{rng.randrange(1, 1 << 30)},{i % 3},{i}\nf,{i},0,{i % 3},{i}\n" for i in range(40))
        plain = ("op,id,bytes,stream,time_us\n" + lines).encode()
        for name, data in (("run.csv", plain), ("run.csv.gz", gzip.compress(plain, mtime=0))):
            path = self.folder / name
            for _ in range(400):
                changed = bytearray(data[: rng.randrange(1, len(data) + 1)])
                changed[rng.randrange(len(changed))] = rng.randrange(256)
                path.write_bytes(changed)
                try:
                    recordings.read(path)
                except BadFile as error:
                    self.assertTrue(str(error).startswith(f"{path}:{error.offset}: "), str(error))

    def test_compressed_is_inflated_no_further_than_any_recording_is(self) -> None:
        path = self.folder / "bomb.csv.gz"
        inflated: list[int] = []
        inflater = zlib.decompressobj

        def counted(wbits: int) -> mock.Mock:
            each = inflater(wbits)

            def decompress(data: bytes, most: int = 0) -> bytes:
                inflated.append(len(found := each.decompress(data, most)))
                made.unconsumed_tail, made.unused_data, made.eof = each.unconsumed_tail, each.unused_data, each.eof
                return found

            made = mock.Mock(decompress=decompress)
            return made

        head = b"op,id,bytes,stream,time_us\n"
        long = head + b"f" * (3 << 20)
        for content, most, reason in (
            (bytes(3 << 20), 4096, ", not a recording"),
            (head.replace(b"op", b"no") * 10_000, 4096, ", not a recording"),
            (long, (1 << 20) + 4096, "decompressed it has more than 1048576 bytes"),
            (codecs.BOM_UTF8 + long, (1 << 20) + 4096, "decompressed it has more than 1048576 bytes"),
            (head + b"a,1,2,0,9\n" + b"0" * 4096, 1 << 20, None),
        ):
            path.write_bytes(gzip.compress(content))
            inflated.clear()
            with (
                self.subTest(content[:40]),
                mock.patch.object(model, "MOST_OF_SMALL", 1 << 20),
                mock.patch.object(zlib, "decompressobj", counted),
            ):
                if reason is None:
                    self.assertEqual(len(recordings.read(path).events), 1)
                else:
                    with self.assertRaises(BadFile) as caught:
                        recordings.read(path)
                    self.assertRegex(caught.exception.reason, reason)
            self.assertLessEqual(sum(inflated), most)

    def test_that_is_large_may_be_longer(self) -> None:
        """200 times its size, if that is more."""
        rng = random.Random(4)
        lines = "".join(f"a,{i},{rng.randrange(1, 1 << 30)},0,{i}\n" for i in range(20_000))
        path = self.folder / "run.csv.gz"
        path.write_bytes(gzip.compress(f"op,id,bytes,stream,time_us\n{lines}".encode()))
        with mock.patch.object(model, "MOST_OF_SMALL", 1):
            self.assertEqual(len(recordings.read(path).events), 20_000)


class Streams(unittest.TestCase):
    def test_have_the_handle_of_the_program_or_a_number_of_their_own(self) -> None:
        for name, handle in (
            ("0x7f12", 0x7F12),
            ("0", 0),
            ("12", 12),
            ("stream 7 (0x0)", 0),
            ("stream 13 (0x7f12)", 0x7F12),
            ("stream 9", 9),
            ("whatever", 0),
        ):
            self.assertEqual(Recording(streams={3: name}).stream_handle(3), handle, name)
        self.assertEqual(Recording().stream_handle(3), 0)
        self.assertEqual(Recording(streams={3: "0x10"}).stream_handle(None), 0)

    def test_are_called_as_people_know_them(self) -> None:
        for name, called, number in (
            ("stream 7 (0x0)", "default stream (7)", 7),
            ("stream 7 (0x1)", "default stream (7)", 7),
            ("stream 9 (0x2)", "a thread's default stream (9)", 9),
            ("stream 13 (0x7f12)", "stream 13 (0x7f12)", 13),
            ("stream 9", "stream 9", 9),
            ("0x7f12", "stream 3 (0x7f12)", 3),
        ):
            recording = Recording(streams={3: name})
            self.assertEqual((recording.stream_name(3), recording.stream_number(3)), (called, number))
        self.assertEqual((Recording().stream_name(3), Recording().stream_number(3)), ("stream 3", 3))


class Binary(Files):
    def written(self, recording: Recording) -> bytes:
        recordings.write(recording, self.path)
        return self.path.read_bytes()

    def read(self, data: bytes) -> Recording:
        self.path.write_bytes(data)
        return recordings.read(self.path)

    def blocks(self, data: bytes) -> list[int]:
        """Where each begins."""
        found, at = [], 8
        while at < len(data):
            found.append(at)
            at += BLOCK.size + BLOCK.unpack_from(data, at)[2]
        return found

    def test_everything_comes_back(self) -> None:
        recording = sample(70_000)  # more than one block
        recordings.write(recording, self.path)
        self.assertEqual(recordings.read(self.path), recording)

    def test_a_file_that_is_cut_anywhere_is_read_up_to_its_last_whole_block(self) -> None:
        whole = sample()
        data = self.written(whole)
        last_events, end = self.blocks(data)[-2:]
        for size in range(end, len(data)):
            cut = self.read(data[:size])
            self.assertEqual(cut.events, whole.events)
            self.assertIn(str(end), cut.warning)
        for size in range(last_events, end):
            self.assertEqual(self.read(data[:size]).events, [])

    def test_any_changed_byte_is_found_or_changes_nothing_but_lengths(self) -> None:
        whole = sample()
        data = self.written(whole)
        rng = random.Random(2)
        refused = 0
        for at in [*range(120), *(rng.randrange(len(data)) for _ in range(1500))]:
            changed = bytearray(data)
            changed[at] ^= 1 << rng.randrange(8)
            try:
                recording = self.read(bytes(changed))
            except BadFile as error:
                self.assertIn(str(self.path), str(error))
                refused += 1
            else:  # a length that reaches beyond the file's end reads like a cut
                self.assertTrue(recording.warning or recording == whole, at)
        self.assertGreater(refused, 1000)

    def test_bytes_of_chance_are_refused_in_a_moment(self) -> None:
        rng = random.Random(3)
        for _ in range(300):
            data = b"VPMMREC\x01" + rng.randbytes(rng.randrange(200))
            with self.assertRaises(BadFile):
                self.read(data)

    def rebuilt(self, kind: int, raw: bytes, at: int = -1) -> bytes:
        """The file with one block replaced."""
        data = self.written(sample())
        begins = [*self.blocks(data), len(data)]
        index = at % (len(begins) - 1)
        stored = _vpmm.compress(raw)
        block = BLOCK.pack(b"VPRB", kind, len(stored), len(raw), zlib.crc32(stored)) + stored
        return data[: begins[index]] + block + data[begins[index + 1] :]

    def test_blocks_that_say_what_cannot_be_are_refused_with_their_offset(self) -> None:
        event = struct.Struct("<QQQQIIIIQHHI")
        none = 0xFFFFFFFF
        for name, kind, raw, reason in (
            ("half an event", 3, b"x" * 65, "whole number"),
            ("an unknown kind", 3, event.pack(0, 0, 0, 0, none, 0, 0, 0, 0, 77, 0, 0), "no kind of event 77"),
            ("an unknown stack", 3, event.pack(0, 0, 0, 0, none, 0, 0, 9, 0, 1, 0, 0), "stack 9"),
            ("an unknown text", 3, event.pack(0, 0, 0, 9, none, 0, 0, 0, 0, 11, 0, 0), "string 9"),
            ("no JSON", 2, b"{", "no JSON"),
            ("no object", 2, b"[]", "no JSON object"),
            ("a table that is none", 2, b'{"tags": 3}', "no table"),
            ("a key that is no number", 2, b'{"tags": {"x": "y"}}', "no number"),
            ("a text that is none", 2, b'{"strings": {"1": 5}}', "no text"),
            ("a frame that is none", 2, b'{"stacks": {"1": [["a", "b", "c"]]}}', "a frame is not"),
            ("deep JSON", 2, b"[" * 100_000, "no JSON"),
            ("a second header", 1, b"{}", "not expected"),
        ):
            with self.subTest(name):
                data = self.rebuilt(kind, raw, at=-2)
                with self.assertRaisesRegex(BadFile, reason) as caught:
                    self.read(data)
                self.assertEqual(caught.exception.offset, self.blocks(data)[-2])

    def test_time_does_not_run_backwards(self) -> None:
        recording = sample()
        recording.events[50].time_ns = 1
        with self.assertRaisesRegex(BadFile, "backwards"):
            self.read(self.written(recording))

    def test_a_block_has_the_length_that_it_says(self) -> None:
        raw = b'{"tags": {}}'
        for length, reason in ((len(raw) + 1, "not as long as it says"), (len(raw) - 1, "cannot be decompressed")):
            data = bytearray(self.rebuilt(2, raw, at=-2))
            at = self.blocks(data)[-2]
            struct.pack_into("<I", data, at + 12, length)
            with self.assertRaisesRegex(BadFile, reason) as caught:
                self.read(bytes(data))
            self.assertEqual(caught.exception.offset, at)

    def test_a_frame_with_more_than_a_block_takes_no_more_memory_than_the_block_says(self) -> None:
        frame = _vpmm.compress(bytes(1 << 28))
        self.assertLess(len(frame), 1 << 20)
        with self.assertRaisesRegex(vpmm.Error, "cannot be decompressed: Destination buffer is too small") as caught:
            _vpmm.decompress(frame, 1000)
        self.assertEqual(caught.exception.code, "VPMM_ERROR_BAD_FILE")
        self.assertEqual(_vpmm.decompress(_vpmm.compress(b""), 0), b"")

    def test_blocks_together_are_no_longer_than_those_of_any_recording(self) -> None:
        recording = sample(1)
        recording.events = [Event(Kind.MARK) for _ in range(20_000)]
        data = self.written(recording)
        self.assertGreater(20_000 * 64, 200 * len(data))
        self.assertEqual(len(self.read(data).events), 20_000)
        with mock.patch.object(model, "MOST_OF_SMALL", 1 << 20):
            with self.assertRaisesRegex(BadFile, f"decompressed it .* no recording of {len(data)} bytes") as caught:
                self.read(data)
            self.assertIn(caught.exception.offset, self.blocks(data))
            self.assertEqual(len(self.read(self.written(sample(20_000))).events), 20_000)
            growing = binary.GrowingFile("a name")
            growing.take(data[:100])
            with self.assertRaisesRegex(BadFile, f"decompressed it .* no recording of {len(data)} bytes"):
                growing.take(data[100:])

    def test_nothing_follows_the_end(self) -> None:
        with self.assertRaisesRegex(BadFile, "behind the end"):
            self.read(self.written(sample()) + b"more")


class OfAProgram(Files):
    def test_tells_what_the_documents_say_and_nothing_of_the_environment(self) -> None:
        code = "import vpmm; pool = vpmm.Pool.default(); pool.deallocate(pool.allocate(5000, 0), 0)"
        secrets = {"A_SECRET": "of the environment", "VPMM_A_SECRET": "of another program"}
        settings = {"VPMM_RECORD": str(self.path), "VPMM_RECORD_STACKS": "both", "VPMM_LOG": "error"}
        done = run("-c", code, "of the command line", **settings, **secrets)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        recording = recordings.read(self.path)
        header = set(re.findall(r"`(\w+)`\s*[(,]", HEADER)) - {"none", "native", "python", "both", "vpmm"}
        self.assertLessEqual(set(recording.header), header)
        told = repr(recording)
        self.assertIn("of the command line", told)
        for secret in secrets.values():
            self.assertNotIn(secret, told)
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o644 & ~umask())


if __name__ == "__main__":
    unittest.main()
