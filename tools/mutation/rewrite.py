# SPDX-License-Identifier: Apache-2.0
"""Writes a source that holds many faults, of which a variable of the environment chooses one at run time."""

from __future__ import annotations

from collections.abc import Sequence

from mutation.sites import Mutant


def form(mutant: Mutant, number: int, inner: str) -> str:
    """Both ways beside each other. `inner` is the original with the faults inside it; where this one is active, none of
    these is, so the other way is plain code."""
    chosen = f"VPMM_MUTANT({number})"
    if not mutant.is_statement:
        original = f"static_cast<bool>({inner})" if mutant.after in ("true", "false") else inner
        return f"({chosen} ? ({mutant.after}) : ({original}))"
    if mutant.after:
        return f"{{ if ({chosen}) {{ {mutant.after} }} {inner} }}"
    return f"{{ if (!{chosen}) {{ {inner} }} }}"


def rewrite(text: bytes, numbered: Sequence[tuple[int, Mutant]]) -> bytes:
    """The text of one file with these faults, each with its number; on as many lines as before.

    Ranges of faults lie beside or within each other. ValueError: two overlap.
    """
    ordered = sorted(numbered, key=lambda each: (each[1].begin, -each[1].end, not each[1].is_statement))

    def part(begin: int, end: int, at: int) -> tuple[str, int]:
        """The text of a range with the faults from the one at index `at`, and the index of the first that follows."""
        out = []
        while at < len(ordered) and ordered[at][1].begin < end:
            number, mutant = ordered[at]
            if mutant.begin < begin or mutant.end > end:
                raise ValueError(f"{mutant} overlaps another")
            inner, after = part(mutant.begin, mutant.end, at + 1)
            out.append(text[begin : mutant.begin].decode() + form(mutant, number, inner))
            begin, at = mutant.end, after
        return "".join(out) + text[begin:end].decode(), at

    return part(0, len(text), 0)[0].encode()
