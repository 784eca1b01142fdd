"""tests: docs/reference/cpp.md says that pool_ref has every operation on a pool; this holds the headers to it."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"
CPP = [INCLUDE / "vpmm" / name for name in ("vpmm.hpp", "recording.hpp")]
# allocate() is vpmm_allocate_aligned() without an alignment; arenas are for C alone.
LEFT_OUT = {"vpmm_allocate", "vpmm_arena_create"}


def called(text: str) -> set[str]:
    return set(re.findall(r"\bvpmm_\w+", text))


class CppHeaders(unittest.TestCase):
    def test_every_c_function_that_takes_a_pool_has_a_method(self) -> None:
        functions = set(re.findall(r"\b(vpmm_\w+)\(vpmm_pool\* pool\b", (INCLUDE / "vpmm/vpmm.h").read_text()))
        self.assertGreater(len(functions), 30)
        self.assertEqual(functions - set().union(*(called(path.read_text()) for path in CPP)), LEFT_OUT)

    def test_an_older_standard_is_refused_in_one_sentence(self) -> None:
        for header in ("vpmm.hpp", "result.hpp", "recording.hpp"):
            command = [os.environ.get("CXX", "c++"), "-std=c++14", "-fsyntax-only", f"-I{INCLUDE}", "-x", "c++", "-"]
            done = subprocess.run(
                command, input=f"#include <vpmm/{header}>\n", capture_output=True, text=True, check=False
            )
            first = next(line for line in done.stderr.splitlines() if "error" in line)
            self.assertIn("the C++ headers of vpmm need C++17", first)


if __name__ == "__main__":
    unittest.main()
