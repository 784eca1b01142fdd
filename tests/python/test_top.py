# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm top, on recordings that are whole, grow, are replaced, or are written by another process."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from vpmm import recordings
from vpmm.recordings import BadFile, Event, Kind, Recording
from vpmm.recordings.binary import MAGIC, encode
from vpmm.watching import Figures, Follower, frame

from program import PACKAGE_PARENT, run

MIB = 1 << 20
SECOND = 1_000_000_000


def sample(*, ended: bool = True) -> Recording:
    """Ten allocations in ten seconds, on two streams, of which one is freed, and a pool that maps 64 MiB for them."""
    recording = Recording(
        header={"pid": 7, "device": 0, "device_name": "H200", "capacity": 128 * MIB, "sample": 1, "source": "vpmm"},
        tags={5: "weights"},
        streams={0: "0x0", 1: "0x7f00"},
        strings={1: "epoch 3", 2: "out of device memory: asked for 104857600 bytes"},
        end={"lost": 0, "ended": "stopped"} if ended else None,
    )
    add = recording.events.append
    add(Event(Kind.MAP, 0, 1 << 40, 64 * MIB, 1))
    for number in range(10):
        tag = 5 if number < 6 else 0
        add(Event(Kind.ALLOCATE, number * SECOND, (1 << 40) + number * 4 * MIB, 4 * MIB, stream=number % 2, tag=tag))
    add(Event(Kind.FREE, 9 * SECOND, 1 << 40, 4 * MIB, stream=0))
    add(Event(Kind.SAMPLE, 9 * SECOND, 64 * MIB, 3 * MIB, 28 * MIB))
    add(Event(Kind.MARK, 9 * SECOND, value=1))
    add(Event(Kind.ALLOCATE_FAILED, 9 * SECOND + 5, 0, 100 * MIB, 2, stream=0))
    return recording


def shown(recording: Recording, **options: int) -> str:
    figures = Figures()
    for event in recording.events:
        figures.apply(event)
    return "\n".join(frame(recording, figures, "run.vpmm", **options))


class Frame(unittest.TestCase):
    def test_it_shows_what_is_live_mapped_pending_and_free(self) -> None:
        text = shown(sample())
        for name, size in {
            "live": "36.00 MiB",
            "mapped": "64.00 MiB",
            "pending": "3.00 MiB",
            "free": "28.00 MiB",
        }.items():
            self.assertRegex(text, rf"(?m)^{name} +{size} +\[")
        self.assertIn("peak live 40.00 MiB of 128.00 MiB that it may have", text)

    def test_suspended_memory_is_shown_while_there_is_some(self) -> None:
        recording = sample()
        self.assertNotIn("asleep", shown(recording))
        recording.events.append(Event(Kind.SUSPEND, 10 * SECOND, 0, 8 * MIB, 5))
        self.assertRegex(shown(recording), r"asleep +8.00 MiB")
        recording.events.append(Event(Kind.RESUME, 11 * SECOND, 0, 8 * MIB, 5))
        self.assertNotIn("asleep", shown(recording))

    def test_pending_and_free_memory_of_an_earlier_moment_have_its_time(self) -> None:
        self.assertIn("pending and free are of 9.00 s\n", shown(sample()), "the failure is 5 ns later")
        recording = sample()
        recording.events.append(Event(Kind.SAMPLE, 9 * SECOND + 5, 64 * MIB, 0, 28 * MIB))
        self.assertNotIn("pending and free are of", shown(recording))
        self.assertIn("pending and free are of 9.00 s\n", shown(recording, now_ns=10 * SECOND))

    def test_rates_are_those_of_the_last_two_seconds(self) -> None:
        figures = Figures()
        for number in range(100):
            figures.apply(Event(Kind.ALLOCATE, number * SECOND // 10, number << 20, 1, stream=0))
        self.assertAlmostEqual(figures.rate(Kind.ALLOCATE, figures.last_ns), 10)
        self.assertAlmostEqual(figures.rate(Kind.ALLOCATE, figures.last_ns + SECOND), 5)
        self.assertEqual(figures.rate(Kind.ALLOCATE, figures.last_ns + 3 * SECOND), 0)
        self.assertAlmostEqual(figures.stream_rate(0, figures.last_ns), 10)

    def test_tags_and_streams_are_in_the_order_of_what_they_hold(self) -> None:
        text = shown(sample())
        self.assertRegex(text, r"weights +20\.00 MiB")
        self.assertRegex(text, r"no tag +16\.00 MiB")
        self.assertLess(text.index("0x7f00"), text.index("0x0)"))

    def test_the_last_mark_and_the_last_failure_are_named(self) -> None:
        text = shown(sample())
        self.assertIn("mark at 9.000 s: epoch 3", text)
        self.assertIn("failed at 9.000 s: 100.00 MiB were asked for. out of device memory", text)
        self.assertIn("failed 1", text)

    def test_libraries_are_told_if_the_recording_has_them(self) -> None:
        recording = sample()
        self.assertNotIn("library", shown(recording))
        recording.libraries[1] = "cupy"
        for event in recording.events:
            event.flags = int(event.kind is Kind.ALLOCATE and event.tag == 0)
        for width in (50, 100):
            text = shown(recording, width=width, height=32)
            self.assertRegex(text, r"(?m)^library +live")
            self.assertRegex(text, r"(?m)^not known +20.00 MiB")
            self.assertRegex(text, r"(?m)^cupy +16.00 MiB")
            self.assertRegex(text, r"(?m)^tag +live")

    def test_a_reason_that_is_longer_than_a_line_is_shown_whole(self) -> None:
        reason = "out of device memory: " + " ".join(f"part{number}" for number in range(60)) + " and its last word"
        recording = sample()
        recording.strings[2] = reason
        for width in (40, 100):
            text = shown(recording, width=width)
            self.assertIn(reason, " ".join(text.split()))
            self.assertLessEqual(max(map(len, text.splitlines())), width)

    def test_no_line_is_wider_than_the_terminal(self) -> None:
        for width in (40, 50, 60, 80, 100, 200):
            self.assertLessEqual(max(map(len, shown(sample(), width=width).splitlines())), width)

    def test_a_narrow_picture_has_whole_bars_all_rates_and_the_tables_below_each_other(self) -> None:
        for width in (40, 50):
            text = shown(sample(), width=width)
            for line in text.splitlines():
                self.assertEqual(line.count("["), line.count("]"), line)
            for name in ("allocations/s", "frees/s", "driver calls/s", "pauses/s", "failed 1"):
                self.assertIn(name, text)
            self.assertIn("a full bar is", " ".join(text.split()))
            self.assertRegex(text, r"(?m)^tag +live$")
            self.assertRegex(text, r"(?m)^stream +live +allocs/s$")

    def test_texts_of_a_recording_are_no_commands_to_the_terminal(self) -> None:
        recording = sample()
        recording.tags[5] = "a\x1b[2Jb"
        recording.strings[1] = "\x1b]0;title\x07"
        recording.header["device_name"] = "\x1b[31m"
        self.assertNotIn("\x1b", shown(recording))

    def test_an_address_that_is_allocated_again_is_not_counted_twice(self) -> None:
        figures = Figures()
        for _ in range(3):
            figures.apply(Event(Kind.ALLOCATE, 0, 4096, 100))
        figures.apply(Event(Kind.FREE, 0, 4096))
        figures.apply(Event(Kind.FREE, 0, 4096))
        self.assertEqual((figures.live_bytes, figures.peak_live_bytes, figures.by_tag[0]), (0, 100, 0))

    def test_an_empty_recording_has_a_picture_too(self) -> None:
        self.assertRegex(shown(Recording()), r"(?m)^live +0 B")


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "run.vpmm"

    def follower(self) -> Follower:
        follower = Follower(str(self.path))
        self.addCleanup(follower.close)
        return follower


class Follow(Files):
    def test_a_file_that_grows_byte_by_byte_gives_each_event_once(self) -> None:
        recording = sample()
        data = encode(recording)
        self.path.write_bytes(b"")
        follower = self.follower()
        events: list[Event] = []
        with self.path.open("ab", buffering=0) as file:
            for begin in range(len(data)):
                self.assertIsNone(follower.recording.end)
                file.write(data[begin : begin + 1])
                events += follower.poll() or []
        self.assertEqual(events, recording.events)
        self.assertEqual(follower.recording.end, recording.end)
        self.assertEqual(follower.recording.tags, recording.tags)
        self.assertIsNone(follower.poll())

    def test_a_file_in_the_place_of_another_is_begun_anew(self) -> None:
        self.path.write_bytes(encode(sample(ended=False)))
        follower = self.follower()
        self.assertEqual(len(follower.poll() or []), len(sample().events))
        newer = self.path.with_suffix(".new")
        newer.write_bytes(encode(sample()))
        newer.replace(self.path)
        self.assertEqual(len(follower.poll() or []), len(sample().events))
        self.assertTrue(follower.has_begun_anew)
        self.assertIsNone(follower.poll())
        self.assertFalse(follower.has_begun_anew)

    def test_a_file_that_is_written_anew_is_begun_anew(self) -> None:
        self.path.write_bytes(encode(sample(ended=False)))
        follower = self.follower()
        follower.poll()
        self.path.write_bytes(MAGIC)
        self.assertEqual(follower.poll(), [])
        self.assertTrue(follower.has_begun_anew)

    def test_between_two_files_of_a_name_there_may_be_none(self) -> None:
        self.path.write_bytes(encode(sample(ended=False)))
        follower = self.follower()
        follower.poll()
        self.path.unlink()
        self.assertIsNone(follower.poll())

    def test_damage_is_named_with_its_place_in_the_file(self) -> None:
        whole = encode(sample(ended=False))
        self.path.write_bytes(whole)
        follower = self.follower()
        follower.poll()
        with self.path.open("ab") as file:
            file.write(b"x" * 100)
        with self.assertRaisesRegex(BadFile, rf"run\.vpmm:{len(whole)}: no block begins here"):
            follower.poll()


class Command(Files):
    def test_once_prints_one_picture_of_a_file(self) -> None:
        recordings.write(sample(), self.path)
        done = run("-m", "vpmm", "top", "--file", str(self.path), "--once")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("vpmm top  run.vpmm  pid 7  H200  9.00 s  ended", done.stdout)
        self.assertEqual(done.stdout.count("vpmm top"), 1)

    def test_at_a_failure_it_shows_the_memory_that_the_report_counts(self) -> None:
        done = run(str(Path(__file__).resolve().parents[2] / "examples/out_of_memory.py"), VPMM_RECORD=str(self.path))
        self.assertIn("live 35 MiB, free 15 MiB", done.stdout)
        done = run("-m", "vpmm", "top", "--file", str(self.path), "--once")
        self.assertRegex(done.stdout, r"(?m)^free +15\.00 MiB +\[")
        self.assertNotIn("pending and free are of", done.stdout)

    def test_it_ends_when_the_recording_has_ended(self) -> None:
        recordings.write(sample(), self.path)
        done = run("-m", "vpmm", "top", "--file", str(self.path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("\x1b", done.stdout)

    def start(self, code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code, str(self.path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_the_recording_of_a_process_is_found_among_its_files(self) -> None:
        recordings.write(sample(ended=False), self.path)
        process = self.start(
            "import sys, time; f = open(sys.argv[1], 'ab'); print('ready', flush=True); time.sleep(100)"
        )
        done = run("-m", "vpmm", "top", str(process.pid), "--once")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("vpmm top  run.vpmm", done.stdout)

    def test_it_ends_when_the_process_has_ended(self) -> None:
        recordings.write(sample(ended=False), self.path)
        process = self.start(
            "import sys, time; f = open(sys.argv[1], 'ab'); print('ready', flush=True); time.sleep(100)"
        )
        watching = subprocess.Popen(
            [sys.executable, "-m", "vpmm", "top", str(process.pid), "--interval", "0.1"],
            env=os.environ | {"PYTHONPATH": PACKAGE_PARENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(watching.kill)
        assert watching.stdout is not None
        pictures = (line for line in watching.stdout if "vpmm top" in line)
        self.assertEqual(len([next(pictures), next(pictures)]), 2)
        process.kill()
        process.wait()
        self.assertEqual(watching.communicate(timeout=60)[1], "")
        self.assertEqual(watching.returncode, 0)

    def test_a_process_that_is_not_recorded_is_told_how_to_be(self) -> None:
        process = self.start("import time; print('ready', flush=True); time.sleep(100)")
        done = run("-m", "vpmm", "top", str(process.pid), "--once")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(
            done.stderr, rf"^vpmm: process {process.pid} is not being recorded: .*VPMM_RECORD=run\.vpmm.*\n$"
        )

    def test_what_cannot_be_watched_is_an_error_in_a_line(self) -> None:
        self.path.write_text("op,id,bytes,stream,time_us\n")
        for arguments, words in [
            (["--file", str(self.path)], "run.vpmm:0: no recording in the binary format"),
            (["--file", "/no/such/file"], "/no/such/file"),
            (["4194305"], "there is no process 4194305"),
        ]:
            done = run("-m", "vpmm", "top", *arguments, "--once")
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def in_a_terminal(self, stop: Callable[[int, int], object]) -> tuple[int, bytes, bool]:
        """The exit code, as of subprocess, the output, and whether the modes are as before. `stop` gets the process
        and the terminal after the first picture."""
        recordings.write(sample(ended=False), self.path)
        child, terminal = pty.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, "-m", "vpmm", "top", "--file", str(self.path)])
        self.addCleanup(os.close, terminal)
        modes = termios.tcgetattr(terminal)
        output = self.read_until(b"stream", terminal)
        self.assertNotEqual(termios.tcgetattr(terminal), modes, "keys are read as they are pressed")
        stop(child, terminal)
        output += self.read_until(b"?1049l", terminal)
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status), output, termios.tcgetattr(terminal) == modes

    def test_q_ctrl_c_and_signals_end_it_and_give_the_terminal_back(self) -> None:
        ways: list[tuple[str, Callable[[int, int], object], int]] = [
            ("q", lambda _, terminal: os.write(terminal, b"xq"), 0),
            ("Ctrl-C", lambda _, terminal: os.write(terminal, b"\x03"), 0),
            ("SIGTERM", lambda child, _: os.kill(child, signal.SIGTERM), 128 + signal.SIGTERM),
            ("SIGHUP", lambda child, _: os.kill(child, signal.SIGHUP), 128 + signal.SIGHUP),
        ]
        for name, stop, code in ways:
            with self.subTest(name):
                ended, output, is_as_before = self.in_a_terminal(stop)
                self.assertEqual((ended, is_as_before), (code, True))
                self.assertEqual(output.count(b"\x1b[?1049h"), 1)
                self.assertIn(b"\x1b[?25h\x1b[?1049l", output)
                self.assertNotIn(b"Traceback", output)

    def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(self) -> None:
        def stop(_: int, terminal: int) -> None:
            os.write(terminal, b"\x1a")  # the system stops nothing in a session that has no other process
            output = self.read_until(b"\x1b[?1049h", terminal)
            self.assertIn(b"\x1b[?25h\x1b[?1049l", output)
            os.write(terminal, b"q")

        self.assertEqual(self.in_a_terminal(stop)[::2], (0, True))

    def read_until(self, words: bytes, terminal: int) -> bytes:
        until, output = time.monotonic() + 60, b""
        while words not in output:
            self.assertTrue(select.select([terminal], [], [], max(until - time.monotonic(), 0))[0], f"no {words!r}")
            output += os.read(terminal, 1 << 16)
        return output

    def test_neither_or_both_of_process_and_file_are_a_mistake(self) -> None:
        for arguments in ([], ["1", "--file", "x"], ["1", "--interval", "0"]):
            self.assertEqual(run("-m", "vpmm", "top", *arguments).returncode, 2)


if __name__ == "__main__":
    unittest.main()
