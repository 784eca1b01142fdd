"""tests: check_docs finds each kind of planted fault in a small tree, and nothing in the tree itself."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402 - needs the path above

CLI = 'app.add_subcommand("replay", "x"); replay->add_option("--lag-us", n); replay->add_flag("--json", j);\n'
TREE = {
    "dev": 'case "${1:-help}" in\n  demo) demo ;;\n  test | check) run ;;\nesac\n',
    "CMakePresets.json": '{"version": 6, "configurePresets": [{"name": "dev"}]}',
    "src/pool/planner.cpp": "// pool: plans.\n",
    "src/context/config.cpp": '// context: settings.\nconst char* a = "VPMM_LOG";\nconst char* b = "VPMM_PAGES";\n',
    "include/vpmm/vpmm.h": "/* vpmm: C. */\n#define VPMM_VPMM_H\n",
    "cli/main.cpp": "// cli: verbs.\n" + CLI,
    "docs/reference/settings.md": "# Settings\n\n`VPMM_LOG` and `VPMM_PAGES`.\n",
}


class CheckDocs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in TREE.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def findings(self, text: str, page: str = "docs/page.md") -> list[str]:
        self.write(page, text)
        return check_docs.check_tree(self.root)

    def test_what_exists_is_accepted(self) -> None:
        text = (
            "See [settings](reference/settings.md#settings), [below](#here-and-there), "
            "[CMake](https://cmake.org/x).\n\n"
            "## Here, and there\n\n`src/pool/`, `pool/planner.cpp`, `planner.cpp`, `vpmm/vpmm.h`,\n"
            "`src/*/planner.cpp`, `VPMM_LOG`, `build/dev/bin/vpmm`, `live/pending`, `/proc/self/maps`, `VPMM_*`.\n\n"
            "```sh\n./dev demo\n./dev check\ncmake --preset dev\nvpmm replay trace.csv --lag-us 5 --json\n```\n"
        )
        self.assertEqual(self.findings(text), [])

    def test_each_planted_fault_is_found_on_its_line(self) -> None:
        faults = {
            "[x](gone.md)": "gone.md: no such file",
            "[x](reference/settings.md#gone)": "no such heading",
            "`src/pool/gone.cpp`": "no such file or folder",
            "`gone.hpp`": "no such file or folder",
            "`./dev fly`": "./dev fly: no such verb",
            "`cmake --preset gone`": "--preset gone: no such preset",
            "`VPMM_GONE`": "VPMM_GONE: nothing in the sources",
            "`vpmm fly`": "vpmm fly: no such verb",
            "`vpmm replay x.csv --gone`": "vpmm replay --gone: no such option",
        }
        for text, problem in faults.items():
            with self.subTest(text=text):
                found = self.findings(f"# Page\n\nFirst line, then {text}.\n")
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith("docs/page.md:3: "), found)
                self.assertIn(problem, found[0])

    def test_commands_in_blocks_are_checked_across_continued_lines(self) -> None:
        found = self.findings("```sh\n$ VPMM_LOG=info ./build/bin/vpmm replay a.csv \\\n  --gone\n```\n")
        self.assertEqual(len(found), 1, found)

    def test_a_setting_without_its_description_is_found(self) -> None:
        self.write("docs/reference/settings.md", "# Settings\n\n`VPMM_LOG`.\n")
        self.assertIn("VPMM_PAGES", self.findings("# Page\n")[0])

    def test_the_settings_page_names_settings_only(self) -> None:
        found = self.findings("`VPMM_LOG` `VPMM_PAGES`\n\n`VPMM_VPMM_H`\n", page="docs/reference/settings.md")
        self.assertEqual(len(found), 1, found)
        self.assertIn("not a setting", found[0])

    def test_a_word_in_prose_is_no_command(self) -> None:
        self.assertEqual(self.findings("With `vpmm` one can, and vpmm fly is prose.\n"), [])


class Tree(unittest.TestCase):
    def test_the_documents_name_only_what_exists(self) -> None:
        problems = check_docs.check_tree(ROOT)
        if problems:
            self.fail("\n".join(problems))


if __name__ == "__main__":
    unittest.main()
