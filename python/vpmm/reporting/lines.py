# SPDX-License-Identifier: Apache-2.0
# vpmm: lines of a report for a terminal, of whole words and without its commands.

from __future__ import annotations

import textwrap

from vpmm.units import printable

_LEAST_LABEL = 30


def wrapped(text: str, width: int, indent: str = "", first: str | None = None) -> str:
    """Lines of whole words; a word that is longer than a line is divided. `first` begins the first line."""
    first = indent if first is None else first
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(printable(line) for line in lines) or first


def labelled(figures: str, label: str, width: int) -> str:
    """A row of figures and its label, which goes on below itself, or stands below the figures if they leave no room."""
    label = printable(label)
    if len(figures) + len(label) <= width:
        return figures + label
    if width - len(figures) >= _LEAST_LABEL:
        return wrapped(label, width, " " * len(figures), figures)
    return f"{figures.rstrip()}\n{wrapped(label, width, '    ')}"
