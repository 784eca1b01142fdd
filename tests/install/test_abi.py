# SPDX-License-Identifier: Apache-2.0
"""tests: a program that was compiled with an earlier header of this version runs on today's library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import abi

INCLUDE = abi.ROOT / "include"
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", abi.ROOT / "build/dev")).resolve()
CHANGES = {
    "a field is narrower": (r"uint64_t pages;", "uint32_t pages;"),
    "a field is new in the middle": (r"uint64_t mapped_bytes;", "uint64_t first; uint64_t mapped_bytes;"),
    "an element of an array grows": (r"(int complete;.*)", r"\1 int more;"),
    "an enumerator has another value": (r"VPMM_ERROR_SUSPENDED = 15", "VPMM_ERROR_SUSPENDED = 16"),
    "a macro has another value": (r"UINT64_MAX - \(uint64_t\)", "UINT64_MAX / (uint64_t)"),
    "a macro is gone": (r"#define VPMM_SHARE_OF_GPU.*", ""),
    "a parameter is new": (r"vpmm_trim\(", "vpmm_trim(int first, "),
    "a parameter of a callback is new": (r"vpmm_log_callback\)\(", "vpmm_log_callback)(int first, "),
}


def compiled(include: Path, program: Path) -> subprocess.CompletedProcess[str]:
    words = ["cc", "-std=c11", f"-I{include}", abi.FILE, f"-L{BUILD}", "-lvpmm", f"-Wl,-rpath,{BUILD}", "-o", program]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


class Abi(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_what_was_promised_compiles_links_and_runs(self) -> None:
        program = self.folder / "program"
        done = compiled(INCLUDE, program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(subprocess.run([str(program)], check=False).returncode, 0)

    def test_the_list_is_whole_and_nothing_on_it_is_gone(self) -> None:
        promised, now = abi.lines_of(abi.FILE.read_text()), list(abi.promises(INCLUDE))
        self.assertEqual([line for line in now if line not in promised], [], "python3 tests/install/abi.py adds them")
        text = " ".join([abi.text_of(INCLUDE), *abi.macros(INCLUDE)])
        names = set(re.findall(r"\b(?:vpmm|VPMM)_\w+", "".join(promised)))
        self.assertEqual({name for name in names if not re.search(rf"\b{name}\b", text)}, set())

    def test_a_header_that_breaks_a_promise_does_not_compile(self) -> None:
        for name, (pattern, replacement) in CHANGES.items():
            with self.subTest(name):
                shutil.copytree(INCLUDE, self.folder / name)
                header = self.folder / name / "vpmm/vpmm.h"
                changed, count = re.subn(pattern, replacement, header.read_text())
                self.assertGreater(count, 0)
                header.write_text(changed)
                self.assertRegex(compiled(self.folder / name, self.folder / "program").stderr, "error: ")

    def test_a_macro_and_an_enumerator_without_a_written_value_are_on_the_list(self) -> None:
        self.assertEqual(abi.enumerators("enum kind { A, B = 5, C } ; enum { D };"), ["A", "B", "C", "D"])
        promised = " ".join(abi.lines_of(abi.FILE.read_text()))
        for name in ("VPMM_NO_LIMIT", "VPMM_SHARE_OF_GPU", "VPMM_EMM_INTERFACE_VERSION", "VPMM_EMM_PLUGIN_SYMBOL"):
            self.assertIn(name, promised)
        self.assertNotIn("VPMM_VERSION", promised)

    def test_a_struct_with_a_size_may_grow(self) -> None:
        include = self.folder / "grown"
        shutil.copytree(INCLUDE, include)
        header = include / "vpmm/vpmm.h"
        header.write_text(
            header.read_text().replace("uint64_t damaged_allocations;", "uint64_t damaged_allocations, more;")
        )
        self.assertEqual(compiled(include, self.folder / "program").stderr, "")


if __name__ == "__main__":
    unittest.main()
