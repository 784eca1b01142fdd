# plugins: RMM's device memory from the pools: builds, loads and installs the resource in rmm_resource/

"""RMM, and with it cuDF, cuML and what else draws from RMM, on VPMM.

``VPMM_RMM=1 python program.py`` installs it when RMM is imported; ``vpmm.use_for_rmm()`` does it by hand.
docs/guides/rmm.md is the guide.

RMM's interface is C++ and Cython and differs between its versions, so the resource is compiled for the RMM that is
here, once: with Cython, g++ and the headers of RMM's package, in about ten seconds, into a cache (VPMM_CACHE_DIR, else
~/.cache/vpmm). Where that is not possible, RMM calls the pool through Python functions.
"""

# ruff: noqa: ANN401  RMM's module and its resources have no type here

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import sys
import sysconfig
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import vpmm
from vpmm._streams import stream_handle
from vpmm._vpmm import Pool
from vpmm.errors import Error, OutOfMemoryError
from vpmm.plugins._building import cached, cuda_include, fingerprint, run_compiler, run_tool, unsupported

__all__ = ["build", "install", "is_installed", "memory_resource"]

_SOURCES = Path(__file__).resolve().with_name("rmm_resource")
_MODULE = "vpmm_rmm_resource"
_MOST_BYTES = 1 << 47  # a larger request is none of the pool's, and RMM's users expect that memory runs out
# RMM's wheels have classes on the heap. Deleting an object of theirs lets go of its class, which would free a class of
# ours that is static, so ours is on the heap, too.
_HEAP_TYPES = "-DCYTHON_USE_TYPE_SPECS=1"
_OLDEST = (26, 6)  # earlier ones take no resource of cuda::mr

_lock = threading.Lock()
_compiled: Any = None  # the module, once it was loaded
_reason = ""  # why there is none, once that was found out


def install() -> None:
    """Makes RMM draw the memory of all devices from the process-wide pools: each device's resource is then ours.

    Devices whose resource is ours already, or stacks on ours, stay as they are. Resources that the program sets later,
    ``rmm.reinitialize()`` among them, take its place. No CUDA context is made; a pool is opened by the first allocation
    on its device. Raises vpmm.Error when RMM is missing or older than 26.06, and where there is no CUDA driver; warns
    when the resource cannot be compiled and calls go through Python.
    """
    rmm = _import_rmm()
    for device in range(vpmm.device_count()):
        if not _is_ours(rmm.mr.get_per_device_resource(device)):
            rmm.mr.set_per_device_resource(device, memory_resource(device))


def is_installed(device: int = 0) -> bool:
    """Whether RMM's resource of `device` is ours, or stacks on ours, in this process. Imports nothing."""
    rmm = sys.modules.get("rmm")
    return rmm is not None and _is_ours(rmm.mr.get_per_device_resource(device))


def memory_resource(device: int = 0) -> Any:
    """A resource of RMM's for the process-wide pool of `device`, for RMM's adaptors or for direct use.

    A rmm.mr.DeviceMemoryResource; the pool is opened by its first allocation. Out of memory is a MemoryError with the
    pool's report. Where the compiled resource cannot be had, it is a rmm.mr.CallbackMemoryResource, whose calls hold
    the interpreter's lock, and the first one warns why. Raises vpmm.Error when RMM is missing or older than 26.06.
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
                warnings.warn(message, RuntimeWarning, stacklevel=3)
    return _through_python(device) if _compiled is None else _compiled.MemoryResource(device)


def build() -> Path:
    """The resource's library for the RMM that is here; compiles it unless the cache has it.

    Processes that need it at the same time wait for one of them. Raises vpmm.Error with the compiler's words.
    """
    rmm = _import_rmm()
    abi = sysconfig.get_config_var("SOABI")
    sources = (*_SOURCES.iterdir(), Path(__file__))
    name = f"vpmm_rmm_{rmm.__version__}_{abi}_{platform.machine()}_{fingerprint(sources, rmm.__git_commit__)}.so"
    what = f"the resource for RMM {rmm.__version__}"
    return cached(name, lambda library: _compile(library, what), what)


def _import_rmm() -> Any:
    try:
        import rmm
        import rmm.mr
    except ModuleNotFoundError as error:
        raise unsupported(f"RMM is not installed here ({error})") from error
    found = re.match(r"(\d+)\.(\d+)", rmm.__version__)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        oldest = ".".join(f"{part:02}" for part in _OLDEST)
        raise unsupported(f"RMM {rmm.__version__} is not supported: {oldest} or newer is needed")
    return rmm


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
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "resource.cpp")
        declarations = str(_places("rmm")[0].parent)
        cython = [sys.executable, "-m", "cython", "--cplus", "--module-name", _MODULE, "-I", declarations]
        cython += ["-o", str(source)]
        run_tool([*cython, str(_SOURCES / "resource.pyx")], what)
        include = [_SOURCES, *_rmm_include(what), cuda_include(what), Path(python)]
        arguments = [word for path in include for word in ("-isystem", str(path))]
        run_compiler([_HEAP_TYPES, *arguments, str(source), *_rmm_libraries()], library, what, "build-rmm")


def _rmm_include(what: str) -> list[Path]:
    """RMM's headers, those of CCCL that it was built with, and of its logger: of wheels, or of a Conda environment."""
    roots = [*_places("librmm"), *_places("rapids_logger"), Path(sys.prefix)]
    folders = [folder for root in roots for folder in (root / "include/rapids", root / "include") if folder.is_dir()]
    if not any((folder / "rmm/resource_ref.hpp").is_file() for folder in folders):
        raise unsupported(f"rmm/resource_ref.hpp was not found, which {what} is built with (looked in {folders})")
    return folders


def _places(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in spec.submodule_search_locations or []] if spec else []


def _rmm_libraries() -> list[str]:
    """librmm, which the process has loaded already."""
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
    def allocate(size: int, stream: Any) -> int:
        if size > _MOST_BYTES:
            raise OutOfMemoryError(f"{size} bytes are more than any address space has")
        return Pool.default(device).allocate(size, stream_handle(stream))

    def deallocate(pointer: int, size: int, stream: Any) -> None:
        pool = Pool.default(device)
        try:
            pool.deallocate(pointer, stream_handle(stream))
        except Error:  # nothing changed, and nobody would be told
            pool.deallocate_deferred(pointer)

    return _callback_class()(allocate, deallocate)
