#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles what a wheel holds for released versions of PyTorch and RMM, so that their first use needs no compiler.

`fetch` downloads their packages, one at a time and without dependencies, and keeps the headers and the few libraries
that are linked. `./dev wheel` calls it, and then runs this file with the Python and the package that a wheel is for:

    PYTHONPATH=PACKAGE python tools/plugins.py --headers HEADERS --cython CYTHON --out PACKAGE/vpmm/plugins/built \\
        --notices FILE
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# The newest patch release of each minor version: within one the headers have been the same.
TORCH = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
# And the logger that each requires, whose headers it includes. RMM's packages for CUDA 12 have the same headers.
RMM = {"26.6.0": "rapids-logger==0.2.*", "26.8.0": "rapids-logger==0.2.*", "26.10.0": "rapids-logger==0.3.*"}
RMM_PACKAGES = ("rmm-cu13", "librmm-cu13")
CUDA = ("nvidia-cuda-runtime==13.*", "nvidia-cuda-crt==13.*")  # headers of the first include those of the second
CUDA_BINDINGS = "cuda-bindings==13.*"
PYTHON = "3.12"  # of the packages that are fetched; their headers are those for every Python
OLDEST_FOR_RMM = (3, 11)  # of its packages, which need no more than the stable ABI, and neither do ours
LIMITED_API = "0x030B0000"
STRIPPED = ("-s", "-Wl,--build-id=none")
OLD_RUNTIME = Path(__file__).resolve().with_name("old_runtime.cpp")

TORCH_HEADERS = ("torch/include/c10/", "torch/include/torch/headeronly/")
LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "librmm/lib64/librmm.so")
HEADERS = (".h", ".hpp", ".cuh", ".inl", ".inc", ".pxd", ".pxi", ".py", "")  # Cython looks for __init__.py
NOTICE = re.compile("LICEN[CS]E|NOTICE|COPYING", re.IGNORECASE)  # how files with licences begin
COMMENT = re.compile(r"(?:^[ \t]*//[^\n]*\n)+|/\*.*?\*/", re.MULTILINE | re.DOTALL)
MANYLINUX = ("_2_28", "_2_27", "_2_24", "_2_17", "2014")  # what these packages are made for, newest first


@dataclass(frozen=True)
class Headers:
    """A requirement, such as torch==2.15.0, and the folders of its package whose headers are kept."""

    requirement: str
    parts: tuple[str, ...] = ("",)

    def folder_in(self, root: Path) -> Path:
        return root / self.requirement.replace("==", "-").replace("*", "x")


def all_headers() -> Iterator[Headers]:
    yield from (Headers(requirement) for requirement in (*CUDA, CUDA_BINDINGS, *sorted({*RMM.values()})))
    yield from (Headers(f"{package}=={version}") for version in RMM for package in RMM_PACKAGES)
    yield from (Headers(f"torch=={version}", TORCH_HEADERS) for version in TORCH)


def unpack(wheel: Path, parts: tuple[str, ...], folder: Path) -> None:
    """Its headers in `parts`, the libraries that are linked, and its licences."""
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            is_header = name.startswith(parts) and Path(name).suffix in HEADERS and not name.endswith("/")
            if is_header or name in LIBRARIES or NOTICE.match(Path(name).name):
                file.extract(name, folder)


def fetch(root: Path, pip: list[str]) -> None:
    """Fills `root` with the headers of all versions; those that it has stay. Ends the program if pip cannot fetch one.

    PyTorch's packages are of 500 MB and more, of which 20 MB stay.
    """
    for each in all_headers():
        folder = each.folder_in(root)
        if folder.is_dir():
            continue
        print(f"plugins: fetching {each.requirement}", file=sys.stderr, flush=True)
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=root) as scratch:
            fits = ["--only-binary=:all:", f"--python-version={PYTHON}"]
            fits += [f"--platform=manylinux{tag}_{platform.machine()}" for tag in MANYLINUX]
            command = [*pip, "download", "-q", "--no-deps", "--no-cache-dir", *fits, "-d", scratch, each.requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheels = list(Path(scratch).glob("*.whl"))
            if done.returncode != 0 or len(wheels) != 1:
                sys.exit(
                    f"plugins: {each.requirement} could not be fetched, which wheels hold a plugin for; "
                    f"./dev wheel --no-plugins makes wheels without them\n{done.stdout}{done.stderr}"
                )
            unpacked = Path(scratch, "unpacked")
            unpack(wheels[0], each.parts, unpacked)
            unpacked.rename(folder)


def notices_of(root: Path, files: Iterable[Path]) -> dict[str, str]:
    """The licences of those of `files` that are in `root`: of their packages, and of single headers, by their names.

    Ends the program if a package has none: the headers' inline functions are in the plugins.
    """
    here = sorted(path for path in {file.resolve() for file in files} if path.is_relative_to(root.resolve()))
    notices: dict[str, str] = {}
    for folder in sorted({root.resolve() / path.relative_to(root.resolve()).parts[0] for path in here}):
        found = [path for path in folder.glob("*.dist-info/**/*") if NOTICE.match(path.name)]
        found = [path for path in found if path.is_file() and "third_party" not in path.parts]
        if not found:
            sys.exit(f"plugins: {folder.name} has no licence beside its headers; remove {folder} to fetch it anew")
        name = re.sub(r"-[0-9.x]+$", "", folder.name)
        notices |= {f"{name}, {path.name}": path.read_text() for path in sorted(found)}
    for path in here:
        for comment in COMMENT.findall(path.read_text(errors="replace")):
            if re.search("copyright", comment, re.IGNORECASE) and comment not in notices.values():
                notices[str(path.relative_to(root.resolve()))] = comment
    return notices


def compile_torch(root: Path, version: str, out: Path) -> tuple[Path, list[Path]]:
    """The library, and the files that it is made of."""
    from vpmm.plugins import _building, _prebuilt, torch

    package = Headers(f"torch=={version}").folder_in(root) / "torch"
    minor = int(version.split(".")[1])
    library = out / f"{torch.name_for(minor, True)}.so"
    with tempfile.TemporaryDirectory() as folder:
        rule, runtime = Path(folder, "rule"), Path(folder, "runtime.o")
        what = f"PyTorch {version}"
        compiler = [*os.environ.get("CXX", "g++").split(), "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden"]
        _building.run_tool([*compiler, "-c", str(OLD_RUNTIME), "-o", str(runtime)], what)
        more = [str(runtime), *STRIPPED, "-MD", "-MF", str(rule)]
        torch.compile_allocator(package, minor, True, cuda_includes(root), library, what, more)
        files = _prebuilt.dependencies_in(rule.read_text())
    _prebuilt.write_note(library, version, files, [package / "include"])
    return library, files


def compile_rmm(root: Path, version: str, cython: str, out: Path) -> tuple[Path, list[Path]]:
    """The library, and the files that it is made of."""
    from vpmm.plugins import _prebuilt, rmm

    declarations, headers = (Headers(f"{package}=={version}").folder_in(root) for package in RMM_PACKAGES)
    year, month, patch = map(int, version.split("."))
    library = out / f"{rmm.name_for(year, month)}.so"
    what = f"RMM {version}"
    include = [headers / "librmm/include/rapids", headers / "librmm/include"]
    include.append(Headers(RMM[version]).folder_in(root) / "rapids_logger/include")
    bindings = Headers(CUDA_BINDINGS).folder_in(root)
    limited = ["-DCYTHON_LIMITED_API=1", f"-DPy_LIMITED_API={LIMITED_API}"]
    with tempfile.TemporaryDirectory() as folder:
        source, rule = Path(folder, "resource.cpp"), Path(folder, "rule")
        rmm.run_cython([cython, "-I", str(bindings)], declarations, source, what)
        files = _prebuilt.dependencies_in(Path(folder, "resource.cpp.dep").read_text())
        more = [*limited, *STRIPPED, f"-ffile-prefix-map={folder}=vpmm", "-MD", "-MF", str(rule)]
        more.append(str(headers / "librmm/lib64/librmm.so"))
        rmm.compile_resource(source, [*include, *cuda_includes(root)], library, what, more)
        files += _prebuilt.dependencies_in(rule.read_text())
    _prebuilt.write_note(library, f"{year}.{month:02}.{patch:02}", files, [*include, declarations])
    return library, files


def cuda_includes(root: Path) -> list[Path]:
    return [path for each in CUDA for path in Headers(each).folder_in(root).glob("nvidia/*/include")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=Path, required=True, help="folder that `fetch` filled")
    parser.add_argument("--cython", required=True, help="the program")
    parser.add_argument("--out", type=Path, required=True, help="folder for the libraries")
    parser.add_argument("--notices", type=Path, required=True, help="file for the licences of what they hold")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    made = [compile_torch(options.headers, version, options.out) for version in TORCH]
    if sys.version_info >= OLDEST_FOR_RMM:
        made += [compile_rmm(options.headers, version, options.cython, options.out) for version in RMM]
    else:
        print(f"plugins: none for RMM, which takes a newer Python than {sys.executable}", file=sys.stderr)
    notices = notices_of(options.headers, (file for _, files in made for file in files))
    options.notices.write_text("".join(f"==== {name} ====\n\n{text}\n" for name, text in notices.items()))
    size, seconds = sum(each.stat().st_size for each, _ in made), time.monotonic() - begin
    print(f"plugins: {' '.join(each.stem for each, _ in made)}: {size / 1e6:.1f} MB in {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
