# SPDX-License-Identifier: Apache-2.0
"""tests: what tools/plugins.py keeps of the packages that it fetches, and what it says if it cannot fetch one."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import plugins  # noqa: E402  found there
import wheels  # noqa: E402

FILES = (
    "torch/include/c10/core/Allocator.h",
    "torch/include/torch/headeronly/macros/Macros.h",
    "torch/include/ATen/ATen.h",
    "torch/lib/libc10.so",
    "torch/lib/libtorch_cuda.so",
    "torch/__init__.py",
    "a-1.dist-info/METADATA",
    "a-1.dist-info/licenses/LICENSE",
    "librmm/include/rapids/cuda/stream_ref",
    "rmm/__init__.py",
    "rmm/pylibrmm/stream.so",
)
# A pip that "downloads" a wheel with the files above, and writes down what it was asked for.
PIP = """
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
pathlib.Path({log!r}).open("a").write(sys.argv[-1] + "\\n")
if sys.argv[-1].startswith({refused!r}):
    sys.exit("no matching distribution")
with zipfile.ZipFile(folder / "a.whl", "w") as file:
    for name in {files!r}:
        file.writestr(name, name)
"""
# Copies exception pointers; the digits say how many copies there are of what was thrown.
THROWS = r"""
#include <exception>
#include <memory>
#include <sstream>
#include <string>

int alive = 0;
struct Thrown {
  Thrown() { ++alive; }
  Thrown(const Thrown&) { ++alive; }
  ~Thrown() { --alive; }
};

extern "C" __attribute__((visibility("default"))) int digits() {
  std::exception_ptr kept;
  try {
    throw Thrown();
  } catch (...) {
    kept = std::current_exception();
  }
  auto shared = std::make_shared<std::exception_ptr>(kept);
  auto copy = shared;
  const std::string nothing;
  std::ostringstream text(nothing);
  text << alive;
  kept = nullptr;
  try {
    std::rethrow_exception(*copy);
  } catch (const Thrown&) {
    text << alive;
  }
  shared.reset();
  copy.reset();
  text << alive;
  return std::stoi(text.str());
}
"""


class Plugins(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def fetch(self, refused: str = "no such") -> list[str]:
        """What was asked for."""
        log = self.folder / "log"
        log.write_text("")
        program = self.folder / "pip.py"
        program.write_text(PIP.format(log=str(log), refused=refused, files=FILES))
        plugins.fetch(self.folder / "headers", [sys.executable, str(program)])
        return log.read_text().splitlines()

    def kept(self, requirement: str) -> set[str]:
        folder = self.folder / "headers" / requirement
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    def test_headers_licences_and_the_libraries_that_are_linked_stay(self) -> None:
        self.fetch()
        self.assertEqual(
            self.kept("torch-2.15.0"),
            {
                "torch/include/c10/core/Allocator.h",
                "torch/include/torch/headeronly/macros/Macros.h",
                "torch/lib/libc10.so",
                "a-1.dist-info/licenses/LICENSE",
            },
        )
        self.assertLess({"librmm/include/rapids/cuda/stream_ref", "rmm/__init__.py"}, self.kept("librmm-cu13-26.10.0"))
        self.assertNotIn("rmm/pylibrmm/stream.so", self.kept("rmm-cu13-26.10.0"))

    def test_each_version_is_fetched_once(self) -> None:
        asked = self.fetch()
        self.assertEqual(len(asked), 5 + 2 * len(plugins.RMM) + len(plugins.TORCH))
        self.assertIn("torch==2.11.0", asked)
        self.assertEqual(self.fetch(), [])

    def test_one_that_is_not_there_ends_it_with_a_way_out_and_leaves_no_half_a_folder(self) -> None:
        with self.assertRaises(SystemExit) as ended:
            self.fetch("torch==2.13")
        said = str(ended.exception)
        self.assertIn("torch==2.13.0 could not be fetched", said)
        self.assertIn("./dev wheel --no-plugins", said)
        self.assertIn("no matching distribution", said)
        left = {path.name for path in (self.folder / "headers").iterdir()}
        self.assertTrue({"torch-2.12.1"} <= left and not {"torch-2.13.0", "torch-2.14.1"} & left, left)
        self.assertFalse([name for name in left if name.startswith("fetch-")])
        self.assertEqual(self.fetch(), ["torch==2.13.0", "torch==2.14.1", "torch==2.15.0"])

    def test_those_of_the_first_wheel_are_copied_into_the_others(self) -> None:
        built, package = self.folder / "built", self.folder / "vpmm-0.1.0"
        built.mkdir()
        (built / "torch-2.15-cxx11.so").write_text("a library")
        (package / "vpmm/plugins").mkdir(parents=True)
        none = Path("/none")
        notices = self.folder / "notices"
        notices.write_text("those of PyTorch\n")
        own = package / "vpmm/licenses/THIRD-PARTY-NOTICES"
        own.parent.mkdir()
        own.write_text("those of fmt\n")
        wheels.Plugins(none, built, notices).add_to(package, wheels.Interpreter("/none", (3, 12)), none)
        self.assertEqual((package / "vpmm/plugins/built/torch-2.15-cxx11.so").read_text(), "a library")
        self.assertEqual(own.read_text(), "those of fmt\nthose of PyTorch\n")

    def put(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_the_notices_are_those_of_packages_and_headers_that_were_compiled(self) -> None:
        headers = "headers/torch-2.11.0/torch/include"
        used = [
            self.put(f"{headers}/c10/a.h", "#pragma once\n// Copyright of a,\n// by A.\n\n// Adds.\nint a();\n"),
            self.put(f"{headers}/c10/b.h", "// Copyright of a,\n// by A.\nint b();\n"),
            self.put("headers/torch-2.15.0/torch/include/c10/c.h", "/* copyright (c) C */\nint c();\n"),
            self.put("elsewhere/d.h", "// Copyright of D\n"),
        ]
        self.put(f"{headers}/c10/unused.h", "// Copyright of E\n")
        for version in ("2.11.0", "2.15.0"):
            self.put(f"headers/torch-{version}/torch-{version}.dist-info/licenses/LICENSE", version)
        info = "headers/torch-2.15.0/torch-2.15.0.dist-info"
        self.put(f"{info}/licenses/third_party/x/LICENSE", "of a library that is none of these headers'")
        self.put("headers/librmm-26.10/librmm-26.10.dist-info/LICENSE", "of no header that was compiled")
        found = plugins.notices_of(self.folder / "headers", used)
        expected = {
            "torch, LICENSE": "2.15.0",  # the newest has them all
            "torch-2.11.0/torch/include/c10/a.h": "// Copyright of a,\n// by A.\n",
            "torch-2.15.0/torch/include/c10/c.h": "/* copyright (c) C */",
        }
        self.assertEqual(found, expected)

    def test_a_package_without_a_licence_is_not_compiled_into_a_wheel(self) -> None:
        used = [self.put("headers/torch-2.15.0/torch/include/c10/c.h", "int c();\n")]
        self.put("headers/torch-2.15.0/torch-2.15.0.dist-info/METADATA", "")
        with self.assertRaises(SystemExit) as ended:
            plugins.notices_of(self.folder / "headers", used)
        self.assertIn("torch-2.15.0 has no licence beside its headers", str(ended.exception))

    @unittest.skipUnless(shutil.which("g++"), "g++ is not installed")
    def test_what_an_old_libstdcxx_lacks_is_linked_in_and_works(self) -> None:
        source, library = self.folder / "throws.cpp", self.folder / "throws.so"
        source.write_text(THROWS)
        command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
        subprocess.run([*command, source, plugins.OLD_RUNTIME, "-o", library], check=True)
        self.assertEqual(ctypes.CDLL(str(library)).digits(), 110)
        symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"@+GLIBCXX_([\d.]+)", symbols)}
        self.assertLessEqual(max(versions), (3, 4, 24))
        self.assertNotRegex(symbols, r"@CXXABI_1\.3\.1[2-9]|__libc_single_threaded@")

    def test_the_newest_version_that_is_tested_and_those_that_pages_name_are_these(self) -> None:
        self.assertIn(f" build/venv-torch {plugins.TORCH[0]} ", (ROOT / "dev").read_text())
        self.assertIn(f" build/venv-torch-newest {plugins.TORCH[-1]} ", (ROOT / "dev").read_text())
        minors = [version.rpartition(".")[0] for version in plugins.TORCH]
        months = [f"{year}.{int(month):02}" for year, month, _ in (version.split(".") for version in plugins.RMM)]
        page = " ".join((ROOT / "docs/install.md").read_text().split())
        self.assertIn(f"PyTorch {minors[0]} to {minors[-1]} and of RMM {months[0]} to {months[-1]} compiled", page)
        guide = (ROOT / "docs/guides/pytorch.md").read_text()
        self.assertIn(f"compiled for PyTorch {minors[0]} to {minors[-1]} ", guide)


if __name__ == "__main__":
    unittest.main()
