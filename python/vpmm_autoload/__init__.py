# vpmm_autoload: puts libraries on the pool when they are imported; of its own, so that nothing else is loaded.

"""``VPMM_USE=torch,cupy,rmm,numba python app.py``: each library that is named takes its GPU memory from the pool.

VPMM_TORCH, VPMM_CUPY and VPMM_RMM ask for one. PyTorch calls ``autoload`` at the end of ``import torch`` (entry point
``torch.backends``), Numba reads a variable of its own, and for the others ``start``, which a file beside this package
calls when the interpreter starts, waits for their import. An exception here would end the program or its import, so
what goes wrong is a warning, and the library keeps its own allocator.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["LIBRARIES", "asked_for", "autoload", "start"]

LIBRARIES = {"torch": "PyTorch", "cupy": "CuPy", "rmm": "RMM", "numba": "Numba"}
_NUMBA = "NUMBA_CUDA_MEMORY_MANAGER"


def asked_for() -> dict[str, str]:
    """The libraries that the environment asks for, and the variable by which it does."""
    found = {}
    for name in LIBRARIES:
        variable = f"VPMM_{name.upper()}"
        if name != "numba" and os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on"):
            found[name] = variable
    for name in _names(os.environ.get("VPMM_USE", "")):
        if name in LIBRARIES:
            found.setdefault(name, "VPMM_USE")
    return found


def autoload() -> None:
    """Installs VPMM as PyTorch's CUDA allocator if the environment asks for it; otherwise does and imports nothing."""
    _install("torch", asked_for().get("torch"))


def start() -> None:
    """Sees to the libraries that the environment asks for; calling it again does no harm."""
    for name in _names(os.environ.get("VPMM_USE", "")):
        if name not in LIBRARIES:
            _warn(f"VPMM_USE={os.environ['VPMM_USE']}: `{name}` is no library that VPMM knows{_nearest(name)}")
    asked = asked_for()
    if "numba" in asked:
        os.environ.setdefault(_NUMBA, "vpmm")
    waited_for = {}
    for name in ("cupy", "rmm"):
        if name in asked and name in sys.modules:
            _install(name, asked[name])
        elif name in asked:
            waited_for[name] = asked[name]
    if waited_for and not any(isinstance(each, _AfterImport) for each in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(waited_for))


class _AfterImport:
    """Installs in a library when its own import is over."""

    def __init__(self, waited_for: dict[str, str]) -> None:
        self._waited_for = waited_for

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401
        variable = self._waited_for.pop(name, None)
        spec = importlib.util.find_spec(name) if variable else None
        loader: Any = getattr(spec, "loader", None)
        if loader is None:
            return None
        execute = loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            _install(name, variable)

        loader.exec_module = execute_and_install
        return spec


def _install(name: str, variable: str | None) -> None:
    if variable is None:
        return
    try:
        importlib.import_module(f"vpmm.plugins.{name}").install()
    except Exception as error:
        _warn(f"{variable} is set, but {LIBRARIES[name]} keeps its own CUDA allocator: {error}")


def _names(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",") if name.strip()]


def _nearest(name: str) -> str:
    import difflib

    found = difflib.get_close_matches(name, LIBRARIES, 1)
    return f": is `{found[0]}` meant?" if found else f"; it knows {', '.join(LIBRARIES)}"


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
