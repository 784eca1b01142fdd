# SPDX-License-Identifier: Apache-2.0
# vpmm: what is free on a device, of the functions and of the class Pool.

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MemoryInfo"]


class MemoryInfo(NamedTuple):
    """Bytes of a device: `free`, which the pool can still hand out (the driver's and its own), and `total`."""

    free: int
    total: int
