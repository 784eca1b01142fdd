# SPDX-License-Identifier: Apache-2.0
"""tests: what `cmake --install` leaves behind is enough for a C and a C++ program, and promises no more than vpmm_*.

VPMM_BUILD_FOLDER names the build to install; the default is that of the dev preset.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev"))
# What every Linux machine with a C++ program on it has.
SYSTEM_LIBRARIES = {
    f"{name}.so" for name in "libstdc++ libgcc_s libc libm libz ld-linux-x86-64 ld-linux-aarch64".split()
}
# No GPU can be seen through these, and nothing outside the staged prefix is found by chance.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("VPMM_", "LD_LIBRARY_PATH"))}
NO_GPU = CLEAN | {"CUDA_VISIBLE_DEVICES": ""}


def run(*command: object, environment: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment or CLEAN, timeout=600, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name)
        cls.prefix = cls.scratch / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        libraries = sorted(cls.prefix.rglob("libvpmm.so*"))
        if not libraries:
            raise AssertionError(f"{BUILD} installs no libvpmm.so: was everything built?")
        cls.library = libraries[0].resolve()

    def build_client(self, name: str) -> Path:
        build = self.scratch / name
        source = ROOT / "tests/install" / name
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        return build / name

    def test_a_c11_program_builds_and_runs(self) -> None:
        self.assertRegex(run(self.build_client("c_client"), environment=NO_GPU), r"^vpmm \d+\.\d+\.\d+$")

    def test_a_cpp_program_builds_and_runs_on_the_shared_and_on_the_static_library(self) -> None:
        shared = self.build_client("cpp_client")
        static = shared.with_name("static_cpp_client")
        for program in (shared, static):
            self.assertRegex(run(program, environment=NO_GPU), r"^vpmm \d+\.\d+\.\d+$")
        self.assertNotIn("libvpmm", run("readelf", "-d", static))

    @unittest.skipUnless(shutil.which("pkg-config"), "pkg-config is not installed")
    def test_pkg_config_says_how_to_compile_and_link(self) -> None:
        moved = self.scratch / "moved"  # the file speaks of the folder that it lies in
        moved.symlink_to(self.prefix)
        (file,) = moved.rglob("vpmm.pc")
        environment = NO_GPU | {"PKG_CONFIG_PATH": str(file.parent)}
        flags = run("pkg-config", "--cflags", "--libs", "vpmm", environment=environment).split()
        program = self.scratch / "by_pkg_config"
        run("cc", "-std=c11", ROOT / "tests/install/c_client/main.c", "-o", program, *flags, environment=environment)
        said = run(program, environment=environment)
        self.assertEqual(said, f"vpmm {run('pkg-config', '--modversion', 'vpmm', environment=environment)}")
        self.assertIn("-lzstd", run("pkg-config", "--static", "--libs", "vpmm", environment=environment))

    def test_another_minor_version_is_refused(self) -> None:
        source = self.scratch / "version"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES C)\nfind_package(vpmm 0.9 REQUIRED)\n"
        )
        with self.assertRaisesRegex(AssertionError, "vpmm"):
            run("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_every_function_of_the_headers_is_exported_with_its_version_and_nothing_else(self) -> None:
        headers = "".join((self.prefix / "include/vpmm" / name).read_text() for name in ("vpmm.h", "tags.h", "emm.h"))
        declared = set(re.findall(r"^VPMM_API [^;(]*?\b(vpmm_\w+)\(", headers, re.MULTILINE))
        lines = run("nm", "-D", "--defined-only", self.library).splitlines()
        exported = {line.split()[-1] for line in lines}
        self.assertEqual({f"{name}@@VPMM_0" for name in declared} | {"VPMM_0"}, exported)

    def test_the_library_needs_nothing_but_the_system(self) -> None:
        needed = re.findall(r"\(NEEDED\).*\[(.+?)(?:\.\d+)*\]", run("readelf", "-d", self.library))
        self.assertIn("libc.so", needed)
        self.assertEqual(sorted(set(needed) - SYSTEM_LIBRARIES), [])

    def test_the_library_loads_without_a_gpu_and_calls_nothing_at_load(self) -> None:
        load = f"import ctypes; l = ctypes.CDLL({str(self.library)!r}); l.vpmm_version.restype = ctypes.c_char_p; "
        # A wrong setting is an error at first use, never at load.
        environment = NO_GPU | {"VPMM_PAGE_SIZE": "nonsense"}
        self.assertTrue(run(sys.executable, "-c", load + "print(l.vpmm_version().decode())", environment=environment))
        mapped = load + "print(open('/proc/self/maps').read())"
        self.assertNotIn("libcuda", run(sys.executable, "-c", mapped, environment=environment))

    def test_the_public_headers_are_installed_and_nothing_else_beside_them(self) -> None:
        paths = [path for path in (self.prefix / "include").rglob("*") if path.is_file()]
        installed = {str(path.relative_to(self.prefix / "include")) for path in paths}
        public = {str(path.relative_to(ROOT / "include")) for path in ROOT.glob("include/vpmm/**/*.h*")}
        self.assertEqual(installed, public)

    def test_the_licence_is_installed(self) -> None:
        (licence,) = self.prefix.glob("share/doc/vpmm/LICENSE")
        self.assertEqual(licence.read_text(), (ROOT / "LICENSE").read_text())
        (notices,) = self.prefix.glob("share/doc/vpmm/THIRD-PARTY-NOTICES")
        self.assertIn("Apache License 2.0", notices.read_text())

    def test_the_command_line_is_installed_and_says_its_version(self) -> None:
        said = run(self.prefix / "bin/vpmm", "--version", environment=NO_GPU)
        self.assertRegex(said, r"\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
