# SPDX-License-Identifier: Apache-2.0
"""tests: the wheel holds the package, the module and the library, and is all that a program or an extension needs.

Built from the source distribution and what `cmake --install` leaves behind, with the objects of the build but for one,
so that little is compiled again. VPMM_PACKAGE_PYTHON names the interpreter that has nanobind and scikit-build-core.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from test_sdist import unpacked_sdist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import wheels  # noqa: E402  found there

BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev"))
LAUNCHER = ROOT / "tests/install/take_object.sh"
PYTHON = os.environ.get("VPMM_PACKAGE_PYTHON", "")


def run(*command: object, stderr: bool = False, **environment: str) -> str:
    """What it printed, with `stderr` there."""
    words = [str(word) for word in command]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VPMM_", "PYTHONPATH"))}
    done = subprocess.run(words, capture_output=True, text=True, env=clean | environment, timeout=600, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if stderr else done.stdout


@unittest.skipUnless(PYTHON, "no interpreter with nanobind and scikit-build-core was named")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-wheel-")
        cls.addClassCleanup(folder.cleanup)
        scratch = Path(folder.name)
        run("cmake", "--install", BUILD, "--prefix", scratch / "prefix")
        options = wheels.wheel_options(scratch / "prefix", scratch / "build")
        offline = ["--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        tree = unpacked_sdist(scratch)
        options.append(f"--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}")
        taking = {"VPMM_BUILT": f"{BUILD}/python", "VPMM_SOURCE": str(tree), "VPMM_COMPILED": "python/src/events.cpp"}
        run(PYTHON, "-m", "pip", "wheel", *offline, *options, "-w", scratch / "wheels", tree, **taking)
        (cls.wheel,) = (scratch / "wheels").glob("*.whl")
        cls.scratch = scratch
        cls.site = scratch / "site"
        run(PYTHON, "-m", "pip", "install", "--no-deps", *offline, "--target", cls.site, cls.wheel)

    def python(self, code: str) -> str:
        return run(PYTHON, "-c", code, PYTHONPATH=str(self.site), VPMM_DRIVER="sim")

    def test_its_version_is_that_of_the_project(self) -> None:
        project = re.search(r"project\(vpmm VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
        assert project is not None
        self.assertTrue(self.wheel.name.startswith(f"vpmm-{project[1]}-cp"), self.wheel.name)
        said = self.python(
            "import importlib.metadata, vpmm; print(importlib.metadata.version('vpmm'), vpmm.__version__)"
        )
        self.assertEqual(said.split(), [project[1]] * 2)

    def test_it_holds_the_package_the_module_the_library_and_what_extensions_need_and_nothing_else(self) -> None:
        names = {name for name in zipfile.ZipFile(self.wheel).namelist() if ".dist-info/" not in name}
        packages = [ROOT / "python/vpmm", ROOT / "python/vpmm_autoload"]
        paths = [
            path for package in packages for path in package.rglob("*") if path.suffix in (".py", ".pyi", ".typed")
        ]
        paths += (ROOT / "python/vpmm/plugins/torch_allocator").glob("*.[ch]pp")
        paths += (ROOT / "python/vpmm/plugins/rmm_resource").iterdir()
        paths += (ROOT / "python/vpmm/reporting/web").iterdir()
        sources = {str(path.relative_to(ROOT / "python")) for path in paths}
        sources = {name for name in sources if "__pycache__" not in name}
        headers = {str(path.relative_to(ROOT)) for path in ROOT.glob("include/vpmm/**/*.h*")}
        sources |= {f"vpmm/{name}" for name in headers} | {"vpmm_autoload.pth"}
        sources |= {f"vpmm/cmake/vpmmConfig{part}.cmake" for part in ("", "Version")}
        sources |= {"vpmm/licenses/LICENSE", "vpmm/licenses/THIRD-PARTY-NOTICES"}
        self.assertLessEqual(sources, names)
        compiled = sorted(names - sources)
        self.assertEqual(len(compiled), 3, compiled)
        self.assertRegex(compiled[0], r"^vpmm/_vpmm\..*\.so$")
        self.assertEqual(compiled[1], "vpmm/bin/vpmm-native")
        self.assertRegex(compiled[2], r"^vpmm/libvpmm\.so\.\d+$")

    @unittest.skipUnless(Path("/usr/share/doc/libfmt-dev/copyright").is_file(), "the packages are not Debian's")
    def test_it_has_the_licence_notices_of_what_is_compiled_in(self) -> None:
        text = (self.site / "vpmm/licenses/THIRD-PARTY-NOTICES").read_text()
        for name in ("fmt", "nlohmann-json", "CLI11", "zstd", "nanobind", "robin-map"):
            with self.subTest(name):
                notice = text.partition(f"==== {name} ====")[2].partition("\n====")[0]
                self.assertIn("Copyright", notice.title())
                self.assertGreater(len(notice.splitlines()), 15)

    def test_it_has_the_entry_points_of_pytorch_and_vllm(self) -> None:
        for group, function in (("torch.backends", "autoload"), ("vllm.general_plugins", "register_vllm")):
            code = f"import importlib.metadata as m; print([p.value for p in m.entry_points(group={group!r})])"
            self.assertEqual(self.python(code), f"['vpmm_autoload:{function}']\n")

    def test_the_variable_puts_a_library_on_the_pool_when_it_is_imported(self) -> None:
        """The interpreter reads the file beside the package in a folder of packages, so not on PYTHONPATH."""
        folder = tempfile.TemporaryDirectory()  # with a library in front of a real one
        self.addCleanup(folder.cleanup)
        Path(folder.name, "cupy.py").write_text("__version__ = '1.0'\n")
        code = f"import site; site.addsitedir({str(self.site)!r}); import warnings; warnings.simplefilter('default')"
        said = run(PYTHON, "-c", f"{code}; import cupy", PYTHONPATH=folder.name, VPMM_USE="cupy", stderr=True)
        self.assertIn("VPMM_USE is set, but CuPy keeps its own CUDA allocator: CuPy 1.0 is not supported", said)

    def test_what_is_compiled_in_it_is_stripped(self) -> None:
        for file in (*self.site.glob("vpmm/*.so*"), self.site / "vpmm/bin/vpmm-native"):
            self.assertNotIn(".symtab", run("readelf", "-S", "--wide", file), file)

    def test_an_extension_in_cpp_is_built_against_it_and_shares_its_pool(self) -> None:
        """`import vpmm` has loaded the library by then: the extension needs no path to it."""
        build = self.scratch / "extension"
        # What scikit-build-core makes of the entry point.
        options = [
            f"-DCMAKE_PREFIX_PATH={self.site / 'vpmm'}",
            f"-DPython_EXECUTABLE={PYTHON}",
            "-DCMAKE_SKIP_RPATH=ON",
        ]
        run("cmake", "-S", ROOT / "tests/install/extension", "-B", build, "-G", "Ninja", *options)
        run("cmake", "--build", build)
        code = f"import sys; sys.path.append({str(build)!r}); import vpmm, extension"
        said = self.python(f"{code}; print(extension.hold(5 << 20) % 256, vpmm.stats()['live_allocations'])")
        self.assertEqual(said, "0 1\n")

    def test_scikit_build_core_is_told_where_its_package_of_cmake_is(self) -> None:
        code = (
            "import importlib.metadata as m; (p,) = m.entry_points(group='cmake.prefix', name='vpmm'); print(p.load())"
        )
        self.assertIn(f"from '{self.site / 'vpmm/__init__.py'}'", self.python(code))

    def test_the_module_finds_the_library_beside_itself(self) -> None:
        (module,) = self.site.glob("vpmm/_vpmm.*.so")
        self.assertIn("[$ORIGIN]", run("readelf", "-d", module))

    def test_its_command_line_is_on_path_and_runs_the_program_in_it(self) -> None:
        trace = self.site / "trace.csv"
        trace.write_text("op,id,bytes,stream,time_us\na,1,3000000,0,0\nf,1,0,0,9\n")
        variables = {"PYTHONPATH": str(self.site), "VPMM_DRIVER": "sim", "PATH": "/usr/bin:/bin"}
        for command in ([self.site / "bin/vpmm"], [PYTHON, "-m", "vpmm"]):
            result = json.loads(run(*command, "replay", "--json", trace, **variables))
            self.assertEqual(result["peak_live_bytes"], 3000000)
            self.assertIn("smallest GPU", run(*command, "fit", "--help", **variables))
            self.assertIn("1 requests, 2.86 MiB live at the peak", run(*command, "try", trace, **variables))

    def test_a_program_can_allocate(self) -> None:
        self.assertEqual(self.python("import vpmm; p = vpmm.Pool(); print(p.allocate(80, 0) % 256)"), "0\n")


if __name__ == "__main__":
    unittest.main()
