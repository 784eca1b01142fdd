# SPDX-License-Identifier: Apache-2.0
# plugins: finds the library that the package holds compiled for the installed version of another library

"""Libraries of plugins that a wheel holds compiled, so that their first use needs no compiler.

`built/` is in wheels only: `./dev wheel` fills it. Beside each library a note of the same name, as JSON, has the
headers that it was compiled with and their hash. A library whose headers differ has other virtual functions or other
structures, and would corrupt memory without an error. So it is loaded only where the installed headers have that hash;
where none is installed, as in a slim image, only for the release that it was compiled for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vpmm.plugins._building import PACKAGE, digest_of

FOLDER = PACKAGE / "plugins" / "built"
_VARIES = re.compile(r"(^|/)version\.h(pp)?$")  # differs in every patch release, and nothing else needs to


@dataclass(frozen=True)
class Note:
    """What a library was compiled for and with."""

    release: str  # such as 2.15.0
    headers: list[str]  # relative to the folders that the compiler was given
    headers_sha256: str
    library_sha256: str


@dataclass(frozen=True)
class Found:
    """A library, or why the package has none; without a reason it holds no libraries at all."""

    library: Path | None = None
    reason: str = ""


def find(name: str, folders: Sequence[Path], release: str, what: str) -> Found:
    """The library `name`, such as ``torch-2.15-cxx11``, if it fits the headers in `folders`.

    `release` is the installed version, and `what` names the library in the reason. Reads files only; any thread.
    """
    if not FOLDER.is_dir():
        return Found()
    library = FOLDER / f"{name}.so"
    try:
        note = Note(**json.loads(library.with_suffix(".json").read_text()))
    except FileNotFoundError:
        kind = name.split("-")[0]
        held = sorted((path.stem for path in FOLDER.glob(f"{kind}-*.json")), key=_by_version)
        return Found(reason=f"this package does not hold {what} compiled (it holds {', '.join(held) or 'none'})")
    except (OSError, TypeError, ValueError):
        return Found(reason=f"this package holds {what} compiled, but {name}.json is damaged")
    if not _fits(note, folders, release):
        return Found(reason=f"{what} is compiled in this package for {note.release}, which has other headers")
    try:
        is_whole = digest_of(library) == note.library_sha256  # one that is cut would end the process
    except OSError:
        is_whole = False
    if not is_whole:
        return Found(reason=f"this package holds {what} compiled, but {library.name} is damaged")
    return Found(library)


def write_note(library: Path, release: str, dependencies: Iterable[Path], folders: Sequence[Path]) -> None:
    """Writes the note of a library that was compiled with these files, of which those in `folders` count."""
    headers = sorted({name for path in dependencies if (name := _name_in(folders, path)) and not _VARIES.search(name)})
    digest = _digest(headers, folders)
    if not headers or digest is None:
        raise ValueError(f"{library.name} was compiled with no headers of {folders}")
    note = Note(release, headers, digest, digest_of(library))
    library.with_suffix(".json").write_text(json.dumps(asdict(note), indent=0) + "\n")


def dependencies_in(text: str) -> list[Path]:
    """The files that a rule of make names, as compilers write it."""
    words = re.split(r"(?<!\\)\s+", text.replace("\\\n", " ").partition(":")[2].strip())
    return [Path(word.replace("\\ ", " ")) for word in words if word]


def _fits(note: Note, folders: Sequence[Path], release: str) -> bool:
    if any(_path_in(folders, name) for name in note.headers):
        return _digest(note.headers, folders) == note.headers_sha256
    return release.partition("+")[0] == note.release


def _digest(headers: Iterable[str], folders: Sequence[Path]) -> str | None:
    """None: one of them is not there."""
    digest = hashlib.sha256()
    for name in headers:
        path = _path_in(folders, name)
        if path is None:
            return None
        content = path.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _path_in(folders: Sequence[Path], name: str) -> Path | None:
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def _name_in(folders: Sequence[Path], path: Path) -> str | None:
    """The shortest relative name: a folder may lie in another."""
    path = path.resolve()
    names = [str(path.relative_to(folder.resolve())) for folder in folders if path.is_relative_to(folder.resolve())]
    return min(names, key=len, default=None)


def _by_version(stem: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", stem)]
