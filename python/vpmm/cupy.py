# SPDX-License-Identifier: Apache-2.0
# vpmm: the import path for CuPy users; the functions are the plugin's.

"""``vpmm.cupy.install()`` makes CuPy allocate device memory from the pool; ``VPMM_CUPY=1`` does it without code."""

from __future__ import annotations

from vpmm.plugins.cupy import allocator, install, is_installed

__all__ = ["allocator", "install", "is_installed"]
