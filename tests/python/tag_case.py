# SPDX-License-Identifier: Apache-2.0
"""tests: a tag, and memory in it whose contents can be checked."""

from __future__ import annotations

import contextlib
import ctypes
import unittest
from collections.abc import Iterator
from typing import Any

import vpmm

MIB = 1 << 20
TEXT = b"what a program computed "


class TagCase(unittest.TestCase):
    """A tag of each test's own: tags and the pool are those of the process."""

    def setUp(self) -> None:
        self.pool = vpmm.Pool.default()
        self.name = self.id()
        self.addCleanup(self.end)

    def end(self) -> None:
        vpmm.resume()
        self.pool.synchronize()

    def tag(self, name: str = "", **options: Any) -> vpmm.Tag:  # noqa: ANN401
        return vpmm.tag(name or self.name, **({"suspendable": True} | options))

    def allocate(self, size: int = 3 * MIB) -> int:
        ptr = self.pool.allocate(size, 0)
        self.addCleanup(self.pool.deallocate, ptr, 0)
        return ptr

    def tagged(self, size: int = 3 * MIB, name: str = "", **options: Any) -> int:  # noqa: ANN401
        """Memory of the test's tag, with a text at its beginning and its end."""
        with self.tag(name, **options):
            ptr = self.allocate(size)
        ctypes.memmove(ptr, TEXT, len(TEXT))
        ctypes.memmove(ptr + size - len(TEXT), TEXT, len(TEXT))
        return ptr

    def assert_text(self, ptr: int, size: int = 3 * MIB) -> None:
        self.assertEqual(ctypes.string_at(ptr, len(TEXT)), TEXT)
        self.assertEqual(ctypes.string_at(ptr + size - len(TEXT), len(TEXT)), TEXT)

    @contextlib.contextmanager
    def error(self, code: str, words: str = "") -> Iterator[None]:
        with self.assertRaisesRegex(vpmm.Error, words) as caught:
            yield
        self.assertEqual(caught.exception.code, code)
