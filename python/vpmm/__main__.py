# vpmm: the command line, `python -m vpmm VERB` and `vpmm VERB`. Each verb is a module of vpmm.commands.

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys

from vpmm import commands
from vpmm.errors import Error


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="vpmm", description="One GPU memory pool for a whole process.")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda each: each.name):
        importlib.import_module(f"vpmm.commands.{module.name}").add_parser(verbs)
    return made


def main() -> int:
    """Runs the verb that the command line names; its exit code."""
    options = parser().parse_args()
    if options.verb == "run":  # what it runs has its own errors
        return int(options.run(options))
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
        print(f"vpmm: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        return 2
    except (ValueError, Error) as error:  # a bad file is a ValueError
        print(f"vpmm: {error}", file=sys.stderr)
        return 2
    return code


def _do_not_record() -> None:
    """The variables are for the programs that are looked at: a pool of ours would replace their recording."""
    for name in [*os.environ]:
        if name.startswith("VPMM_RECORD") or name == "VPMM_STATS":
            del os.environ[name]


if __name__ == "__main__":
    sys.exit(main())
