# SPDX-License-Identifier: Apache-2.0
# vpmm: the import path for RMM users; the functions are the plugin's.

"""``vpmm.rmm.install()`` makes RMM allocate device memory from the pools; ``VPMM_RMM=1`` does it without code."""

from __future__ import annotations

from vpmm.plugins.rmm import build, install, is_installed, memory_resource

__all__ = ["build", "install", "is_installed", "memory_resource"]
