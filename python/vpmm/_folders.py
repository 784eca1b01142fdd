# SPDX-License-Identifier: Apache-2.0
# vpmm: the folders that a C++ extension needs to build against the package.

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def cmake_dir() -> str:
    """The folder of the CMake package, for ``-Dvpmm_DIR``; its target ``vpmm::vpmm`` is this package's library."""
    return str(_PACKAGE / "cmake")


def include_dir() -> str:
    """The include folder of ``vpmm/vpmm.hpp``."""
    return str(_PACKAGE / "include")
