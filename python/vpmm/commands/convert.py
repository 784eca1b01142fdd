# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm convert IN OUT`: recordings from and to other tools' formats.

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vpmm import _terminal, convert
from vpmm.convert import window
from vpmm.units import bytes_text


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "convert",
        help="convert recordings to other tools' files, and their files to recordings",
        description="Reads a snapshot of PyTorch, a log of RMM, a database of Nsight Systems or a recording, and "
        "writes a snapshot for pytorch.org/memory_viz, a trace for ui.perfetto.dev, a log for RMM or a recording.",
    )
    parser.add_argument("input", metavar="IN", help="the file; - is a recording on standard input")
    parser.add_argument(
        "output",
        metavar="OUT",
        type=Path,
        help="the file; its ending gives the format unless --to does; - is standard output",
    )
    add_from(parser, "IN")
    parser.add_argument(
        "--to",
        dest="target",
        metavar="FORMAT",
        choices=convert.OUTPUTS,
        help=f"format of OUT: {', '.join(convert.OUTPUTS)} (default: by its name)",
    )
    parser.add_argument("--device", type=int, help="only this device")
    parser.add_argument("--after", metavar="WHEN", help="begin here: a time such as 1.5s or 300ms, or a mark")
    parser.add_argument("--before", metavar="WHEN", help="end here")
    parser.set_defaults(run=run)


def add_from(parser: argparse.ArgumentParser, file: str) -> None:
    """Adds the option for the format of `file`, the name of an argument."""
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FORMAT",
        choices=convert.INPUTS,
        help=f"format of {file}: {', '.join(convert.INPUTS)} (default: by content)",
    )


def run(options: argparse.Namespace) -> int:
    target = options.target or convert.format_for(options.output)
    recording = convert.load(options.input, options.source)
    if recording.warning:
        _terminal.complain(f"warning: {recording.warning}")
    if options.device is not None:
        recording = convert.of_device(recording, options.device)
    if options.after or options.before:
        after = window.moment(recording, options.after) if options.after else 0
        before = window.moment(recording, options.before) if options.before else None
        recording = window.cut(recording, after, before)
    for warning in convert.save(recording, options.output, target):
        _terminal.complain(f"warning: {warning}")
    is_piped = str(options.output) == "-"
    said = f"{options.output}: {len(recording.events)} events as {target}"
    if not is_piped and options.output.is_file():
        said += f", {bytes_text(options.output.stat().st_size)}"
    print(said, file=sys.stderr if is_piped else sys.stdout)
    return 0
