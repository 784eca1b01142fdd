# SPDX-License-Identifier: Apache-2.0
# vpmm: the import path for PyTorch users; the functions are the plugin's.

"""``vpmm.torch.install()`` makes PyTorch allocate CUDA memory from the pool; ``VPMM_TORCH=1`` does it without code."""

from __future__ import annotations

from vpmm.plugins.torch import build, install, is_installed

__all__ = ["build", "install", "is_installed"]
