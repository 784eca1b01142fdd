# SPDX-License-Identifier: Apache-2.0
"""Places where a source can be changed by one small fault, found in clang's syntax tree."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clang import cindex

# Of each operator those that stand for a fault which people make. Comparisons and connectives change the result alone;
# sums change where both sides are numbers.
COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
CONNECTIVES = {"&&": ("||",), "||": ("&&",)}
SUMS = {
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "%": ("*",),
    "&": ("|",),
    "|": ("&",),
    "^": ("|",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "*=": ("+=",),
    "/=": ("*=",),
    "|=": ("&=",),
    "&=": ("|=",),
}
OPERATORS = COMPARISONS | CONNECTIVES | SUMS
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
BODIES = {"COMPOUND_STMT", "IF_STMT", "WHILE_STMT", "FOR_STMT", "DO_STMT", "CXX_FOR_RANGE_STMT"}
CONSTANT = {"STATIC_ASSERT", "ENUM_CONSTANT_DECL", "TEMPLATE_NON_TYPE_PARAMETER", "CONCEPT_DECL", "ALIGNED_ATTR"}
VARIABLES = {"VAR_DECL", "FIELD_DECL"}
CHECKS = {"validate", "is_sound"}  # functions that check, and do nothing else


@dataclass(frozen=True)
class Mutant:
    """One fault: bytes [begin, end) of a file, where `after` takes the place of `before`.

    A value keeps the original beside it, chosen at run time; a statement is left out, or `after` comes before it.
    """

    file: str
    begin: int
    end: int
    line: int
    before: str
    after: str
    is_statement: bool = False

    def __str__(self) -> str:
        shown = f"{self.before}  ->  {self.after or 'nothing'}"
        return f"{self.file}:{self.line}: {shown}"


def in_one_line(text: str) -> str:
    """Code without comments and line ends, as a copy of it must not move the lines below."""
    return " ".join(COMMENT.sub(" ", text).split())


class Source:
    """One file of the room as bytes, and where macros are expanded in it."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.bytes = path.read_bytes()
        self.macros: list[tuple[int, int]] = []

    def text(self, begin: int, end: int) -> str:
        return self.bytes[begin:end].decode()

    def is_in_macro(self, begin: int, end: int) -> bool:
        """Whether either end stands in a macro's name or arguments, whose text is not what the tree shows."""
        return any(first <= at < last for first, last in self.macros for at in (begin, end - 1))


def compiler_headers() -> list[str]:
    """Those that belong to a compiler, which libclang from pip lacks."""
    done = subprocess.run(["g++", "-print-file-name=include"], capture_output=True, text=True, check=True)
    return ["-isystem", done.stdout.strip()]


class Finder:
    """Walks the tree of one translation unit and collects what can change in files of the room."""

    def __init__(self, sources: dict[str, Source]) -> None:
        self.sources = sources
        self.found: set[Mutant] = set()

    def read(self, index: cindex.Index, path: Path, arguments: Sequence[str]) -> None:
        detailed = 1  # PARSE_DETAILED_PROCESSING_RECORD: macros
        unit = index.parse(str(path), args=[*arguments, *compiler_headers()], options=detailed)
        errors = [problem for problem in unit.diagnostics if problem.severity >= 3]
        if errors:
            raise ValueError(f"clang cannot read {path}: {errors[0]}")
        for cursor in unit.cursor.get_children():
            source = self.source_of(cursor)
            if source and cursor.kind.name == "MACRO_INSTANTIATION":
                source.macros.append((cursor.extent.start.offset, cursor.extent.end.offset))
        for cursor in unit.cursor.get_children():
            if self.source_of(cursor):
                self.visit(cursor, None)

    def source_of(self, cursor: cindex.Cursor) -> Source | None:
        file = cursor.location.file
        return self.sources.get(file.name) if file else None

    def visit(self, cursor: cindex.Cursor, parent: cindex.Cursor | None) -> None:
        kind = cursor.kind.name
        source = self.source_of(cursor)
        if kind in CONSTANT or source is None or cursor.spelling in CHECKS:
            return
        begin = cursor.extent.start.offset
        if kind in VARIABLES and re.search(r"\bconst(?:expr|init)\b", source.text(begin, cursor.location.offset)):
            return
        children = list(cursor.get_children())
        if kind in VARIABLES:  # what stands before the name belongs to the type
            children = [child for child in children if child.extent.start.offset > cursor.location.offset]
        if kind == "CASE_STMT":
            children = children[1:]
        if kind == "IF_STMT" and re.match(r"if\s+constexpr\b", source.text(begin, cursor.extent.end.offset)):
            children = children[1:]
        for mutant in self.changes(cursor, kind, children, parent, source):
            if not source.is_in_macro(mutant.begin, mutant.end):
                self.found.add(mutant)
        for child in children:
            self.visit(child, cursor)

    def changes(
        self,
        cursor: cindex.Cursor,
        kind: str,
        children: list[cindex.Cursor],
        parent: cindex.Cursor | None,
        source: Source,
    ) -> Iterator[Mutant]:
        begin, end = cursor.extent.start.offset, cursor.extent.end.offset
        make = functools.partial(Mutant, source.name, begin, end, cursor.extent.start.line)
        text = in_one_line(source.text(begin, end))
        if kind in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR", "CALL_EXPR", "UNEXPOSED_EXPR"):
            yield from self.operators(make, source, cursor, text)
        if kind == "INTEGER_LITERAL" and is_value(source, begin, parent):
            yield make(text, f"{text} + 1")
            if text not in ("0", "1"):
                yield make(text, "0")
        if kind == "CXX_BOOL_LITERAL_EXPR":
            yield make(text, "false" if text == "true" else "true")
        if kind == "UNARY_OPERATOR" and text.startswith("!"):
            yield make(text, f"static_cast<bool>({text[1:]})")
        if kind == "UNARY_OPERATOR" and text.startswith(("++", "--")):
            yield make(text, {"++": "--", "--": "++"}[text[:2]] + text[2:])
        if kind in ("IF_STMT", "WHILE_STMT", "CONDITIONAL_OPERATOR"):
            yield from self.conditions(source, kind, children)
        if kind == "RETURN_STMT" and children:
            yield from self.results(source, cursor, children[0])
        if parent is not None and parent.kind.name in BODIES and is_removable(kind, text):
            semicolon = source.bytes.find(b";", end)
            is_last = semicolon >= 0 and not source.bytes[end:semicolon].strip()
            if is_last and is_body(parent, cursor):
                whole = in_one_line(source.text(begin, semicolon + 1))
                yield Mutant(source.name, begin, semicolon + 1, cursor.extent.start.line, whole, "", True)

    def operators(
        self, make: Callable[[str, str], Mutant], source: Source, cursor: cindex.Cursor, text: str
    ) -> Iterator[Mutant]:
        sides = [child for child in cursor.get_children() if not child.kind.name.startswith("CXX_CATCH")]
        found = sides_of(source, cursor, sides)
        if found is None:
            return
        left, sign, right = found
        if sign in SUMS and not (is_number(left) and is_number(right)):
            return
        first = source.text(cursor.extent.start.offset, left.extent.end.offset)
        second = source.text(right.extent.start.offset, cursor.extent.end.offset)
        for other in OPERATORS[sign]:
            yield make(text, f"{in_one_line(first)} {other} {in_one_line(second)}")

    def conditions(self, source: Source, kind: str, children: list[cindex.Cursor]) -> Iterator[Mutant]:
        expressions = [child for child in children if child.kind.is_expression()]
        if not expressions or any(child.kind.name == "VAR_DECL" for child in children):
            return
        condition = expressions[0]
        if kind != "CONDITIONAL_OPERATOR" and condition.extent.start.offset > children[-1].extent.start.offset:
            return
        begin, end = condition.extent.start.offset, condition.extent.end.offset
        text = in_one_line(source.text(begin, end))
        for constant in ("true", "false"):
            if text not in ("true", "false") and not (kind == "WHILE_STMT" and constant == "true"):
                yield Mutant(source.name, begin, end, condition.extent.start.line, text, constant)

    def results(self, source: Source, cursor: cindex.Cursor, value: cindex.Cursor) -> Iterator[Mutant]:
        begin, end = value.extent.start.offset, value.extent.end.offset
        text, kind = in_one_line(source.text(begin, end)), value.type.get_canonical().kind.name
        line = value.extent.start.line
        if kind == "BOOL":
            if text not in ("true", "false"):
                yield Mutant(source.name, begin, end, line, text, f"!({text})")
            return
        begin, end = cursor.extent.start.offset, cursor.extent.end.offset
        semicolon = source.bytes.find(b";", end)
        is_empty = text in ("{}", "0", "nullptr", "std::nullopt", "*this") or is_first_enumerator(value)
        if not is_empty and semicolon >= 0:
            whole = in_one_line(source.text(begin, semicolon + 1))
            yield Mutant(source.name, begin, semicolon + 1, line, whole, "return {};", True)


def sides_of(
    source: Source, cursor: cindex.Cursor, sides: list[cindex.Cursor]
) -> tuple[cindex.Cursor, str, cindex.Cursor] | None:
    """Both sides of an operator, built in or not, and its sign; nullopt if `cursor` is no operator."""
    if len(sides) == 3 and sides[1].spelling.startswith("operator"):  # an overloaded one
        sides = [sides[0], sides[2]]
    if len(sides) != 2 or sides[0].extent.end.offset > sides[1].extent.start.offset:
        return None
    if sides[0].extent.start.offset != cursor.extent.start.offset:
        return None
    sign = in_one_line(source.text(sides[0].extent.end.offset, sides[1].extent.start.offset))
    return (sides[0], sign, sides[1]) if sign in OPERATORS else None


def is_first_enumerator(value: cindex.Cursor) -> bool:
    """Whether it is an enumerator of value 0, which `{}` is as well."""
    named = value.referenced
    return bool(named is not None and named.kind.name == "ENUM_CONSTANT_DECL" and named.enum_value == 0)


def is_number(cursor: cindex.Cursor) -> bool:
    kind = cursor.type.get_canonical().kind.name
    return kind in {
        "INT",
        "UINT",
        "LONG",
        "ULONG",
        "LONGLONG",
        "ULONGLONG",
        "UCHAR",
        "USHORT",
        "SHORT",
        "DOUBLE",
        "FLOAT",
    }


def is_value(source: Source, begin: int, parent: cindex.Cursor | None) -> bool:
    """Whether a literal is computed with: no bound of an array, width of a field or argument of a template."""
    before = source.text(max(0, begin - 80), begin).rstrip()
    if parent is not None and parent.kind.name in ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "TYPE_REF", "TEMPLATE_REF"):
        return False
    if parent is not None and parent.kind.name in VARIABLES:
        return not before.endswith(("[", ":"))
    return True


def is_removable(kind: str, text: str) -> bool:
    """Expressions that stand for what they do. `(void)x` does nothing."""
    if kind in ("BREAK_STMT", "CONTINUE_STMT"):
        return True
    return kind in (
        "CALL_EXPR",
        "BINARY_OPERATOR",
        "COMPOUND_ASSIGNMENT_OPERATOR",
        "UNARY_OPERATOR",
        "UNEXPOSED_EXPR",
        "CXX_DELETE_EXPR",
    ) and not text.startswith(("static_cast<void>", "(void)"))


def is_body(parent: cindex.Cursor, cursor: cindex.Cursor) -> bool:
    """Whether a child is a statement of `parent`, and not its condition or step."""
    if parent.kind.name == "COMPOUND_STMT":
        return True
    children = list(parent.get_children())
    if parent.kind.name == "DO_STMT":
        return bool(children[0].extent == cursor.extent)
    if parent.kind.name == "IF_STMT":
        first = next((n for n, child in enumerate(children) if child.kind.is_expression()), 0)
        return any(child.extent == cursor.extent for child in children[first + 1 :])
    return bool(children[-1].extent == cursor.extent)


def find(
    root: Path, folder: str, commands: Sequence[tuple[Path, Sequence[str]]]
) -> tuple[list[Mutant], dict[str, Source]]:
    """All mutants of the files below `root`/`folder`, in the order of the files, and these files by name.

    `commands` has each translation unit with the compiler's arguments for it. ValueError if clang cannot read one.
    """
    from clang import cindex

    sources = {}
    for path in sorted((root / folder).glob("*.[ch]pp")):
        sources[str(path)] = Source(path, str(path.relative_to(root)))
    finder = Finder(sources)
    index = cindex.Index.create()
    for path, arguments in commands:
        finder.read(index, path, arguments)
    ordered = sorted(finder.found, key=lambda each: (each.file, each.begin, -each.end, each.after))
    return ordered, {source.name: source for source in sources.values()}
