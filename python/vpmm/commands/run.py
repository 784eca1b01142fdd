# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm run`: runs a program with its libraries on the pool.

from __future__ import annotations

import argparse
import contextlib
import os
import re
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vpmm_autoload

import vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a program with its libraries' memory from the pool",
        usage="vpmm run [options] SCRIPT ...\n       vpmm run [options] -m MODULE ...\n"
        "       vpmm run [options] -c CODE ...",
        description="Runs a program as python does: vpmm run --torch train.py, vpmm run -m pytest tests.",
    )
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
    parser.add_argument("-m", dest="module", action=_Rest, metavar="MODULE", help="run a module with its arguments")
    parser.add_argument("-c", dest="code", action=_Rest, metavar="CODE", help="run a text with its arguments")
    parser.add_argument("script", metavar="SCRIPT", help="the program")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    arguments.required = False  # argparse would name it as missing
    parser.set_defaults(run=run)


class _Rest(argparse.Action):
    """Takes all words that follow: the program and its arguments, in place of a script."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:  # noqa: ANN401
        super().__init__(option_strings, dest, nargs=argparse.REMAINDER, **more)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401  a list of texts
        *_: object,
    ) -> None:
        if not values:
            parser.error(f"argument {self.option_strings[0]}: expected one argument")
        setattr(namespace, self.dest, values[0])
        namespace.arguments = values[1:]
        for action in parser._actions:
            if action.dest in ("script", "arguments"):
                action.required = False


def run(options: argparse.Namespace) -> int:
    """Runs a script, a module or a text as python would, with VPMM_USE set, for its children, too; `--torch`: and
    VPMM_TORCH."""
    try:
        check(options)
    except vpmm.Error as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 2
    with recorded(options.record, options.stacks) if options.record else contextlib.nullcontext():
        os.environ["VPMM_USE"] = options.use or os.environ.get("VPMM_USE") or "numba"
        vpmm_autoload.start()
        return run_program(options)


def check(options: argparse.Namespace) -> None:
    """Installs in PyTorch if that was asked for. Raises vpmm.Error for options that cannot be followed."""
    if options.script is not None and not Path(options.script).exists():
        raise vpmm.Error(f"can't open file '{options.script}': No such file or directory")
    if options.stacks and not options.record:
        raise vpmm.Error("--stacks says how to record: --record FILE is missing")
    if options.record and not Path(options.record).parent.is_dir():
        raise vpmm.Error(f"--record {options.record}: there is no such folder")
    for complaint in vpmm_autoload.unknown(options.use or ""):
        raise vpmm.Error(f"--use {options.use}: {complaint}")
    if options.torch:
        run_on_torch()


def run_program(options: argparse.Namespace) -> int:
    """Raises SystemExit and KeyboardInterrupt as the program does. 1: it ended by another exception. Exceptions are
    shown with the program's own frames."""
    try:
        if options.module is not None:
            sys.argv = [options.module, *options.arguments]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(options.module, run_name="__main__", alter_sys=True)
        elif options.code is not None:
            sys.argv = ["-c", *options.arguments]
            sys.path[0] = ""
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(options.code, "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = [options.script, *options.arguments]
            sys.path[0] = str(Path(options.script).resolve().parent)
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        show(error, options.module)
        if isinstance(error, KeyboardInterrupt):  # ends the process by the signal, as python does
            sys.excepthook = lambda *_: None
            raise
        return 1
    return 0


def show(error: BaseException, module: str | None) -> None:
    """Reports an exception that ended the program, without the frames that started it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    if trace is None and module is not None and isinstance(error, ImportError):
        print(f"vpmm: {error}", file=sys.stderr)  # there is no such module
        return
    error.__traceback__ = sys.last_traceback = trace
    sys.last_type, sys.last_value = type(error), error
    sys.excepthook(type(error), error, trace)


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
