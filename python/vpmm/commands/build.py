# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm build-torch` and `vpmm build-rmm`: compile a library's part of VPMM ahead of its first use.

from __future__ import annotations

import argparse
import importlib
import sys

import vpmm

_BUILT = {"rmm": ("resource", "RMM"), "torch": ("allocator", "PyTorch")}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for plugin, (what, library) in _BUILT.items():
        parser = verbs.add_parser(f"build-{plugin}", help=f"compile the {what} for the installed {library}")
        parser.set_defaults(run=run, plugin=plugin)


def run(options: argparse.Namespace) -> int:
    """Prints where the compiled resource or allocator is."""
    try:
        print(importlib.import_module(f"vpmm.plugins.{options.plugin}").build())
    except vpmm.Error as error:
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    return 0
