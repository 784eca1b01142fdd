#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that what the documents name exists: files, ./dev verbs, presets, settings, vpmm verbs and options,
`Type::member`, Note [titles]; and that constants which they cite have the value they say. Links are for ./dev docs.

A document cannot go stale silently: rename a file or a setting, or change a constant, and this fails until the page
follows. A constant is cited as `kSlackOfRoom = 100`, one of a class, or the value that a field begins with, as
`GrowDelay::kWholeShare = 32`, a size also as `kBytesPerEvent = 8 MiB`; what a case of a switch sets, as
`Prefer::balanced: slack_permille = 50`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DOCUMENTS = [
    "*.md",
    ".github/**/*.md",
    ".github/ISSUE_TEMPLATE/*.yml",
    "docs/**/*.md",
    "src/**/*.md",
    "bench/*.md",
    "examples/**/*.md",
    "tests/**/*.md",
]
SETTINGS_PAGE = "docs/reference/settings.md"
CONFIGS = ["src/settings/config.cpp", "src/settings/variables.cpp"]
KNOWN_SUFFIXES = (
    ".md .cpp .hpp .h .c .def .inc .py .txt .json .toml .cmake .map .yml .gz .csv .svg .png .sh .ipynb".split()
)
SOURCES = ["src/**/*.[chd]*", "include/**/*.h*", "cli/*", "bench/**/*.[chp]*", "python/**/*.[chp]*"]
# Roots a path in a document may be relative to, besides the document's own folder.
ROOTS = ["", "src", "include", "python"]

FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
SETTING = re.compile(r"\bVPMM_[A-Z0-9_]*[A-Z0-9]\b")
STRING_SETTING = re.compile(r'"(VPMM_[A-Z0-9_]+)"')
PYTHON_SETTING = re.compile(r'os\.environ(?:\.get\(|\[)"(VPMM_[A-Z0-9_]+)"')
DEV_COMMAND = re.compile(r"\./dev ([a-z][\w-]*)")
PRESET = re.compile(r"--preset[ =]([\w-]+)")
VPMM_COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:\S*/)?vpmm ((?:[a-z-])[^|;&#\n]*)", re.MULTILINE)
LONG_OPTION = re.compile(r"(?<!\S)(--[a-z][\w-]*)")
PATH = re.compile(r"[\w.*+-]+(?:/[\w.*+-]+)*/?")
MEMBER = re.compile(r"(?:[A-Za-z_]\w*::)+~?[A-Za-z_]\w*(?:\(\))?")
FOREIGN = ("std::", "cuda::")
NOTE = re.compile(r"Note \[([^\]]+)\]")
CITATION = re.compile(r"(?:(\w+)::(\w+)|(k[A-Z]\w*)) = (.+)")
CASE_CITATION = re.compile(r"(\w+::\w+): (\w+) = (.+)")
CONSTANT = re.compile(r"^( *)[^/\n]*\bconst(?:expr)?\b[^=;(){}]*\b(k[A-Z]\w*)\s*=\s*([^;]+);", re.MULTILINE)
FIELD = re.compile(r"^  (?!static|const\b|return)[\w:<>, ]+ (\w+) = ([^;{}]+);", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class)\s[^;\n]*?\b(\w+)(?: final)?(?: :[^;\n]*)? \{", re.MULTILINE)
CASE = re.compile(r"case ((?:\w+::)+\w+):(.*?)(?=\bcase\b|\bdefault:|\Z)", re.DOTALL)
ASSIGNMENT = re.compile(r"(\w+) = ([^;{}]+);")


@dataclass
class Known:
    """What exists, read from the sources; None where the source is not written yet, and nothing is checked."""

    root: Path
    dev_verbs: set[str] = field(default_factory=set)
    presets: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    settings: set[str] | None = None
    cli_verbs: set[str] | None = None
    cli_options: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    # By name, with the type that it is a member of or "": the values it has. By case, likewise, what it sets.
    constants: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    cases: dict[tuple[str, str], set[str]] = field(default_factory=dict)


def read_all(root: Path, patterns: list[str]) -> str:
    files = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    return "\n".join(path.read_text(errors="replace") for path in files)


def dev_verbs(script: str) -> set[str]:
    """The labels of the `case` over the verb: lines such as `  gpu-test) gpu_test "$@" ;;`."""
    return {
        verb
        for labels in re.findall(r"^  ([a-z][a-z |-]*)\) ", script, re.MULTILINE)
        for verb in labels.replace(" ", "").split("|")
    }


def preset_names(text: str) -> set[str]:
    data = json.loads(text)
    return {preset["name"] for key, presets in data.items() if key.endswith("Presets") for preset in presets}


def value_of(text: str) -> str:
    """A value as the source or a page has it, in one form: 8 * kMiB and 8 MiB, 12'000 and 12,000 are the same."""
    text = re.sub(r"(?<=\d)[',](?=\d)", "", " ".join(text.split()))
    return re.sub(r"\* ?k([KMGT]iB)\b", r"\1", text)


def learn_constants(known: Known, text: str) -> None:
    """From one file. A member is indented, and belongs to the type that was begun last."""
    types = [(match.start(), match.group(1)) for match in TYPE.finditer(text)]

    def add(offset: int, name: str, value: str, is_member: bool) -> None:
        before = [owner for begin, owner in types if begin < offset]
        owner = before[-1] if is_member and before else ""
        known.constants.setdefault(name, set()).add((owner, value_of(value)))

    for match in CONSTANT.finditer(text):
        add(match.start(), match.group(2), match.group(3), match.group(1) != "")
    for match in FIELD.finditer(text):
        add(match.start(), match.group(1), match.group(2), is_member=True)
    for case in CASE.finditer(text):
        label = "::".join(case.group(1).split("::")[-2:])
        for name, value in ASSIGNMENT.findall(case.group(2)):
            known.cases.setdefault((label, name), set()).add(value_of(value))


def learn(root: Path) -> Known:
    known = Known(root)
    for file in sorted([*root.glob("src/**/*.[chd]*"), *root.glob("include/**/*.h*")]):
        if file.is_file():
            learn_constants(known, file.read_text(errors="replace"))
    sources = read_all(root, SOURCES)
    known.words = set(re.findall(r"[A-Za-z_]\w*", sources))
    unwrapped = re.sub(r"\s*\n\s*(?://|#|\*)?\s*", " ", sources)
    known.notes = {" ".join(title.split()) for title in NOTE.findall(unwrapped)}
    known.dev_verbs = dev_verbs(read_all(root, ["dev"]))
    presets = read_all(root, ["CMakePresets.json"])
    known.presets = preset_names(presets) if presets else set()
    code = ["src/**/*.[chd]*", "include/**/*", "cli/*", "bench/**/*.[chp]*", "tests/**/*.[chp]*", "python/**/*.py"]
    build = ["dev", "CMakeLists.txt", "*/CMakeLists.txt", "cmake/*", "tools/*.py"]
    known.names = set(SETTING.findall(read_all(root, code + build)))
    if any((root / config).exists() for config in CONFIGS):
        known.settings = set(STRING_SETTING.findall(read_all(root, CONFIGS)))
        known.settings |= set(PYTHON_SETTING.findall(read_all(root, ["python/**/*.py"])))
    cli = read_all(root, ["cli/*.cpp", "cli/*.hpp", "python/vpmm/commands/*.py"])
    if cli:
        known.cli_verbs = set(re.findall(r'add_(?:subcommand|parser)\(\s*"([\w-]+)"', cli)) | {"help"}
        known.cli_options = set(re.findall(r"--[a-z][\w-]*", cli)) | {"--help", "--version"}
    return known


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def code_parts(text: str) -> Iterator[tuple[int, str, bool]]:
    """Every piece of code in a page: its offset, its text, and whether it is a span rather than a block."""
    for match in FENCE.finditer(text):
        yield match.start(2), match.group(2), False
    prose = FENCE.sub(blank, text)
    for match in CODE_SPAN.finditer(prose):
        yield match.start(2), match.group(2), True


def is_path(known: Known, text: str) -> bool:
    """Whether a code span claims to be a file or folder of this tree."""
    if not PATH.fullmatch(text) or text.startswith(("/", "-", "..")):
        return False
    first = text.split("/")[0]
    if first == "build" or re.fullmatch(r"[\d./*+-]+", text):
        return False
    if "/" not in text:
        return text.endswith(tuple(KNOWN_SUFFIXES)) and not text.startswith(("*", "."))
    # `gnn/gpt_train` is no path: one begins with a folder we have, or ends like a file of ours.
    begins = any((known.root / folder / first).is_dir() for folder in ROOTS)
    return begins or text.endswith(tuple(KNOWN_SUFFIXES))


def path_exists(known: Known, page: Path, text: str) -> bool:
    text = text.rstrip("/")
    folders = [page.parent, *(known.root / folder for folder in ROOTS)]
    if any(next(folder.glob(text), None) is not None for folder in folders):
        return True
    # A bare file name may stand anywhere in the tree, as `planner.cpp` in a text about its room.
    return "/" not in text and any(
        next((known.root / folder).rglob(text), None) is not None
        for folder in ("src", "include", "cli", "bench", "tests", "tools", "docs", "cmake", "examples", "python")
    )


def command_problems(known: Known, command: str) -> Iterator[str]:
    """`command` is what follows the program's name: `replay trace.csv --json`."""
    verb = command.split()[0]
    if known.cli_verbs is None:
        return
    if not verb.startswith("-") and verb not in known.cli_verbs:
        yield f"vpmm {verb}: no such verb"
    for option in LONG_OPTION.findall(command):
        if option not in known.cli_options:
            yield f"vpmm {verb} {option}: no such option"


def citation_problem(known: Known, code: str) -> str | None:
    """Of a span that cites the value of a constant, or what a case sets."""
    if match := CASE_CITATION.fullmatch(" ".join(code.split())):
        found = known.cases.get((match.group(1), match.group(2)), set())
        scope, name, cited = f"{match.group(1)}: ", match.group(2), match.group(3)
    elif match := CITATION.fullmatch(" ".join(code.split())):
        owner, name, cited = match.group(1), match.group(2) or match.group(3), match.group(4)
        scope = f"{owner}::" if owner else ""
        found = {value for of, value in known.constants.get(name, set()) if owner is None or of == owner}
    else:
        return None
    if not found:
        return f"`{scope}{name}`: no such constant"
    if len(found) > 1:
        return f"`{scope}{name}`: several of that name; name the type that it is a member of"
    value = next(iter(found))
    return None if value == value_of(cited) else f"`{scope}{name}` is {value}, not {cited}"


def member_problem(known: Known, code: str) -> str | None:
    if not MEMBER.fullmatch(code) or code.startswith(FOREIGN):
        return None
    missing = [word for word in re.findall(r"\w+", code) if word not in known.words]
    return f"`{code}`: nothing in the sources is called {missing[0]}" if missing else None


def code_problems(known: Known, page: Path, code: str, is_span: bool) -> Iterator[str]:
    if is_span and is_path(known, code) and not path_exists(known, page, code):
        yield f"`{code}`: no such file or folder"
    if is_span:
        yield from filter(None, (citation_problem(known, code), member_problem(known, code)))
    for verb in DEV_COMMAND.findall(code):
        if verb not in known.dev_verbs:
            yield f"./dev {verb}: no such verb"
    for preset in PRESET.findall(code):
        if preset not in known.presets:
            yield f"--preset {preset}: no such preset"
    for match in VPMM_COMMAND.finditer(code.replace("\\\n", " ")):
        yield from command_problems(known, match.group(1))


def setting_problems(known: Known, page: Path, text: str) -> Iterator[tuple[int, str]]:
    is_settings_page = page == known.root / SETTINGS_PAGE
    for match in SETTING.finditer(text):
        name = match.group()
        if text[match.end() : match.end() + 2] == "_*":
            continue
        if name not in known.names and known.settings is not None:
            yield match.start(), f"{name}: nothing in the sources has this name"
        elif is_settings_page and known.settings is not None and name not in known.settings:
            yield match.start(), f"{name}: not a setting of {' or '.join(CONFIGS)} or of the Python package"


def check_page(known: Known, page: Path) -> Iterator[str]:
    text = page.read_text()
    found: list[tuple[int, str]] = []
    for offset, code, is_span in code_parts(text):
        found.extend((offset, problem) for problem in code_problems(known, page, code, is_span))
    prose = CODE_SPAN.sub(blank, FENCE.sub(blank, text))
    for match in NOTE.finditer(prose):
        if " ".join(match.group(1).split()) not in known.notes:
            found.append((match.start(), f"{' '.join(match.group().split())}: no such note in the sources"))
    found.extend(setting_problems(known, page, text))
    for offset, problem in sorted(found):
        line = text.count("\n", 0, offset) + 1
        yield f"{page.relative_to(known.root)}:{line}: {problem}"


def undocumented_settings(known: Known) -> Iterator[str]:
    page = known.root / SETTINGS_PAGE
    if known.settings is None or not page.exists():
        return
    documented = set(SETTING.findall(page.read_text()))
    for name in sorted(known.settings - documented):
        yield f"{SETTINGS_PAGE}:1: {name} is not described"


def check_tree(root: Path) -> list[str]:
    known = learn(root)
    pages = sorted({page for pattern in DOCUMENTS for page in root.glob(pattern) if page.is_file()})
    problems = [problem for page in pages for problem in check_page(known, page)]
    return problems + list(undocumented_settings(known))


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parent.parent)
    for problem in problems:
        print(problem)
    print(f"check_docs: {len(problems)} findings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
