# SPDX-License-Identifier: Apache-2.0
"""tests: the site of ./dev docs lists every page, and its C and C++ reference has every function of the headers."""

from __future__ import annotations

import re
import shutil
import sys
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/site"))
import headers  # noqa: E402  after its folder is known

PAGE = re.compile(r"[\w./-]+\.(?:md|ipynb)(?=\n)")
FUNCTION = re.compile(r"^VPMM_API [^;(]*?\b(vpmm_\w+)\(", re.MULTILINE)


def listed() -> list[str]:
    _, _, nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    return PAGE.findall(nav)


class SiteNavigation(unittest.TestCase):
    def test_every_page_of_the_documents_is_listed_once_and_no_other(self) -> None:
        pages = [path for pattern in ("**/*.md", "**/*.ipynb") for path in (ROOT / "docs").glob(pattern)]
        mine = [page for page in listed() if page.startswith("docs/") and not page.startswith(headers.FOLDER)]
        self.assertEqual(Counter(mine), Counter(str(page.relative_to(ROOT)) for page in pages))

    def test_every_page_from_elsewhere_exists(self) -> None:
        for page in listed():
            if not page.startswith("docs/"):
                with self.subTest(page=page):
                    self.assertTrue((ROOT / page).is_file())

    def test_every_page_of_results_is_listed(self) -> None:
        pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("bench/results/*.md")}
        self.assertEqual(pages - set(listed()), set())

    def test_every_generated_page_of_the_headers_is_listed(self) -> None:
        generated = {f"{headers.FOLDER}/{name}.md" for name, _, _ in headers.PAGES}
        self.assertEqual(generated - set(listed()), set())

    def test_every_header_has_its_place_on_a_page(self) -> None:
        there = {path.relative_to(ROOT / "include/vpmm").as_posix() for path in ROOT.glob("include/vpmm/**/*.h*")}
        placed = [header for _, _, found in headers.PAGES for header in found]
        self.assertEqual(Counter(placed), Counter(there - {"emm.hpp"}))  # which only includes others


@unittest.skipUnless(shutil.which("doxygen"), "doxygen is not installed; ./dev docs installs it")
class SiteReference(unittest.TestCase):
    def test_every_c_function_has_an_entry_with_its_declaration(self) -> None:
        pages = headers.pages()
        for page, header in (("vpmm_h", "vpmm.h"), ("emm_h", "emm.h")):
            text, names = (
                pages[f"{headers.FOLDER}/{page}.md"],
                FUNCTION.findall((ROOT / "include/vpmm" / header).read_text()),
            )
            self.assertGreater(len(names), 0)
            for name in names:
                with self.subTest(name=name):
                    self.assertRegex(text, rf'\{{#{name}\}}|<a id="{name}">')
                    self.assertRegex(text, rf"\w[ *]+{name}\([^)]")

    def test_an_entry_has_the_comment_of_its_function(self) -> None:
        text = headers.pages()[f"{headers.FOLDER}/vpmm_hpp.md"]
        _, _, entry = text.partition("\n#### `allocate_many`")
        self.assertIn("std::vector<void*> allocate_many(", entry.partition("####")[0])
        self.assertIn("One pointer for each size; all succeed or none.", entry.partition("####")[0])


if __name__ == "__main__":
    unittest.main()
