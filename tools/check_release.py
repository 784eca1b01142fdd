#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the version is the same wherever it is written: CMake, the C header, the Python package, the list of
changes, and the tag of the commit, if it has one.

A commit is released by giving its version a date in CHANGELOG.md and a tag, v0.1.0 for example. One with a tag needs
the date; one without must not have the version of an earlier tag. `--release` asks for the date before the tag is
there. Prints one line per finding.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+"
DATE = r"\d{4}-\d{2}-\d{2}"
NOT_RELEASED = "not released"


def found_in(root: Path, path: str, pattern: str) -> str:
    """What the pattern's groups find in a file, with dots between; empty where they find nothing."""
    found = re.search(pattern, (root / path).read_text(), re.MULTILINE)
    return ".".join(found.groups()) if found else ""


def versions(root: Path) -> dict[str, str]:
    """The version as each file has it. CMake's comes first."""
    defined = r"\s+".join(rf"#define VPMM_VERSION_{part} (\d+)" for part in ("MAJOR", "MINOR", "PATCH"))
    pyproject = (root / "pyproject.toml").read_text()
    reader = re.search(r"^input = \"(.+)\"\nregex = '(.+)'$", pyproject, re.MULTILINE)
    return {
        "CMakeLists.txt": found_in(root, "CMakeLists.txt", rf"^project\(vpmm VERSION ({VERSION})"),
        "include/vpmm/vpmm.h": found_in(root, "include/vpmm/vpmm.h", defined),
        "pyproject.toml": found_in(root, reader[1], reader[2]) if reader else "",
        "CHANGELOG.md": found_in(root, "CHANGELOG.md", rf"^## ({VERSION}) "),
    }


def tags(root: Path, *which: str) -> list[str]:
    """Those of git that name a version; none where the tree is no clone."""
    done = subprocess.run(["git", "tag", *which], cwd=root, capture_output=True, text=True, check=False)
    return [tag for tag in done.stdout.split() if re.fullmatch(f"v{VERSION}", tag)]


def check(root: Path, release: bool) -> Iterator[str]:
    written = versions(root)
    version = written["CMakeLists.txt"]
    for path, value in written.items():
        if value != version or not value:
            yield f"{path}: the version is {value or 'not found'}, and {version or 'not found'} in CMakeLists.txt"
    minor = version.rpartition(".")[0]
    wanted = found_in(root, "python/CMakeLists.txt", r"find_package\(vpmm (\S+) ")
    if wanted != minor:
        yield f"python/CMakeLists.txt: find_package asks for vpmm {wanted or '(nothing)'}, and this is {minor}"
    state = found_in(root, "CHANGELOG.md", rf"^## {VERSION} \((.*)\)$")
    if not re.fullmatch(f"{NOT_RELEASED}|{DATE}", state):
        yield f"CHANGELOG.md: `{state}` is neither a date, such as 2026-01-31, nor `{NOT_RELEASED}`"
    here = tags(root, "--points-at", "HEAD")
    for tag in here:
        if tag != f"v{version}":
            yield f"the tag {tag} of this commit is not v{version}"
    if (here or release) and state == NOT_RELEASED:
        yield f"CHANGELOG.md: {version} has no date, and this commit is a release"
    if f"v{version}" in set(tags(root)) - set(here):
        yield f"{version} was released by an earlier commit, the tag v{version}: this one needs a new version"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true", help="this commit is about to get its tag")
    findings = list(check(ROOT, parser.parse_args().release))
    for finding in findings:
        print(finding)
    print(f"check_release: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
