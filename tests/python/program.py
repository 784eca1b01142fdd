# SPDX-License-Identifier: Apache-2.0
"""tests: programs in processes of their own, on the simulator, as the installed package is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import vpmm

PACKAGE_PARENT = str(Path(vpmm.__file__).resolve().parents[1])


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `arguments`; the caller looks at how it ended."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VPMM_", "NUMBA_"))}
    settings = clean | {"VPMM_DRIVER": "sim", "PYTHONPATH": PACKAGE_PARENT} | environment
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120, check=False)


def output_of(code: str, **environment: str) -> str:
    """What a program printed; it must have ended well and said nothing else."""
    done = run("-c", code, **environment)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
