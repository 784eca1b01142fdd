# vpmm: `vpmm info`: the version, where the library is and what each device has free.

from __future__ import annotations

import argparse
import os
import sys

import vpmm
from vpmm import _vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("info", help="print version and devices")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    del options
    print(f"vpmm {vpmm.__version__}, {_vpmm.__file__}")
    for variable in ("NUMBA_CUDA_MEMORY_MANAGER", "VPMM_TORCH"):
        print(f"{variable}={os.environ.get(variable, '')}")
    try:
        for device in range(_vpmm.device_count()):
            free, total = vpmm.memory_info(device)
            print(f"device {device}: {free} of {total} bytes are free for the pool")
    except vpmm.Error as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    return 0
