# SPDX-License-Identifier: Apache-2.0
"""tests: a recording that an earlier version of VPMM wrote is read for ever, and means the same.

Each file of fixtures/ is of one version of the format. It was recorded on the simulator: three allocations and one of a
suspendable tag, a suspend and a resume, a request that fails, two marks, frees and a trim.
"""

from __future__ import annotations

import unittest
from collections import Counter
from pathlib import Path

from vpmm import recordings
from vpmm.recordings import Kind

from program import run

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


class Recordings(unittest.TestCase):
    def test_every_version_is_here(self) -> None:
        self.assertEqual([path.name for path in sorted(FIXTURES.iterdir())], ["version_1.vpmm"])

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

    def test_every_verb_reads_it(self) -> None:
        path = str(FIXTURES / "version_1.vpmm")
        for verb in (["report", "--text"], ["top", "--once", "--file"], ["replay"]):
            with self.subTest(verb=verb):
                done = run("-m", "vpmm", verb[0], *verb[1:], path)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("MiB", done.stdout)


if __name__ == "__main__":
    unittest.main()
