# SPDX-License-Identifier: Apache-2.0
"""tests: readers end with a recording or BadFile, whatever bytes they get. The targets are in tests/fuzz/readers.py."""

from __future__ import annotations

import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

import readers

from vpmm.convert import memory_viz
from vpmm.recordings import Event, Kind, Recording

from convert_case import mutations

FORMS = 600  # of each input


class Readers(unittest.TestCase):
    def test_what_is_in_the_corpus_is_read_as_it_is_and_changed(self) -> None:
        for target in readers.TARGETS:
            for number, data in enumerate(readers.corpus_of(target)):
                for form, changed in enumerate([data, *mutations(data, FORMS, seed=number)]):
                    with self.subTest(target, input=number, form=form):
                        readers.run(target, changed)

    def test_a_snapshot_does_not_list_four_billion_devices(self) -> None:
        event = Event(time_ns=1, kind=Kind.ALLOCATE, address=1 << 40, bytes=512, device=0xFFFFFFF0)
        with self.assertRaisesRegex(ValueError, "device 4294967280 is beyond the 1024 that a snapshot lists"):
            memory_viz.write(Recording(events=[event]), io.BytesIO())
