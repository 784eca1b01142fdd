# vpmm: `vpmm info`: the version, where the library is, what each device has free, and what the C++ program says.

from __future__ import annotations

import argparse
import os
import sys

import vpmm
from vpmm import _vpmm, native


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
        for variable in ("NUMBA_CUDA_MEMORY_MANAGER", "VPMM_TORCH"):
            print(f"{variable}={os.environ.get(variable, '')}")
        for device in range(_vpmm.device_count()):
            free, total = vpmm.memory_info(device)
            print(f"device {device}: {free} of {total} bytes are free for the pool")
    except (vpmm.Error, OSError) as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    try:
        native.run(["info"])
    except vpmm.Error:  # it is not here
        return 0
