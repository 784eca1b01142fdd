# SPDX-License-Identifier: Apache-2.0
"""tests: VPMM within another project, by add_subdirectory and by FetchContent: it builds what is asked for, changes
nothing of the project's, and a program links it shared and static.

The library's objects come from the build that VPMM_BUILD_FOLDER names, but for one.
"""

from __future__ import annotations

import os
import re
import tempfile
import unittest
from pathlib import Path

from test_install import BUILD, NO_GPU, ROOT, run

SOURCE = ROOT / "tests/install/subproject"
COMPILED = "src/observe/block_reader.cpp vpmm_time.dir/Unity/unity_0_cxx.cxx.o"  # where several are compiled at once
WITHOUT_THE_COMMAND_LINE = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("CLI11", "GTest")]


def cached(build: Path) -> dict[str, str]:
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return dict(re.findall(r"^(\w+):\w+=(.*)$", "\n".join(lines), re.MULTILINE))


class Subproject(unittest.TestCase):
    def configure(self, *options: str) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-subproject-")
        self.addCleanup(folder.cleanup)
        build = Path(folder.name)
        defined = [f"-DVPMM_SOURCE={ROOT}", *WITHOUT_THE_COMMAND_LINE, *options]
        run("cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", *defined)
        return build

    def files_of_all(self, build: Path) -> set[str]:
        """What a build of everything makes: the commands of the default target."""
        return set(re.findall(r"(?:-o | qc )(\S+)", run("ninja", "-C", build, "-t", "commands", "all")))

    def test_it_adds_the_library_and_nothing_else_and_leaves_the_build_type_alone(self) -> None:
        build = self.configure()
        self.assertEqual(cached(build)["CMAKE_BUILD_TYPE"], "")
        made = {name for name in self.files_of_all(build) if not name.endswith((".o", ".d"))}
        self.assertIn("vpmm/libvpmm.so.0.1.0", made)
        rooms = {name for name in made if re.fullmatch(r"vpmm/libvpmm_\w+\.a", name)}
        self.assertEqual(made - rooms, {"client", "vpmm/libvpmm.so.0.1.0"})
        self.assertNotIn("vpmm/libvpmm_replay.a", made)
        self.assertIn("Total Tests: 0", run("ctest", "--test-dir", build, "-N"))

    def test_a_project_of_static_libraries_gets_a_static_one(self) -> None:
        made = self.files_of_all(self.configure("-DBUILD_SHARED_LIBS=OFF"))
        self.assertIn("vpmm/libvpmm.a", made)
        self.assertFalse([name for name in made if ".so" in name])

    def test_all_packages_that_are_missing_are_named_at_once_with_how_to_install_them(self) -> None:
        missing = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "nlohmann_json")]
        found = r"(?s)not\s+find:\s+fmt.*nlohmann_json.*apt\s+install\s+libfmt-dev\s+nlohmann-json3-dev\."
        with self.assertRaisesRegex(AssertionError, found):
            self.configure(*missing)

    def test_fetched_content_is_built_linked_in_both_ways_and_not_installed(self) -> None:
        launcher = SOURCE.parent / "take_object.sh"
        options = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", f"-DVPMM_UNITY={cached(BUILD)['VPMM_UNITY']}"]
        build = self.configure("-DBY_FETCH_CONTENT=ON", "-DVPMM_STATIC=ON", *options)
        taking = {"VPMM_BUILT": str(BUILD), "VPMM_SOURCE": str(ROOT), "VPMM_COMPILED": COMPILED}
        run("cmake", "--build", build, environment=dict(os.environ) | taking)
        for program in ("client", "static_client"):
            self.assertRegex(run(build / program, environment=NO_GPU), r"^vpmm \d+\.\d+\.\d+$")
        self.assertNotIn("libvpmm", run("readelf", "-d", build / "static_client"))
        run("cmake", "--install", build, "--prefix", build / "prefix")
        prefix = build / "prefix"
        installed = [str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()]
        self.assertEqual(installed, ["bin/client"])


if __name__ == "__main__":
    unittest.main()
