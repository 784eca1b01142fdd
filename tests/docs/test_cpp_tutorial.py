"""tests: the program of the C++ tutorial prints on the simulator what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev")).resolve()
PAGE = ROOT / "docs/tutorials/cpp.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, language
    return found.group(1)


@unittest.skipUnless((BUILD / "libvpmm.so").exists(), f"no libvpmm.so in {BUILD}")
class CppTutorial(unittest.TestCase):
    def test_its_program_prints_what_the_page_shows(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "first.cpp"), Path(folder, "first")
            source.write_text(block("cpp"))
            link = [f"-I{ROOT}/include", f"-L{BUILD}", "-lvpmm", f"-Wl,-rpath,{BUILD}"]
            compiler = os.environ.get("CXX", "c++")
            subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", source, "-o", program, *link], check=True)
            environment = os.environ | {"VPMM_DRIVER": "sim", "VPMM_LOG": "quiet"}
            done = subprocess.run([program], capture_output=True, text=True, env=environment, check=True)
            self.assertEqual(done.stdout, block("text"))


if __name__ == "__main__":
    unittest.main()
