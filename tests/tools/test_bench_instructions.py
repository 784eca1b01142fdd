# SPDX-License-Identifier: Apache-2.0
"""tests: what ./dev bench instructions makes of callgrind's profiles, with a stand-in for valgrind."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Each operation costs 70 instructions, with another library 100, and the start 12,345.
VALGRIND = """#!/bin/sh
for word in "$@"; do
  case "$word" in --callgrind-out-file=*) out=${word#*=} ;; esac
  last=$word
done
echo "summary: $((12345 + last * ${LD_LIBRARY_PATH:-70}))" >"$out"
"""


class BenchInstructions(unittest.TestCase):
    """The tool, run as ./dev runs it."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.stub(VALGRIND)

    def stub(self, text: str) -> None:
        (self.folder / "valgrind").write_text(text)
        (self.folder / "valgrind").chmod(0o755)

    def count(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            str(ROOT / "tools/bench_instructions.py"),
            "--bench",
            "vpmm_bench",
            "--out",
            str(self.folder),
            "--only",
            "256 B",
            *arguments,
        ]
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        environment["PATH"] = f"{self.folder}:{environment['PATH']}"
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def test_start_and_warm_up_are_no_part_of_an_operation(self) -> None:
        done = self.count("--against", "v1", "--library", "100")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader((self.folder / "instructions.csv").open()))
        self.assertEqual([row["peer"] for row in rows], ["vpmm", "vpmm-bound"])
        for row in rows:
            self.assertEqual((row["instructions"], row["base"], row["ratio"]), ("70.0", "100.0", "0.7000"))
        self.assertIn("| pair 256 B | vpmm | 70.0 | 100.0 | 0.7000 |", (self.folder / "instructions.md").read_text())

    def test_without_another_library_there_is_no_ratio(self) -> None:
        self.assertEqual(self.count().returncode, 0)
        self.assertEqual({row["ratio"] for row in csv.DictReader((self.folder / "instructions.csv").open())}, {""})

    def test_a_run_that_failed_is_named(self) -> None:
        self.stub("#!/bin/sh\necho 'no such library' >&2\nexit 3\n")
        done = self.count()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("pair 256 B, vpmm: no such library", done.stderr)


if __name__ == "__main__":
    unittest.main()
