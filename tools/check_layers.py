#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: which room includes which, and the habits every source file keeps.

Rules and exceptions between rooms stand in src/layers.txt. Run it from anywhere; it prints one line per finding.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_COLUMNS = 120
MAX_CPP_COLUMNS = 100  # but for tables (.def) and docstrings of the bindings
DOCSTRINGS = "python/src/"
MAX_LINES = 700
CPP_SUFFIXES = {".cpp", ".hpp", ".h", ".c", ".cu", ".def", ".inc"}
FORMATTED = {".cpp", ".hpp", ".h", ".c", ".cu"}
SOURCE_SUFFIXES = CPP_SUFFIXES | {".py"}
BUILD_SUFFIXES = {"CMakeLists.txt", ".cmake", ".map", ".pc", ".pyx", ".sed", ".sh"}
DATA = ("tests/data/", "tests/fuzz/corpus/", "tests/python/fixtures/", "bench/results/", "bench/traces/")
PUBLIC = "vpmm"
ENVIRONMENT_READER = "src/settings/variables.cpp"
DRIVER_ROOM = "driver/cuda"
FOR_CUDA_PROGRAMS = {"include/vpmm/cuda_mr.hpp", "include/vpmm/rmm_mr.hpp"}  # nothing of the project includes them
# Spelled in two halves so that this file passes its own rule.
LEFTOVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")

# Calls through a class of a lower room go upward. These are told, and decide nothing above.
OBSERVERS = {"driver::CallObserver", "pool::MappingObserver"}
DERIVED = re.compile(r"\b(?:class|struct) (\w+)(?: final)? : ([^{;]+)\{")
BASE = re.compile(r"\b(?:vpmm::)?(\w+)::(\w+)")

IF = re.compile(r"\bif (?:constexpr )?\(")
ASKING = re.compile(r"(?://+|/\*+)\s*(what|whose|who|whether)(?:ever)?\b", re.IGNORECASE)
CHANGES = re.compile(r"\+\+|--|\bstd::exchange\b|\bfetch_(?:add|sub)\b")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
CUDA_CALL = re.compile(r"\bcu[A-Z]\w*\s*\(")
SOURCE_FIRST_LINE = re.compile(r"// (?P<room>[\w/]+): \S")
PACKAGED = ("src/", "include/", "cli/", "python/")
SPDX = re.compile(r"(?://|/\*|#) SPDX-License-Identifier: Apache-2\.0(?: \*/)?$")
OTHER_FIRST_LINE = re.compile(r"(?://|/\*) [\w/.+ -]+: \S")
NON_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


@dataclass
class Layers:
    """What src/layers.txt says: rooms in order, and what each room (or file pattern) may include."""

    rooms: dict[str, set[str]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)

    def room_of(self, path: str) -> str | None:
        """The innermost room that holds `path` (relative to src, or beginning with `cli/` or `vpmm/`)."""
        folder = path.rpartition("/")[0]
        while folder:
            if folder in self.rooms or folder == PUBLIC:
                return folder
            folder = folder.rpartition("/")[0]
        return None

    def may_include(self, path: str, included: str) -> bool:
        room, target = self.room_of(path), self.room_of(included)
        if room is None or target is None:
            return False
        allowed = set(self.rooms.get(room, set()))
        for pattern, more in self.files.items():
            if fnmatch.fnmatch(path, pattern):
                allowed |= more
        return target == room or target in allowed or included in allowed


def parse_layers(text: str) -> tuple[Layers, list[str]]:
    """Reads layers.txt; a room may only name rooms of lines above it."""
    layers, problems = Layers(), []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, colon, rest = line.partition(":")
        if not colon:
            problems.append(f"src/layers.txt:{number}: expected `room: rooms it may include`")
            continue
        uses = set(rest.split())
        for used in sorted(uses):
            if used not in layers.rooms and used != PUBLIC and layers.room_of(used) is None:
                problems.append(f"src/layers.txt:{number}: {name} names {used}, which is not a room above it")
        is_file = "." in name or "*" in name
        (layers.files if is_file else layers.rooms)[name] = uses
    return layers, problems


def code_of(text: str) -> str:
    """The text with comments and literals blanked; line breaks stay, so that line numbers hold."""
    return NON_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def layer_path(path: str) -> str | None:
    """How layers.txt would call this file; None for files that no layer binds, tests among them."""
    if path.startswith("src/"):
        return path.removeprefix("src/")
    if path.startswith("include/"):
        return path.removeprefix("include/")
    return path if path.startswith("cli/") else None


def check_includes(layers: Layers, path: str, text: str) -> Iterator[str]:
    name = layer_path(path)
    if name is None:
        return
    if layers.room_of(name) is None:
        yield f"{path}:1: this folder is not a room of src/layers.txt"
        return
    for match in INCLUDE.finditer(text):
        quote, included = match.groups()
        where = f"{path}:{line_of(text, match.start(1))}"
        if quote == "<" and not included.startswith(PUBLIC + "/"):
            if path not in FOR_CUDA_PROGRAMS and re.match(r"(?:cuda|driver_types|nvml)\b|cuda_|cuda\.h", included):
                yield f"{where}: <{included}>: the project builds without a CUDA toolkit"
            continue
        if "/" not in included:
            yield f'{where}: "{included}": name the room, as in "base/{included}"'
        elif not layers.may_include(name, included):
            room = layers.room_of(name)
            yield f"{where}: {room} may not include {included} (src/layers.txt)"


def is_licensed(path: str) -> bool:
    """Code and build files say their licence; data, corpora, fixtures and generated stubs do not."""
    if path.startswith(DATA):
        return False
    return path == "dev" or path.removesuffix(".in").endswith((*SOURCE_SUFFIXES, *BUILD_SUFFIXES))


def check_licence(path: str, text: str) -> Iterator[str]:
    """The licence is in the first line, or behind the line that names an interpreter."""
    lines = text.splitlines() or [""]
    number = 2 if lines[0].startswith("#!") else 1
    if is_licensed(path) and (len(lines) < number or SPDX.match(lines[number - 1]) is None):
        yield f"{path}:{number}: this line should be a comment `SPDX-License-Identifier: Apache-2.0`"


def check_first_line(layers: Layers, path: str, text: str) -> Iterator[str]:
    lines = text.split("\n", 2)
    first = lines[1] if SPDX.match(lines[0]) and len(lines) > 1 else lines[0]
    if path.startswith("src/"):
        room = layers.room_of(path.removeprefix("src/"))
        match = SOURCE_FIRST_LINE.match(first)
        if match is None or match["room"] != room:
            yield f"{path}:1: the first line should be `// {room}: what this file is for`"
    elif OTHER_FIRST_LINE.match(first) is None:
        yield f"{path}:1: the first line should be a comment `// where: what this file is for`"


def check_calls(path: str, text: str) -> Iterator[str]:
    if not path.startswith(("src/", "include/", "cli/")):
        return
    code = code_of(text)
    if path != ENVIRONMENT_READER:
        for match in GETENV.finditer(code):
            yield f"{path}:{line_of(code, match.start())}: only {ENVIRONMENT_READER} reads the environment"
    if not path.startswith(f"src/{DRIVER_ROOM}/"):
        for match in CUDA_CALL.finditer(code):
            name = match.group().rstrip("( \t")
            yield f"{path}:{line_of(code, match.start())}: {name}: only src/{DRIVER_ROOM} names CUDA's functions"


def check_bases(layers: Layers, path: str, text: str) -> Iterator[str]:
    """A class whose base is in another room is called from there, without an include that shows it."""
    if not path.startswith("src/"):
        return
    room, code = str(Path(path).parent.relative_to("src")), code_of(text)
    for match in DERIVED.finditer(code):
        for namespace, name in BASE.findall(match.group(2)):
            base = f"{namespace}::{name}"
            if namespace in layers.rooms and namespace != room and base not in OBSERVERS:
                line = line_of(code, match.start())
                yield f"{path}:{line}: {match.group(1)} lets room {namespace} call up through {base}; return a value"


def condition_at(code: str, begin: int) -> str:
    """The condition whose first character is at `begin`, without a statement before it."""
    depth, end = 1, begin
    while depth > 0 and end < len(code):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    return code[begin : end - 1].rpartition(";")[2]


def check_conditions(path: str, text: str) -> Iterator[str]:
    """State changes in a statement of its own (STYLE.md)."""
    if not path.startswith(("src/", "include/", "cli/")):
        return
    code = code_of(text)
    for match in IF.finditer(code):
        if change := CHANGES.search(condition_at(code, match.end())):
            where = f"{path}:{line_of(code, match.start())}"
            yield f"{where}: `{change.group()}` in a condition: use a statement of its own"


def check_comments(path: str, text: str) -> Iterator[str]:
    """A comment begins with a verb or a noun of the field (STYLE.md)."""
    if not path.startswith(PACKAGED):
        return
    before = (0, 0)  # line and column of the last comment
    for match in NON_CODE.finditer(text):
        if not match.group().startswith(("//", "/*")):
            continue
        place = (line_of(text, match.start()), match.start() - text.rfind("\n", 0, match.start()))
        is_continued = match.group().startswith("//") and place == (before[0] + 1, before[1])
        if not is_continued and (found := ASKING.match(match.group())):
            yield f"{path}:{place[0]}: a comment begins with `{found.group(1)}`: name the thing, or say what is done"
        before = place


def check_size(path: str, text: str) -> Iterator[str]:
    lines = text.splitlines()
    is_wide = Path(path).suffix not in FORMATTED or path.startswith(DOCSTRINGS)
    columns = MAX_COLUMNS if is_wide else MAX_CPP_COLUMNS
    if len(lines) > MAX_LINES:
        yield f"{path}:{len(lines)}: {len(lines)} lines, more than {MAX_LINES}: is there a second room in it?"
    for number, line in enumerate(lines, start=1):
        if len(line) > columns:
            yield f"{path}:{number}: {len(line)} columns, more than {columns}"
        if LEFTOVERS.search(line):
            yield f"{path}:{number}: finish it or file it; the tree carries no notes to self"


def check_file(layers: Layers, path: str, text: str) -> Iterator[str]:
    """All findings of one file; `path` is relative to the root of the tree."""
    if Path(path).suffix in CPP_SUFFIXES:
        yield from check_includes(layers, path, text)
        yield from check_first_line(layers, path, text)
        yield from check_calls(path, text)
        yield from check_bases(layers, path, text)
        yield from check_conditions(path, text)
        yield from check_comments(path, text)
    yield from check_size(path, text)


def tree_files(root: Path) -> list[str]:
    """Files git knows or would add; without git, everything outside build folders."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
        names = [name for name in names if not name.startswith(("build/", "."))]
    return sorted(name for name in names if (root / name).is_file())


def check_tree(root: Path) -> list[str]:
    layers, problems = parse_layers((root / "src/layers.txt").read_text())
    for path in tree_files(root):
        is_source = Path(path).suffix in SOURCE_SUFFIXES
        text = (root / path).read_text() if is_source or is_licensed(path) else ""
        problems.extend(check_licence(path, text))
        if is_source:
            problems.extend(check_file(layers, path, text))
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parent.parent)
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(problems)} findings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
