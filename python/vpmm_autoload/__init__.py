# SPDX-License-Identifier: Apache-2.0
# vpmm_autoload: puts libraries on the pool when they are imported; of its own, so that nothing else is loaded.

"""``VPMM_USE=torch,cupy,rmm,numba python app.py``: each library that is named takes its GPU memory from the pool.

VPMM_TORCH=1, VPMM_CUPY=1 and VPMM_RMM=1 ask for one. PyTorch calls ``autoload`` at the end of ``import torch`` (entry
point ``torch.backends``), Numba reads a variable of its own, and for the others ``start``, which a file beside this
package calls when the interpreter starts, waits for their import. The interpreter does not read that file if the
package is on PYTHONPATH and not installed: ``import vpmm`` and ``import torch`` call ``start_late`` then. Where a
library cannot take its memory from the pool, one line on standard error gives the reason, and the library keeps its own
allocator. With VPMM_TORCH=require, and so for the others, the library's import raises ImportError instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any, cast

__all__ = ["LIBRARIES", "asked_for", "autoload", "register_vllm", "start", "start_late", "unknown"]

LIBRARIES = {"torch": "PyTorch", "cupy": "CuPy", "rmm": "RMM", "numba": "Numba"}
_NUMBA = "NUMBA_CUDA_MEMORY_MANAGER"
_YES = ("1", "true", "yes", "on", "require")
_NO = ("", "0", "false", "no", "off")


def asked_for() -> dict[str, str]:
    """The libraries that the environment asks for, and the variable by which it does."""
    found = {}
    for name in LIBRARIES:
        if name != "numba" and _value_for(name) in _YES:
            found[name] = f"VPMM_{name.upper()}"
    for name in _names(os.environ.get("VPMM_USE", "")):
        if name in LIBRARIES:
            found.setdefault(name, "VPMM_USE")
    return found


def autoload() -> None:
    """Installs VPMM as PyTorch's CUDA allocator if the environment asks for it; otherwise does and imports nothing.

    VPMM_TORCH_MEMORY_SAVER=1 also puts an object of VPMM in the place of the package torch_memory_saver.
    """
    start_late()
    _install("torch", asked_for().get("torch"))
    if _value_for("torch_memory_saver") not in _YES:
        return
    try:
        importlib.import_module("vpmm.torch_memory_saver").install()
    except Exception as error:
        _say(f"VPMM_TORCH_MEMORY_SAVER is set, but torch_memory_saver keeps its own object: {_in_a_line(error)}")


def register_vllm() -> None:
    """Installs VPMM's allocator in vLLM if VPMM_VLLM asks for it; otherwise does and imports nothing.

    vLLM calls it in each of its processes, possibly more than once (entry point ``vllm.general_plugins``).
    """
    if _value_for("vllm") not in _YES:
        return
    try:
        importlib.import_module("vpmm.vllm").install()
    except Exception as error:
        _say(f"VPMM_VLLM is set, but vLLM keeps its own allocator: {_in_a_line(error)}")


_has_started = False


def start_late() -> None:
    """Does what start() does, unless it was called: the file beside this package may not have been read."""
    if not _has_started and any(_value_for(name) not in _NO for name in ("torch", "cupy", "rmm", "use")):
        start()


def start() -> None:
    """Sees to the libraries that the environment asks for; calling it again does no harm."""
    global _has_started
    _has_started = True
    for complaint in unknown(os.environ.get("VPMM_USE", "")):
        _say(f"VPMM_USE={os.environ['VPMM_USE']}: {complaint}")
    for name in ("torch", "cupy", "rmm"):
        if (value := _value_for(name)) not in (*_YES, *_NO):
            _say(f"VPMM_{name.upper()}={value} counts as 0: it must be 1, 0 or require")
    asked = asked_for()
    if "numba" in asked and "numba" in sys.modules and _NUMBA not in os.environ:
        _say(f"{asked['numba']} is set, but Numba was imported before that was read: call vpmm.use_for_numba()")
    if "numba" in asked and os.environ.setdefault(_NUMBA, "vpmm") not in ("vpmm", "vpmm.plugins.numba"):
        _say(f"{asked['numba']} is set, but so is {_NUMBA}={os.environ[_NUMBA]}, and Numba does as that one says")
    # PyTorch looks for no entry points where this variable is 0.
    has_entry_points = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    for name in ("cupy", "rmm") if has_entry_points else ("torch", "cupy", "rmm"):
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
        if _value_for(name) == "require":
            raise ImportError(f"VPMM_{name.upper()}=require, and {LIBRARIES[name]} cannot use VPMM: {error}") from error
        _say(f"{variable} is set, but {LIBRARIES[name]} keeps its own CUDA allocator: {_in_a_line(error)}")


def _names(text: str) -> list[str]:
    """The names in a text of VPMM_USE; "none" stands for none."""
    return [] if text == "none" else [name.strip().lower() for name in text.split(",") if name.strip()]


def unknown(names: str) -> list[str]:
    """For each name of VPMM_USE that is none of LIBRARIES, the complaint."""
    return [
        f"`{name}` is no library that VPMM knows{_nearest(name)}" for name in _names(names) if name not in LIBRARIES
    ]


def _nearest(name: str) -> str:
    import difflib

    found = difflib.get_close_matches(name, LIBRARIES, 1)
    return f": is `{found[0]}` meant?" if found else f"; it knows {', '.join(LIBRARIES)}"


def _value_for(name: str) -> str:
    return os.environ.get(f"VPMM_{name.upper()}", "").strip().lower()


def _in_a_line(error: Exception) -> str:
    """The error's first line; of a compiler's output, also the line that says what is wrong."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    wrong = next((line.strip() for line in more if "error" in line), more[0].strip() if more else "")
    return f"{first} {wrong}".strip()


_said: set[str] = set()


def _say(message: str) -> None:
    """Prints it once: in a virtual environment Python runs the file that calls start() twice."""
    if sys.stderr is not None and message not in _said:
        _said.add(message)
        print(f"vpmm: {message}", file=sys.stderr, flush=True)
