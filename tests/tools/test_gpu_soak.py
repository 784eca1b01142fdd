# SPDX-License-Identifier: Apache-2.0
"""tests: what a soak on a GPU leaves when it ends and when it is cut off, with a program in place of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

TOOL = Path(__file__).resolve().parents[2] / "tools/gpu_soak.py"
sys.path.insert(0, str(TOOL.parent))
import gpu_soak  # noqa: E402 - needs the path above

PROGRAM = """#!/bin/sh
echo "$VPMM_SEED $VPMM_STRESS_SECONDS $$ $1" >>"$TURNS"
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
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, then: str, *options: str) -> subprocess.Popen[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": path, "TURNS": str(self.folder / "turns"), "THEN": then}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # Without the packages of this Python, Numba among them.
        command = [sys.executable, "-S", str(TOOL), "--build", str(self.folder), "--out", str(self.folder / "out")]
        command += ["--seed", "40", "--seconds", "1000", "--turn", "60", *options]
        output = subprocess.PIPE
        process = subprocess.Popen(
            command, env=inherited | variables, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        """And the last of its programs, which a tool that is killed leaves."""
        process.kill()
        process.communicate()
        for turn in self.turns()[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(turn[2]), signal.SIGKILL)

    def ends(self, then: str, *options: str) -> tuple[str, int]:
        process = self.start(then, *options)
        out, _ = process.communicate(timeout=60)
        return out, process.returncode

    def turns(self) -> list[list[str]]:
        path = self.folder / "turns"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def pieces(self) -> dict[str, dict[str, object]]:
        read = json.loads((self.folder / "out/gpu-soak.json").read_text())
        return {piece["name"]: piece for piece in read["pieces"]}

    def test_turns_have_new_seeds_their_counts_are_summed_and_a_failure_ends_them(self) -> None:
        out, code = self.ends('[ "$VPMM_SEED" != 2040 ] || exit 7')
        self.assertEqual(code, 1, out)
        self.assertEqual([turn[:2] for turn in self.turns()[:2]], [["40", "48"], ["40", "12"]])
        self.assertEqual([turn[0] for turn in self.turns()[2:]], ["1040", "1040", "2040", "2040"])
        self.assertIn("   9         2100  passed\n", out)
        self.assertIn("  10          180  failed with VPMM_SEED=2040\n", out)
        self.assertIn("processes        0        0       0            0  not run\n", out)
        threads, programs = self.pieces()["threads"], self.pieces()["programs"]
        self.assertEqual((threads["turns"], threads["rounds"], threads["allocations"]), (3, 9, 2100))
        self.assertEqual((programs["turns"], programs["rounds"], programs["allocations"]), (3, 10, 180))

    def test_the_seed_that_is_told_is_the_last_that_the_piece_told(self) -> None:
        rounds = 'echo "replay with VPMM_SEED=41"; echo "replay with VPMM_SEED=57"; exit 7'
        out, code = self.ends(rounds)
        self.assertEqual(code, 1, out)
        self.assertEqual(self.pieces()["programs"]["outcome"], "failed with VPMM_SEED=57")

    def test_a_piece_that_counts_no_round_failed(self) -> None:
        for then in ("exit 0", 'echo "0 rounds, 0 allocations"; exit 0'):
            out, code = self.ends(then)
            self.assertEqual(code, 1, out)
            self.assertEqual(self.pieces()["programs"]["outcome"], "failed: counted nothing")

    def test_a_soak_in_which_nothing_ran_has_not_passed(self) -> None:
        out, code = self.ends("", "--seconds", "0")
        self.assertEqual((code, self.turns()), (1, []), out)
        self.assertEqual({piece["outcome"] for piece in self.pieces().values()}, {"not run"})
        out, code = self.ends("", "--turn", "6")
        self.assertEqual((code, self.turns()), (2, []), out)
        self.assertIn("--turn must be 7 or more, so that each piece has a second", out)

    def test_the_shortest_turn_gives_each_piece_time_until_none_is_left(self) -> None:
        out, code = self.ends("sleep 1", "--turn", "7", "--seconds", "3")
        self.assertEqual(code, 0, out)
        self.assertEqual(self.turns()[1][:2], ["40", "1"])

    def test_a_soak_that_cannot_build_leaves_no_results_of_an_earlier_one(self) -> None:
        self.program("bin/cmake", "#!/bin/sh\nexit 3\n")
        self.program("out/gpu-soak.json", json.dumps({"pieces": [{"name": "threads", "outcome": "passed"}]}))
        out, code = self.ends("")
        self.assertEqual((code, self.turns()), (1, []), out)
        self.assertEqual({piece["outcome"] for piece in self.pieces().values()}, {"not run"})

    def test_the_machine_is_described_once(self) -> None:
        self.program("bin/git", f"#!/bin/sh\necho asked | tee -a {self.folder}/asked\n")
        self.ends('[ "$VPMM_SEED" != 2040 ] || exit 7')
        self.assertEqual((self.folder / "asked").read_text(), "asked\n")

    def cut_off(self, by: signal.Signals) -> tuple[str, int]:
        """While the second piece runs."""
        process = self.start("echo half; exec sleep 60")
        log = self.folder / "out/gpu-soak.log"
        end = time.monotonic() + 60
        while not (log.exists() and "half\n" in log.read_text()):  # a piece is heard while it runs
            self.assertLess(time.monotonic(), end)
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

    def test_a_signal_that_comes_while_results_are_written_ends_the_soak_afterwards(self) -> None:
        self.addCleanup(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, []))
        # What a shell started in the background ignores it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        (self.folder / "out").mkdir()
        piece = gpu_soak.Piece("threads", ["echo", "3 rounds, 700 allocations"])
        results = gpu_soak.Results(self.folder / "out", 40, [piece], machine={})

        def interrupted(raw: object, **_: object) -> str:
            if piece.turns == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return text(raw)

        text = json.dumps
        with mock.patch("gpu_soak.json.dumps", interrupted), mock.patch("builtins.print"):
            self.assertRaises(KeyboardInterrupt, gpu_soak.soak, results, 20, 7)
        self.assertEqual((piece.rounds, self.pieces()["threads"]["rounds"]), (3, 3))

    def sum_of(self, *runs: tuple[int, str]) -> tuple[str, int]:
        """Of turns and outcomes, the last in a file of its own."""
        raw = []
        for turns, outcome in runs:
            counts = {"turns": turns, "seconds": 1.5, "rounds": 10 * turns, "allocations": 100 * turns}
            raw.append({"pieces": [{"name": "threads", "needs": "", "share": 4, **counts, "outcome": outcome}]})
        first, second = self.folder / "first.json", self.folder / "second.json"
        first.write_text(json.dumps(raw[:-1]))
        second.write_text(json.dumps(raw[-1]))
        command = [sys.executable, str(TOOL), "--sum", str(first), str(second)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout, done.returncode

    def test_files_are_summed(self) -> None:
        out, code = self.sum_of((1, "passed"), (2, "not run"), (4, "passed"))
        self.assertIn("threads          7        4      70          700  passed\n", out)
        self.assertEqual(code, 0)

    def test_the_worst_outcome_of_files_stays_in_any_order(self) -> None:
        outcomes = ("passed", "failed with VPMM_SEED=9", "cut off with VPMM_SEED=2", "hung with VPMM_SEED=3")
        for worse, better in (outcomes[1:3], outcomes[3:1:-1], outcomes[2::-2], (outcomes[3], "not run")):
            for order in ((worse, better), (better, worse)):
                out, code = self.sum_of(*((1, outcome) for outcome in order))
                self.assertIn(f"  {worse}\n", out)
                self.assertEqual(code, 0 if worse.startswith("cut off") else 1, order)


if __name__ == "__main__":
    unittest.main()
