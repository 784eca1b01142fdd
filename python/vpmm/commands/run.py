# vpmm: `vpmm run`: runs a program with its libraries on the pool.

from __future__ import annotations

import argparse
import contextlib
import os
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import vpmm_autoload

import vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("run", help="run a program with its libraries' memory from the pool")
    parser.add_argument(
        "--use",
        metavar="NAMES",
        help="libraries, separated by commas: torch, cupy, rmm, numba (default: VPMM_USE, else numba)",
    )
    parser.add_argument(
        "--torch", action="store_true", help="also use the pool for PyTorch; an error if that is not possible"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="record each pool, as VPMM_RECORD=FILE does, for `vpmm report` and `replay`; %%p: process, %%d: device",
    )
    parser.add_argument(
        "--stacks",
        choices=("none", "native", "python", "both"),
        help="stacks of allocations to record (default: VPMM_RECORD_STACKS)",
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER).required = False  # argparse would name it as missing
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the script as `python script` would, with VPMM_USE set, for its children, too; `--torch`: and VPMM_TORCH."""
    if not Path(options.script).exists():
        print(f"vpmm: can't open file '{options.script}': No such file or directory", file=sys.stderr)
        return 2
    if options.stacks and not options.record:
        print("vpmm: --stacks says how to record: --record FILE is missing", file=sys.stderr)
        return 2
    if options.record and not Path(options.record).parent.is_dir():
        print(f"vpmm: --record {options.record}: there is no such folder", file=sys.stderr)
        return 2
    with recorded(options.record, options.stacks) if options.record else contextlib.nullcontext():
        if options.torch:
            run_on_torch()
        os.environ["VPMM_USE"] = options.use or os.environ.get("VPMM_USE") or "numba"
        vpmm_autoload.start()
        sys.argv = [options.script, *options.arguments]
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")
    return 0


@contextlib.contextmanager
def recorded(file: str, stacks: str | None) -> Iterator[None]:
    """Records all pools that are opened from now on, also in child processes; reports if there was none."""
    path = Path(file).absolute()  # the script may go elsewhere
    os.environ["VPMM_RECORD"] = str(Path(str(Path.cwd()).replace("%", "%%"), file))
    if stacks is not None:
        os.environ["VPMM_RECORD_STACKS"] = stacks
    before = written(path)
    try:
        yield
    finally:
        if written(path) == before:
            print(f"vpmm: nothing was recorded to {file}: no pool was opened, or the log says why", file=sys.stderr)


def written(path: Path) -> dict[str, int]:
    """The files that recordings to `path` may be in, and when each was written to."""
    begin = re.split(r"%|(?<!^)\.", path.name)[0]  # what follows is replaced, or has a number before it
    times = {}
    for entry in os.scandir(path.parent):
        if entry.name.startswith(begin):
            with contextlib.suppress(FileNotFoundError):  # FILE.new has got its name
                times[entry.name] = entry.stat().st_mtime_ns
    return times


def run_on_torch() -> None:
    """PyTorch's memory from the pool, in this process and in those that it starts."""
    os.environ["VPMM_TORCH"] = "1"
    vpmm.use_for_torch()
