# SPDX-License-Identifier: Apache-2.0
"""tests: the notebooks of docs/tutorials print on the simulator what they show.

VPMM_GOLDEN=1 writes into them what they print instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from program import run

FOLDER = Path(__file__).resolve().parents[2] / "docs/tutorials"
BUILD = os.environ.get("VPMM_BUILD_FOLDER")
CACHE = str(Path(BUILD, "rmm")) if BUILD else tempfile.mkdtemp(prefix="vpmm-test-rmm-")  # as test_rmm
# Executes the code cells in order, as one module in the notebook's folder; prints as JSON what each of them printed.
RUNNER = """
import contextlib, io, json, os, sys
folder, name = os.path.split(sys.argv[1])
os.chdir(folder)
with open(name) as file:
    cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
printed, names = [], {"__name__": "__main__"}
for index, cell in enumerate(cells):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile("".join(cell["source"]), f"cell {index + 1}", "exec"), names)
    printed.append(text.getvalue())
print(json.dumps(printed))
"""


def outputs(text: str) -> list[dict[str, Any]]:
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []


class Tutorials(unittest.TestCase):
    def prints_what_it_shows(self, name: str, *needs: str) -> None:
        missing = [library for library in needs if not importlib.util.find_spec(library)]
        if missing:
            self.skipTest(f"{missing[0]} not installed")
        path = FOLDER / name
        done = run("-c", RUNNER, str(path), VPMM_CACHE_DIR=CACHE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        notebook = json.loads(path.read_text())
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        printed = [outputs(text) for text in json.loads(done.stdout)]
        if os.environ.get("VPMM_GOLDEN"):
            for cell, output in zip(cells, printed, strict=True):
                cell["outputs"] = output
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        self.assertEqual([cell["outputs"] for cell in cells], printed)

    def test_that_for_pytorch_cupy_and_rapids_prints_what_it_shows(self) -> None:
        run("-m", "vpmm", "build-rmm", VPMM_CACHE_DIR=CACHE)  # which says that it compiles
        self.prints_what_it_shows("arrays.ipynb", "rmm", "cupy")

    def test_that_for_numba_prints_what_it_shows(self) -> None:
        self.prints_what_it_shows("numba.ipynb")

    def test_every_notebook_has_a_test(self) -> None:
        self.assertEqual({path.name for path in FOLDER.glob("*.ipynb")}, {"arrays.ipynb", "numba.ipynb"})


if __name__ == "__main__":
    unittest.main()
