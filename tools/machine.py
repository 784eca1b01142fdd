# SPDX-License-Identifier: Apache-2.0
"""What a measurement must say about where it was made: processor, GPU, driver, compiler, version of the project."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_line(*command: str) -> str | None:
    """The first line a command prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None


def processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{found.group(1) if found else platform.machine()}, {os.cpu_count()} logical cores"


def operating_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def describe() -> dict[str, str]:
    gpu = first_line("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return {
        "processor": processor(),
        "system": operating_system(),
        "gpu": gpu or "none",
        "compiler": first_line(os.environ.get("CXX", "c++"), "--version") or "unknown",
        "commit": first_line("git", "describe", "--always", "--dirty") or "unknown",
    }
