# SPDX-License-Identifier: Apache-2.0
"""tests: the blocks of code in the pages that users begin with, each run alone on the simulator, or an exception here.

A block of Python or of a shell runs in a folder with the programs, recordings and sources that the pages name. What a
page says that a block prints, it prints at its end. Sources in C and C++ compile in tests/docs/test_snippets.py.
"""

from __future__ import annotations

import ast
import functools
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from numba_stand_ins import missing

from program import PACKAGE_PARENT

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev")).resolve()
sys.path.insert(0, str(ROOT / "tests/torch"))
import sim_gpu  # noqa: E402  after its folder is known

PAGES = ["README.md", "docs/install.md", "docs/guides/*.md", "docs/tutorials/*.md"]
FENCE = re.compile(r"^( *)```([\w+]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SAVED = re.compile(
    r"\*([\w.]+)\*[^\n]*:\n\s*\Z"
)  # what stands before a block that is a file for the others of its page
PRINTS = re.compile(r"\n[^\n]*\bprints:\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)  # behind a block
INCLUDES = re.compile(r'#include [<"]vpmm/')

# Commands and sources that no test runs as they stand, by how they begin, with a test of the same thing or a reason.
EXCEPTIONS = {
    "pip install": "tests/install/test_wheel.py",
    "tar xf": "tests/install/test_packages.py",
    "apt install": "changes the machine",
    "cmake -S . -B build/here": "takes minutes",
    "cmake --build build/here": "takes minutes",
    "mkdir -m 700 /run/user": "needs Docker",
    "docker run": "needs Docker",
    "VPMM_TORCH=1 VPMM_VLLM=1 vllm serve": "needs vLLM",
    "python examples/rollout.py --allocator vpmm": "tests/gpu_torch/test_tags.py",
    "python examples/rollout.py --allocator native": "needs torch_memory_saver",
    "find_package(vpmm 0.1 REQUIRED)": "tests/install/test_install.py",
    "include(FetchContent)": "tests/install/test_subproject.py",
    "#include <vpmm/rmm_mr.hpp>": "tests/gpu_rmm/programs.cu",
    "from prometheus_client": "tests/python/test_metrics.py",
}
# Lines of Python at which a library asks for a real GPU. All before it runs.
GPU_LINES = {
    "array = cupy.ones(1000)",
    "array = cupy.zeros(1 << 20)",
    "array = cuda.device_array(1000)",
    "array = cuda.to_device(numpy.zeros(1 << 16))",
    "buffer = rmm.DeviceBuffer(size=1 << 20)",
}
NO_GPU = re.compile(
    r"CUDARuntimeError: cudaError(InsufficientDriver|NoDevice)|CudaSupportError|no CUDA-capable device|libcuda"
)
# Modules without which a command is left out.
MODULES = {"build-torch": "torch", "examples/pytorch_": "torch", "build-rmm": "rmm"}
BRINGS = {"torch_memory_saver"}  # modules that VPMM itself provides

# What the pages call the user's program: libraries that the variables name are on the pool.
PROGRAM = """
import importlib.util, os
import vpmm
asked = os.environ.get("VPMM_USE", "").split(",")
asked += [name for name in ("torch", "cupy", "rmm") if f"VPMM_{name.upper()}" in os.environ]
for name in ("torch", "cupy", "rmm"):
    if name in asked and importlib.util.find_spec(name):
        __import__(name)
        assert getattr(vpmm, name).is_installed(), name
if os.environ.get("NUMBA_CUDA_MEMORY_MANAGER") and importlib.util.find_spec("numba_cuda"):
    from numba.cuda.cudadrv import driver
    driver._ensure_memory_manager()
    assert driver._memory_manager is vpmm.NumbaMemoryManager
pool = vpmm.Pool.default()
pool.deallocate(pool.allocate(8 << 20, 0), 0)
"""
WAITING = "import sys, vpmm\nvpmm.Pool.default()\nprint(flush=True)\nsys.stdin.read()\n"
MANAGED = """
#include <vpmm/emm.hpp>
int main() { vpmm::emm::Context::create(0).memalloc(1 << 20); }
"""
# Stands for the kernel's log.
DMESG = "NVRM: Xid (PCI:0000:00:06): 31, pid=1, name=app, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f45_8cc03000."


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    file: str  # the name under which the reader is told to save it; empty: none
    prints: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """Of a shell, each on one line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line and not line.startswith("#")] if self.language == "sh" else []

    def begins(self) -> list[str]:
        """What EXCEPTIONS may name."""
        return self.commands() or [self.text]

    def modules(self) -> list[str]:
        """Of Python, the modules that it imports."""
        if self.language != "python":
            return []
        nodes = list(ast.walk(ast.parse(self.text)))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        return [name for name in names if not name.startswith("vpmm") and name not in BRINGS]

    def names_torch(self) -> bool:
        return "torch" in self.text.lower()


def blocks() -> Iterator[Block]:
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = path.read_text()
        for match in FENCE.finditer(text):
            saved = SAVED.search(text, 0, match.start())
            line = text.count("\n", 0, match.start()) + 1
            prints = PRINTS.match(text, match.end() + 1)
            yield Block(
                str(path.relative_to(ROOT)),
                line,
                match[2],
                textwrap.dedent(match[3]),
                saved[1] if saved else "",
                prints[1] if prints else "",
            )


def exception(begin: str) -> str:
    return next((reason for words, reason in EXCEPTIONS.items() if begin.startswith(words)), "")


@functools.cache
def recording() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.vpmm")
        settings = {"VPMM_RECORD": str(path), "VPMM_RECORD_STACKS": "python", "VPMM_DRIVER": "sim"}
        environment = os.environ | settings | {"PYTHONPATH": PACKAGE_PARENT}
        program = [sys.executable, str(ROOT / "examples/out_of_memory.py")]
        subprocess.run(program, env=environment, capture_output=True, check=True)
        return path.read_bytes()


class PageCase(unittest.TestCase):
    """A test for each block that `runs` gives, made by `add_tests`."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-pages-")
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name)
        cls.bin = cls.scratch / "bin"
        cls.bin.mkdir()
        for name, command in (
            ("python", f'exec "{sys.executable}" "$@"'),
            ("vpmm", f'exec "{sys.executable}" -m vpmm "$@"'),
            ("dmesg", f'echo "{DMESG}"'),
        ):
            (cls.bin / name).write_text(f"#!/bin/sh\n{command}\n")
            (cls.bin / name).chmod(0o755)

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=self.scratch))

    def prefix(self) -> Path:
        """Where the library is installed."""
        prefix = self.scratch / "prefix"
        if not prefix.exists():
            self.output_of(["cmake", "--install", str(BUILD), "--prefix", str(prefix)])
        return prefix

    def environment(self, block: Block) -> dict[str, str]:
        own = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VPMM_IPC_DIR": str(self.scratch / "ipc"),
        }
        if sim_gpu.is_here() or "cuda.core" in block.modules():
            return sim_gpu.environment(VPMM_CACHE_DIR=str(BUILD / "torch"), **own)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VPMM_", "NUMBA_"))}
        package = {"PYTHONPATH": PACKAGE_PARENT, "VPMM_CACHE_DIR": str(BUILD / "rmm"), "VPMM_DRIVER": "sim"}
        return clean | package | own

    def fill_folder(self, block: Block) -> None:
        (self.folder / "examples").symlink_to(ROOT / "examples")
        shutil.copy(ROOT / "examples/quickstart_c/quickstart.c", self.folder / "program.c")
        for name in ("app", "program", "script", "train"):
            (self.folder / f"{name}.py").write_text(PROGRAM)
        for name in ("run", "run.0", "run.1", "before", "after"):
            (self.folder / f"{name}.vpmm").write_bytes(recording())
        snapshot = gzip.decompress((ROOT / "tests/data/snapshot-oom.pickle.gz").read_bytes())
        (self.folder / "snapshot.pickle").write_bytes(snapshot)
        for other in blocks():
            if other.page == block.page and other.file:
                (self.folder / other.file).write_text(other.text)

    def done(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def output_of(self, command: list[str], environment: dict[str, str] | None = None) -> str:
        done = self.done(command, environment or dict(os.environ))
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run_block(self, block: Block) -> None:
        self.fill_folder(block)
        if block.language == "python":
            self.run_python(block)
        else:
            self.run_commands(block)

    def run_python(self, block: Block) -> None:
        absent = missing(*block.modules()) or ("cuda.core" in block.modules() and sim_gpu.missing())
        if absent:
            self.skipTest(absent)
        (self.folder / "block.py").write_text(block.text)
        done = self.done([sys.executable, "-W", "error", "block.py"], self.environment(block))
        if done.returncode != 0 and NO_GPU.search(done.stderr):
            failed = re.findall(r'block\.py", line (\d+)', done.stderr)
            self.assertIn(block.text.splitlines()[int(failed[-1]) - 1].split("  #")[0].strip(), GPU_LINES, done.stderr)
        else:
            said = re.sub(r"^vpmm: .*: compiling it once, into .*\n", "", done.stderr, flags=re.MULTILINE)
            self.assertEqual((done.returncode, said), (0, ""))
            self.assertTrue(done.stdout.endswith(block.prints), done.stdout)

    def run_commands(self, block: Block) -> None:
        absent = [words for words, module in MODULES.items() if missing(module)]
        commands = [each for each in block.commands() if not exception(each) and not any(a in each for a in absent)]
        text = "\n".join(commands)
        if "pkg-config" in text and shutil.which("pkg-config") is None:
            self.skipTest("pkg-config is not installed")
        if "/opt/vpmm" in text:
            text = text.replace("/opt/vpmm", str(self.prefix())).replace("build/here", str(BUILD))
        if "./program" in text:
            (self.folder / "managed.cpp").write_text(MANAGED)
            link = [f"-I{ROOT}/include", f"-L{BUILD}", "-lvpmm", f"-Wl,-rpath,{BUILD}"]
            self.output_of(["c++", "-std=c++17", "managed.cpp", "-o", "program", *link])
        if "4711" in text:
            text = text.replace("top 4711", f"top --once {self.waiting_program(block)}")
        script = ["bash", "-eu", "-o", "pipefail", "-c", text]
        output = self.output_of(script, self.environment(block))
        self.assertTrue(output.endswith(block.prints), output)

    def waiting_program(self, block: Block) -> int:
        command, pipe = [sys.executable, "-c", WAITING], subprocess.PIPE
        waiting = subprocess.Popen(command, env=self.environment(block), stdin=pipe, stdout=pipe)
        assert waiting.stdout is not None
        self.addCleanup(waiting.communicate)
        waiting.stdout.readline()
        return waiting.pid


def add_tests(case: type[PageCase], of_torch: bool) -> None:
    """Of a shell those that name PyTorch run with it and without it."""
    for block in blocks():
        begins = [begin for begin in block.begins() if not exception(begin)]
        runs = block.names_torch() if of_torch else block.language == "sh" or not block.names_torch()
        if block.language in ("python", "sh") and begins and runs:

            def test(self: PageCase, block: Block = block) -> None:
                self.run_block(block)

            setattr(case, "test_" + re.sub(r"\W+", "_", block.place.removeprefix("docs/")), test)
