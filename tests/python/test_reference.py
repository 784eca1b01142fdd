# SPDX-License-Identifier: Apache-2.0
"""tests: Python in the documents runs, and the reference names every public function and method."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

import vpmm

from program import output_of

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs/reference/python.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Blocks that show the package beside a library run where that library is tested.
ALONE = re.compile(r"^(?:import|from) (?!vpmm\b|io\b)", re.MULTILINE)


class Reference(unittest.TestCase):
    def test_blocks_of_the_documents_run(self) -> None:
        pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        blocks = [(page, block) for page in pages for block in BLOCK.findall(page.read_text())]
        blocks = [(page, block) for page, block in blocks if not ALONE.search(block)]
        self.assertGreaterEqual(len(blocks), 3)
        for page, block in blocks:
            with self.subTest(page=page.name, block=block):
                output_of(block)

    def test_every_public_function_is_described(self) -> None:
        for name in set(vpmm.__all__) - {"MemoryInfo", "Recording", "__version__"}:
            self.assertIn(f"`vpmm.{name}", REFERENCE)

    def test_every_method_of_a_pool_is_described(self) -> None:
        for name in dir(vpmm.Pool):
            if not name.startswith("_"):
                self.assertRegex(REFERENCE, rf"`(?:vpmm\.Pool\.)?{name}[(`]")


if __name__ == "__main__":
    unittest.main()
