# SPDX-License-Identifier: Apache-2.0
"""tests: a wheel of `./dev wheel` serves PyTorch and programs in C++ where no compiler is, and names what it holds.

Takes the newest wheel in build/wheels for the Python of build/venv-torch; skipped where none was made. PyTorch is that
of VPMM_TORCH_PYTHON and VPMM_TORCH_PYTHON_NEWEST, as in ./dev.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("VPMM_PACKAGE_PYTHON") or sys.executable  # has pip
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev")).resolve()
PREFERRED = [ROOT / "build/venv-torch/bin/python", ROOT / "build/venv-torch-newest/bin/python"]
VARIABLES = ("VPMM_TORCH_PYTHON", "VPMM_TORCH_PYTHON_NEWEST")
PYTHONS = [Path(os.environ.get(name, path)) for name, path in zip(VARIABLES, PREFERRED, strict=True)]
SIMULATED = [BUILD / "sim_gpu" / name for name in ("libcuda.so.1", "libcudart.so.13", "libsim_gpu_blas.so.0")]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
WHEELS = sorted((ROOT / "build/wheels").glob("*manylinux*.whl"), key=lambda path: path.stat().st_mtime)
FITTING = [path for path in WHEELS if TAG in path.name]
# zlib is not: its shared library is used.
COMPILED_IN = ("fmt", "nlohmann-json", "CLI11", "zstd", "nanobind", "robin-map", "libc++", "libc++abi", "compiler-rt")
OF_PLUGINS = (
    "torch, LICENSE",
    "librmm-cu13, LICENSE",
    "nvidia-cuda-runtime, License.txt",
    "nvidia-cuda-crt, License.txt",
    "rapids-logger, LICENSE",
)


def output_of(*command: object, **environment: str) -> str:
    """Of a program with these variables alone, which must end well."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@unittest.skipUnless(FITTING, f"no wheel for {TAG[:-1]} is in build/wheels: ./dev wheel makes one")
class FinishedWheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-finished-")
        cls.addClassCleanup(folder.cleanup)
        cls.site = Path(folder.name, "site")
        cls.nothing = Path(folder.name, "nothing")  # for PATH and HOME: no compiler, and no library compiled before
        cls.nothing.mkdir()
        install = [PYTHON, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", cls.site]
        output_of(*install, FITTING[-1], PATH=str(cls.nothing), HOME=str(cls.nothing))

    def python(self, python: Path, code: str, **variables: str) -> str:
        own = {"PATH": str(self.nothing), "HOME": str(self.nothing), "PYTHONPATH": str(self.site)}
        return output_of(python, "-c", code, **own, **variables)

    def test_it_installs_without_a_compiler_and_allocates(self) -> None:
        code = "import vpmm; print(vpmm.Pool().allocate(80, 0) % 256)"
        self.assertEqual(self.python(Path(PYTHON), code, VPMM_DRIVER="sim"), "0\n")

    @unittest.skipUnless(
        all(path.exists() for path in SIMULATED), "the simulated GPU's libraries of CUDA are not built"
    )
    def test_pytorch_is_on_the_pool_without_a_compiler(self) -> None:
        variables = {"VPMM_TORCH": "1", "VPMM_DRIVER": "cuda", "LD_PRELOAD": ":".join(map(str, SIMULATED))}
        code = "import torch; torch.ones(1000, device='cuda'); print(torch.cuda.get_allocator_backend())"
        for python in PYTHONS:
            with self.subTest(python=str(python)):
                if not python.exists():
                    self.skipTest(f"no PyTorch is in {python}")
                self.assertEqual(self.python(python, code, **variables), "vpmm\n")

    def test_an_exception_of_another_runtime_ends_its_request_with_its_text(self) -> None:
        """The library has libc++ inside, the program libstdc++."""
        source, program = ROOT / "tests/install/cpp_client/main.cpp", self.nothing.parent / "client"
        folder = self.site / "vpmm"
        link = [f"-L{folder}", "-l:libvpmm.so.0", f"-Wl,-rpath,{folder}"]
        compiler = ["g++", "-std=c++17", f"-I{folder / 'include'}", source, "-o", program, *link]
        output_of(*compiler, PATH=os.environ["PATH"])
        self.assertRegex(output_of(program), r"^vpmm [0-9.]+\n$")

    def test_its_metadata_lists_the_licences_of_everything_compiled_in(self) -> None:
        (info,) = self.site.glob("vpmm-*.dist-info")
        listed = [
            line[14:] for line in (info / "METADATA").read_text().splitlines() if line.startswith("License-File: ")
        ]
        self.assertEqual(sorted(listed), ["LICENSE", "THIRD-PARTY-NOTICES"])
        self.assertEqual(sorted(path.name for path in (info / "licenses").iterdir()), sorted(listed))
        text = (info / "licenses/THIRD-PARTY-NOTICES").read_text()
        plugins = OF_PLUGINS if (self.site / "vpmm/plugins/built").is_dir() else ()
        parts = re.split(r"^==== ([^=]+) ====$", text, flags=re.MULTILINE)
        notices = dict(zip(parts[1::2], parts[2::2], strict=True))
        for name in (*COMPILED_IN, *plugins):
            with self.subTest(name):
                notice = notices.get(name, "")
                self.assertRegex(notice, r"(?i)copyright|licen[cs]e")
                self.assertGreater(len(notice.splitlines()), 15)


if __name__ == "__main__":
    unittest.main()
