# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm explain names the allocation of an address, from recordings and from the pool itself."""

from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

from vpmm import explaining
from vpmm.recordings import Event, Frame, Kind, Recording, write

from program import output_of, run
from report_case import recording_of

XID = (
    "[ 71.5] NVRM: Xid (PCI:0000:00:06): 31, pid=1041, name=fault, channel 0x0000000a, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_4 faulted @ 0x7f45_8cc03000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
)
A = 0x7F45_8CC0_2000


def made() -> Recording:
    recording = recording_of(
        Event(Kind.ALLOCATE, address=A, bytes=4000, stream=7, tag=1, stack=1),
        Event(Kind.ALLOCATE, address=A + 0x100000, bytes=512, stream=9),
        Event(Kind.FREE, address=A + 0x100000, stream=9),
        pid=1041,
    )
    recording.tags = {1: "cache"}
    recording.stacks = {1: (Frame("train.py", 12, "step"),)}
    return recording


class Explain(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = str(self.folder / "run.vpmm")
        write(made(), self.path)

    def explained(self, *arguments: str) -> str:
        done = run("-m", "vpmm", "explain", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_an_address_inside_is_of_its_allocation(self) -> None:
        text = self.explained(hex(A + 100), self.path)
        self.assertIn("at byte 100 of 3.91 KiB (4000 bytes) at 0x7f458cc02000", text)
        self.assertIn("allocated on stream 7 with the tag cache", text)
        self.assertIn("train.py:12 step", text)
        self.assertIn("live at the end", text)

    def test_an_address_beyond_tells_how_far(self) -> None:
        text = self.explained(hex(A + 4057), self.path)
        self.assertIn("57 bytes beyond the end of 3.91 KiB", text)

    def test_a_use_after_its_free_names_the_free(self) -> None:
        text = self.explained(hex(A + 0x100000), self.path)
        self.assertIn("at byte 0 of 512 bytes", text)
        self.assertIn("freed on stream 9", text)

    def test_the_kernel_log_is_read(self) -> None:
        log = self.folder / "log"
        log.write_text("nothing\n" + XID + XID.replace("1041", "2"))
        text = self.explained("--kernel-log", str(log), self.path)
        self.assertIn("0x7f458cc03000 to 0x7f458cc03fff, a read of process 1041", text)
        self.assertIn("96 to 4191 bytes beyond the end of 3.91 KiB", text)
        self.assertNotIn("process 2", text)

    def test_a_line_of_the_kernel_log_without_a_possible_process_is_of_any(self) -> None:
        log = self.folder / "log"
        log.write_text(XID.replace("1041", "9" * 5000))
        self.assertIn("bytes beyond the end of 3.91 KiB", self.explained("--kernel-log", str(log), self.path))

    def test_without_an_address_the_newest_of_a_stream_are_candidates(self) -> None:
        text = self.explained("--stream", "9", self.path)
        self.assertIn("the newest 1 of 1 allocations of stream 9", text)
        self.assertIn("512 bytes at", text)

    def test_names_in_a_recording_give_no_commands_to_the_terminal(self) -> None:
        recording = made()
        recording.tags = {1: "cac\x1b[2Jhe"}
        recording.stacks = {1: (Frame("tra\x9b2Jin.py", 12, "st\x1b]0;title\x07ep\n  nothing is wrong"),)}
        write(recording, self.path)
        for text in (self.explained(hex(A + 100), self.path), self.explained("--stream", "7", self.path)):
            self.assertIn("with the tag cac?[2Jhe", text)
            self.assertIn("tra?2Jin.py:12 st?]0;title?ep?  nothing is wrong\n", text)
            self.assertTrue(all(line.isprintable() for line in text.splitlines()))

    def test_wrong_words_are_refused(self) -> None:
        for arguments, said in (
            ([], "an ADDRESS, --kernel-log or --stream is needed"),
            (["0xq", self.path], "0xq is not an address"),
            (["0x10"], "a RECORDING is needed"),
        ):
            done = run("-m", "vpmm", "explain", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
        log = self.folder / "empty"
        log.write_text("")
        self.assertEqual(run("-m", "vpmm", "explain", "--kernel-log", str(log), self.path).returncode, 1)

    def test_addresses_are_parsed(self) -> None:
        self.assertEqual(explaining.parse_address("0x7f45_8cc03000"), 0x7F458CC03000)
        self.assertEqual(explaining.parse_address("4096"), 4096)

    def test_a_guarded_pool_explains_and_counts(self) -> None:
        out = output_of(
            "import vpmm\n"
            "pool = vpmm.configure(driver='sim', guard=1)\n"
            "kept = pool.allocate(1000, 0)\n"
            "print(vpmm.explain(kept + 1057))\n"
            "print(vpmm.stats()['guarded_allocations'])\n"
        )
        self.assertRegex(out, r"is 57 bytes beyond the end of an allocation")
        self.assertEqual(out.split()[-1], "1")

    def test_the_stacks_of_an_allocation_and_its_free_are_shown(self) -> None:
        out = output_of(
            "import vpmm\n"
            "pool = vpmm.configure(driver='sim', guard=1)\n"
            "def make():\n    return pool.allocate(1000, 0)\n"
            "def drop(begin):\n    pool.deallocate(begin, 0)\n"
            "begin = make()\n"
            "drop(begin)\n"
            "print(vpmm.explain(begin))\n"
        )
        frames = r"allocated by\n    <string>:4 make\n    <string>:7 <module>\n  freed by\n    <string>:6 drop\n"
        self.assertRegex(out, frames)

    def test_a_pool_without_guard_says_so(self) -> None:
        out = output_of(
            "import vpmm\n"
            "pool = vpmm.configure(driver='sim')\n"
            "try:\n    vpmm.explain(4096)\n"
            "except vpmm.Error as error:\n    print(error)\n"
        )
        self.assertTrue(re.search("VPMM_GUARD is off", out), out)


if __name__ == "__main__":
    unittest.main()
