"""tests: programs of the C++ tutorial and of the guide in C print on the simulator what their pages show."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev")).resolve()


def block(page: Path, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, language
    return found.group(1)


@unittest.skipUnless((BUILD / "libvpmm.so").exists(), f"no libvpmm.so in {BUILD}")
class Programs(unittest.TestCase):
    def test_the_tutorial_prints_what_the_page_shows(self) -> None:
        self.prints_what_is_shown(ROOT / "docs/tutorials/cpp.md", "cpp", os.environ.get("CXX", "c++"), "c++17")

    def test_the_guide_from_cudamallocasync_prints_what_the_page_shows(self) -> None:
        self.prints_what_is_shown(ROOT / "docs/guides/from-cudaMallocAsync.md", "c", os.environ.get("CC", "cc"), "c11")

    def prints_what_is_shown(self, page: Path, language: str, compiler: str, standard: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, f"first.{language}"), Path(folder, "first")
            source.write_text(block(page, language))
            link = [f"-I{ROOT}/include", f"-L{BUILD}", "-lvpmm", f"-Wl,-rpath,{BUILD}"]
            subprocess.run([compiler, f"-std={standard}", "-Wall", "-Wextra", source, "-o", program, *link], check=True)
            environment = os.environ | {"VPMM_DRIVER": "sim", "VPMM_LOG": "quiet"}
            done = subprocess.run([program], capture_output=True, text=True, env=environment, check=True)
            self.assertEqual(done.stdout, block(page, "text"))


if __name__ == "__main__":
    unittest.main()
