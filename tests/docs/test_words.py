# SPDX-License-Identifier: Apache-2.0
"""tests: a word has one meaning: no type has the name of another room's, no row of the glossary has two meanings."""

from __future__ import annotations

import re
import unittest
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPE = re.compile(
    r"^\s*(?:template\s*<[^>]*>\s*)?(?:class|struct|enum class|enum|union)\s+"
    r"(?:(?:\[\[\w+\]\]|alignas\(\w+\)|VPMM_\w+\([^)]*\))\s*)*((?:\w+::)*\w+)\s*(?:final\s*)?(?::[^:;{][^;{]*)?\{",
    re.MULTILINE,
)
ALIAS = re.compile(r"^\s*using (\w+) =\s*([^;]+);", re.MULTILINE)
# A second meaning in a row: a sentence, or a half one, that begins with the place where it holds.
SECOND_MEANING = re.compile(r"[.;] (?:Of|For|In|On) [^.:]*:|\*[A-Z][^*]*\*:")


def types_of(text: str, is_header: bool) -> set[str]:
    """The types that a source defines; aliases only of headers, and only those with another name than their type."""
    code = re.sub(r"//.*", "", text)
    found = {name.split("::")[-1] for name in TYPE.findall(code)}
    if is_header:
        found |= {name for name, of in ALIAS.findall(code) if not re.search(rf"\b{name}(?:<.*>)?$", of.strip())}
    return found


def rooms_of_types(root: Path) -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.?pp")):
        for name in types_of(path.read_text(), path.suffix == ".hpp"):
            rooms[name].add(path.relative_to(root).parts[0])
    return rooms


def rows() -> list[tuple[str, str]]:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return [(word, meaning) for word, meaning in cells if word != "word"]


class Words(unittest.TestCase):
    def test_no_type_has_the_name_of_another_rooms_type(self) -> None:
        rooms = rooms_of_types(ROOT / "src")
        self.assertGreater(len(rooms), 300)
        self.assertEqual({name: sorted(of) for name, of in rooms.items() if len(of) > 1}, {})

    def test_a_type_is_found_however_it_is_written(self) -> None:
        text = "struct A : B {\n  enum class C : int { x };\n};\nclass alignas(kLine) D final {\nclass E;\n"
        text += "class [[nodiscard]] F::G {\ntemplate <typename T>\nstruct H {\n"
        text += "using I = std::vector<int>;\nusing J = of::J;\n"
        self.assertEqual(types_of(text, True), {"A", "C", "D", "G", "H", "I"})
        self.assertEqual(types_of(text, False), {"A", "C", "D", "G", "H"})

    def test_a_row_of_the_glossary_has_one_meaning(self) -> None:
        words = [word for word, _ in rows()]
        self.assertGreater(len(words), 60)
        self.assertEqual(sorted({word for word in words if words.count(word) > 1}), [])
        for word, meaning in rows():
            with self.subTest(word=word):
                self.assertIsNone(SECOND_MEANING.search(meaning), meaning)


if __name__ == "__main__":
    unittest.main()
