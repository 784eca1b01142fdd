# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm completion SHELL`: a script that lets a shell complete verbs, options and files, made by shtab.

from __future__ import annotations

import argparse
import importlib

from vpmm.errors import MissingPackageError

_SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("FILE", "IN", "OUT", "PAGE", "RECORDING", "SCRIPT")  # metavariables


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "completion",
        help="print a script for completion in a shell",
        description="Prints the script, which needs the package shtab only now: "
        "vpmm completion bash > ~/.local/share/bash-completion/completions/vpmm",
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(run=run, verbs=verbs)


def run(options: argparse.Namespace) -> int:
    """Raises MissingPackageError without shtab."""
    try:
        shtab = importlib.import_module("shtab")
    except ImportError as error:
        raise MissingPackageError("vpmm completion", "shtab", error) from None
    for verb in options.verbs.choices.values():
        for action in verb._actions:
            if action.metavar in _FILES or action.dest == "words":
                action.complete = shtab.FILE
    print(shtab.complete(options.parser, options.shell))
    return 0
