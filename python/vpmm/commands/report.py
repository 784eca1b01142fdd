# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm report FILE`: makes an HTML page or a text from a recording.

from __future__ import annotations

import argparse
import functools
import gc
import sys
from pathlib import Path

from vpmm import _terminal, convert, reporting
from vpmm.recordings import Recording
from vpmm.units import bytes_text

_WIDTH = 100  # of the text: longer lines are hard to read


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "report",
        help="make an HTML page from a recording",
        description="Makes one HTML file from a recording, one that compares two, or one of several GPUs. A browser "
        "shows it without network or server.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a recording, or a file that `vpmm convert` reads; - is a recording on standard input. Two are compared; "
        "more, or those of several GPUs of a process, are shown together",
    )
    parser.add_argument("--together", action="store_true", help="show two recordings as two GPUs, not compared")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help="the page; - is standard output (default: report.html)"
    )
    parser.add_argument("--text", action="store_true", help="print the report; a page is made only with -o")
    parser.add_argument("--device", type=int, help="only this device, if there are several (default: all)")
    parser.set_defaults(run=functools.partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Writes the page and prints its name."""
    if options.text and str(options.output) == "-":
        parser.error("argument --text: not with `-o -`, which writes the page to standard output too")
    gc.disable()  # a million events are made, and none of them is garbage
    try:
        read = [_recording(each) for each in options.files]
        is_comparison = len(read) == 2 and not options.together and not reporting.are_of_one_process(*read)
        if is_comparison or options.device is not None:
            stories = [reporting.Story(each, options.device) for each in read]
        else:
            stories = [story for each in read for story in reporting.stories_of(each)]
        if options.text:
            width = min(_terminal.columns(_WIDTH), _WIDTH)
            if is_comparison:
                sys.stdout.write(reporting.comparison_text(stories[0], stories[1], width))
            else:
                sys.stdout.write(reporting.text_of_gpus(stories, width))
        if options.output is not None or not options.text:
            path = options.output or Path("report.html")
            is_replaced = options.output is None and path.exists()
            page = reporting.page_of_two(stories[0], stories[1]) if is_comparison else reporting.page_of_gpus(stories)
            size = reporting.write_page(page, path)
            is_piped = options.text or str(path) == "-"
            said = str(path) if size is None else f"{path}: {bytes_text(size)}"
            said += ", in place of the file that was there" if is_replaced else ""
            print(said, file=sys.stderr if is_piped else sys.stdout)
    except OverflowError:
        raise ValueError(f"{' or '.join(options.files)}: its figures are beyond what any memory has") from None
    finally:
        gc.enable()
    return 0


def _recording(file: str) -> Recording:
    recording = convert.load(file)
    if file != "-":
        recording.header["file"] = Path(file).name
    return recording
