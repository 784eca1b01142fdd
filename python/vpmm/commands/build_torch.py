# vpmm: `vpmm build-torch`: compiles the allocator for PyTorch ahead of its first use.

from __future__ import annotations

import argparse
import sys

import vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("build-torch", help="compile the allocator for the PyTorch that is installed here")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints where the compiled allocator is."""
    del options
    from vpmm.plugins.torch import build

    try:
        print(build())
    except vpmm.Error as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    return 0
