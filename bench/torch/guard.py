#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench: milliseconds a step of programs under PyTorch with VPMM_GUARD unset, 1/100 and 1.

"""Measures the cost of guard mode, and prints one line of JSON for each program and setting.

    python3 bench/torch/guard.py [PROGRAM...] [--scale S] [--steps N]

The programs are those of `measure.py`. Needs a GPU, PyTorch and the package. Each measurement runs in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from catalogue import PROGRAMS

SETTINGS = ("", "1/100", "1")


def measure(program: str, setting: str, options: argparse.Namespace) -> dict[str, Any]:
    """The median of the steps after the first fifth of them, and what was guarded."""
    kept = {name: value for name, value in os.environ.items() if name != "VPMM_GUARD"}
    settings = kept | {"VPMM_TORCH": "1"} | ({"VPMM_GUARD": setting} if setting else {})
    command = [sys.executable, str(Path(__file__).with_name("measure.py")), program]
    command += ["--scale", str(options.scale), "--steps", str(options.steps)]
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, check=False)
    figures: dict[str, Any] = {"program": program, "guard": setting, "scale": options.scale}
    if done.returncode != 0 or not done.stdout:
        return figures | {"failed": f"exit status {done.returncode}"}
    told = json.loads(done.stdout.splitlines()[-1])
    if "failed" in told:
        return figures | told
    pool = told["pool"]
    return figures | {
        "ms_a_step": round(statistics.median(told["seconds"][told["warmup"] :]) * 1e3, 3),
        "allocations": pool["allocations"],
        "guarded": pool["guarded_allocations"],
        "unguarded": pool["unguarded_allocations"],
        "peak_mapped_bytes": pool["peak_mapped_bytes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of guard mode under PyTorch.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="of the benchmark (default: bert unet)")
    parser.add_argument("--scale", type=float, default=0.25, help="of the programs (default: 0.25)")
    parser.add_argument("--steps", type=int, default=30, help="of each program (default: 30)")
    options = parser.parse_args()
    unknown = sorted({*options.programs} - {*PROGRAMS})
    if unknown:
        parser.error(f"there is no program {unknown[0]!r}; there are: {' '.join(PROGRAMS)}")
    has_failed = False
    for program in options.programs or ["bert", "unet"]:
        for setting in SETTINGS:
            figures = measure(program, setting, options)
            has_failed |= "failed" in figures
            print(json.dumps(figures), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
