# vpmm: the command line, `python -m vpmm VERB` and `vpmm VERB`. Each verb is a module of vpmm.commands.

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys

from vpmm import commands


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="vpmm", description="One GPU memory pool for a whole process.")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda each: each.name):
        importlib.import_module(f"vpmm.commands.{module.name}").add_parser(verbs)
    return made


def main() -> int:
    """Runs the verb that the command line names; its exit code."""
    options = parser().parse_args()
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
