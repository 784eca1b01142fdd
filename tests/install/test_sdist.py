# SPDX-License-Identifier: Apache-2.0
"""tests: the source distribution has all that a build of the library, the command line and the wheel needs.

Objects come from the build that VPMM_BUILD_FOLDER names, but for one, so that little is compiled again.
VPMM_PACKAGE_PYTHON names the interpreter that has nanobind and scikit-build-core.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import unittest
from pathlib import Path

from test_install import BUILD, CLEAN, ROOT, run
from test_subproject import cached

LAUNCHER = ROOT / "tests/install/take_object.sh"
COMPILED = "vpmm_observe.dir/src/observe/block_reader.cpp.o vpmm_time.dir/Unity/unity_0_cxx.cxx.o"  # with VPMM_UNITY
PYTHON = os.environ.get("VPMM_PACKAGE_PYTHON", "")
BUILT_FROM = ("include", "src", "cli", "cmake", "python")


def made_sdist(folder: Path) -> Path:
    """The archive that is made in `folder`."""
    make = "import os, sys, scikit_build_core.build as b; os.chdir(sys.argv[1]); print(b.build_sdist(sys.argv[2]))"
    run(PYTHON, "-c", make, ROOT, folder)
    (archive,) = folder.glob("vpmm-*.tar.gz")
    return archive


def unpacked_sdist(folder: Path) -> Path:
    """The tree of a source distribution that is made and unpacked in `folder`."""
    archive = made_sdist(folder)
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

    def test_pip_makes_a_wheel_of_the_archive_that_python_imports_and_that_has_the_command_line(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-from-sdist-")
        self.addCleanup(folder.cleanup)
        scratch = Path(folder.name)
        defined = {"CMAKE_CXX_COMPILER_LAUNCHER": LAUNCHER, "VPMM_UNITY": cached(BUILD)["VPMM_UNITY"]}
        options = [f"--config-settings=cmake.define.{name}={value}" for name, value in defined.items()]
        taking = {"VPMM_BUILT": str(BUILD), "VPMM_COMPILED": COMPILED}
        pip = [PYTHON, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
        where = ["--no-build-isolation", "--target", scratch / "site", made_sdist(scratch)]
        run(*pip, *options, *where, environment=CLEAN | taking)
        installed = CLEAN | {"PYTHONPATH": str(scratch / "site"), "VPMM_DRIVER": "sim"}
        code = "import vpmm; p = vpmm.Pool(); p.allocate(80, 0); print(vpmm.__file__, p.statistics()['live_bytes'])"
        self.assertEqual(run(PYTHON, "-c", code, environment=installed), f"{scratch}/site/vpmm/__init__.py 80\n")
        self.assertIn("driver sim", run(scratch / "site/vpmm/bin/vpmm-native", "info", environment=installed))


if __name__ == "__main__":
    unittest.main()
