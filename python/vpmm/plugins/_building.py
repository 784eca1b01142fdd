# plugins: compiles libraries at their first use, for the installed version of another library, and caches them

"""Compiles a plugin's shared library once and keeps it in VPMM_CACHE_DIR, else ~/.cache/vpmm.

`what` names the library in messages, such as "the allocator for PyTorch 2.11.0".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vpmm.errors import Error

PACKAGE = Path(__file__).resolve().parent.parent
HEADERS = PACKAGE / "include" / "vpmm"
LINK_VPMM = (f"-L{PACKAGE}", "-l:libvpmm.so.0")
_LONGEST_BUILD_S = 600


def unsupported(message: str) -> Error:
    """The error for an operation that is not possible on this machine."""
    return Error(message, "VPMM_ERROR_UNSUPPORTED")


def fingerprint(files: Iterable[Path], facts: object) -> str:
    """A hash of everything that a library is made from: these files, this module, and the text of `facts`."""
    digest = hashlib.sha256()
    for path in (*sorted(files), *sorted(HEADERS.rglob("*.h*")), Path(__file__)):
        digest.update(path.read_bytes())
    digest.update(repr((facts, PACKAGE)).encode())
    return digest.hexdigest()[:16]


def cached(name: str, make: Callable[[Path], None], what: str) -> Path:
    """The path of the library with that name; `make` makes it if the cache lacks it.

    If several processes need it at the same time, one makes it and the others wait.
    """
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
                make(library)
        return library
    raise unsupported(f"no folder for {what} can be written; VPMM_CACHE_DIR names one")


def _cache_folders() -> Iterator[Path]:
    """The folders to search for a library, which is built in the first writable one if none has it."""
    named = os.environ.get("VPMM_CACHE_DIR")
    if named:
        yield Path(named)
        return
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vpmm"
    yield Path(tempfile.mkdtemp(prefix="vpmm-"))  # of this process only: no other user can put a library there


def cuda_include(what: str) -> Path:
    """The folder of cuda_runtime_api.h, in the toolkit or in packages that other libraries install."""
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
    raise unsupported(
        f"cuda_runtime_api.h was not found, which {what} is built with: pip install nvidia-cuda-runtime, or set "
        f"CUDA_HOME (looked in {', '.join(map(str, candidates))})"
    )


def _standard_library() -> list[str]:
    """Links only the C++ library that this process has loaded, with the library that the plugin is for.

    A compiler that finds only a static one would put a second copy of it into ours, and streams and exceptions do not
    work across two copies.
    """
    mapped = Path("/proc/self/maps").read_text().split()
    loaded = {word for word in mapped if re.search(r"/libstdc\+\+\.so[.\d]*$", word)}
    return ["-nodefaultlibs", *sorted(loaded), "-lgcc", "-lc"] if loaded else []


def run_compiler(arguments: Iterable[str], library: Path, what: str, verb: str) -> None:
    """Compiles `library` from C++ with these compiler arguments, and with VPMM's headers and library.

    `verb` is the verb of ``python -m vpmm`` that builds it ahead of time. Raises vpmm.Error with the compiler's output.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise unsupported(
            f"there is no C++ compiler here to build {what} with: install g++, or run `python -m vpmm {verb}` where "
            f"there is one and set VPMM_CACHE_DIR to its folder"
        )
    handle, name = tempfile.mkstemp(dir=library.parent, prefix=f".{library.name}.")
    os.close(handle)
    unfinished = Path(name)
    command = [*compiler.split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{HEADERS.parent}", *arguments, "-o", str(unfinished), *LINK_VPMM, *_standard_library()]
    try:
        run_tool(command, what)
        os.replace(unfinished, library)
    except OSError as error:
        raise unsupported(f"{what} could not be built: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def run_tool(command: list[str], what: str) -> None:
    """Runs a program of the build. Raises vpmm.Error with its output if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_BUILD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unsupported(f"{what} could not be built: {error}") from error
    if done.returncode != 0:
        words = "\n".join(done.stderr.splitlines()[:20])
        raise unsupported(f"{what} could not be built:\n{words}")
