# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm info`: versions, the library's location, each device's free memory, and the C++ program's output.

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys

import vpmm
from vpmm import _vpmm, native
from vpmm.units import bytes_text

# What plugins are for, as packages are imported.
_LIBRARIES = ("torch", "cupy", "rmm", "cudf", "numba", "numba_cuda", "numba_cuda_mlir", "cuda", "distributed")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("info", help="print version, devices and settings", add_help=False, prefix_chars="\0")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """With options, such as `--json`, it is the C++ program's alone."""
    try:
        if options.words:
            native.run(["info", *options.words])
        print(f"vpmm {vpmm.__version__}, {_vpmm.__file__}")
        print(f"installed: {', '.join(installed()) or 'none of the libraries that plugins are for'}")
        for variable in ("NUMBA_CUDA_MEMORY_MANAGER", "VPMM_TORCH"):
            print(f"{variable}={os.environ.get(variable, '')}")
        for device in range(_vpmm.device_count()):
            free, total = vpmm.memory_info(device)
            print(f"device {device}: {bytes_text(free)} of {bytes_text(total)} are free for the pool")
    except BrokenPipeError:  # main() knows what to do
        raise
    except (vpmm.Error, OSError) as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    try:
        native.run(["info"])
    except vpmm.Error:  # it is not here
        return 0


def installed() -> list[str]:
    """Name and version of each package that is here and that a plugin is for, or that such a package needs."""
    packages = importlib.metadata.packages_distributions()
    names = {name for library in _LIBRARIES for name in packages.get(library, ())}
    return [f"{name} {importlib.metadata.version(name)}" for name in sorted(names)]
