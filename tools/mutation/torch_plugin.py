# SPDX-License-Identifier: Apache-2.0
"""The PyTorch plugin as a room: its allocator with faults, in a copy of a build's Python package, and its tests.

Python compiles the allocator for the PyTorch that is installed, and starts the tests on the simulated GPU.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutation.trial import Tree, run_until_one_fails

ROOM = "torch_allocator"
SOURCES = f"python/vpmm/plugins/{ROOM}"
SUITE = "tests/torch_vpmm"
CASES = Path(__file__).with_name("cases.py").resolve()
FAILED = re.compile(r"^(?:FAIL|ERROR): \S+ \((\S+)\)", re.MULTILINE)
DATA_BYTES = 24 << 30  # PyTorch's libraries, and the simulated GPUs' memory
# Prints the compiler's command, which the package keeps to itself, and all that the compiler says.
BUILD = """
import json, subprocess, sys
from vpmm.plugins import _building, torch
def run_tool(command, what, folder=None):
    print(json.dumps(command), flush=True)
    if subprocess.run(command, check=False).returncode != 0: sys.exit(1)
_building.run_tool = run_tool
torch.build()
"""


@dataclass
class PluginTree(Tree):
    """The package in its build takes the allocator's sources from the tree."""

    arguments: list[str] = field(default_factory=list)  # of the compiler, once it was called

    def copy(self) -> None:
        """SystemExit: there is no build with the parts that the tests need."""
        super().copy()
        shutil.rmtree(self.build, ignore_errors=True)
        for part in ("bin", "python", "sim_gpu"):
            built = self.root / "build/dev" / part
            if not built.is_dir():
                raise SystemExit(f"mutate: {built} is not there: ./dev test {SUITE} makes it")
            shutil.copytree(built, self.build / part)
        shutil.copytree(self.folder / "python/vpmm", self.package / "vpmm", dirs_exist_ok=True)
        shutil.rmtree(self.build / SOURCES)
        (self.build / SOURCES).symlink_to(self.folder / SOURCES)

    @property
    def package(self) -> Path:
        return self.build / "python"

    def configure(self) -> None:
        self.compile([])
        begin = time.monotonic()
        self.names_of(SUITE)
        self.start_seconds = time.monotonic() - begin

    def compile(self, targets: Sequence[str]) -> set[tuple[str, int]]:
        """Compiles the allocator, unless that is done; there are no other targets."""
        paths = {"PYTHONPATH": str(self.package), "VPMM_CACHE_DIR": str(self.build / "torch")}
        done = self.run_python(["-c", BUILD], self.folder, paths)
        if done.returncode != 0:
            return self.refused_in(done.stdout[-2000:] + done.stderr)
        if done.stdout:
            words = json.loads(done.stdout)
            self.arguments = [word for word in words if word.startswith(("-I", "-D", "-std="))]
            pairs = itertools.pairwise(words)
            self.arguments += [word for pair in pairs if pair[0] == "-isystem" for word in pair]
        return set()

    def sources_of(self, room: str) -> str:
        return SOURCES

    def units_of(self, room: str) -> list[tuple[Path, list[str]]]:
        return [(self.folder / SOURCES / "library.cpp", self.arguments)]

    def names_of(self, suite: str) -> list[str]:
        done = self.run_python(self.on_gpu(), self.folder / suite, {})
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-6000:])
        return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("case ")]

    def run_cases(self, suite: str, names: Sequence[str], seconds: float, variables: dict[str, str]) -> str | None:
        command = [self.python(), *self.on_gpu(), *names]
        variables = self.variables() | variables
        return run_until_one_fails(command, FAILED, seconds, variables, self.folder / suite, DATA_BYTES)

    def python(self) -> str:
        return str(self.root / os.environ.get("VPMM_TORCH_PYTHON", "build/venv-torch/bin/python"))

    def on_gpu(self) -> list[str]:
        return [str(self.folder / "tests/torch/sim_gpu.py"), "--devices", "2", "--vpmm", str(CASES)]

    def variables(self) -> dict[str, str]:
        return {"CXX": f"g++ -w -include {self.folder / 'mutant.hpp'}", "VPMM_BUILD_FOLDER": str(self.build)}

    def run_python(
        self, words: Sequence[str], folder: Path, variables: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.variables(), **variables}
        return subprocess.run(
            [self.python(), *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
