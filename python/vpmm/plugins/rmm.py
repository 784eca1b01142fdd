# SPDX-License-Identifier: Apache-2.0
# plugins: makes RMM allocate from the pools: builds, loads and installs the resource in rmm_resource/

"""RMM on VPMM, and with it cuDF, cuML and every other user of RMM.

``VPMM_RMM=1 python program.py`` installs it when RMM is imported; ``vpmm.use_for_rmm()`` installs it by a call.
docs/guides/rmm.md is the guide.

RMM's interface is C++ and Cython and differs between its versions, so there is a resource for each of them. A wheel
holds those of the versions that were current when it was made. For others, and where VPMM was built from source, it is
compiled once: with Cython, g++ and the headers of RMM's package, in about ten seconds, into a cache (VPMM_CACHE_DIR,
else ~/.cache/vpmm). If that is not possible, RMM calls the pool through Python functions.
"""

# ruff: noqa: ANN401  RMM's module and its resources have no type here

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import vpmm
from vpmm import _vpmm
from vpmm._streams import stream_handle
from vpmm._vpmm import Pool
from vpmm.errors import Error, warn
from vpmm.plugins._building import cached, cuda_includes, fingerprint, run_compiler, run_tool, unsupported
from vpmm.plugins._prebuilt import find

__all__ = ["build", "install", "is_installed", "memory_resource"]

_SOURCES = Path(__file__).resolve().with_name("rmm_resource")
_MODULE = "vpmm_rmm_resource"
# RMM's wheels have classes on the heap. Deleting one of their objects drops a reference to its class, which would free
# a static class of ours, so ours is on the heap, too.
_HEAP_TYPES = "-DCYTHON_USE_TYPE_SPECS=1"
_OLDEST = (26, 6)  # earlier versions take no resource of cuda::mr

_lock = threading.Lock()
_compiled: Any = None  # the module, once it is loaded
_reason = ""  # why it cannot be loaded, once that is known


def install() -> None:
    """Makes RMM allocate the memory of all devices from the process-wide pools: sets each device's resource.

    A device whose resource is, or stacks on, one of VPMM stays as it is. Resources that the program sets later replace
    it, including those of ``rmm.reinitialize()``. No CUDA context is created; the first allocation on a device opens
    its pool. Raises vpmm.Error if RMM is missing or older than 26.06, or there is no CUDA driver. Warns if the resource
    cannot be compiled and calls go through Python.
    """
    rmm = _import_rmm()
    for device in range(vpmm.device_count()):
        if not _is_ours(rmm.mr.get_per_device_resource(device)):
            rmm.mr.set_per_device_resource(device, memory_resource(device))


def is_installed(device: int = 0) -> bool:
    """Whether RMM's resource of `device` is, or stacks on, VPMM's in this process. Imports nothing."""
    rmm = sys.modules.get("rmm")
    return rmm is not None and _is_ours(rmm.mr.get_per_device_resource(device))


def memory_resource(device: int = 0) -> Any:
    """An RMM resource for the process-wide pool of `device`, for RMM's adaptors or for direct use.

    It is a rmm.mr.DeviceMemoryResource; its first allocation opens the pool. Running out of memory is a MemoryError
    with the pool's report. If the resource cannot be compiled, it is a rmm.mr.CallbackMemoryResource, whose calls hold
    the GIL, and the first one warns with the reason. Raises vpmm.Error if RMM is missing or older than 26.06.
    """
    global _compiled, _reason
    _import_rmm()
    with _lock:
        if _compiled is None and not _reason:
            try:
                _compiled = _load(build())
            except Error as error:
                _reason = str(error)
                message = f"RMM calls VPMM through Python, which is slower: {_reason}"
                warn(message, stacklevel=3)
    return _through_python(device) if _compiled is None else _compiled.MemoryResource(device)


def build() -> Path:
    """Returns the resource's library for the installed RMM: the package's, else that of the cache.

    Compiles it if both lack it. If several processes need it at the same time, one compiles and the others wait.
    Raises vpmm.Error with the compiler's output.
    """
    rmm = _import_rmm()
    what = f"the resource for RMM {rmm.__version__}"
    folders = [*_rmm_include(), _places("rmm")[0].parent]
    year, month = _version_of(rmm)
    held = find(name_for(year, month), folders, rmm.__version__, what)
    if held.library is not None:
        return held.library
    abi = sysconfig.get_config_var("SOABI")
    sources = (*_SOURCES.iterdir(), Path(__file__))
    name = f"vpmm_rmm_{rmm.__version__}_{abi}_{platform.machine()}_{fingerprint(sources, rmm.__git_commit__)}.so"
    return cached(name, lambda library: _compile(library, what), what, held.reason)


def name_for(year: int, month: int) -> str:
    """The name of the library in a wheel for RMM `year`.`month`, of its packages for CUDA 12 and for CUDA 13."""
    return f"rmm-{year}.{month:02}"


def _import_rmm() -> Any:
    try:
        import rmm
        import rmm.mr
    except ModuleNotFoundError as error:
        raise unsupported(f"RMM is not installed here ({error})") from error
    if _version_of(rmm) < _OLDEST:
        oldest = ".".join(f"{part:02}" for part in _OLDEST)
        raise unsupported(f"RMM {rmm.__version__} is not supported: {oldest} or newer is needed")
    return rmm


def _version_of(rmm: Any) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", rmm.__version__)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_ours(resource: Any) -> bool:
    while hasattr(resource, "upstream_mr"):
        resource = resource.upstream_mr
    return bool(getattr(resource, "draws_from_vpmm", False))


# --- the compiled resource ---


def _compile(library: Path, what: str) -> None:
    if importlib.util.find_spec("Cython") is None:
        raise unsupported(f"Cython is not installed here, which {what} is built with: pip install cython")
    python = sysconfig.get_path("include")
    if not Path(python, "Python.h").is_file():
        raise unsupported(f"Python.h is not in {python}, which {what} is built with: install python3-dev")
    headers = _rmm_include()
    if not any((folder / "rmm/resource_ref.hpp").is_file() for folder in headers):
        raise unsupported(f"rmm/resource_ref.hpp was not found, which {what} is built with (looked in {headers})")
    declarations = _places("rmm")[0].parent
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "resource.cpp")
        run_cython([sys.executable, "-m", "cython"], declarations, source, what)
        compile_resource(source, [*headers, *cuda_includes(what)], library, what, _rmm_libraries())


def run_cython(cython: list[str], declarations: Path, source: Path, what: str) -> None:
    """Makes the C++ `source` from the class in Cython, with RMM's package in `declarations`.

    Raises vpmm.Error with Cython's output.
    """
    with tempfile.TemporaryDirectory() as folder:  # the C++ code names its source, and a path would tell nothing
        command = [*cython, "--cplus", "--module-name", _MODULE, "-I", str(declarations), "--depfile"]
        shutil.copy(_SOURCES / "resource.pyx", folder)
        run_tool([*command, "-o", str(source), "resource.pyx"], what, Path(folder))


def compile_resource(source: Path, headers: list[Path], library: Path, what: str, more: Iterable[str] = ()) -> None:
    """Compiles the C++ of `run_cython`, with more arguments of the compiler and the headers of RMM and CUDA.

    Raises vpmm.Error with the compiler's output.
    """
    include = [_SOURCES, *headers, Path(sysconfig.get_path("include"))]
    arguments = [word for path in include for word in ("-isystem", str(path))]
    run_compiler([_HEAP_TYPES, *arguments, str(source), *more], library, what, "build-rmm")


def _rmm_include() -> list[Path]:
    """RMM's headers, those of CCCL that it was built with, and of its logger: of wheels, or of a Conda environment."""
    roots = [*_places("librmm"), *_places("rapids_logger"), Path(sys.prefix)]
    return [folder for root in roots for folder in (root / "include/rapids", root / "include") if folder.is_dir()]


def _places(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in spec.submodule_search_locations or []] if spec else []


def _rmm_libraries() -> list[str]:
    """librmm, which the process has already loaded."""
    mapped = Path("/proc/self/maps").read_text().split()
    return sorted({word for word in mapped if re.search(r"/librmm\.so[.\d]*$", word)})


def _load(path: Path) -> Any:
    import vpmm._vpmm  # noqa: F401  brings libvpmm, which the library finds by its name

    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, TypeError, ValueError) as error:  # the last two: it was built for other classes of RMM's
        raise unsupported(f"{path} could not be loaded: {error}") from error
    return module


# --- through Python ---


@functools.cache
def _callback_class() -> Any:
    import rmm.mr

    class CallbackMemoryResource(rmm.mr.CallbackMemoryResource):  # type: ignore[misc]  # has no type here
        draws_from_vpmm = True

    return CallbackMemoryResource


def _through_python(device: int) -> Any:
    library = _vpmm.library_tag("rmm")

    def allocate(size: int, stream: Any) -> int:
        if library != 0:
            return _vpmm.allocate_tagged(Pool.default(device), size, library, stream_handle(stream))
        return Pool.default(device).allocate(size, stream_handle(stream))

    def deallocate(pointer: int, size: int, stream: Any) -> None:
        pool = Pool.default(device)
        try:
            pool.deallocate(pointer, stream_handle(stream))
        except Error:  # nothing changed, and there is no caller to report to
            pool.deallocate_deferred(pointer)

    return _callback_class()(allocate, deallocate)
