# plugins: PyTorch's CUDA memory from the pools: builds, loads and installs the allocator in torch_allocator/

"""PyTorch on VPMM: the whole CUDA allocator interface, without a change to the program.

``VPMM_TORCH=1 python train.py`` installs it at the end of ``import torch``, in the program and in all of its children;
``vpmm.use_for_torch()`` does it by hand. docs/guides/pytorch.md is the guide.

PyTorch's interface is C++ and differs between its minor versions, so the allocator is compiled for the PyTorch that is
here, once: with g++ and the headers of PyTorch's package, in about twenty seconds, into a cache (VPMM_CACHE_DIR, else
~/.cache/vpmm). ``python -m vpmm build-torch`` does that ahead of time.
"""

# ruff: noqa: ANN401  PyTorch's module has no type here

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vpmm.errors import Error

__all__ = ["build", "install", "is_installed"]

_PACKAGE = Path(__file__).resolve().parent.parent
_SOURCES = Path(__file__).resolve().with_name("torch_allocator")  # of which allocator.cpp is compiled
_LEAST_MINOR = 11  # of PyTorch 2: earlier ones have another interface
_LONGEST_BUILD_S = 600
_NCCL_HOOKS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")


def install() -> None:
    """Makes PyTorch allocate all CUDA memory from the process-wide pools, for the life of the process.

    Call it before the first CUDA call of PyTorch; calling it again does nothing. A pool is opened by the first
    allocation on its device, with the settings of the VPMM_ variables or of ``vpmm.configure()``. Raises vpmm.Error
    when PyTorch is missing, is older than 2.11 or has no CUDA, when CUDA is initialized already, and when the
    allocator cannot be built.
    """
    torch = _import_torch()
    library = _load(build(), _minor_of(torch))
    if library.vpmm_torch_install() != 0:
        raise _error(library.vpmm_torch_last_error().decode())
    _refuse_segment_registration()


def is_installed() -> bool:
    """Whether PyTorch allocates CUDA memory through VPMM in this process. Imports nothing."""
    torch = sys.modules.get("torch")
    backend = getattr(getattr(torch, "_C", None), "_cuda_getAllocatorBackend", None)  # not in builds without CUDA
    return backend is not None and backend() == "vpmm"


def build() -> Path:
    """The allocator's library for the PyTorch that is here; compiles it unless the cache has it.

    Processes that need it at the same time wait for one of them. Raises vpmm.Error with the compiler's words.
    """
    torch = _import_torch()
    name = f"vpmm_torch_{torch.__version__}_{platform.machine()}_{_fingerprint(torch)}.so"
    for folder in _cache_folders():
        library = folder / name
        if library.is_file():
            return library
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open(folder / f"{name}.lock", "w")  # noqa: SIM115  held below
        except OSError:
            continue
        with lock:
            with contextlib.suppress(OSError):  # a file system without locks: each builds for itself
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.is_file():
                _compile(torch, library)
        return library
    raise _error("no folder for the allocator's library can be written; VPMM_CACHE_DIR names one")


def _error(message: str) -> Error:
    return Error(message, "VPMM_ERROR_UNSUPPORTED")


def _import_torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise _error(f"PyTorch is not installed here ({error})") from error
    if torch.version.cuda is None:
        raise _error(f"PyTorch {torch.__version__} is a build without CUDA")
    _minor_of(torch)
    return torch


def _minor_of(torch: Any) -> int:
    found = re.match(r"2\.(\d+)", torch.__version__)
    if found is None or int(found[1]) < _LEAST_MINOR:
        raise _error(f"PyTorch {torch.__version__} is not supported: 2.{_LEAST_MINOR} or newer is needed")
    return int(found[1])


def _fingerprint(torch: Any) -> str:
    """Of all that the library is made from."""
    digest = hashlib.sha256()
    for path in (*sorted(_SOURCES.glob("*.[ch]pp")), _PACKAGE / "include" / "vpmm" / "vpmm.h"):
        digest.update(path.read_bytes())
    for function in (_compile, _standard_library):
        digest.update(inspect.getsource(function).encode())
    digest.update(repr((torch.version.git_version, torch._C._GLIBCXX_USE_CXX11_ABI, _PACKAGE)).encode())
    return digest.hexdigest()[:16]


def _cache_folders() -> Iterator[Path]:
    """Where the library is looked for, and built where it is in none: the first that can be written."""
    named = os.environ.get("VPMM_CACHE_DIR")
    if named:
        yield Path(named)
        return
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vpmm"
    yield Path(tempfile.mkdtemp(prefix="vpmm-"))  # of this process alone: nobody else can put a library there


def _cuda_include(torch: Any) -> Path:
    """The folder that has cuda_runtime_api.h: of the toolkit, or of the packages that PyTorch brings along."""
    candidates = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable]) / "include")
    packages = importlib.util.find_spec("nvidia")
    for root in (packages.submodule_search_locations or []) if packages else []:
        candidates += sorted(Path(root).glob("*/include"))
    candidates.append(Path("/usr/local/cuda/include"))
    compiler = shutil.which("nvcc")
    if compiler:
        candidates.append(Path(compiler).resolve().parent.parent / "include")
    for folder in candidates:
        if (folder / "cuda_runtime_api.h").is_file():
            return folder
    raise _error(
        f"cuda_runtime_api.h was not found, which the allocator for PyTorch {torch.__version__} is built with: "
        f"pip install nvidia-cuda-runtime, or set CUDA_HOME (looked in {', '.join(map(str, candidates))})"
    )


def _standard_library() -> list[str]:
    """Links the C++ library that this process has loaded, with PyTorch, and no other.

    Where a compiler finds only a static one, it would put a second copy of it into ours, and streams and exceptions do
    not work between two.
    """
    mapped = Path("/proc/self/maps").read_text().split()
    loaded = {word for word in mapped if re.search(r"/libstdc\+\+\.so[.\d]*$", word)}
    return ["-nodefaultlibs", *sorted(loaded), "-lgcc", "-lc"] if loaded else []


def _compile(torch: Any, library: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise _error(
            f"there is no C++ compiler here to build the allocator for PyTorch {torch.__version__} with: install g++, "
            f"or run `python -m vpmm build-torch` where there is one and set VPMM_CACHE_DIR to its folder"
        )
    root = Path(torch.__file__).resolve().parent
    handle, name = tempfile.mkstemp(dir=library.parent, prefix=f".{library.name}.")
    os.close(handle)
    unfinished = Path(name)
    command = [
        *compiler.split(),
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
        f"-DVPMM_TORCH_MINOR={_minor_of(torch)}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{_PACKAGE / 'include'}",
        *("-isystem", str(root / "include"), "-isystem", str(_cuda_include(torch))),
        *(str(_SOURCES / "allocator.cpp"), "-o", str(unfinished)),
        *(f"-L{root / 'lib'}", "-lc10", "-lc10_cuda", f"-L{_PACKAGE}", "-l:libvpmm.so.0"),
        *_standard_library(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_BUILD_S)
        if done.returncode != 0:
            words = "\n".join(done.stderr.splitlines()[:20])
            raise _error(f"the allocator for PyTorch {torch.__version__} could not be built:\n{words}")
        os.replace(unfinished, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _error(f"the allocator for PyTorch {torch.__version__} could not be built: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _load(path: Path, minor: int) -> ctypes.CDLL:
    import vpmm._vpmm  # noqa: F401  brings libvpmm, which the library finds by its name

    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _error(f"{path} could not be loaded: {error}") from error
    library.vpmm_torch_last_error.restype = ctypes.c_char_p
    built_for = library.vpmm_torch_minor()
    if built_for != minor:  # its virtual functions would be others
        raise _error(f"{path} is for PyTorch 2.{built_for}, and this is 2.{minor}: remove it")
    return library


def _refuse_segment_registration() -> None:
    """NCCL would register whole segments and learn of no remapping; memory pools are registered instead."""
    for name in _NCCL_HOOKS:
        if os.environ.get(name, "0") not in ("", "0"):
            os.environ[name] = "0"
            message = f"{name} is switched off: with VPMM register a torch.cuda.MemPool (docs/guides/pytorch.md)"
            warnings.warn(message, RuntimeWarning, stacklevel=4)
