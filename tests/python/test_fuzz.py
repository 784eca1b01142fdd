"""tests: readers end with a recording or BadFile, whatever bytes they get. The targets are in tests/fuzz/readers.py."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

import readers

from convert_case import mutations

FORMS = 150  # of each input


class Readers(unittest.TestCase):
    def test_what_is_in_the_corpus_is_read_as_it_is_and_changed(self) -> None:
        for target in readers.TARGETS:
            for number, data in enumerate(readers.corpus_of(target)):
                for form, changed in enumerate([data, *mutations(data, FORMS, seed=number)]):
                    with self.subTest(target, input=number, form=form):
                        readers.run(target, changed)
