# SPDX-License-Identifier: Apache-2.0
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
    "src/pool/planner.cpp": "// pool: plans.\n\n// Note [Plans are\n// data]\nPlan Planner::plan() {}\n",
    "src/pool/limits.hpp": """// pool: limits.
constexpr Bytes kSlackOfRoom = 100;  // a share
constexpr Bytes kPerLook = 8 * kMiB;
struct Delay {
  static constexpr std::uint64_t kLongestNs = 12'000'000;  // and for more
  static constexpr Bytes kShare = 32;
};
struct Rule final : Base {
  static constexpr Bytes kShare = 16;
  Bytes largest = 256 * kMiB;  // of all
};
""",
    "src/pool/tuning.cpp": """// pool: settings as figures.
  switch (prefer) {
    case Prefer::small:
      tuning.slack = 5;
      break;
    case Prefer::fast:
      tuning.slack = 200;
      tuning.delays = true;
      break;
  }
""",
    "src/settings/config.cpp": '// settings: settings.\nconst char* a = "VPMM_LOG";\nconst char* b = "VPMM_PAGES";\n',
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
            "`src/pool/`, `pool/planner.cpp`, `planner.cpp`, `vpmm/vpmm.h`,\n"
            "`src/*/planner.cpp`, `VPMM_LOG`, `build/dev/bin/vpmm`, `live/pending`, `/proc/self/maps`, `VPMM_*`.\n\n"
            "```sh\n./dev demo\n./dev check\ncmake --preset dev\nvpmm replay trace.csv --lag-us 5 --json\n```\n"
        )
        self.assertEqual(self.findings(text), [])

    def test_each_planted_fault_is_found_on_its_line(self) -> None:
        faults = {
            "`src/pool/gone.cpp`": "no such file or folder",
            "`gone.hpp`": "no such file or folder",
            "`./dev fly`": "./dev fly: no such verb",
            "`cmake --preset gone`": "--preset gone: no such preset",
            "`VPMM_GONE`": "VPMM_GONE: nothing in the sources",
            "`vpmm fly`": "vpmm fly: no such verb",
            "`vpmm replay x.csv --gone`": "vpmm replay --gone: no such option",
            "`Planner::gone`": "nothing in the sources is called gone",
            "`Gone::plan()`": "nothing in the sources is called Gone",
            "Note [Plans are gone]": "Note [Plans are gone]: no such note",
            "`kSlackOfRoom = 50`": "`kSlackOfRoom` is 100, not 50",
            "`kPerLook = 4 MiB`": "`kPerLook` is 8 MiB, not 4 MiB",
            "`Delay::kShare = 16`": "`Delay::kShare` is 32, not 16",
            "`kGone = 1`": "`kGone`: no such constant",
            "`Gone::kShare = 32`": "`Gone::kShare`: no such constant",
            "`kShare = 32`": "`kShare`: several of that name",
            "`Rule::largest = 1 GiB`": "`Rule::largest` is 256 MiB, not 1 GiB",
            "`Prefer::small: slack = 200`": "`Prefer::small: slack` is 5, not 200",
            "`Prefer::small: delays = true`": "`Prefer::small: delays`: no such constant",
        }
        for text, problem in faults.items():
            with self.subTest(text=text):
                found = self.findings(f"# Page\n\nFirst line, then {text}.\n")
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith("docs/page.md:3: "), found)
                self.assertIn(problem, found[0])

    def test_names_and_constants_that_are_cited_as_they_are_are_accepted(self) -> None:
        text = (
            "`Planner::plan` and `Planner::plan()`, Note [Plans\nare data], `std::gone`, `kSlackOfRoom = 100`,\n"
            "`kPerLook = 8 MiB`, `kPerLook = 8 * kMiB`, `Delay::kLongestNs = 12'000'000`, `kLongestNs = 12,000,000`,\n"
            "`Delay::kShare = 32`, `Rule::kShare = 16`, `Prefer::small: slack = 5`, `Prefer::fast: delays = true`,\n"
            "`Rule::largest = 256 MiB`, and once more `Prefer::small: slack = 5`, "
            "`share = 3` and `a: b = 3`, which are nobody's.\n"
        )
        self.assertEqual(self.findings(text), [])

    def test_a_constant_that_changes_is_found_where_it_is_cited(self) -> None:
        page = "# Page\n\nAt most a hundredth (`kSlackOfRoom = 100`).\n"
        self.assertEqual(self.findings(page), [])
        self.write("src/pool/limits.hpp", "// pool: limits.\nconstexpr Bytes kSlackOfRoom = 50;\n")
        self.assertEqual(self.findings(page), ["docs/page.md:3: `kSlackOfRoom` is 50, not 100"])

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

    def test_settings_of_the_python_package_are_settings(self) -> None:
        self.write("python/vpmm/folder.py", 'here = os.environ.get("VPMM_HERE")\nthere = os.environ["VPMM_THERE"]\n')
        found = self.findings("`VPMM_LOG` `VPMM_PAGES` `VPMM_HERE`\n", page="docs/reference/settings.md")
        self.assertEqual(len(found), 1, found)
        self.assertIn("VPMM_THERE is not described", found[0])

    def test_a_word_in_prose_is_no_command(self) -> None:
        self.assertEqual(self.findings("With `vpmm` one can, and vpmm fly is prose.\n"), [])


class Tree(unittest.TestCase):
    def test_the_documents_name_only_what_exists(self) -> None:
        problems = check_docs.check_tree(ROOT)
        if problems:
            self.fail("\n".join(problems))


if __name__ == "__main__":
    unittest.main()
