# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm ps, beside processes that use VPMM, tell their figures, are recorded, or only read a recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from vpmm.recordings.binary import MAGIC
from vpmm.watching import processes

from program import PACKAGE_PARENT, run

PROGRAM = """
import sys, vpmm
pool = vpmm.Pool.default()
kept = pool.allocate(5 << 20, 0)
print(flush=True)
sys.stdin.read()
"""


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "run.vpmm"

    def start(self, code: str, *arguments: str, **variables: str) -> int:
        """The process, after its first line."""
        settings = os.environ | {"PYTHONPATH": PACKAGE_PARENT, "VPMM_DRIVER": "sim"} | variables
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings)
        assert process.stdin is not None and process.stdout is not None
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)  # ends it
        process.stdout.readline()
        return process.pid

    def listed(self) -> dict[int, dict[str, object]]:
        done = run("-m", "vpmm", "ps", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {row["pid"]: row for row in rows}

    def test_a_process_without_a_recording_tells_its_figures(self) -> None:
        pid = self.start(PROGRAM)
        row = self.listed()[pid]
        self.assertEqual((row["recordings"], row["live_bytes"]), ([], 5 << 20))
        self.assertGreaterEqual(int(str(row["mapped_bytes"])), 5 << 20)
        done = run("-m", "vpmm", "ps", COLUMNS="50")
        self.assertRegex(done.stdout, rf"(?m)^ *{pid} +[0-9.]+ MiB +5\.00 MiB  ")

    def test_a_process_with_a_folder_of_its_own_tells_its_figures(self) -> None:
        folder = self.path.with_name("sockets")
        pid = self.start(PROGRAM, VPMM_IPC_DIR=str(folder))
        self.assertEqual(self.listed()[pid]["live_bytes"], 5 << 20)
        self.assertEqual([path.name.startswith(f"top-{pid}-") for path in folder.iterdir()], [True])

    def test_a_process_that_is_stopped_is_not_waited_for(self) -> None:
        pid = self.start(PROGRAM)
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(os.kill, pid, signal.SIGCONT)
        self.assertIsNone(self.listed()[pid]["live_bytes"])

    def test_a_process_that_does_not_tell_and_is_not_recorded_has_no_figures(self) -> None:
        pid = self.start(PROGRAM, "argument", VPMM_TOP="0")
        row = self.listed()[pid]
        self.assertTrue(str(row["command"]).endswith(" argument"))
        self.assertEqual((row["recordings"], row["mapped_bytes"], row["live_bytes"]), ([], None, None))
        done = run("-m", "vpmm", "ps")
        self.assertRegex(done.stdout, rf"^ +PID +mapped +live  command\n(.*\n)* *{pid} +- +-  .*python.* -c")

    def test_a_process_that_is_recorded_has_its_figures(self) -> None:
        pid = self.start(PROGRAM, VPMM_RECORD=str(self.path), VPMM_TOP="0")
        until = time.monotonic() + 60
        while (row := self.listed()[pid])["live_bytes"] != 5 << 20 and time.monotonic() < until:
            pass
        self.assertEqual((row["live_bytes"], row["recordings"]), (5 << 20, [str(self.path)]))
        self.assertGreaterEqual(int(str(row["mapped_bytes"])), 5 << 20)
        done = run("-m", "vpmm", "ps", COLUMNS="50")
        self.assertRegex(done.stdout, rf"(?m)^ *{pid} +[0-9.]+ MiB +5\.00 MiB  ")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 50)

    def test_a_sample_of_the_allocations_says_nothing_of_live_memory(self) -> None:
        pid = self.start(PROGRAM, VPMM_RECORD=str(self.path), VPMM_RECORD_SAMPLE="100", VPMM_TOP="0")
        self.assertIsNone(self.listed()[pid]["live_bytes"])

    def test_a_process_that_reads_a_recording_is_not_recorded(self) -> None:
        self.path.write_bytes(MAGIC)
        pid = self.start(f"import sys, vpmm; f = open({str(self.path)!r}, 'rb'); print(flush=True); sys.stdin.read()")
        self.assertEqual(self.listed()[pid]["recordings"], [])

    def test_a_name_that_means_another_file_here_is_not_used(self) -> None:
        kept, other, pipe = (self.path.with_name(name) for name in ("kept", "other", "pipe"))
        for path in (kept, other):
            path.write_bytes(MAGIC)
        os.mkfifo(pipe)
        status = kept.stat()
        self.assertEqual(processes._named(str(kept), status), str(kept))
        self.assertEqual(processes._named(f"{other} (deleted)", status), str(other))
        for name in (other, pipe, f"{pipe} (deleted)", self.path, f"{self.path} (deleted)"):
            self.assertIsNone(processes._named(str(name), status))

    def test_a_process_without_the_library_and_the_list_itself_are_not_listed(self) -> None:
        pid = self.start("import sys\nprint(flush=True)\nsys.stdin.read()")
        listed = self.listed()
        self.assertNotIn(pid, listed)
        self.assertFalse([row for row in listed.values() if "vpmm ps" in str(row["command"])])


if __name__ == "__main__":
    unittest.main()
