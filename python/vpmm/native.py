# SPDX-License-Identifier: Apache-2.0
# vpmm: finds and runs the C++ command line `vpmm`.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from vpmm.errors import Error, InvalidArgumentError

_PACKAGE = Path(__file__).resolve().parent


def program() -> Path:
    """The path of the C++ program: VPMM_CLI, else the wheel's, the build folder's, or the one on PATH.

    Raises Error with the places searched.
    """
    named = os.environ.get("VPMM_CLI")
    if named:
        if not os.access(named, os.X_OK):
            raise InvalidArgumentError(f"VPMM_CLI={named}: there is no program")
        return Path(named)
    for each in _places():
        if _is_program(each):
            return each
    raise Error(
        "the C++ program `vpmm` is not here: wheels hold it, builds leave it in build/*/bin, VPMM_CLI names others"
    )


def _places() -> Iterator[Path]:
    yield _PACKAGE / "bin" / "vpmm-native"
    yield _PACKAGE.parents[1] / "bin" / "vpmm"  # the package in build/*/python
    builds = (_PACKAGE.parents[1] / "build").glob("*/bin/vpmm")  # the package in the source tree
    yield from sorted(builds, key=lambda each: each.stat().st_mtime, reverse=True)
    on_path = shutil.which("vpmm")
    if on_path:
        yield Path(on_path)


# A wheel puts a Python script `vpmm` on PATH, which would call this function again.
def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def run(arguments: list[str]) -> NoReturn:
    """Replaces this process by the program: same streams, signals and exit code."""
    path = program()
    sys.stdout.flush()
    os.execv(path, ["vpmm", *arguments])


def output_of(arguments: list[str], **variables: str) -> str:
    """The output of the program with these variables set. Raises Error with its message if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_")}
    command = [str(program()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | variables, check=False)
    if done.returncode not in (0, 1):
        raise Error(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout
