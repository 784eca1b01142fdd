# SPDX-License-Identifier: Apache-2.0
# vpmm: the command line, `python -m vpmm VERB` and `vpmm VERB`. Each verb is a module of vpmm.commands.

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from vpmm import __version__, _terminal, cmake_dir, commands, include_dir
from vpmm.errors import Error


class _Print(argparse.Action):
    """Prints its constant and exits, as argparse's version action does, but never wraps a line."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(self.const)
        parser.exit()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="vpmm", description="One GPU memory pool for a whole process.")
    made.add_argument("--version", action=_Print, const=f"vpmm {__version__}", help="print the version")
    made.add_argument("--cmake-dir", action=_Print, const=cmake_dir(), help="print the folder for CMake's vpmm_DIR")
    made.add_argument("--include-dir", action=_Print, const=include_dir(), help="print the folder of the headers")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda each: each.name):
        importlib.import_module(f"vpmm.commands.{module.name}").add_parser(verbs)
    return made


def main() -> int:
    """Runs the verb on the command line; returns the exit code. `help VERB` is `VERB --help`, `help` alone `--help`."""
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    made = parser()
    options = made.parse_args(words)
    if options.verb == "run":  # the program that it runs reports its own errors
        return int(options.run(options))
    _terminal.prepare()
    options.environment, options.parser = dict(os.environ), made
    _do_not_record()
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("vpmm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _terminal.complain(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
        return 2
    except (ValueError, OverflowError, Error) as error:  # a bad file is a ValueError
        _terminal.complain(str(error))
        return 2
    return code


def _do_not_record() -> None:
    """Unsets the recording variables: they are for the programs under study, whose recording ours would replace."""
    for name in [*os.environ]:
        if name.startswith("VPMM_RECORD") or name == "VPMM_STATS":
            del os.environ[name]


if __name__ == "__main__":
    sys.exit(main())
