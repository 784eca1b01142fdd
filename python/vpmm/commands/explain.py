# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm explain ADDRESS RECORDING`: the allocation of an address, after an illegal memory access.

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from vpmm import explaining
from vpmm.recordings import read


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "explain",
        help="name the allocation of an address, after an illegal memory access",
        description="Tells which allocation of a recording holds an address, ends before it or begins behind it: its "
        "size, stream, tag, times and stack. The kernel log has the addresses of faults of the GPU.",
    )
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help="such as 0x7f458cc03039, or 0x7f45_8cc03000")
    parser.add_argument(
        "file", metavar="RECORDING", nargs="?", help="a recording of the program (default: VPMM_RECORD)"
    )
    parser.add_argument(
        "--kernel-log",
        metavar="FILE",
        help="take the addresses from lines of the kernel log; - is standard input, as with `dmesg | ...`",
    )
    parser.add_argument(
        "--stream", type=int, metavar="N", help="no address: show the newest allocations of this stream; -1: of all"
    )
    parser.set_defaults(run=functools.partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Returns 1 if the kernel log has no address."""
    words = [each for each in (options.address, options.file) if each is not None]
    has_address = options.kernel_log is None and options.stream is None
    if options.kernel_log is not None and options.stream is not None:
        parser.error("argument --stream: not with --kernel-log")
    if has_address and not words:
        parser.error("an ADDRESS, --kernel-log or --stream is needed")
    faults = [explaining.Fault(*_address(words.pop(0)))] if has_address else []
    if len(words) > 1:
        parser.error(f"unrecognized arguments: {words[1]}")
    file = words[0] if words else options.environment.get("VPMM_RECORD", "")
    if not file:
        parser.error("a RECORDING is needed: run the program with VPMM_RECORD=FILE")
    if options.kernel_log == "-" and file == "-":
        parser.error("argument --kernel-log: the recording is standard input, too")
    recording = read(file)
    if options.stream is not None:
        sys.stdout.write(explaining.candidates(recording, options.stream if options.stream >= 0 else None))
        return 0
    if options.kernel_log is not None:
        log = sys.stdin.read() if options.kernel_log == "-" else Path(options.kernel_log).read_text(errors="replace")
        faults = list(explaining.faults_in(log))
        pid = recording.header.get("pid")
        faults = [each for each in faults if each.pid == pid] or faults
        if not faults:
            print("vpmm: no address of a fault (`faulted @ 0x...`) in the kernel log", file=sys.stderr)
            return 1
    for fault in dict.fromkeys(faults):
        sys.stdout.write(explaining.explain(recording, fault))
    return 0


def _address(text: str) -> tuple[int, int]:
    """The address and its step: the kernel log's notation has steps."""
    return explaining.parse_address(text), explaining.LOGGED_STEP if "_" in text else 1
