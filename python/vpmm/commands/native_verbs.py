# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm replay`, `fit` and `emm-check`, which the C++ program does.

from __future__ import annotations

import argparse

from vpmm import native

_VERBS = {
    "replay": "run recordings through an allocator, checked and measured",
    "fit": "find the smallest GPU on which recordings run",
    "emm-check": "check a memory manager against the rules of vpmm/emm.h",
}
_NO_OPTIONS = "\0"  # all words are the program's, --help too


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for verb, what in _VERBS.items():
        parser = verbs.add_parser(verb, help=what, add_help=False, prefix_chars=_NO_OPTIONS)
        parser.add_argument("words", nargs=argparse.REMAINDER)
        parser.set_defaults(run=run, native_verb=verb)


def run(options: argparse.Namespace) -> int:
    native.run([options.native_verb, *options.words])
