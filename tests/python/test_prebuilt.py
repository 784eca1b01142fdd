# SPDX-License-Identifier: Apache-2.0
"""tests: libraries of plugins in a wheel: when one is taken, and what is said when none is."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from unittest import mock

from vpmm.plugins import _building, _prebuilt

from convert_case import ConvertCase

WHAT = "the allocator for PyTorch 2.15.0"
NAME = "torch-2.15-cxx11"


class Prebuilt(ConvertCase):
    """A package with one library, and the headers that it was compiled with."""

    def setUp(self) -> None:
        super().setUp()
        self.built = self.folder / "built"
        self.include = self.folder / "torch" / "include"
        (self.include / "c10").mkdir(parents=True)
        self.headers = [self.include / "c10" / name for name in ("Allocator.h", "Stream.h", "version.h")]
        for header in self.headers:
            header.write_text(f"// {header.name}\n")
        self.built.mkdir()
        self.library = self.built / f"{NAME}.so"
        self.library.write_bytes(b"a library")
        outside = self.folder / "stdio.h"
        outside.touch()
        _prebuilt.write_note(self.library, "2.15.0", [*self.headers, outside], [self.include])
        folder = mock.patch.object(_prebuilt, "FOLDER", self.built)
        folder.start()
        self.addCleanup(folder.stop)

    def find(self, name: str = NAME, release: str = "2.15.0+cu132") -> _prebuilt.Found:
        return _prebuilt.find(name, [self.folder / "no", self.include], release, WHAT)

    def reason(self, name: str = NAME, release: str = "2.15.0+cu132") -> str:
        found = self.find(name, release)
        self.assertIsNone(found.library)
        return found.reason


class Finding(Prebuilt):
    def test_the_one_whose_headers_are_installed_is_taken(self) -> None:
        for release in ("2.15.0+cu132", "2.15.1", "2.15.0a0+own"):
            self.assertEqual(self.find(release=release), _prebuilt.Found(self.library))

    def test_the_note_names_only_what_the_other_library_installs(self) -> None:
        note = json.loads(self.library.with_suffix(".json").read_text())
        self.assertEqual(note["headers"], ["c10/Allocator.h", "c10/Stream.h"])

    def test_a_header_that_differs_or_is_gone_refuses_it(self) -> None:
        said = f"{WHAT} is compiled in this package for 2.15.0, which has other headers"
        self.headers[0].write_text("// another virtual function\n")
        self.assertEqual(self.reason(), said)
        self.headers[0].unlink()
        self.assertEqual(self.reason(), said)

    def test_the_header_of_the_version_may_differ(self) -> None:
        self.headers[2].write_text("#define TORCH_VERSION_PATCH 1\n")
        self.assertEqual(self.find().library, self.library)

    def test_without_any_header_the_release_decides(self) -> None:
        for header in self.headers:
            header.unlink()
        self.assertEqual(self.find().library, self.library)
        self.assertEqual(self.find(release="2.15.0").library, self.library)
        for other in ("2.15.1+cu132", "2.15.0a0+own", "2.15.0.dev20260901+cu132"):
            self.assertIn("other headers", self.reason(release=other))

    def test_another_version_or_abi_is_not_there_and_those_that_are_get_named(self) -> None:
        (self.built / "torch-2.9-cxx11.json").touch()
        (self.built / "rmm-26.10.json").touch()
        for name in ("torch-2.16-cxx11", "torch-2.15-old"):
            said = f"this package does not hold {WHAT} compiled (it holds torch-2.9-cxx11, {NAME})"
            self.assertEqual(self.reason(name), said)

    def test_a_damaged_library_is_not_loaded(self) -> None:
        for damage in (b"", b"a lib", b"a librarY", b"a library and more"):
            self.library.write_bytes(damage)
            self.assertEqual(self.reason(), f"this package holds {WHAT} compiled, but {NAME}.so is damaged")
        self.library.unlink()
        self.assertIn(f"{NAME}.so is damaged", self.reason())

    def test_a_damaged_note_is_no_note(self) -> None:
        note = self.library.with_suffix(".json")
        whole = note.read_bytes()
        for damage in (b"", whole[:-20], b"{}", b"[]", b"\xff"):
            note.write_bytes(damage)
            self.assertIn(f"{NAME}.json is damaged", self.reason())

    def test_a_package_that_was_built_from_source_holds_none_and_gives_no_reason(self) -> None:
        with mock.patch.object(_prebuilt, "FOLDER", self.folder / "none"):
            self.assertEqual(self.find(), _prebuilt.Found())

    def test_a_library_that_was_compiled_with_none_of_the_headers_gets_no_note(self) -> None:
        with self.assertRaises(ValueError):
            _prebuilt.write_note(self.library, "2.15.0", [self.headers[2]], [self.include])

    def test_rules_of_make_are_read(self) -> None:
        rule = "a.so: /a/b.h \\\n  /a/with\\ space.h\\\n /c.h\n"
        self.assertEqual(_prebuilt.dependencies_in(rule), [Path("/a/b.h"), Path("/a/with space.h"), Path("/c.h")])


class Saying(Prebuilt):
    def said(self, why: str) -> str:
        with mock.patch.dict(os.environ, VPMM_CACHE_DIR=str(self.folder / "cache")):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                _building.cached("plugin.so", lambda library: library.touch(), WHAT, why)
            return said.getvalue()

    def test_compiling_what_the_package_lacks_is_one_line_and_loading_it_is_none(self) -> None:
        line = f"vpmm: {self.reason('torch-2.16-cxx11')}: compiling it once, into {self.folder / 'cache'}\n"
        self.assertEqual(self.said(self.reason("torch-2.16-cxx11")), line)
        self.assertEqual(self.said(self.reason("torch-2.16-cxx11")), "")

    def test_without_a_reason_the_line_names_the_library(self) -> None:
        self.assertEqual(self.said(""), f"vpmm: {WHAT}: compiling it once, into {self.folder / 'cache'}\n")


if __name__ == "__main__":
    import unittest

    unittest.main()
