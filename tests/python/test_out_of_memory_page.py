"""tests: docs/guides/debugging-oom.md shows what its example prints."""

from __future__ import annotations

import unittest
from pathlib import Path

from program import run

ROOT = Path(__file__).resolve().parents[2]


class Page(unittest.TestCase):
    def test_it_shows_what_its_example_prints(self) -> None:
        done = run(str(ROOT / "examples/out_of_memory.py"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        page = (ROOT / "docs/guides/debugging-oom.md").read_text()
        block = f"```\n$ VPMM_DRIVER=sim python examples/out_of_memory.py\n{done.stdout}```\n"
        self.assertIn(block, page, f"the page is to have\n{block}")

    def test_its_exceptions_first_line_makes_sense_alone(self) -> None:
        done = run(str(ROOT / "examples/out_of_memory.py"))
        self.assertRegex(
            done.stdout.splitlines()[0],
            r"^out of device memory: asked for 40 MiB; \S+ MiB are missing; live 35 MiB, free 15 MiB, limit 64 MiB$",
        )


if __name__ == "__main__":
    unittest.main()
