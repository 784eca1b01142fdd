# vpmm: `vpmm run`: runs a program with its libraries on the pool.

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

import vpmm_autoload

import vpmm
from vpmm import _vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("run", help="run a program with its libraries' memory from the pool")
    parser.add_argument(
        "--use", metavar="NAMES", help="libraries, by comma: torch, cupy, rmm, numba (default: VPMM_USE, else numba)"
    )
    parser.add_argument("--torch", action="store_true", help="PyTorch's memory, too; an error where that cannot be")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="record allocations, for `vpmm report` and `replay`"
    )
    parser.add_argument(
        "--stacks", choices=("none", "native", "python", "both"), default="none", help="of allocations, with --record"
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def recording_path(path: Path, device: int) -> str:
    """`path` for device 0, and beside it one for each other device: trace.csv.gz, trace.device1.csv.gz."""
    if device == 0:
        return str(path)
    suffixes = "".join(path.suffixes)
    return str(path.with_name(f"{path.name.removesuffix(suffixes)}.device{device}{suffixes}"))


def run(options: argparse.Namespace) -> int:
    """Runs the script as `python script` would, with VPMM_USE set, for its children, too; `--torch`: and VPMM_TORCH."""
    if not Path(options.script).exists():
        print(f"vpmm: can't open file '{options.script}': No such file or directory", file=sys.stderr)
        return 2
    if options.torch:
        run_on_torch()
    os.environ["VPMM_USE"] = options.use or os.environ.get("VPMM_USE") or "numba"
    vpmm_autoload.start()
    if options.record is not None:
        path: Path = options.record
        stacks: str = options.stacks
        _vpmm.on_open(lambda device: _vpmm.Pool.default(device).record_start(recording_path(path, device), stacks))
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    runpy.run_path(options.script, run_name="__main__")
    return 0


def run_on_torch() -> None:
    """PyTorch's memory from the pool, in this process and in those that it starts."""
    os.environ["VPMM_TORCH"] = "1"
    vpmm.use_for_torch()
