# SPDX-License-Identifier: Apache-2.0
# vpmm: the import path for cuda.core users; the class is the plugin's.

"""``vpmm.cuda_core.MemoryResource`` is a pool as a memory resource of ``cuda.core``."""

from __future__ import annotations

from vpmm.errors import MissingPackageError

try:
    from vpmm.plugins.cuda_core import MemoryResource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "cuda":
        raise
    raise MissingPackageError("vpmm.cuda_core", "cuda-core", error) from error

__all__ = ["MemoryResource"]
