# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm info`: versions, the library's location, each device's free memory, and the C++ program's output.

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import textwrap

import vpmm
from vpmm import _terminal, _vpmm, native
from vpmm.units import bytes_text

# What plugins are for, as packages are imported.
_LIBRARIES = ("torch", "cupy", "rmm", "cudf", "numba", "numba_cuda", "numba_cuda_mlir", "cuda", "distributed")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("info", help="print version, devices and settings", add_help=False, prefix_chars="\0")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ends as the C++ program, which prints settings and problems. Options, such as `--json`, are for it alone."""
    problem = ""
    if not options.words:
        say(f"vpmm {vpmm.__version__}, {_vpmm.__file__}")
        say(f"installed: {', '.join(installed()) or 'none of the libraries that plugins are for'}")
        say(f"NUMBA_CUDA_MEMORY_MANAGER={os.environ.get('NUMBA_CUDA_MEMORY_MANAGER', '')}")
        problem = print_free_memory()
    os.environ.clear()
    os.environ.update(options.environment)
    try:
        native.run(["info", *options.words])
    except vpmm.Error:
        if options.words:
            raise
    for name, value in sorted(os.environ.items()):  # the variables that are not set are in the C++ program alone
        if name.startswith("VPMM_"):
            print(f"{name}={value}")
    if problem:
        print(f"vpmm: {problem}", file=sys.stderr)
    return 2 if problem else 0


def print_free_memory() -> str:
    """Prints a line for each device, without warnings, which the C++ program gives. Returns what was wrong, else
    an empty text."""
    os.environ["VPMM_LOG"] = "quiet"
    try:
        lines = []
        for device in range(_vpmm.device_count()):
            free, total = vpmm.memory_info(device)
            lines.append(f"device {device}: {bytes_text(free)} of {bytes_text(total)} are free for the pool")
    except (vpmm.Error, OSError) as error:
        return str(error)
    for line in lines:
        say(line)
    return ""


def say(line: str) -> None:
    """Prints it between the edges of the terminal, if standard output is one."""
    columns = _terminal.columns(sys.maxsize)
    print(textwrap.fill(line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def installed() -> list[str]:
    """Name and version of each package that is here and that a plugin is for, or that such a package needs."""
    packages = importlib.metadata.packages_distributions()
    names = {name for library in _LIBRARIES for name in packages.get(library, ())}
    return [f"{name} {importlib.metadata.version(name)}" for name in sorted(names)]
