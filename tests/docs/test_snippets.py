# SPDX-License-Identifier: Apache-2.0
"""tests: C++ in the documents compiles.

Checked is every fenced `cpp` block that includes a header of the project. A block without a main function is taken as
the body of one that has a `stream`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["*.md", "docs/**/*.md", "examples/**/*.md"]
sys.path.insert(0, str(ROOT / "tests/cuda_mr"))
import cccl  # noqa: E402  after its folder is known

CUDA = os.environ.get("VPMM_CUDA_INCLUDE") or "/usr/local/cuda/include"
FOR_CUDA = "vpmm/cuda_mr.hpp"
BLOCK = re.compile(r"^```(cpp|c\+\+|c)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snippets() -> list[tuple[str, str, str]]:
    """Place, language and text of each block to check."""
    found = []
    for page in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if re.search(r"#include [<\"]vpmm/", match.group(2)):
                line = text.count("\n", 0, match.start()) + 1
                language = "c" if match.group(1) == "c" else "c++"
                found.append((f"{page.relative_to(ROOT)}:{line}", language, match.group(2)))
    return found


def program(language: str, snippet: str) -> str:
    if re.search(r"\bmain\s*\(", snippet):
        return snippet
    lines = snippet.splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    # In C++ as CUDA declares a stream.
    stream = "vpmm_stream stream" if language == "c" else "struct CUstream_st* stream"
    return "\n".join([*includes, f"void snippet({stream});", f"void snippet({stream}) {{", *body, "}", ""])


def compile_errors(language: str, text: str) -> str:
    compiler, standard = ("CC", "c11") if language == "c" else ("CXX", "c++20")
    theirs = ["-isystem", str(cccl.headers(cccl.NEWEST)), "-isystem", CUDA] if FOR_CUDA in text else []
    command = [os.environ.get(compiler, "cc" if language == "c" else "c++"), "-x", language, f"-std={standard}"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        # -Wno-unused: a block shows how a result is made, not what for.
        command += ["-Wall", "-Wextra", "-Wno-unused", "-fsyntax-only", f"-I{ROOT / 'include'}", *theirs, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr


class Snippets(unittest.TestCase):
    def test_each_block_in_the_documents_compiles(self) -> None:
        found = snippets()
        self.assertGreater(len(found), 0)
        for place, language, text in found:
            if FOR_CUDA in text and not (cccl.headers(cccl.NEWEST).is_dir() and Path(CUDA).is_dir()):
                print(f"{place}: not compiled, for CCCL is not here: tests/cuda_mr/cccl.py fetches it")
                continue
            with self.subTest(place=place):
                self.assertEqual(compile_errors(language, program(language, text)), "")

    def test_a_wrong_block_would_be_seen(self) -> None:
        right = "#include <vpmm/vpmm.hpp>\nvpmm::buffer buffer(vpmm::default_pool(), 1 << 20, stream);\n"
        self.assertEqual(compile_errors("c++", program("c++", right)), "")
        self.assertNotEqual(compile_errors("c++", program("c++", right.replace("buffer(", "buffer(nonsense, "))), "")


if __name__ == "__main__":
    unittest.main()
