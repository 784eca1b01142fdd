# SPDX-License-Identifier: Apache-2.0
# vpmm: `vpmm report FILE`: makes an HTML page or a text from a recording.

from __future__ import annotations

import argparse
import functools
import gc
import sys
from pathlib import Path

from vpmm import _terminal, convert, reporting
from vpmm.units import bytes_text

_WIDTH = 100  # of the text: longer lines are hard to read


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "report",
        help="make an HTML page from a recording",
        description="Makes one HTML file from a recording, or one that compares two. A browser shows it without "
        "network or server.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording, or a file that `vpmm convert` reads; - is a recording on standard input",
    )
    parser.add_argument("second", metavar="SECOND", nargs="?", help="another one, to compare the first with")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help="the page; - is standard output (default: report.html)"
    )
    parser.add_argument("--text", action="store_true", help="print the report; a page is made only with -o")
    parser.add_argument("--device", type=int, help="the device, if there are several (default: the busiest)")
    parser.set_defaults(run=functools.partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Writes the page and prints its name."""
    if options.text and str(options.output) == "-":
        parser.error("argument --text: not with `-o -`, which writes the page to standard output too")
    gc.disable()  # a million events are made, and none of them is garbage
    try:
        story = _story(options.file, options.device)
        second = _story(options.second, options.device) if options.second is not None else None
        if options.text:
            width = min(_terminal.columns(_WIDTH), _WIDTH)
            text = reporting.comparison_text(story, second, width) if second else reporting.text_of(story, width)
            sys.stdout.write(text)
        if options.output is not None or not options.text:
            path = options.output or Path("report.html")
            is_replaced = options.output is None and path.exists()
            page = reporting.page_of_two(story, second) if second else reporting.page_of(story)
            size = reporting.write_page(page, path)
            is_piped = options.text or str(path) == "-"
            said = str(path) if size is None else f"{path}: {bytes_text(size)}"
            said += ", in place of the file that was there" if is_replaced else ""
            print(said, file=sys.stderr if is_piped else sys.stdout)
    except OverflowError:
        files = " or ".join(each for each in (options.file, options.second) if each is not None)
        raise ValueError(f"{files}: its figures are beyond what any memory has") from None
    finally:
        gc.enable()
    return 0


def _story(file: str, device: int | None) -> reporting.Story:
    recording = convert.load(file)
    if file != "-":
        recording.header["file"] = Path(file).name
    return reporting.Story(recording, device)
