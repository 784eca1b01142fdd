# vpmm_autoload: puts libraries on the pool when they are imported; of its own, so that nothing else is loaded.

"""``VPMM_USE=torch,cupy,rmm,numba python app.py``: each library that is named takes its GPU memory from the pool.

VPMM_TORCH, VPMM_CUPY and VPMM_RMM ask for one. PyTorch calls ``autoload`` at the end of ``import torch`` (entry point
``torch.backends``), Numba reads a variable of its own, and for the others ``start``, which a file beside this package
calls when the interpreter starts, waits for their import. An exception here would end the program or its import, so
what goes wrong is a warning, and the library keeps its own allocator.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from typing import Any, cast

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
    if "numba" in asked and os.environ.setdefault(_NUMBA, "vpmm") not in ("vpmm", "vpmm.plugins.numba"):
        _warn(f"{asked['numba']} is set, but so is {_NUMBA}={os.environ[_NUMBA]}, and Numba does as that one says")
    for name in ("cupy", "rmm"):
        if name in asked and name in sys.modules:
            _install(name, asked[name])
        elif name in asked:
            _after_import.waited_for[name] = asked[name]
    if _after_import.waited_for and _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)


class _AfterImport:
    """Installs in a library when its own import is over; to look for it, or an import that fails, changes nothing."""

    def __init__(self) -> None:
        self.waited_for: dict[str, str] = {}  # by name, the variable

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401
        if name not in self.waited_for:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _Installing(spec.loader))
        return spec


class _Installing:
    """A library's loader, which is its loader again as soon as the import begins."""

    def __init__(self, loader: Any) -> None:  # noqa: ANN401
        self._loader = loader

    def exec_module(self, module: Any) -> None:  # noqa: ANN401  a module whose `__spec__` is there
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install(module.__name__, _after_import.waited_for.pop(module.__name__, None))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._loader, name)


_after_import = _AfterImport()


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
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    except RuntimeWarning:  # python -W error
        print(f"vpmm: {message}", file=sys.stderr)
