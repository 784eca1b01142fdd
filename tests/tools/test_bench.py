"""tests: the benchmark's table shows ratios from raw figures, and no footprint that is only a stand-in."""

from __future__ import annotations

import contextlib
import io
import json
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
}


class Table(unittest.TestCase):
    def test_a_row_holds_the_ratio_and_the_units_of_its_heading(self) -> None:
        row = ["gnn", "vpmm", "4.00", "1.250", "12,345", "2.5", "1.25", "3.0", "0", "0", "0", "1.5"]
        self.assertEqual(bench.cells(RESULT), row)
        self.assertEqual(len(row), len(bench.COLUMNS))

    def test_hazards_are_unknown_on_a_gpu(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"driver": "cuda", "hazards": None})[-2], "-")

    def test_the_simulated_stream_ordered_pool_shows_no_footprint(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"allocator": "cuda-async"})[3], "-")
        self.assertEqual(bench.cells(RESULT | {"allocator": "cuda-async", "driver": "cuda"})[3], "1.250")

    def test_a_trace_with_nothing_live_divides_by_nothing(self) -> None:
        self.assertEqual(bench.cells(RESULT | {"peak_live_bytes": 0})[3], "-")


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


if __name__ == "__main__":
    unittest.main()
