#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of warm calls with callgrind, beside those of another commit's library.

A count does not depend on the machine's load, so it judges changes to the hot paths; a time on a clock does not. The
driver is the one that costs nothing. One operation is one deallocate and one allocate, on one thread.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parent.parent
COUNTED = "*Worker::run*"  # of bench/micro/hot_path.cpp
OPERATIONS = 4_096
PEERS = ("vpmm", "vpmm-bound")
CASES = ("pair 256 B", "pair 64 KiB", "pair 2 MiB", "pair 16 MiB", "random 1e3 <= 64 KiB", "random 1e3 <= 4 MiB")
COLUMNS = ("case", "peer", "instructions", "base", "ratio")


@dataclass(frozen=True)
class Row:
    """Instructions of one operation, with this tree's library and with the other one's, if there is one."""

    case: str
    peer: str
    instructions: float
    base: float | None

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of COLUMNS."""
        figures = (f"{self.base:.1f}", f"{self.instructions / self.base:.4f}") if self.base else ("", "")
        return (self.case, self.peer, f"{self.instructions:.1f}", *figures)


def counted(profile: Path) -> int:
    """The instructions that a profile of callgrind counts."""
    found = re.search(r"^(?:summary|totals): (\d+)", profile.read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"callgrind wrote no sum into {profile}")
    return int(found[1])


def instructions_of(bench: Path, case: str, peer: str, operations: int, library: Path | None) -> int:
    """The instructions of a case's warm-up and `operations` operations. library: a folder with another libvpmm.so."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        environment = os.environ | ({"LD_LIBRARY_PATH": str(library)} if library else {})
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--toggle-collect={COUNTED}",
            f"--callgrind-out-file={profile}",
            str(bench),
            "hot-path",
            "--driver",
            "zero-cost",
            "--peer",
            peer,
            "--threads",
            "1",
            "--repeats",
            "1",
            "--only",
            case,
            "--operations",
            str(operations),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"{case}, {peer}: {done.stderr.strip().splitlines()[-1]}")
        return counted(profile)


def per_operation(bench: Path, case: str, peer: str, library: Path | None) -> float:
    """Two runs differ in nothing but the number of operations: their difference has no warm-up in it."""
    few = instructions_of(bench, case, peer, OPERATIONS, library)
    many = instructions_of(bench, case, peer, 3 * OPERATIONS, library)
    return (many - few) / (2 * OPERATIONS)


def markdown(rows: list[Row], facts: dict[str, str]) -> str:
    """The table, and what it was measured with."""
    lines = ["# Instructions of a warm pair", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---|---|---:|---:|---:|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_results(rows: list[Row], facts: dict[str, str], out: Path) -> None:
    """instructions.csv and instructions.md."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "instructions.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row.cells() for row in rows)
    (out / "instructions.md").write_text(markdown(rows, facts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True, help="vpmm_bench")
    parser.add_argument("--against", help="name of the commit that is compared with")
    parser.add_argument("--library", type=Path, help="folder with that commit's libvpmm.so")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    options = parser.parse_args()
    rows = []
    print("{:<22} {:<11} {:>12} {:>9} {:>7}".format(*COLUMNS), flush=True)
    for case in (name for name in CASES if options.only in name):
        for peer in PEERS:
            base = per_operation(options.bench, case, peer, options.library) if options.library else None
            row = Row(case, peer, per_operation(options.bench, case, peer, None), base)
            rows.append(row)
            print("{:<22} {:<11} {:>12} {:>9} {:>7}".format(*row.cells()), flush=True)
    facts = {name: value for name, value in machine.describe().items() if value and name != "gpu"}
    command = "./dev bench instructions" + (f" --against {options.against}" if options.against else "")
    write_results(rows, {"command": f"`{command}`", "base": options.against or "none"} | facts, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
