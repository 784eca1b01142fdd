# SPDX-License-Identifier: Apache-2.0
"""tests: docs/reference/cpp.md says that pool_ref has every operation on a pool; this holds the headers to it."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"
CPP = [
    INCLUDE / "vpmm" / name
    for name in ("pool.hpp", "arena.hpp", "guards.hpp", "buffer.hpp", "ipc_handle.hpp", "recording.hpp")
]
LEFT_OUT = {"vpmm_allocate"}  # allocate() is vpmm_allocate_aligned() without an alignment


def called(text: str) -> set[str]:
    return set(re.findall(r"\bvpmm_\w+", text))


class CppHeaders(unittest.TestCase):
    def test_every_c_function_that_takes_a_pool_or_an_arena_has_a_method(self) -> None:
        headers = "".join((INCLUDE / "vpmm" / name).read_text() for name in ("vpmm.h", "tags.h"))
        functions = set(re.findall(r"\b(vpmm_\w+)\(vpmm_(?:pool\* pool|arena\* arena)\b", headers))
        self.assertGreater(len(functions), 30)
        self.assertEqual(functions - set().union(*(called(path.read_text()) for path in CPP)), LEFT_OUT)

    def test_what_they_cannot_do_without_is_named_in_one_sentence_and_nothing_follows(self) -> None:
        for options, words in (
            (["-std=c++14"], "the C++ headers of vpmm need C++17"),
            (["-std=c++17", "-fno-exceptions"], "the C++ headers of vpmm need exceptions"),
        ):
            for header in ("vpmm.hpp", "result.hpp", "recording.hpp", "emm.hpp"):
                with self.subTest(header=header, options=options):
                    errors = self.errors_of(header, *options)
                    self.assertIn(words, errors[0])
                    self.assertEqual([line for line in errors[1:] if "fatal error" not in line], [])

    @staticmethod
    def errors_of(header: str, *options: str) -> list[str]:
        command = [os.environ.get("CXX", "c++"), *options, "-fsyntax-only", f"-I{INCLUDE}", "-x", "c++", "-"]
        done = subprocess.run(command, input=f"#include <vpmm/{header}>\n", capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if "error:" in line]


if __name__ == "__main__":
    unittest.main()
