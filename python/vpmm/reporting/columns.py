# SPDX-License-Identifier: Apache-2.0
# vpmm: long columns of numbers and texts as a text that a page can hold: some bytes for each event.

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise


class Columns:
    """Collects columns. All first bytes of a column come first, then all second bytes, and zlib packs the whole.

    A browser reads it with DecompressionStream; `shape` has the length and the bytes of a value for each column.
    """

    def __init__(self) -> None:
        self.shape: dict[str, tuple[int, int]] = {}
        self._parts: list[bytes] = []

    def add(self, name: str, values: Iterable[int]) -> None:
        """Numbers from 0 on. Raises OverflowError for negative ones and from 2^64 on."""
        numbers = array("Q", values)
        if sys.byteorder == "big":
            numbers.byteswap()
        width = (max(numbers, default=0).bit_length() + 7) // 8
        data = numbers.tobytes()
        self.shape[name] = (len(numbers), width)
        self._parts += [data[place::8] for place in range(width)]

    def add_differences(self, name: str, values: Sequence[int]) -> None:
        """Numbers of any sign, as differences: 0, 1, 2, 3, 4 stand for 0, -1, 1, -2, 2."""
        steps = (after - before for before, after in pairwise(chain((0,), values)))
        self.add(name, (2 * each if each >= 0 else -2 * each - 1 for each in steps))

    def add_texts(self, name: str, texts: Iterable[str]) -> None:
        """Texts, one a line."""
        data = "\n".join(" ".join(each.splitlines()) for each in texts).encode("utf-8", "replace")
        self.shape[name] = (len(data), 1)
        self._parts.append(data)

    def text(self) -> str:
        """All columns, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode("ascii")
