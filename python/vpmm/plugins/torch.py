# SPDX-License-Identifier: Apache-2.0
# plugins: makes PyTorch allocate from the pools: builds, loads and installs the allocator in torch_allocator/

"""PyTorch on VPMM: the whole CUDA allocator interface, without a change to the program.

``VPMM_TORCH=1 python train.py`` installs it at the end of ``import torch``, in the program and in all of its child
processes; ``vpmm.use_for_torch()`` installs it by a call. docs/guides/pytorch.md is the guide.

PyTorch's interface is C++ and differs between its minor versions, so there is an allocator for each of them. A wheel
holds those of the versions that were released before it. For other versions, and where VPMM was built from source, it
is compiled once: with g++ and the headers of PyTorch's package, in about twenty seconds, into a cache (VPMM_CACHE_DIR,
else ~/.cache/vpmm). ``python -m vpmm build-torch`` does that ahead of time.
"""

# ruff: noqa: ANN401  PyTorch's module has no type here

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vpmm.errors import warn
from vpmm.plugins import _torch_options
from vpmm.plugins._building import cached, cuda_includes, fingerprint, run_compiler, unsupported
from vpmm.plugins._prebuilt import find

__all__ = ["build", "install", "is_installed"]

_SOURCES = Path(__file__).resolve().with_name("torch_allocator")  # library.cpp includes the others
_LEAST_MINOR = 11  # of PyTorch 2: earlier versions have another interface
_NCCL_HOOKS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")


def install() -> None:
    """Makes PyTorch allocate all CUDA memory from the process-wide pools, for the life of the process.

    Call it before PyTorch's first CUDA call; calling it again does nothing. The first allocation on a device opens its
    pool, with the settings of the VPMM_ variables or of ``vpmm.configure()``. Raises vpmm.Error if PyTorch is missing,
    is older than 2.11 or has no CUDA, if CUDA is already initialized, if the program has given PyTorch another
    allocator, and if the allocator cannot be built.
    """
    torch = _import_torch()
    library = _load(build(), _minor_of(torch))
    _torch_options.watch(torch, _minor_of(torch))  # before: where warnings are errors, PyTorch's allocator stays
    if library.vpmm_torch_install() != 0:
        raise unsupported(library.vpmm_torch_last_error().decode())
    _refuse_segment_registration()
    _limit_memory_info(torch)


def is_installed() -> bool:
    """Whether PyTorch allocates CUDA memory through VPMM in this process. Imports nothing."""
    torch = sys.modules.get("torch")
    backend = getattr(getattr(torch, "_C", None), "_cuda_getAllocatorBackend", None)  # not in builds without CUDA
    return backend is not None and backend() == "vpmm"


def build() -> Path:
    """Returns the allocator's library for the installed PyTorch: the package's, else that of the cache.

    Compiles it if both lack it. If several processes need it at the same time, one compiles and the others wait.
    Raises vpmm.Error with the compiler's output.
    """
    torch = _import_torch()
    root, minor, has_cxx11_abi = _root_of(torch), _minor_of(torch), bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    what = f"the allocator for PyTorch {torch.__version__}"
    held = find(name_for(minor, has_cxx11_abi), [root / "include"], torch.__version__, what)
    if held.library is not None:
        return held.library

    def make(library: Path) -> None:
        compile_allocator(root, minor, has_cxx11_abi, cuda_includes(what), library, what)

    print_of_all = fingerprint((*_SOURCES.glob("*.[ch]pp"), Path(__file__)), (torch.version.git_version, has_cxx11_abi))
    name = f"vpmm_torch_{torch.__version__}_{platform.machine()}_{print_of_all}.so"
    return cached(name, make, what, held.reason)


def name_for(minor: int, has_cxx11_abi: bool) -> str:
    """The name of the library in a wheel for PyTorch 2.`minor`, with that ABI of the C++ library."""
    return f"torch-2.{minor}-{'cxx11' if has_cxx11_abi else 'old'}"


def compile_allocator(
    root: Path, minor: int, has_cxx11_abi: bool, cuda: list[Path], library: Path, what: str, more: Iterable[str] = ()
) -> None:
    """Compiles the allocator for PyTorch 2.`minor`, with more arguments of the compiler.

    Of PyTorch's package `root` it needs the headers of C10 and its libraries, and of `cuda` those of the CUDA runtime.
    Raises vpmm.Error with the compiler's output.
    """
    arguments = [
        f"-DVPMM_TORCH_MINOR={minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(has_cxx11_abi)}",
        # Messages name files, and those of this machine tell nothing.
        *(f"-ffile-prefix-map={root}=torch", f"-ffile-prefix-map={_SOURCES}=vpmm"),
        *(word for path in (root / "include", *cuda) for word in ("-isystem", str(path))),
        str(_SOURCES / "library.cpp"),
        *(f"-L{root / 'lib'}", "-lc10", "-lc10_cuda"),
        *more,
    ]
    run_compiler(arguments, library, what, "build-torch")


def _import_torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise unsupported(f"PyTorch is not installed here ({error})") from error
    if torch.version.cuda is None:
        raise unsupported(f"PyTorch {torch.__version__} is a build without CUDA")
    _minor_of(torch)
    return torch


def _minor_of(torch: Any) -> int:
    found = re.match(r"2\.(\d+)", torch.__version__)
    if found is None or int(found[1]) < _LEAST_MINOR:
        raise unsupported(f"PyTorch {torch.__version__} is not supported: 2.{_LEAST_MINOR} or newer is needed")
    return int(found[1])


def _root_of(torch: Any) -> Path:
    return Path(torch.__file__).resolve().parent


def _load(path: Path, minor: int) -> ctypes.CDLL:
    import vpmm._vpmm  # noqa: F401  brings libvpmm, which the library finds by its name

    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise unsupported(f"{path} could not be loaded: {error}") from error
    library.vpmm_torch_last_error.restype = ctypes.c_char_p
    built_for = library.vpmm_torch_minor()
    if built_for != minor:  # its virtual functions would be others
        raise unsupported(f"{path} is for PyTorch 2.{built_for}, and this is 2.{minor}: remove it")
    return library


def _limit_memory_info(torch: Any) -> None:
    """torch.cuda.mem_get_info asks the driver, which does not know the pool's limit; the allocator knows both."""

    @functools.wraps(torch.cuda.mem_get_info)
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        torch.cuda.init()
        index = torch.cuda.current_device() if device is None else torch.cuda._utils._get_device_index(device, True)
        return tuple(torch._C._accelerator_getMemoryInfo(index))

    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info


def _refuse_segment_registration() -> None:
    """Refuses segment registration: NCCL would not notice remapping. Memory pools are registered instead."""
    for name in _NCCL_HOOKS:
        if os.environ.get(name, "0") not in ("", "0"):
            os.environ[name] = "0"
            message = f"{name} is switched off: with VPMM register a torch.cuda.MemPool (docs/guides/pytorch.md)"
            warn(message, stacklevel=4)
