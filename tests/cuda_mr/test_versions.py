# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm/cuda_mr.hpp compiles with every CCCL that can be had, and an older one is refused by name."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import cccl

ROOT = Path(__file__).resolve().parents[2]
CUDA = os.environ.get("VPMM_CUDA_INCLUDE") or "/usr/local/cuda/include"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
PER_THREAD = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"


def compile_with(version: str, header: str, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.cpp")
        source.write_text(f'#include "{header}"\n')
        ours = ["-I", str(ROOT / "include"), "-I", str(ROOT / "tests")]
        theirs = ["-isystem", str(cccl.headers(version)), "-isystem", CUDA]
        command = ["g++", "-fsyntax-only", *WARNINGS, *options, *ours, *theirs, str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@unittest.skipUnless(Path(CUDA, "cuda_runtime_api.h").is_file(), f"no CUDA headers in {CUDA}")
class Versions(unittest.TestCase):
    def need(self, version: str) -> None:
        if not cccl.headers(version).is_dir():
            self.skipTest(f"CCCL {version} is not here: tests/cuda_mr/cccl.py fetches it")

    def check(self, version: str, *options: str) -> None:
        self.need(version)
        done = compile_with(version, "cuda_mr/concepts.hpp", *options)
        self.assertEqual(done.returncode, 0, done.stderr[:3000])

    def test_cccl_3_1_takes_it(self) -> None:
        self.check("3.1", "-std=c++17")

    def test_cccl_3_1_takes_it_with_default_streams_per_thread(self) -> None:
        self.check("3.1", "-std=c++20", PER_THREAD)

    def test_cccl_3_2_takes_it(self) -> None:
        self.check("3.2", "-std=c++17")

    def test_cccl_3_3_takes_it(self) -> None:
        self.check("3.3", "-std=c++17")

    def test_cccl_3_4_takes_it(self) -> None:
        self.check("3.4", "-std=c++17")

    def test_cccl_3_5_takes_it(self) -> None:
        self.check("3.5", "-std=c++17")

    def test_cccl_3_5_takes_it_with_default_streams_per_thread(self) -> None:
        self.check("3.5", "-std=c++20", PER_THREAD)

    def test_cccl_3_0_is_refused_with_what_is_needed(self) -> None:
        self.need("3.0")
        done = compile_with("3.0", "vpmm/cuda_mr.hpp", "-std=c++17")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("vpmm/cuda_mr.hpp needs CCCL 3.1 or newer", done.stderr)


if __name__ == "__main__":
    unittest.main()
