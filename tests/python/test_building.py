"""tests: libraries that are compiled at their first use: who may read them, and what becomes of damaged ones."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import unittest
from pathlib import Path
from unittest import mock

from vpmm.errors import Error
from vpmm.plugins import _building

from convert_case import ConvertCase

WHAT = "the library of a test"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Cached(ConvertCase):
    def setUp(self) -> None:
        super().setUp()
        self.cache = self.folder / "image" / "cache"
        self.addCleanup(os.umask, os.umask(0o022))
        variables = mock.patch.dict(os.environ, VPMM_CACHE_DIR=str(self.cache))
        variables.start()
        self.addCleanup(variables.stop)
        self.made = 0

    def make(self, library: Path) -> None:
        self.made += 1
        library.write_bytes(b"a library")

    def cached(self) -> Path:
        return _building.cached("plugin.so", self.make, WHAT)

    def test_is_made_once(self) -> None:
        self.assertEqual(self.cached(), self.cached())
        self.assertEqual(self.made, 1)

    def test_is_made_anew_where_it_is_cut_empty_or_changed(self) -> None:
        library = self.cached()
        for damage in (b"", b"a lib", b"a librarY", b"a library and more"):
            library.write_bytes(damage)
            self.assertEqual(self.cached().read_bytes(), b"a library")
        library.with_name("plugin.so.sha256").write_bytes(b"\xff")
        self.assertEqual(self.cached().read_bytes(), b"a library")
        self.assertEqual(self.made, 6)

    def test_can_be_read_by_others_as_the_umask_allows(self) -> None:
        self.cached()
        self.assertEqual([mode_of(self.cache), mode_of(self.cache.parent)], [0o755, 0o755])
        self.assertEqual(mode_of(self.cache / "plugin.so.sha256"), 0o644)

    def test_in_the_home_is_private(self) -> None:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "home")):
            del os.environ["VPMM_CACHE_DIR"]
            self.assertEqual(mode_of(self.cached().parent), 0o700)

    def test_is_made_by_one_of_several_threads(self) -> None:
        threads = [threading.Thread(target=self.cached) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(self.made, 1)

    @unittest.skipUnless(shutil.which("g++"), "there is no g++")
    def test_that_is_compiled_can_be_read_and_run_by_others(self) -> None:
        source = self.file("int main() {}\n", "source.cpp")
        for umask, mode in ((0o022, 0o755), (0o027, 0o750)):
            os.umask(umask)
            library = self.folder / f"made-{umask:o}.so"
            with mock.patch.object(_building, "LINK_VPMM", ()):
                _building.run_compiler([str(source)], library, WHAT, "build-test")
            self.assertEqual(mode_of(library), mode)
        self.file("int main( {}\n", "source.cpp")
        with self.assertRaisesRegex(Error, f"{WHAT} could not be built"):
            _building.run_compiler([str(source)], self.folder / "no.so", WHAT, "build-test")
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])


if __name__ == "__main__":
    unittest.main()
