# SPDX-License-Identifier: Apache-2.0
"""tests: the benchmark's table shows ratios from raw figures, and no footprint that is only a stand-in."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import bench_replay as bench  # noqa: E402 - needs the path above

RESULT = {
    "trace": "bench/traces/gnn.csv.gz",
    "driver": "sim",
    "allocator": "vpmm",
    "operations": 20,
    "allocations": 10,
    "failed_allocations": 0,
    "peak_live_bytes": 4 << 30,
    "peak_mapped_bytes": 5 << 30,
    "driver_calls": 12345,
    "driver_time_us": 2500.0,
    "worst_allocate_us": 1250.0,
    "p99_allocate_us": 3.0,
    "corruptions": 0,
    "hazards": 0,
    "mapped_chunks_peak": 7,
    "seconds": 1.5,
    "peak_rounded_bytes": 17 << 28,
    "driver_time_first_half_us": 2000.0,
    "driver_time_second_half_us": 500.0,
    "driver_calls_by_kind": {
        "mem_release": {"count": 1, "total_us": 9.0, "mean_us": 9.0, "p50_us": 9.0, "p90_us": 9.0, "p99_us": 9.0,
                        "max_us": 9.0, "bytes": None},
        "mem_map": {"count": 2000, "total_us": 2500.0, "mean_us": 1.25, "p50_us": 1.0, "p90_us": 2.0, "p99_us": 3.0,
                    "max_us": 4.0, "bytes": 4000 << 20},
        "event_query": {"count": 7, "total_us": 1.4, "mean_us": 0.2, "p50_us": 0.2, "p90_us": 0.2, "p99_us": 0.2,
                        "max_us": 0.2, "bytes": None},
    },
}  # fmt: skip


class Table(unittest.TestCase):
    def test_a_row_holds_the_ratio_and_the_units_of_its_heading(self) -> None:
        memory, times = ["4.00", "1.250", "1.176"], ["12,345", "2.5", "2.0", "0.5", "1.25", "3.0"]
        row = ["gnn", "vpmm", *memory, *times, "0", "0", "0", "1.5"]
        self.assertEqual(bench.cells(RESULT), row)
        self.assertEqual(len(row), len(bench.COLUMNS))

    def test_hazards_are_unknown_on_a_gpu(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"driver": "cuda", "hazards": None})[-2], "-")

    def test_the_simulated_stream_ordered_pool_shows_no_footprint(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"allocator": "cuda-async"})[3:5], ["-", "-"])
        self.assertEqual(bench.cells(RESULT | {"allocator": "cuda-async", "driver": "cuda"})[3], "1.250")

    def test_a_trace_with_nothing_live_divides_by_nothing(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"peak_live_bytes": 0, "peak_rounded_bytes": 0})[3:5], ["-", "-"])


class Calls(unittest.TestCase):
    def test_about_chunks_and_mappings_have_a_row_each(self) -> None:
        rows = [line.strip("| ").split(" | ") for line in bench.call_table([RESULT]).splitlines()[2:]]
        self.assertEqual(
            rows,
            [
                ["gnn", "mem_map", "2,000", "2.5", "1.2", "1.0", "2.0", "3.0", "4.0", "2.0"],
                ["gnn", "mem_release", "1", "0.0", "9.0", "9.0", "9.0", "9.0", "9.0", "-"],
            ],
        )
        self.assertEqual(len(rows[0]), len(bench.CALL_COLUMNS))

    def test_of_other_allocators_are_left_to_the_raw_results(self) -> None:
        self.assertNotIn("gnn", bench.call_table([RESULT | {"allocator": "vpmm-page"}]))


class Command(unittest.TestCase):
    def test_that_is_recorded_names_no_build_folder(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "vpmm"
            program.write_text(f"#!/bin/sh\necho '{json.dumps(RESULT)}'\n")
            program.chmod(0o755)
            with contextlib.redirect_stdout(io.StringIO()):
                command, results = bench.replay(program, "sim", [ROOT / "bench/traces/gnn.csv.gz"], ["--seed", "2"])
        self.assertEqual(
            command,
            "vpmm replay bench/traces/gnn.csv.gz --driver sim --json --allocator vpmm --allocator vpmm-page --seed 2",
        )
        self.assertEqual(results, [RESULT])


class Peers(unittest.TestCase):
    """Which allocators are measured."""

    def run_bench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools/bench.py"), "--driver", "sim", "--parts", "b", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_one_that_does_not_exist_is_named_with_those_that_do(self) -> None:
        done = self.run_bench("--peers", "vpmm,nobody")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no peer nobody; there are ", done.stdout)
        self.assertIn("mimalloc", done.stdout)

    def test_only_those_that_are_asked_for_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "vpmm_bench"
            program.write_text('#!/bin/sh\necho "random_allocations,case,$3,1,time,ms,0,2.5"\n')
            program.chmod(0o755)
            done = self.run_bench("--bench", str(program), "--out", folder, "--peers", "vpmm")
            table = "".join(path.read_text() for path in Path(folder).glob("*.md"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(table, "not asked for .*cuda-async")
        self.assertIn("vpmm", table)

    def test_repeats_reach_the_parts_that_take_them(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "vpmm_bench"
            program.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\necho "multi_stream,case,$3,1,time,ms,0,2.5"\n')
            program.chmod(0o755)
            done = self.run_bench("--bench", str(program), "--out", folder, "--peers", "vpmm", "--repeats", "11")
            calls = (Path(folder) / "calls").read_text().splitlines()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([call.split()[0] for call in calls if "--repeats 11" in call], ["multi-stream"])
        self.assertEqual(
            [call.split()[0] for call in calls], ["random-allocations", "random-allocations", "multi-stream"]
        )

    def test_one_that_fails_is_named_with_what_it_said_first(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "vpmm_bench"
            program.write_text('#!/bin/sh\n[ $3 = vpmm ] || exit 7\nprintf "no segment\\nframe #0: f\\n" >&2\nexit 6\n')
            program.chmod(0o755)
            done = self.run_bench("--bench", str(program), "--out", folder, "--peers", "vpmm,vpmm-bound")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("failed: random-allocations with vpmm ended with 6: no segment\n", done.stdout)
        self.assertIn("failed: multi-stream with vpmm-bound ended with 7\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
