"""tests: the source distribution has all that a build of the library, the command line and the wheel needs.

VPMM_PACKAGE_PYTHON names the interpreter that has scikit-build-core.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import unittest
from pathlib import Path

from test_install import ROOT, run

PYTHON = os.environ.get("VPMM_PACKAGE_PYTHON", "")
BUILT_FROM = ("include", "src", "cli", "cmake", "python")


def unpacked_sdist(folder: Path) -> Path:
    """The tree of a source distribution that is made and unpacked in `folder`."""
    make = "import os, sys, scikit_build_core.build as b; os.chdir(sys.argv[1]); print(b.build_sdist(sys.argv[2]))"
    run(PYTHON, "-c", make, ROOT, folder)
    (archive,) = folder.glob("vpmm-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@unittest.skipUnless(PYTHON, "no interpreter with scikit-build-core was named")
class SourceDistribution(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-sdist-")
        cls.addClassCleanup(folder.cleanup)
        cls.tree = unpacked_sdist(Path(folder.name))

    def test_it_has_every_source_and_neither_tests_nor_benchmarks(self) -> None:
        def sources(root: Path) -> set[str]:
            paths = [path for folder in BUILT_FROM for path in (root / folder).rglob("*") if path.is_file()]
            return {str(path.relative_to(root)) for path in paths if "__pycache__" not in path.parts}

        self.assertEqual(sources(self.tree), sources(ROOT))
        self.assertTrue((self.tree / "LICENSE").is_file())
        self.assertFalse((self.tree / "tests").exists() or (self.tree / "bench").exists())

    def test_cmake_makes_a_build_of_it_without_an_option(self) -> None:
        run("cmake", "-S", self.tree, "-B", self.tree / "build", "-G", "Ninja")
        steps = run("ninja", "-C", self.tree / "build", "-t", "commands", "all")
        self.assertIn("libvpmm.so", steps)
        self.assertIn("bin/vpmm", steps)


if __name__ == "__main__":
    unittest.main()
