# SPDX-License-Identifier: Apache-2.0
# plugins: compiles libraries at their first use, for the installed version of another library, and caches them

"""Compiles a plugin's shared library once and keeps it in VPMM_CACHE_DIR, else ~/.cache/vpmm.

`what` names the library in messages, such as "the allocator for PyTorch 2.11.0".
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import grp
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from vpmm._output import save
from vpmm.errors import Error

PACKAGE = Path(__file__).resolve().parent.parent
HEADERS = PACKAGE / "include" / "vpmm"
LINK_VPMM = (f"-L{PACKAGE}", "-l:libvpmm.so.0")
TOOLKIT = Path("/usr/local/cuda")  # where CUDA's packages put it
_LONGEST_BUILD_S = 600
_SILENT = ("quiet", "error")  # values of VPMM_LOG
_OWN = "vpmm-of-one-process-"  # a folder


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


def cached(name: str, make: Callable[[Path], None], what: str, why: str = "") -> Path:
    """The path of the library with that name; `make` makes it if the cache lacks it, or has a damaged one.

    Before it is made, a line on standard error says so, and `why`; VPMM_LOG=quiet or error leaves it out.
    If several processes need it at the same time, one makes it and the others wait. Others may read it where
    VPMM_CACHE_DIR names the folder, as the umask allows.
    """
    for folder, mode in _cache_folders():
        library = folder / name
        if _is_whole(library):
            return library
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
            lock = open(folder / f"{name}.lock", "w")  # noqa: SIM115  held below
        except OSError:
            continue
        with lock:
            with contextlib.suppress(OSError):  # a file system without locks: each builds for itself
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(library):
                if os.environ.get("VPMM_LOG") not in _SILENT and sys.stderr is not None:
                    with contextlib.suppress(OSError, ValueError):  # it is closed
                        print(f"vpmm: {why or what}: compiling it {_how_often(folder)}", file=sys.stderr, flush=True)
                make(library)
                save(_note_of(library), functools.partial(_write, digest_of(library).encode()))
        return library
    raise unsupported(f"no folder for {what} can be written; VPMM_CACHE_DIR names one")


# A library that is cut ends the process when it is loaded, so its hash stands in a file beside it.
def _is_whole(library: Path) -> bool:
    try:
        return _note_of(library).read_text() == digest_of(library)
    except (OSError, UnicodeError):
        return False


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _note_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def digest_of(library: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _cache_folders() -> Iterator[tuple[Path, int]]:
    """The folders to search for a library, which is built in the first writable one if none has it; and their modes."""
    named = os.environ.get("VPMM_CACHE_DIR")
    if named:
        yield Path(named), 0o777
        return
    with contextlib.suppress(RuntimeError):  # there is no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "vpmm"
        with contextlib.suppress(OSError):  # before it is looked at, so that no other user makes it meanwhile
            folder.parent.parent.mkdir(parents=True, exist_ok=True)
            for each in (folder.parent, folder):  # parents=True would give the umask's mode to the first
                each.mkdir(exist_ok=True, mode=0o700)
        if not _may_be_changed_by_others(folder):
            yield folder, 0o700
    yield Path(tempfile.mkdtemp(prefix=_OWN)), 0o700  # of this process: no other user can put a library there


def _how_often(folder: Path) -> str:
    if not folder.name.startswith(_OWN):
        return f"once, into {folder}"
    return (
        f"for this process alone, into {folder}: others may write to the cache, or none can; VPMM_CACHE_DIR names one"
    )


def _may_be_changed_by_others(folder: Path) -> bool:
    """Whether a user other than root could put a library there: the home may be /tmp, or of the user who called sudo.

    Folders above the home are the system's. A group may write to parents if it is the user's own, as with umask 002."""
    for each in (folder, *folder.parents[:2]):
        try:
            status = each.lstat()
        except OSError:
            return True
        writers = 0o002 if each != folder and _is_own_group(status.st_gid) else 0o022
        is_open = bool(status.st_mode & writers) and (each == folder or not status.st_mode & stat.S_ISVTX)
        if is_open or status.st_uid not in (os.geteuid(), 0):
            return True
    return False


def _is_own_group(gid: int) -> bool:
    """Whether the group is the one that a system makes for the user: primary, of the same name, no other member."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def cuda_includes(what: str) -> list[Path]:
    """The folders of cuda_runtime_api.h and of crt/host_defines.h, which it includes.

    A toolkit has both in one. The packages that PyTorch installs lack the second; Triton's compiler has it.
    """
    candidates = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable]) / "include")
    for package, pattern in (("nvidia", "*/include"), ("triton", "backends/nvidia/include")):
        found = importlib.util.find_spec(package)
        for root in (found.submodule_search_locations or []) if found else []:
            candidates += sorted(Path(root).glob(pattern))
    candidates.append(TOOLKIT / "include")
    compiler = shutil.which("nvcc")
    if compiler:
        candidates.append(Path(compiler).resolve().parent.parent / "include")
    folders = []
    for header, package in (("cuda_runtime_api.h", "runtime"), ("crt/host_defines.h", "crt")):
        having = [folder for folder in candidates if (folder / header).is_file()]
        if not having:
            raise unsupported(
                f"{header} was not found, which {what} is built with: pip install nvidia-cuda-{package}, or set "
                f"CUDA_HOME (looked in {', '.join(map(str, candidates))})"
            )
        folders.append(next((folder for folder in having if folder in folders), having[0]))
    return list(dict.fromkeys(folders))


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
    unfinished = library.with_name(f".{library.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777)
        mode = stat.S_IMODE(os.fstat(handle).st_mode)  # as the umask has it, which the linker does not keep
        os.close(handle)
    except OSError as error:
        raise unsupported(f"{what} could not be built: {error}") from error
    command = [*compiler.split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{HEADERS.parent}", *arguments, "-o", str(unfinished), *LINK_VPMM, *_standard_library()]
    try:
        run_tool(command, what)
        unfinished.chmod(mode)
        os.replace(unfinished, library)
    except OSError as error:
        raise unsupported(f"{what} could not be built: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def run_tool(command: list[str], what: str, folder: Path | None = None) -> None:
    """Runs a program of the build, in `folder` where one is named. Raises vpmm.Error with its output if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST_BUILD_S, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unsupported(f"{what} could not be built: {error}") from error
    if done.returncode != 0:
        words = "\n".join(done.stderr.splitlines()[:20])
        raise unsupported(f"{what} could not be built:\n{words}")
