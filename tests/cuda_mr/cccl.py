# SPDX-License-Identifier: Apache-2.0
"""tests: which versions of CCCL the header is compiled with; `python cccl.py` fetches them and prints the newest's."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build/cccl"  # one folder for each version
PACKAGE = "nvidia-cuda-cccl"
VERSIONS = {
    "3.0": "13.0.85",
    "3.1": "13.1.115",
    "3.2": "13.2.86",
    "3.3": "13.3.3.3.1",
    "3.4": "13.3.4.3.1",
    "3.5": "13.3.5.0.6",
}
NEWEST = "3.5"
SECONDS = 60


def headers(cccl: str) -> Path:
    """The folder for the compiler; it is there once the version was fetched."""
    return FOLDER / cccl / "nvidia/cu13/include/cccl"


def fetch(cccl: str) -> None:
    """Some four megabytes. Does nothing when they are there or pip cannot fetch them."""
    if not headers(cccl).is_dir():
        wheel = [f"{PACKAGE}=={VERSIONS[cccl]}", "--no-deps", "--quiet", "--target", str(FOLDER / cccl)]
        subprocess.run([sys.executable, "-m", "pip", "install", *wheel], check=False, timeout=SECONDS)


def main() -> int:
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        list(pool.map(fetch, VERSIONS))
    if headers(NEWEST).is_dir():
        print(headers(NEWEST))
    return 0


if __name__ == "__main__":
    sys.exit(main())
