#!/usr/bin/env python3
"""Measures the rooms that hold the policy: their size, their largest classes, how dense their functions are.

`code_metrics.py` prints the measures of the working tree, `code_metrics.py --base REV` those of REV beside them. The
parser knows as much C++ as this tree uses; it is no compiler, and a figure may be off by a few.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_tables import markdown
from check_layers import NON_CODE

ROOMS = ("pool", "small", "context")
CLASSES_NAMED = 6

DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
TOKEN = re.compile(
    r"[A-Za-z_]\w*|(?:\d|\.\d)(?:[\w.]|'(?=\w)|(?<=[eEpP])[+-])*"
    r"|<<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|\[\[|\"\"|\S"
)
NAME = re.compile(r"[A-Za-z_]\w*")
BRANCHES = {"if", "for", "while", "case", "catch", "&&", "||", "?"}
CLOSING = {"(": ")", "{": "}", "[": "]", "[[": "]"}
# What stands in parentheses behind these is no list of parameters.
MARKS = re.compile(r"VPMM_[A-Z_]+|alignas|decltype|noexcept|explicit|requires")
NUMBER_TYPE = r"(?:Bytes|(?:std::)?(?:u?int(?:8|16|32|64)_t|size_t)|int|unsigned|long|double|float)"
CONSTANT = re.compile(rf"\bconstexpr\s+(?:static\s+)?{NUMBER_TYPE}\s+(k[A-Z]\w*)\s*[={{]")
STATIC_ASSERT = re.compile(r"\bstatic_assert\s*\([^;]*;")


@dataclass
class Class:
    name: str
    members: int = 0  # data, without static ones
    methods: int = 0  # declared or defined inside, constructors and operators included


@dataclass
class Function:
    tokens: int
    branches: int  # cyclomatic complexity


@dataclass
class Code:
    """What was found in some files."""

    files: int = 0
    lines: int = 0
    classes: list[Class] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    callbacks: int = 0  # data members that are a std::function
    text: str = ""  # of all files, without comments

    def constants(self) -> set[str]:
        """Named numbers, without those that only a static_assert reads."""
        named = set(CONSTANT.findall(self.text))
        rest = STATIC_ASSERT.sub("", self.text)
        return {name for name in named if len(re.findall(rf"\b{name}\b", rest)) > 1}

    def largest_classes(self) -> list[Class]:
        return sorted(self.classes, key=lambda each: (-each.members, -each.methods, each.name))


def bare(source: str) -> str:
    """The code without comments, preprocessor lines and what stands in strings."""
    without = NON_CODE.sub(lambda match: '""' if match[0].endswith('"') else "0" if match[0][0] == "'" else " ", source)
    return DIRECTIVE.sub("", without)


class Parser:
    """Walks over namespaces and classes, and takes functions as wholes."""

    def __init__(self, code: Code, source: str) -> None:
        self.code = code
        self.tokens = TOKEN.findall(bare(source))
        self.at = 0

    def run(self) -> None:
        while self.at < len(self.tokens):
            self.scope(None)

    def scope(self, around: Class | None) -> None:
        """Up to the brace that closes the scope, or the end."""
        head: list[str] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == "}":
                self.at += 1
                return
            if token == ";":
                self.at += 1
                self.declaration(head, around)
                head = []
            elif token == "{":
                head = self.braces(head, around)
            elif token in CLOSING:
                head += self.balanced()
            elif token == ":" and head and head[-1] in ("public", "private", "protected"):
                self.at += 1
                head = []
            else:
                self.at += 1
                head.append(token)

    def balanced(self) -> list[str]:
        """From the bracket here to the one that closes it, both included."""
        begin, depth = self.at, 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token in CLOSING:
                depth += 2 if token == "[[" else 1
            elif token in CLOSING.values():
                depth -= 1
                if depth == 0:
                    break
        return self.tokens[begin : self.at]

    def braces(self, head: list[str], around: Class | None) -> list[str]:
        """What the brace here opens; returns the statement so far, where it goes on behind."""
        words = plain(head)
        if "namespace" in words or words[:1] == ["extern"]:
            self.at += 1
            self.scope(around)
            return []
        kind = next((word for word in words if word in ("class", "struct", "union", "enum")), None)
        if kind == "enum" and not parameters(words):
            self.balanced()
            return ["enum"]
        if kind is not None and not parameters(words):
            made = Class(name_of_class(words, kind, around))
            self.code.classes.append(made)
            self.at += 1
            self.scope(made)
            return ["struct"] if self.at >= len(self.tokens) or self.tokens[self.at] == ";" else ["unnamed"]
        if not parameters(words) or is_initializer(head):
            return head + self.balanced()
        body = self.balanced()
        if around is not None and "friend" not in words:
            around.methods += 1
        self.code.functions.append(Function(len(head) + len(body), 1 + count_branches(body)))
        return []

    def declaration(self, head: list[str], around: Class | None) -> None:
        words = plain(head)
        if around is None or not words or words[0] in ("using", "typedef", "friend", "static_assert", "enum"):
            return
        if words[0] in ("class", "struct", "union") and len(words) <= 2:
            return
        if parameters(words):
            around.methods += 1
        elif "static" not in words:
            around.members += declarators(head)
            self.code.callbacks += "".join(words).count("std::function<") > 0


def plain(head: Sequence[str]) -> list[str]:
    """A declaration without its template parameters, attributes, marks and initial value."""
    words: list[str] = []
    depth = 0  # of what is left out
    skips_from = None
    for index, token in enumerate(head):
        if depth > 0:
            depth += (token in CLOSING) + (token == "[[") - (token in CLOSING.values())
            continue
        if skips_from == "template" and token == "<":
            skips_from = "template<"
            angle = 1
            continue
        if skips_from == "template<":
            angle += (token == "<") - (token == ">")
            if angle == 0:
                skips_from = None
            continue
        if token == "template":
            skips_from = "template"
        elif token == "[[" or (token == "(" and index > 0 and MARKS.fullmatch(head[index - 1])):
            depth = 2 if token == "[[" else 1
        elif token == "=" and words[-1:] != ["operator"] and "(" not in words:
            break
        elif not MARKS.fullmatch(token):
            words.append(token)
    return words


def parameters(words: Sequence[str]) -> bool:
    """Whether a declaration has a list of parameters: it is a function, and no pointer to one."""
    if "operator" in words:
        return True
    angle = 0
    for index, token in enumerate(words):
        if token == "<" and index > 0 and NAME.fullmatch(words[index - 1]):
            angle += 1
        elif token == ">" and angle > 0:
            angle -= 1
        elif token == "{":
            return False
        elif token == "(" and angle == 0:
            return words[index + 1 : index + 2] != ["*"]
    return False


def is_initializer(head: Sequence[str]) -> bool:
    """Whether a brace behind `head` begins the value of a member in a constructor's list, not its body."""
    depth, in_list = 0, False
    for index, token in enumerate(head):
        depth += (token in CLOSING) - (token in CLOSING.values())
        if token == ":" and depth == 0 and index > 0 and head[index - 1] in (")", "noexcept"):
            in_list = True
    return in_list and (NAME.fullmatch(head[-1]) is not None or head[-1] == ">")


def declarators(head: Sequence[str]) -> int:
    """How many members `Bytes a = 0, b;` declares."""
    depth = angle = commas = 0
    for token in head:
        depth += (token in CLOSING) - (token in CLOSING.values())
        angle = max(0, angle + (token == "<") - (token == ">"))
        commas += token == "," and depth == 0 and angle == 0
    return 1 + commas


def name_of_class(words: Sequence[str], kind: str, around: Class | None) -> str:
    rest = words[words.index(kind) + 1 :]
    name = "".join(rest[: rest.index(":")] if ":" in rest else rest).removesuffix("final") or "(unnamed)"
    return name if around is None else f"{around.name}::{name}"


def count_branches(body: Sequence[str]) -> int:
    return sum(token in BRANCHES and not (token == "&&" and body[i - 1] == "auto") for i, token in enumerate(body))


def read(code: Code, source: str) -> None:
    code.files += 1
    code.lines += source.count("\n")
    code.text += bare(source)
    Parser(code, source).run()


def measured(sources: Iterable[str]) -> Code:
    code = Code()
    for source in sources:
        read(code, source)
    return code


def p90(values: Iterable[int]) -> int:
    """The smallest value that nine tenths of all do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(0.9 * len(ordered)) - 1] if ordered else 0


MEASURES: list[tuple[str, Callable[[Code], int]]] = [
    ("files", lambda code: code.files),
    ("lines", lambda code: code.lines),
    ("functions", lambda code: len(code.functions)),
    ("tokens per function, p90", lambda code: p90(each.tokens for each in code.functions)),
    ("cyclomatic, p90", lambda code: p90(each.branches for each in code.functions)),
    ("`std::function` members", lambda code: code.callbacks),
    ("constants", lambda code: len(code.constants())),
]


def rooms_table(trees: Sequence[dict[str, Code]]) -> str:
    """A row for each measure, a column for each room; of two trees, before and after."""
    rooms = list(trees[0])
    rows = [
        [name, *(" -> ".join(f"{measure(tree[room]):,}" for tree in trees) for room in rooms)]
        for name, measure in MEASURES
    ]
    return markdown(["", *rooms], rows)


def classes_table(trees: Sequence[dict[str, Code]]) -> str:
    """The classes with the most data members, largest first: data members, methods."""
    everything = [next(iter(tree.values())).largest_classes()[:CLASSES_NAMED] for tree in trees]
    rows = [
        [f"{each.name}: {each.members}, {each.methods}" for each in places] for places in zip(*everything, strict=False)
    ]
    heads = ["largest classes: data members, methods"] if len(trees) == 1 else ["before", "after"]
    return markdown(heads, rows, left=len(heads))


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def is_code(name: str) -> bool:
    return name.endswith((".cpp", ".hpp"))


def sources_at(root: Path, revision: str, room: str) -> list[str]:
    names = git(root, "ls-tree", "-r", "--name-only", revision, f"src/{room}/").splitlines()
    return [git(root, "show", f"{revision}:{name}") for name in names if is_code(name)]


def sources_in(root: Path, room: str) -> list[str]:
    return [path.read_text() for path in sorted((root / "src" / room).rglob("*")) if is_code(path.name)]


def tree_of(sources: Callable[[str], list[str]]) -> dict[str, Code]:
    """By room, and before them all rooms together."""
    by_room = {room: sources(room) for room in ROOMS}
    everything = [source for each in by_room.values() for source in each]
    return {"together": measured(everything)} | {room: measured(each) for room, each in by_room.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", metavar="REV", help="a revision to compare with")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the tree to measure")
    options = parser.parse_args(arguments)
    root: Path = options.root
    trees = [tree_of(lambda room: sources_in(root, room))]
    if options.base is not None:
        trees.insert(0, tree_of(lambda room: sources_at(root, options.base, room)))
    print(rooms_table(trees))
    print()
    print(classes_table(trees))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
