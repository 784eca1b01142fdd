# SPDX-License-Identifier: Apache-2.0
"""tests: `vpmm try` and `vpmm convert`, and finding the C++ program."""

from __future__ import annotations

import json
import os
import unittest
from dataclasses import replace
from pathlib import Path

from vpmm import convert, native, recordings, trial
from vpmm.errors import Error
from vpmm.recordings import Event, Kind, Recording
from vpmm.trial import Row, Trial, verdict
from vpmm.units import bytes_in, bytes_text, duration_text

from convert_case import BASE, DATA, MIB, ConvertCase, block, entry, recorded, segment, snapshot
from program import run

try:
    PROGRAM = str(native.program())
except Error as error:
    PROGRAM, WHY = "", str(error)
else:
    WHY = ""


def vpmm(*words: object) -> tuple[int, str, str]:
    done = run("-m", "vpmm", *map(str, words), VPMM_CLI=PROGRAM)
    return done.returncode, done.stdout, done.stderr


@unittest.skipUnless(PROGRAM, WHY)
class Trying(ConvertCase):
    def tried(self, file: Path, *words: str) -> dict[str, object]:
        code, output, errors = vpmm("try", file, "--json", *words)
        self.assertEqual(code, 0, errors)
        result = json.loads(output)
        assert isinstance(result, dict)
        return result

    def test_a_real_snapshot_shows_what_each_would_hold(self) -> None:
        code, table, errors = vpmm("try", DATA / "snapshot-native.pickle.gz")
        self.assertEqual(code, 0, errors)
        self.assertIn("1285 requests, 826.09 MiB live at the peak\n", table)
        rows = {line[:31].strip(): line[31:].split() for line in table.splitlines() if "GiB" in line or "MiB" in line}
        self.assertEqual(rows["PyTorch's allocator, recorded"][:2], ["1.15", "GiB"])
        for name in ("VPMM", "VPMM, footprint", "VPMM, page", "cudaMallocAsync, model"):
            self.assertEqual(rows[name][1], "MiB", name)
        self.assertIn("driver time (simulated)", table)
        self.assertRegex(table, r"\nVPMM would hold \d+\.\d\d MiB at its peak, \d+% less than the 1\.15 GiB recorded; ")

    def test_a_request_that_failed_is_served_in_the_trial(self) -> None:
        result = self.tried(DATA / "snapshot-oom.pickle.gz")
        recorded_row, rows = result["recorded"], result["rows"]
        assert isinstance(recorded_row, dict)
        assert isinstance(rows, list)
        self.assertEqual((recorded_row["failed_requests"], rows[0]["failed_requests"]), (1, 0))
        self.assertLess(rows[0]["smallest_gpu_bytes"], recorded_row["peak_held_bytes"])
        self.assertIsNone(recorded_row["smallest_gpu_bytes"], "it failed with what it held")
        self.assertRegex(str(result["verdict"]), r"^1 request failed while 2\.27 GiB .* nothing would have failed\.$")

    def test_live_memory_is_that_of_replay_with_the_failed_request_served(self) -> None:
        live = [Event(Kind.ALLOCATE, at, 64 * MIB * at, 5 * MIB) for at in range(1, 11)]
        recording = Recording(events=[*live, Event(Kind.ALLOCATE_FAILED, 11, 0, 28 * MIB)])
        recordings.write(recording, self.folder / "failed.vpmm")
        result = self.tried(self.folder / "failed.vpmm")
        words = ["replay", str(self.folder / "failed.vpmm"), "--driver", "sim", "--capacity", "1GiB", "--json"]
        replayed = json.loads(native.output_of(words))
        self.assertEqual(result["peak_live_bytes"], 78 * MIB)
        self.assertEqual(replayed["peak_live_bytes"], 78 * MIB)
        self.assertRegex(vpmm("try", self.folder / "failed.vpmm")[1], r"VPMM, footprint +78\.00 MiB +1\.000 ")

    def test_a_history_that_begins_late_is_said_so(self) -> None:
        blocks = [block(8 * MIB, "active_allocated", 8 * MIB), block(8 * MIB)]
        trace = [entry("alloc", BASE + 8 * MIB, 5 * MIB, time_us=5), entry("free_requested", BASE + 8 * MIB, 5 * MIB)]
        result = self.tried(self.file(snapshot([segment(BASE, blocks)], trace), "late.pickle"))
        self.assertEqual(result["peak_live_bytes"], 13 * MIB)
        self.assertEqual(result["notes"], ["the history begins late: 1 allocations lived already"])

    def test_logs_and_recordings_are_tried_too(self) -> None:
        log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.0,allocate,0x100,3000000,0\n"
        result = self.tried(self.file(log, "rmm.csv"))
        self.assertEqual(result["peak_live_bytes"], 3_000_000)
        assert isinstance(result["recorded"], dict)
        self.assertIsNone(result["recorded"]["peak_held_bytes"])
        for name, failed in (("pool.vpmm", 1 << 40), ("pool.csv.gz", 0)):
            recordings.write(recorded(), self.folder / name)
            self.assertEqual(self.tried(self.folder / name)["peak_live_bytes"], max(4 * MIB, failed) + 100)

    def test_the_busiest_of_several_devices_is_tried_unless_one_is_named(self) -> None:
        events = [
            Event(Kind.ALLOCATE, at, 4096 * at, 100 * (1 + device), device=device)
            for at, device in ((1, 0), (2, 1), (3, 1))
        ]
        recordings.write(Recording(header={}, events=events, end={}), self.folder / "two.vpmm")
        result = self.tried(self.folder / "two.vpmm")
        self.assertEqual(result["peak_live_bytes"], 400)
        self.assertEqual(result["notes"], ["Of 2 devices this is device 1; --device names another."])
        self.assertEqual(self.tried(self.folder / "two.vpmm", "--device", "0")["peak_live_bytes"], 100)
        code, _, errors = vpmm("try", self.folder / "two.vpmm", "--device", "7")
        self.assertEqual(code, 2)
        self.assertIn("device 7 is not in this recording: 0, 1", errors)

    def test_what_cannot_be_read_is_one_line(self) -> None:
        bad = self.file(b"\x80\x04cos\nsystem\n.", "bad.pickle")
        for file, reason in (
            (bad, f"vpmm: {bad}:2: the pickle would run code (GLOBAL), which is never done\n"),
            (self.folder / "none", f"vpmm: {self.folder / 'none'}: No such file or directory\n"),
        ):
            self.assertEqual(vpmm("try", file), (2, "", reason))

    def test_replay_fit_and_emm_check_are_the_programs(self) -> None:
        trace = self.file("op,id,bytes,stream,time_us\na,1,3000000,0,0\n", "trace.csv")
        code, output, errors = vpmm("replay", "--json", trace, "--driver", "sim")
        self.assertEqual((code, json.loads(output)["peak_live_bytes"]), (0, 3_000_000), errors)
        self.assertIn("--prefer", vpmm("fit", "--help")[1])
        self.assertEqual(vpmm("replay", "--no-such-option")[0], 2)
        self.assertEqual(vpmm("emm-check", "default", "--driver", "sim")[0], 0)


class Converting(ConvertCase):
    def test_a_snapshot_becomes_each_format_and_a_recording_comes_back(self) -> None:
        source = DATA / "snapshot-native.pickle.gz"
        for name, target in (
            ("a.vpmm", "vpmm"),
            ("a.csv.gz", "csv"),
            ("a.pickle", "memory_viz"),
            ("a.pftrace", "perfetto"),
            ("a.rmm.csv", "rmm"),
        ):
            out = self.folder / name
            code, output, errors = vpmm("convert", source, out)
            self.assertEqual((code, errors), (0, ""), name)
            self.assertRegex(output, rf"^{out}: 2487 events as {target}, \d+\.\d+ [KM]iB\n$")
        self.assertEqual(convert.load(self.folder / "a.vpmm").events, convert.load(source).events)
        self.assertEqual(convert.load(self.folder / "a.pickle").events, convert.load(source).events)

    def test_a_snapshot_without_stacks_has_the_same_events(self) -> None:
        source = DATA / "snapshot-native.pickle.gz"
        whole, bare = convert.load(source), convert.load(source, with_stacks=False)
        self.assertTrue(whole.stacks)
        self.assertEqual(bare.stacks, {})
        self.assertEqual(bare.events, [replace(event, stack=0) for event in whole.events])

    def test_a_recording_loses_nothing_in_the_binary_format_and_in_csv_all_but_calls(self) -> None:
        recordings.write(recorded(), self.folder / "a.vpmm")
        again = convert.load(self.folder / "a.vpmm")
        self.assertEqual(again, recorded())
        vpmm("convert", self.folder / "a.vpmm", self.folder / "b.csv")
        kinds = [(event.kind, event.bytes) for event in convert.load(self.folder / "b.csv").events]
        self.assertEqual(
            kinds,
            [(Kind.ALLOCATE, 3 * MIB), (Kind.ALLOCATE, 100), (Kind.FREE, 3 * MIB), (Kind.ALLOCATE, 4 * MIB)],
        )

    def test_a_window_is_cut_at_marks_and_times(self) -> None:
        recordings.write(recorded(), self.folder / "a.vpmm")
        code, output, errors = vpmm(
            "convert", self.folder / "a.vpmm", self.folder / "b.vpmm", "--after", "step 1", "--before", "9.6us"
        )
        self.assertEqual((code, errors), (0, ""))
        self.assertIn(": 9 events as vpmm", output)
        code, _, errors = vpmm("convert", self.folder / "a.vpmm", self.folder / "c", "--after", "noon")
        self.assertEqual(code, 2)
        self.assertIn("vpmm: `noon` is neither a time", errors)

    def test_what_cannot_be_read_or_written_is_one_line(self) -> None:
        bad = self.file(b"SQLite format 3\0", "bad.sqlite")
        code, output, errors = vpmm("convert", bad, self.folder / "out.csv")
        self.assertEqual((code, output), (2, ""))
        self.assertRegex(errors, r"^vpmm: .*bad\.sqlite: .*\n$")
        good = self.file("op,id,bytes,stream,time_us\n", "good.csv")
        for out in (self.folder / "out.html", self.folder / "no" / "folder"):
            code, _, errors = vpmm("convert", good, out)
            self.assertEqual((code, errors.count("\n")), (2, 1), errors)


class Words(unittest.TestCase):
    def trial(self, recorded: Row, **ours: int | None) -> str:
        row = Row("VPMM", ours.get("held", 100 << 20), 1.0, 3, ours.get("smallest", 90 << 20))
        return verdict(Trial(7, 50 << 20, recorded, [row], []))

    def test_the_sentence_says_what_the_figures_say(self) -> None:
        known = Row("PyTorch", 200 << 20, None, 0, 200 << 20)
        least = "; the smallest GPU that runs this program has 90.00 MiB for it."
        self.assertEqual(
            self.trial(known), "VPMM would hold 100.00 MiB at its peak, 50% less than the 200.00 MiB recorded" + least
        )
        self.assertIn("100% more than the 200.00 MiB", self.trial(known, held=400 << 20))
        self.assertIn("as much as the 200.00 MiB", self.trial(known, held=200 << 20))
        self.assertEqual(self.trial(Row("x", None, None, 0, None)), "VPMM would hold 100.00 MiB at its peak" + least)
        self.assertIn("could not serve 3 of 7 requests", self.trial(known, smallest=None))
        for name, needs in (("PyTorch", "with VPMM it needs that much, too"), ("VPMM, recorded", "it needs that much")):
            said = self.trial(Row(name, 80 << 20, None, 2, None))
            self.assertRegex(said, rf"^2 requests failed while 80\.00 MiB .*90\.00 MiB: {needs}\.$")

    def test_sizes_and_times_are_in_the_unit_that_fits(self) -> None:
        sizes = {
            0: "0 B",
            1023: "1023 B",
            1024: "1.00 KiB",
            1536: "1.50 KiB",
            5 << 30: "5.00 GiB",
            1 << 60: "1048576.00 TiB",
        }
        self.assertEqual({size: bytes_text(size) for size in sizes}, sizes)
        read = {"1.46 GiB": 1567663063, "40 MiB": 40 << 20, "1 byte": 1, "100 bytes": 100, "2 TiB": 2 << 40, "none": 0}
        self.assertEqual({text: bytes_in(text) for text in read}, read)
        times = {0.5: "0.5 us", 1500: "1.5 ms", 2.5e6: "2.50 s"}
        self.assertEqual({time: duration_text(time) for time in times}, times)


class Finding(ConvertCase):
    def test_the_program_that_the_variable_names_is_taken_or_missed(self) -> None:
        kept = os.environ.get("VPMM_CLI")
        self.addCleanup(lambda: os.environ.pop("VPMM_CLI") if kept is None else os.environ.update(VPMM_CLI=kept))
        os.environ["VPMM_CLI"] = "/bin/true"
        self.assertEqual(str(native.program()), "/bin/true")
        os.environ["VPMM_CLI"] = str(self.folder / "none")
        with self.assertRaisesRegex(Error, "VPMM_CLI=.*none: there is no program"):
            native.program()

    def test_a_script_of_that_name_is_not_the_program(self) -> None:
        script = self.file("#!/bin/sh\n", "vpmm")
        script.chmod(0o755)
        self.assertFalse(native._is_program(script))
        self.assertTrue(native._is_program(Path("/bin/true").resolve()))


class Counting(unittest.TestCase):
    def test_requests_are_numbered_and_a_failed_one_comes_and_goes(self) -> None:
        made = trial._Requests(recorded().events)
        self.assertEqual(
            made.lines,
            [
                "a,1,3145728,0,3\n",
                "a,2,100,1,5\n",
                "f,1,0,0,6\n",
                "a,3,1099511627776,0,7\n",
                "f,3,0,0,7\n",
                "a,4,4194304,1,9\n",
            ],
        )
        self.assertEqual((made.count, made.failed, made.live), (4, 1, (1 << 40) + 100))
        twice = [Event(Kind.ALLOCATE, 0, 512, 5), Event(Kind.ALLOCATE, 1000, 512, 7)]
        self.assertEqual(trial._Requests(twice).lines, ["a,1,5,0,0\n", "f,1,0,0,1\n", "a,2,7,0,1\n"])
        mistake = [Event(Kind.ALLOCATE_FAILED, 0, 0, 5, flags=1)]
        self.assertEqual(trial._Requests(mistake).count, 0)

    def test_what_was_held_is_what_was_mapped_or_what_the_pool_said(self) -> None:
        self.assertEqual(trial._peak_held(recorded()), 12 * MIB)
        sample = Event(Kind.SAMPLE, 0, 64 * MIB)
        self.assertEqual(trial._peak_held(Recording(events=[sample])), 64 * MIB)
        self.assertEqual(trial._peak_held(Recording(end={"peak_mapped_bytes": 7})), 7)
        self.assertIsNone(trial._peak_held(Recording()))


if __name__ == "__main__":
    unittest.main()
