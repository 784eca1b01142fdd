# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm top, of programs that are not recorded."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from vpmm.recordings import Kind
from vpmm.watching import NoAnswer, ask, frame
from vpmm.watching.asking import PoolTold, Told
from vpmm.watching.sources import Asked, FiguresTold

from program import PACKAGE_PARENT, run

MIB = 1 << 20
SECOND = 1_000_000_000

PROGRAM = """
import sys, vpmm
pool = vpmm.Pool.default()
with vpmm.tag("weights"):
    kept = pool.allocate(5 << 20, 0)
other = pool.allocate(3 << 20, 0)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def pool(**changes: object) -> PoolTold:
    numbers: dict[str, Any] = dict.fromkeys(PoolTold._fields, 0)
    numbers |= {"device_name": "H200", "device_bytes": 128 * MIB, "capacity": None, "tags": [], "libraries": []}
    return PoolTold(**(numbers | changes))


class Program(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "sockets"
        patch = mock.patch.dict(os.environ, VPMM_IPC_DIR=str(self.folder))
        patch.start()
        self.addCleanup(patch.stop)

    def start(self, code: str = PROGRAM, **variables: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_")}
        settings = clean | {"PYTHONPATH": PACKAGE_PARENT, "VPMM_DRIVER": "sim", "VPMM_IPC_DIR": str(self.folder)}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=settings | variables,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)  # ends it
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def say(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        print(line, file=process.stdin, flush=True)
        self.assertEqual(process.stdout.readline(), "done\n")


class Live(Program):
    def top(self, process: subprocess.Popen[str], *options: str, **variables: str) -> str:
        done = run("-m", "vpmm", "top", str(process.pid), *options, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_once_prints_one_picture_of_a_program_that_is_not_recorded(self) -> None:
        process = self.start(VPMM_CAPACITY="64MiB")
        text = self.top(process, "--once")
        self.assertEqual(text.count("vpmm top"), 1)
        self.assertRegex(text, rf"^vpmm top  pid {process.pid}  ")
        self.assertRegex(text, r"(?m)^live +8\.00 MiB +\[#+\.*\]$")
        self.assertRegex(text, r"(?m)^mapped +[0-9.]+ MiB +\[")
        self.assertRegex(text, r"(?m)^free +")
        self.assertIn("peak live 8.00 MiB of 64.00 MiB that it may have", text)
        self.assertRegex(text, r"(?m)^weights +5\.00 MiB$")
        self.assertRegex(text, r"(?m)^no tag +3\.00 MiB$")
        self.assertNotIn("stream", text)
        self.assertNotIn("pending and free are of", text)

    def test_memory_of_a_library_counts_for_it_and_for_its_tag(self) -> None:
        process = self.start(VPMM_TAG_LIBRARIES="1")
        self.say(process, "from vpmm import _vpmm; number = _vpmm.library_tag('cupy')")
        self.say(process, "ptr = _vpmm.allocate_tagged(pool, 2 << 20, number, 0)")
        self.say(process, "with vpmm.tag('weights'): more = _vpmm.allocate_tagged(pool, 1 << 20, number, 0)")
        text = self.top(process, "--once")
        libraries, tags = re.split("^library", text, maxsplit=1, flags=re.MULTILINE)[1].split("\ntag", 1)
        self.assertEqual(libraries.split(), ["live", "not", "known", "8.00", "MiB", "cupy", "3.00", "MiB"])
        self.assertEqual([line.split()[0] for line in tags.splitlines()[1:] if line], ["weights", "no", "cupy"])

    def test_a_narrow_picture_fits(self) -> None:
        for width in (40, 50):
            text = self.top(self.start(), "--once", COLUMNS=str(width))
            self.assertLessEqual(max(map(len, text.splitlines())), width)

    def test_it_ends_when_the_process_has_ended(self) -> None:
        process = self.start()
        watching = subprocess.Popen(
            [sys.executable, "-m", "vpmm", "top", str(process.pid), "--interval", "0.1"],
            env=os.environ | {"PYTHONPATH": PACKAGE_PARENT},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None and process.stdin is not None
        self.addCleanup(watching.kill)
        self.addCleanup(watching.stdout.close)
        self.assertIn("vpmm top", watching.stdout.readline())
        self.say(process, "pool.deallocate(other, 0)")
        until = time.monotonic() + 60
        while not re.match(r"live +5\.00 MiB", line := watching.stdout.readline()):
            self.assertLess(time.monotonic(), until, line)
        process.stdin.close()
        process.wait()
        watching.stdout.read()
        self.assertEqual(watching.wait(), 0)

    def test_the_recording_is_used_where_there_is_one(self) -> None:
        process = self.start(VPMM_RECORD=str(self.folder.with_name("run.vpmm")))
        self.say(process, "vpmm.record_mark('half')")
        until = time.monotonic() + 60
        while "mark at" not in (text := self.top(process, "--once")) and time.monotonic() < until:
            pass
        self.assertIn("vpmm top  run.vpmm", text)

    def test_a_program_that_does_not_tell_is_told_how_to(self) -> None:
        for switched in ("0", "off"):
            process = self.start(VPMM_TOP=switched, VPMM_LOG="quiet")
            done = run("-m", "vpmm", "top", str(process.pid), "--once")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"^vpmm: process \d+ is not being recorded: .*VPMM_RECORD=.*VPMM_TOP=0.*\n$")
            self.assertIsNone(ask(process.pid))

    def wait_until_stopped(self, pid: int) -> None:
        """Every thread: the signal reaches them one by one."""
        until = time.monotonic() + 60
        while any(
            "State:\tT" not in task.joinpath("status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()
        ):
            self.assertLess(time.monotonic(), until, "the process does not stop")
            time.sleep(0.001)

    def test_pools_that_it_does_not_tell_of_are_counted(self) -> None:
        process = self.start()
        self.say(process, "more = [vpmm.Pool() for _ in range(66)]")
        self.assertRegex(self.top(process, "--once"), r"(?m)^and 59 more, 3 of them in no figure here$")
        with mock.patch.dict(os.environ, VPMM_IPC_DIR=str(self.folder)):
            rows = [json.loads(line) for line in run("-m", "vpmm", "ps", "--json").stdout.splitlines()]
        self.assertEqual([row["live_bytes"] for row in rows if row["pid"] == process.pid], [None])

    def test_a_program_that_is_stopped_does_not_answer(self) -> None:
        process = self.start()
        os.kill(process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, process.pid, signal.SIGCONT)
        self.wait_until_stopped(process.pid)
        with self.assertRaisesRegex(NoAnswer, rf"process {process.pid} does not answer: it may be stopped"):
            ask(process.pid, 0.2)
        done = run("-m", "vpmm", "top", str(process.pid), "--once")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))

    def test_all_pools_are_told_with_the_rates_between_two_answers(self) -> None:
        process = self.start()
        self.say(process, "second = vpmm.Pool(); at = second.allocate(1 << 20, 0)")
        first = ask(process.pid)
        assert first is not None
        self.assertEqual([each.live_bytes for each in first.pools], [8 * MIB, MIB])
        source = Asked(process.pid, first)
        source.catch_up(1.0)
        self.say(process, "for _ in range(1000): second.deallocate(second.allocate(1 << 20, 0), 0)")
        time.sleep(0.05)
        source.catch_up(1.0)
        self.assertGreater(source.figures.rate(Kind.ALLOCATE, 0), 0)
        self.assertEqual([line.live_bytes for line in source.figures.pools], [8 * MIB, MIB])
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
        try:
            with mock.patch("vpmm.watching.asking._PATIENCE", 0.2):
                source.catch_up(1.0)
            self.assertEqual((source.figures.state, source.figures.live_bytes), ("no answer", 9 * MIB))
        finally:
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()
        self.assertTrue(source.has_ended())


class Picture(unittest.TestCase):
    def shown(self, *answers: Told, width: int = 100) -> str:
        source = Asked(7, answers[0])
        for answer in answers:
            source._take(answer)
        return "\n".join(frame(source.recording, source.figures, "", width=width))

    def test_several_pools_have_their_sum_and_a_line_each(self) -> None:
        pools = [pool(live_bytes=4 * MIB, mapped_bytes=6 * MIB), pool(device=1, live_bytes=MIB, mapped_bytes=2 * MIB)]
        text = self.shown(Told(SECOND, pools, []))
        self.assertIn("2 devices", text)
        self.assertRegex(text, r"(?m)^live +5\.00 MiB")
        self.assertIn("of 256.00 MiB that it may have", text)
        self.assertRegex(text, r"(?m)^device 0 +4\.00 MiB +6\.00 MiB\ndevice 1 +1\.00 MiB +2\.00 MiB$")
        text = self.shown(Told(SECOND, [pool(capacity=100 * MIB)] * 20, []), width=40)
        self.assertIn("and 12 more", text)
        self.assertIn("128.00 MiB", text, "of one device no more than it has")

    def test_rates_are_those_of_the_last_two_seconds(self) -> None:
        figures = FiguresTold()
        for second in range(10):
            figures.take(Told(second * SECOND, [pool(allocations=second**2, deallocations=3 * second)], []))
        self.assertEqual((figures.rate(Kind.ALLOCATE, 0), figures.rate(Kind.FREE, 0)), ((81 - 49) / 2, 3))
        figures.take(Told(10 * SECOND, [], []))
        self.assertEqual(figures.rate(Kind.ALLOCATE, 0), 0, "the pool has ended")

    def test_a_busy_pool_keeps_the_figures_and_is_named(self) -> None:
        known = Told(SECOND, [pool(live_bytes=4 * MIB)], [])
        text = self.shown(known, Told(2 * SECOND, [], [0]))
        self.assertRegex(text.splitlines()[0], "H200 .* busy$")
        self.assertRegex(text, r"(?m)^live +4\.00 MiB")
        text = self.shown(Told(SECOND, [pool(device=1, live_bytes=MIB)], [0]))
        self.assertRegex(text, r"(?m)^device 0 +busy +busy$")

    def test_tags_beyond_those_that_are_told_are_one_row(self) -> None:
        told = pool(live_bytes=9 * MIB, tagged_bytes=7 * MIB, tags=[(3, "a\x1b[2J", 4 * MIB), (4, "", MIB)])
        text = self.shown(Told(SECOND, [told], []))
        self.assertRegex(text, r"a\?\[2J +4\.00 MiB\n\(other tags\) +2\.00 MiB\nno tag +2\.00 MiB\ntag 4 +1\.00 MiB")
        self.assertNotIn("\x1b", text)


class Impostor(Program):
    """This process listens. It may have a pool and its own socket, of other tests."""

    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch("vpmm.watching.asking._folders", lambda _: [self.folder])
        patch.start()
        self.addCleanup(patch.stop)

    def listen(self, answer: bytes) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"top-{os.getpid()}-00.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
        self.listener, self.answer = listener, answer

    def ask(self) -> Told | None:
        """Answers from another process, as this one waits."""
        child = os.fork()
        if child == 0:
            talk, _ = self.listener.accept()
            talk.send(self.answer)
            os._exit(0)
        try:
            return ask(os.getpid(), 10)
        finally:
            os.waitpid(child, 0)

    def test_another_version_is_refused_with_what_to_do(self) -> None:
        self.listen(json.dumps({"vpmm_top": 2, "library": "9.8.7", "pools": 3}).encode())
        with self.assertRaisesRegex(NoAnswer, r"has version 9\.8\.7 of VPMM, .*: use the vpmm of that version"):
            self.ask()

    def test_a_version_reaches_the_terminal_without_commands(self) -> None:
        self.listen(json.dumps({"vpmm_top": 2, "library": "\x1b[2J\ud800" + "9" * 10_000}).encode())
        with self.assertRaisesRegex(NoAnswer, r"has version \?\[2J\?9+ of VPMM") as refused:
            self.ask()
        self.assertLess(len(str(refused.exception)), 300)

    def test_members_of_later_libraries_are_ignored(self) -> None:
        told = pool(live_bytes=5)._asdict() | {"is_busy": False, "new": [1]}
        self.listen(json.dumps({"vpmm_top": 1, "library": "x", "age_ns": 3, "pools": [told], "new": 1}).encode())
        self.assertEqual(self.ask(), Told(3, [pool(live_bytes=5)], []))

    def test_a_process_of_another_container_with_the_same_number_is_passed_over(self) -> None:
        self.listen(json.dumps({"vpmm_top": 1, "library": "x", "age_ns": 3, "pools": []}).encode())
        (self.folder / f"top-{os.getpid()}-00.sock").rename(self.folder / "top-7-00.sock")  # as its container counts
        other = self.start()
        path = next(path for path in self.folder.iterdir() if f"-{other.pid}-" in path.name)
        path.rename(self.folder / f"top-{os.getpid()}-01.sock")
        self.assertEqual(self.ask(), Told(3, [], []))

    def test_rubbish_is_refused(self) -> None:
        whole = pool()._asdict() | {"is_busy": False}
        bad: list[object] = [
            whole | {"live_bytes": -1},
            whole | {"tags": 3},
            whole | {"tags": [{}]},
            whole | {"libraries": {}},
            {},
            3,
        ]
        texts = [json.dumps({"vpmm_top": 1, "age_ns": 1, "library": "x", "pools": [each]}) for each in bad]
        texts += [text.replace('"age_ns": 1', '"age_ns": 1e999') for text in texts[:1]]
        texts.append(json.dumps({"vpmm_top": 1, "age_ns": 1, "pools": [whole | {"mapped_bytes": 10**400}]}))
        for text in ["", "[]", "3", "{}", "\xff", "[" * 50_000, *texts]:
            self.listen(text.encode() or b"\0")
            with self.assertRaisesRegex(NoAnswer, "cannot be understood"):
                self.ask()

    def test_a_folder_that_cannot_be_listed_has_no_socket(self) -> None:
        self.listen(b"{}")
        with mock.patch("vpmm.watching.asking.os.listdir", side_effect=PermissionError):
            self.assertIsNone(ask(os.getpid()))

    def test_a_folder_that_others_may_enter_is_not_looked_at(self) -> None:
        self.listen(b"{}")
        self.folder.chmod(0o755)
        self.assertIsNone(ask(os.getpid()))

    def test_a_socket_of_an_ended_process_and_one_of_another_are_passed_over(self) -> None:
        self.listen(b"{}")
        self.listener.close()
        self.assertIsNone(ask(os.getpid()))
        process = self.start()
        self.listen(b"{}")
        name = next(path for path in self.folder.iterdir() if f"-{process.pid}-" in path.name)
        name.rename(self.folder / f"top-{os.getpid()}-01.sock")
        (self.folder / f"top-{os.getpid()}-00.sock").unlink()
        self.assertIsNone(ask(os.getpid()), "it has the name of this process, and another listens there")


if __name__ == "__main__":
    unittest.main()
