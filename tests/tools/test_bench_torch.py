# SPDX-License-Identifier: Apache-2.0
"""tests: what the benchmark of PyTorch programs says about figures, lost programs first, and how it finds limits."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "torch"))

import run as bench  # noqa: E402  needs the path above
import tables  # noqa: E402  needs the path above

GB = 10**9


def figures(held: float, seconds: float, losses: tuple[float, ...] = (2.0, 1.0)) -> dict[str, Any]:
    return {
        "held_bytes": held * GB,
        "live_bytes": 10 * GB,
        "warmup": 1,
        "seconds": [99.0, seconds, seconds, 9 * seconds],
        "losses": list(losses),
        "wall_seconds": 20.0,
    }


def row(ours: dict[str, Any]) -> dict[str, Any]:
    return {"native": figures(20, 1.0), "expandable": figures(12, 2.0), "cuda-async": {"failed": "x"}, "vpmm": ours}


class Tables(unittest.TestCase):
    def test_ours_is_compared_with_the_best_of_the_rivals_that_ran(self) -> None:
        self.assertEqual(tables.shortfalls(row(figures(15, 1.5))), (1.25, 1.5))

    def test_the_verdict_names_what_is_lost_and_nothing_where_all_is_won(self) -> None:
        self.assertIn("loses memory and time", tables.verdict(row(figures(15, 1.5))))
        self.assertNotIn("loses", tables.verdict(row(figures(12, 1.03))))

    def test_programs_that_failed_come_first_then_those_that_lose_most(self) -> None:
        rows = {
            "won": row(figures(11, 1.0)),
            "slower": row(figures(11, 1.2)),
            "larger": row(figures(18, 1.0)),
            "broken": row({"failed": "ended with 1"}),
        }
        text = tables.report(rows, {"gpu": "none"}, {"scale": 1.0})
        places = [text.index(f"| {name} |") for name in ("broken", "larger", "slower", "won")]
        self.assertEqual(places, sorted(places))

    def test_time_in_cudas_calls_is_shown_where_it_was_measured(self) -> None:
        timed = figures(11, 1.0) | {"timed": {"calls": 7, "ns": 2_000_000}, "counts": {"num_device_alloc": 3}}
        self.assertEqual(tables.allocation_cell({"native": timed}, "native"), "7 calls, 2 ms")
        del timed["timed"]
        self.assertEqual(tables.allocation_cell({"native": timed}, "native"), "3, 0")

    def test_losses_are_equal_to_the_bit_or_the_first_step_that_differs_is_named(self) -> None:
        self.assertEqual(tables.losses(row(figures(11, 1.0)), "vpmm"), "equal")
        changed = row(figures(11, 1.0, (2.0, 1.0 + 2**-40)))
        self.assertIn("differ from step 2 on", tables.losses(changed, "vpmm"))

    def test_the_first_steps_do_not_count_as_time(self) -> None:
        self.assertEqual(tables.step_seconds(figures(11, 0.5)), 0.5)


class Limits(unittest.TestCase):
    def test_bisection_ends_between_a_limit_that_fails_and_one_that_runs(self) -> None:
        def fake(program: str, allocator: str, options: object, seconds: float, *more: str) -> dict[str, Any]:
            return {} if int(more[1]) >= 11 * GB else {"failed": "out of memory"}

        options = argparse.Namespace(limit_steps=6, limit_by="ballast")
        with mock.patch.object(bench, "run", fake):
            found = bench.smallest_limit("moe", "vpmm", row(figures(15, 1.0)), options, bench.Clock(1000))
        self.assertLess(found["fails_bytes"], 11 * GB)
        self.assertGreaterEqual(found["runs_bytes"], 11 * GB)
        self.assertLess(found["runs_bytes"] - found["fails_bytes"], GB // 8)

    def test_no_further_limit_is_tried_when_time_is_up(self) -> None:
        options = argparse.Namespace(limit_steps=6, limit_by="ballast")
        found = bench.smallest_limit("moe", "vpmm", row(figures(15, 1.0)), options, bench.Clock(5))
        self.assertEqual(found["tries"], [])


class Runs(unittest.TestCase):
    def options(self, folder: str, *more: str) -> argparse.Namespace:
        words = ["run.py", "--programs", "moe", "--allocators", "native,expandable,vpmm", "--out", folder, *more]
        with mock.patch.object(sys, "argv", words):
            return bench.parse()

    def test_a_run_that_goes_on_measures_what_is_missing_or_was_cut_off(self) -> None:
        started: list[str] = []

        def fake(program: str, allocator: str, *more: object) -> dict[str, Any]:
            started.append(allocator)
            return figures(11, 1.0)

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(bench, "run", fake):
            done = {"native": figures(11, 1.0), "expandable": {"failed": "out of time"}}
            before = {"settings": {"scale": 1.0, "deterministic": False}, "results": {"moe": done}}
            Path(folder, "torch-programs.json").write_text(json.dumps(before))
            options = self.options(folder, "--resume")
            with contextlib.redirect_stdout(io.StringIO()):
                bench.measure_all(bench.Results(options), options, bench.Clock(1000))
            written = json.loads(Path(folder, "torch-programs.json").read_text())
        self.assertEqual(started, ["expandable", "vpmm"])
        self.assertEqual(list(written["results"]["moe"]), ["native", "expandable", "vpmm"])

    def test_results_of_another_scale_are_not_mixed_in(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before = {"settings": {"scale": 0.5, "deterministic": False}, "results": {}}
            Path(folder, "torch-programs.json").write_text(json.dumps(before))
            with self.assertRaises(SystemExit):
                bench.Results(self.options(folder, "--resume"))

    def test_the_shell_does_not_decide_about_the_allocator(self) -> None:
        with mock.patch.dict("os.environ", {"VPMM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}):
            options = argparse.Namespace(deterministic=False, timed_calls=None)
            native, ours = (bench.environment_of(name, options) for name in ("native", "vpmm"))
        self.assertNotIn("VPMM_TORCH", native)
        self.assertNotIn("PYTORCH_CUDA_ALLOC_CONF", ours)
        self.assertEqual(ours["VPMM_TORCH"], "1")


if __name__ == "__main__":
    unittest.main()
