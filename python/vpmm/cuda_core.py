# vpmm: what cuda.core users import; the class itself is the plugin's.

"""``vpmm.cuda_core.MemoryResource`` lets everything that is written for ``cuda.core`` draw from the pool."""

from __future__ import annotations

from vpmm.plugins.cuda_core import MemoryResource

__all__ = ["MemoryResource"]
