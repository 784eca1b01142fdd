#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures of the C++ code, room by room: how much there is, how large its parts are, how dense a line is.

    pip install lizard; apt-get install universal-ctags
    python3 tools/code_figures.py                               # of this tree
    python3 tools/code_figures.py --against 83120d6 --out docs/design/code-figures.md

Lines, files: all of them. Tokens: of code, without comments, as Pygments divides them; "a line" is a line that has any.
Functions: those with a body, as lizard finds them; branches are its cyclomatic complexity. Classes: fields and methods
as universal-ctags finds them; overloads count once each, nested classes for themselves. An interface is a class with a
pure virtual method; its implementations are counted in src, tests, bench and python. Attributes for the thread-safety
analysis and `alignas` are taken out first: neither tool reads them. `what in 1,000`: what, whose and who, in a
thousand words of comments.

Run by hand; nothing depends on it. Functions that a request enters: tools/functions_entered.py.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import lizard
from pygments.lexers import CppLexer
from pygments.token import Comment, Punctuation, Whitespace

ROOT = Path(__file__).resolve().parent.parent
# The rooms in which memory is found for a request, and those that replace one of them.
CORE = ("time", "region", "vm", "pool", "small", "context", "driver_pool", "settings", "process", "arena", "report")
PLUGIN = "python/vpmm/plugins/torch_allocator"
IMPLEMENTED_IN = ("src", "tests", "bench", "python")
ATTRIBUTE = re.compile(
    r"\balignas\(\w+\)|\bVPMM_(?:NO_THREAD_SAFETY_ANALYSIS\b"
    r"|[A-Z_]*(?:REQUIRES|GUARDED_BY|ACQUIRE|RELEASE|EXCLUDES|CAPABILITY)\((?:[^()]|\([^()]*\))*\))"
)
ASKING = {"what", "whose", "who"}
GOALS = "[Goals](code-goals.md) says which goals these figures meet, and why others are missed."


@dataclass
class ClassFigures:
    name: str
    fields: int = 0
    methods: int = 0


@dataclass
class Figures:
    """Of some files together."""

    files: int = 0
    lines: int = 0
    tokens: int = 0
    code_lines: int = 0
    comment_words: int = 0
    asking_words: int = 0
    lengths: list[int] = field(default_factory=list)  # of functions, in lines
    branches: list[int] = field(default_factory=list)
    classes: list[ClassFigures] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def without_attributes(text: str) -> str:
    """The same lines."""
    return ATTRIBUTE.sub(lambda found: "\n" * found.group().count("\n"), text)


def count_text(text: str, figures: Figures) -> None:
    figures.files += 1
    figures.lines += text.count("\n")
    line, with_code = 1, set()
    for kind, value in CppLexer(ensurenl=False, stripnl=False).get_tokens(text):
        if kind in Comment and kind not in Comment.Preproc and kind not in Comment.PreprocFile:
            words = re.findall(r"[A-Za-z][A-Za-z_']*", value)
            figures.comment_words += len(words)
            figures.asking_words += sum(word.lower() in ASKING for word in words)
        elif kind not in Whitespace and value.strip():
            # Pygments may give several punctuation marks as one token.
            figures.tokens += len(value.strip()) if kind is Punctuation else 1
            with_code.add(line)
        line += value.count("\n")
    figures.code_lines += len(with_code)


def count_functions(path: Path, figures: Figures) -> None:
    for function in lizard.analyze_file(str(path)).function_list:
        figures.lengths.append(function.end_line - function.start_line + 1)
        figures.branches.append(function.cyclomatic_complexity)


def tags_of(folder: Path) -> list[dict[str, str]]:
    command = ["ctags", "-R", "--languages=C++", "--map-C++=+.hpp.cpp", "--kinds-C++=+p", "--fields=+iKSs"]
    done = subprocess.run(
        [*command, "--output-format=json", "-o", "-", "."], cwd=folder, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def count_classes(tags: Iterable[dict[str, str]]) -> dict[str, ClassFigures]:
    """By the class's full name."""
    classes: dict[str, ClassFigures] = {}
    for tag in tags:
        if tag.get("scopeKind") not in ("class", "struct") or not tag["path"].endswith(".hpp"):
            continue
        one = classes.setdefault(tag["scope"], ClassFigures(tag["scope"].removeprefix("vpmm::")))
        one.fields += tag["kind"] == "member"
        one.methods += tag["kind"] in ("function", "prototype")
    return classes


def lonely_interfaces(tags: list[dict[str, str]]) -> list[str]:
    """Interfaces with one implementation."""
    pure = {tag["scope"] for tag in tags if tag["kind"] == "prototype" and re.search(r"=\s*0;\$?/?$", tag["pattern"])}
    bases = Counter(
        base.split("::")[-1].strip()
        for tag in tags
        if tag["kind"] in ("class", "struct") and tag.get("inherits")
        for base in tag["inherits"].split(",")
    )
    return sorted(name.removeprefix("vpmm::") for name in pure if name and bases[name.split("::")[-1]] == 1)


def rooms_of(tree: Path) -> dict[str, list[Path]]:
    rooms: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((tree / "src").rglob("*.[ch]pp")):
        rooms[path.relative_to(tree / "src").parts[0]].append(path)
    rooms["PyTorch plugin"] = sorted((tree / PLUGIN).rglob("*.[ch]pp"))
    return rooms


def measure(tree: Path) -> tuple[dict[str, Figures], list[str]]:
    """Figures by room, with `core` and `src` as sums; and the interfaces with one implementation."""
    for top in IMPLEMENTED_IN:
        for path in (tree / top).rglob("*.[ch]pp"):
            path.write_text(without_attributes(path.read_text()))
    figures: dict[str, Figures] = {}
    for room, paths in rooms_of(tree).items():
        one = figures.setdefault(room, Figures())
        for path in paths:
            count_text(path.read_text(), one)
            count_functions(path, one)
        folder = tree / (PLUGIN if room == "PyTorch plugin" else f"src/{room}")
        one.classes = list(count_classes(tags_of(folder)).values())
    core, src = Figures(), Figures()
    for room, one in figures.items():
        if room in CORE:
            core.add(one)
        if room != "PyTorch plugin":
            src.add(one)
    figures |= {"**core**": core, "**src**": src}
    return figures, lonely_interfaces([tag for top in IMPLEMENTED_IN for tag in tags_of(tree / top)])


def p90(values: list[int]) -> int:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0


COLUMNS = (
    "room", "files", "lines", "tokens", "tokens / line", "function p50 / p90 / max", "branches p90",
    "most methods", "most fields", "what in 1,000",
)  # fmt: skip


def largest(classes: list[ClassFigures], what: str) -> str:
    if not classes:
        return "-"
    one = max(classes, key=lambda each: int(getattr(each, what)))
    return f"{getattr(one, what)} (`{one.name.split('::')[-1]}`)"


def row(room: str, one: Figures) -> str:
    lengths = one.lengths or [0]
    cells = (
        room,
        f"{one.files}",
        f"{one.lines:,}",
        f"{one.tokens:,}",
        f"{one.tokens / max(one.code_lines, 1):.1f}",
        f"{statistics.median_low(lengths)} / {p90(lengths)} / {max(lengths)}",
        f"{p90(one.branches)}",
        largest(one.classes, "methods"),
        largest(one.classes, "fields"),
        f"{1000 * one.asking_words / max(one.comment_words, 1):.1f} of {one.comment_words:,}",
    )
    return f"| {' | '.join(cells)} |"


def table(figures: dict[str, Figures], lonely: list[str]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [row(room, one) for room, one in figures.items()]
    core = figures["**core**"].classes
    over = (sum(each.methods > 40 for each in core), sum(each.fields > 14 for each in core))
    lines += ["", f"Core: {over[0]} classes with more than 40 methods, {over[1]} with more than 14 fields."]
    lines += [f"Interfaces with one implementation: {', '.join(f'`{name}`' for name in lonely) or 'none'}."]
    return "\n".join(lines)


def checked_out(commit: str | None, into: Path) -> Path:
    """The commit's files in the folder; without a commit those of this tree, as they are."""
    if commit is None:
        files = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", *IMPLEMENTED_IN],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        for name in files:
            if not (ROOT / name).exists() or not re.search(r"\.[ch]pp$", name):
                continue
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes((ROOT / name).read_bytes())
        return into
    packed = subprocess.run(
        ["git", "archive", commit, *IMPLEMENTED_IN], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(into)], input=packed, check=True)
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", action="append", default=[], help="a commit that is measured, too")
    parser.add_argument("--out", type=Path, help="a page for the tables (default: standard output)")
    options = parser.parse_args()
    page = ["# Figures of the code", "", "Made by `tools/code_figures.py`, which says what is counted.", GOALS, ""]
    for commit in [*options.against, None]:
        with tempfile.TemporaryDirectory() as folder:
            page += [f"## {commit or 'Now'}", "", table(*measure(checked_out(commit, Path(folder)))), ""]
    text = "\n".join(page)
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
