# vpmm_autoload: what PyTorch calls at the end of `import torch`; a package of its own, so that nothing else is loaded.

"""The entry point ``torch.backends`` of VPMM: with ``VPMM_TORCH=1`` in the environment PyTorch allocates through VPMM.

An exception here would make ``import torch`` fail, so what goes wrong is a warning, and PyTorch keeps its own
allocator.
"""

from __future__ import annotations

import os
import warnings


def autoload() -> None:
    """Installs VPMM as PyTorch's CUDA allocator if VPMM_TORCH asks for it; otherwise does and imports nothing."""
    if os.environ.get("VPMM_TORCH", "").strip().lower() not in ("1", "true", "yes", "on"):
        return
    try:
        from vpmm.plugins.torch import install

        install()
    except Exception as error:
        message = f"VPMM_TORCH is set, but PyTorch keeps its own CUDA allocator: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
