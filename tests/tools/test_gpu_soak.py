# SPDX-License-Identifier: Apache-2.0
"""tests: what a soak on a GPU leaves when it ends and when it is cut off, with a program in place of the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/gpu_soak.py"
PROGRAM = """#!/bin/sh
echo "$VPMM_SEED $VPMM_STRESS_SECONDS $1" >>"$TURNS"
case "$1" in
  *Threads*) echo "3 rounds, 700 allocations" ;;
  *) eval "$THEN"; echo "5 rounds, 90 allocations" ;;
esac
"""


class Soak(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program("tests/vpmm_test_gpu", PROGRAM)
        self.program("bin/cmake", "#!/bin/sh\n")

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir()
        path.write_text(text)
        path.chmod(0o755)

    def start(self, then: str) -> subprocess.Popen[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": path, "TURNS": str(self.folder / "turns"), "THEN": then}
        # Without the packages of this Python, Numba among them.
        command = [sys.executable, "-S", str(TOOL), "--build", str(self.folder), "--out", str(self.folder / "out")]
        command += ["--seed", "40", "--seconds", "1000", "--turn", "60"]
        return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)

    def turns(self) -> list[list[str]]:
        path = self.folder / "turns"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def pieces(self) -> dict[str, dict[str, object]]:
        read = json.loads((self.folder / "out/gpu-soak.json").read_text())
        return {piece["name"]: piece for piece in read["pieces"]}

    def test_turns_have_new_seeds_their_counts_are_summed_and_a_failure_ends_them(self) -> None:
        process = self.start('[ "$VPMM_SEED" != 2040 ] || exit 7')
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out)
        self.assertEqual([turn[:2] for turn in self.turns()[:2]], [["40", "48"], ["40", "12"]])
        self.assertEqual([turn[0] for turn in self.turns()[2:]], ["1040", "1040", "2040", "2040"])
        self.assertIn("   9         2100  passed\n", out)
        self.assertIn("  10          180  failed with VPMM_SEED=2040\n", out)
        self.assertIn("processes        0        0       0            0  not run\n", out)
        threads, programs = self.pieces()["threads"], self.pieces()["programs"]
        self.assertEqual((threads["turns"], threads["rounds"], threads["allocations"]), (3, 9, 2100))
        self.assertEqual((programs["turns"], programs["rounds"], programs["allocations"]), (3, 10, 180))

    def cut_off(self, by: signal.Signals) -> tuple[str, int]:
        """While the second piece runs."""
        process = self.start("exec sleep 60")
        end = time.monotonic() + 60
        while len(self.turns()) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(by)
        out, _ = process.communicate(timeout=30)
        return out, process.returncode

    def test_a_soak_that_is_cut_off_leaves_its_table_and_its_counts(self) -> None:
        out, code = self.cut_off(signal.SIGTERM)
        self.assertEqual(code, 128 + signal.SIGTERM, out)
        self.assertIn("       3          700  passed\n", out)
        self.assertIn("cut off with VPMM_SEED=40\n", out)
        self.assertEqual(self.pieces()["threads"]["rounds"], 3)
        self.assertEqual(self.pieces()["programs"]["outcome"], "cut off with VPMM_SEED=40")

    def test_a_soak_that_is_killed_leaves_the_counts_of_what_was_over(self) -> None:
        self.cut_off(signal.SIGKILL)
        self.assertEqual(self.pieces()["threads"]["allocations"], 700)
        self.assertEqual(self.pieces()["programs"]["outcome"], "not run")

    def test_files_are_summed_and_a_failure_among_them_stays(self) -> None:
        def run(turns: int, outcome: str) -> dict[str, object]:
            counts = {"turns": turns, "seconds": 1.5, "rounds": 10 * turns, "allocations": 100 * turns}
            return {"pieces": [{"name": "threads", "needs": "", "share": 4, **counts, "outcome": outcome}]}

        first, second = self.folder / "first.json", self.folder / "second.json"
        first.write_text(json.dumps([run(1, "passed"), run(2, "failed with VPMM_SEED=9")]))
        second.write_text(json.dumps(run(4, "passed")))
        command = [sys.executable, str(TOOL), "--sum", str(first), str(second)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        self.assertIn("threads          7        4      70          700  failed with VPMM_SEED=9\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
