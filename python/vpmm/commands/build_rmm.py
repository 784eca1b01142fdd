# vpmm: `vpmm build-rmm`: compiles the resource for RMM ahead of its first use.

from __future__ import annotations

import argparse
import sys

import vpmm


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("build-rmm", help="compile the resource for the RMM that is installed here")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints where the compiled resource is."""
    del options
    from vpmm.plugins.rmm import build

    try:
        print(build())
    except vpmm.Error as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    return 0
