# SPDX-License-Identifier: Apache-2.0
"""tests: blocks of code in the pages that users begin with run; those that need PyTorch in tests/torch_vpmm."""

from __future__ import annotations

import re
import unittest

from pages import EXCEPTIONS, INCLUDES, ROOT, Block, PageCase, add_tests, blocks, exception


class Pages(PageCase):
    pass


add_tests(Pages, of_torch=False)


class Walk(unittest.TestCase):
    def test_every_block_runs_or_is_an_exception(self) -> None:
        for block in blocks():
            with self.subTest(place=block.place):
                if block.language in ("c", "cpp"):
                    self.assertTrue(INCLUDES.search(block.text))  # so that tests/docs/test_snippets.py compiles it
                elif block.language in ("cmake", "cuda"):
                    self.assertTrue(block.file or exception(block.text))
                else:
                    self.assertIn(block.language, ("python", "sh", "text"))

    def test_every_exception_is_of_something_and_names_a_test_that_exists(self) -> None:
        begins = [begin for block in blocks() for begin in block.begins()]
        for words, reason in EXCEPTIONS.items():
            with self.subTest(words=words):
                self.assertTrue(any(begin.startswith(words) for begin in begins))
                self.assertTrue(not reason.startswith("tests/") or (ROOT / reason).is_file())

    def test_every_text_that_something_prints_is_compared(self) -> None:
        pages = {block.page: (ROOT / block.page).read_text() for block in blocks()}
        said = sum(len(re.findall(r"prints:\n\n *```", text)) for text in pages.values())
        self.assertGreater(said, 0)
        self.assertEqual(sum(bool(block.prints) for block in blocks()), said)


class Wrong(PageCase):
    """Blocks that must not pass."""

    def fails(self, language: str, text: str, prints: str = "") -> None:
        with self.assertRaises(AssertionError):
            self.run_block(Block("README.md", 1, language, text, "", prints))

    def test_a_name_that_does_not_exist_fails(self) -> None:
        self.fails("python", "import vpmm\nvpmm.Pool(0).allocat(1, 0)\n")

    def test_a_command_that_does_not_exist_fails_and_a_later_one_does_not_hide_it(self) -> None:
        self.fails("sh", "python -m vpmm reprot run.vpmm\ntrue\n")

    def test_another_output_fails(self) -> None:
        self.fails("sh", "echo one\n", "two\n")

    def test_a_missing_gpu_at_another_line_fails(self) -> None:
        self.fails("python", 'raise RuntimeError("CudaSupportError")  # array = cupy.ones(1000)\n')


if __name__ == "__main__":
    unittest.main()
