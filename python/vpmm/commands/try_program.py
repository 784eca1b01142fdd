# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm try FILE`: shows the memory that a recorded program would hold and need under VPMM.

from __future__ import annotations

import argparse
import gc
import sys
import time

from vpmm import _terminal, convert, trial
from vpmm.commands.convert import add_from

_PATIENCE = 2.0  # seconds without a word


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "try",
        help="show the memory that a recorded program would hold and need under VPMM",
        description="Replays the requests of a PyTorch snapshot, an RMM log, a database of Nsight Systems or a "
        "recording on a simulated GPU, and compares what is held, the time in the driver and the smallest GPU.",
    )
    parser.add_argument("file", metavar="FILE", help="the file; - is a recording on standard input")
    add_from(parser, "FILE")
    parser.add_argument("--device", type=int, help="the device, if there are several (default: the busiest)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    begin = time.monotonic()

    def say(what: str) -> None:
        if time.monotonic() - begin > _PATIENCE:
            print(f"vpmm: {what} ...", file=sys.stderr, flush=True)

    gc.disable()  # a million events are made, and none of them is garbage
    try:
        done = trial.run(convert.load(options.file, options.source, with_stacks=False), options.device, say)
    finally:
        gc.enable()
    if options.json:
        print(trial.as_json(done))
    else:
        sys.stdout.write(trial.table(done, _terminal.columns(sys.maxsize)))
    return 0
