# SPDX-License-Identifier: Apache-2.0
"""tests: what the benchmark's programs print becomes medians, ratios to ours, and a list of what is not there."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import bench_samples  # noqa: E402 - needs the path above
import bench_tables  # noqa: E402 - needs the path above
from bench_samples import Sample  # noqa: E402 - needs the path above

import bench  # noqa: E402 - needs the path above


def timed(peer: str, *values: float, case: str = "pair 2 MiB", threads: int = 1) -> list[Sample]:
    return [Sample("hot_path", case, peer, threads, "time", "ns", i, value) for i, value in enumerate(values)]


class Samples(unittest.TestCase):
    def test_a_line_becomes_the_sample_that_wrote_it(self) -> None:
        sample = timed("vpmm", 12.5)[0]
        self.assertEqual(bench_samples.parse_sample(sample.line()), sample)

    def test_what_a_library_prints_is_no_sample(self) -> None:
        for line in ["# version,vpmm,1", "warning: a,b,c", "a,b,c,d,e,f,g,h", ""]:
            self.assertIsNone(bench_samples.parse_sample(line), line)

    def test_a_file_gives_back_figures_and_machine(self) -> None:
        facts, samples = {"gpu": "none: really"}, timed("vpmm", 1.5, 2.5)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.csv"
            bench_samples.write_csv(path, facts, samples)
            self.assertEqual(bench_samples.read_csv(path), (facts, samples))

    def test_repeats_become_their_median(self) -> None:
        table = bench_samples.pivot(timed("vpmm", 3, 1, 100), "hot_path", "time")
        self.assertEqual(table, {("pair 2 MiB", 1): {"vpmm": 3}})

    def test_the_spread_is_that_of_the_repeats_of_one_case(self) -> None:
        samples = timed("vpmm", 90, 100, 120) + timed("cupy", 500)
        self.assertAlmostEqual(bench_samples.spread(samples, "hot_path", "time") or 0, 0.3)
        self.assertIsNone(bench_samples.spread(timed("cupy", 500), "hot_path", "time"))


class Tables(unittest.TestCase):
    def test_a_peer_is_shown_with_its_ratio_to_ours(self) -> None:
        table = bench_samples.pivot(timed("vpmm", 100) + timed("cuda-async", 590), "hot_path", "time")
        self.assertIn("| pair 2 MiB | 100 | 590 (5.9x) |", bench_tables.by_peer(table))

    def test_a_peer_without_the_case_has_no_figure(self) -> None:
        samples = timed("vpmm", 100) + timed("cupy", 550, case="pair 256 B")
        rows = bench_tables.by_peer(bench_samples.pivot(samples, "hot_path", "time"))
        self.assertIn("| pair 2 MiB | 100 | - |", rows)
        self.assertIn("| pair 256 B | - | 550 |", rows)

    def test_threads_are_named_when_there_are_several(self) -> None:
        self.assertEqual(bench_tables.case_name(("pair 2 MiB", 8)), "pair 2 MiB, 8 threads")

    def test_the_headlines_hold_what_was_measured_and_nothing_else(self) -> None:
        lines = bench_tables.headlines(timed("vpmm", 100) + timed("cuda-async", 590)).splitlines()
        self.assertEqual([line.split() for line in lines][1], ["pair", "2", "MiB", "[ns]", "100", "590"])
        self.assertEqual(len(lines), 2)


class Reason(unittest.TestCase):
    """Why a peer failed, from its stderr."""

    STACK = f"frame #0: c10::Error::Error() + 0x9c (0x7f3a1c in libc10.so)\nframe #1: main (in {ROOT}/build/bench)\n"

    def test_stands_before_the_stack(self) -> None:
        errors = f"\nCUDA error: out of memory\nException raised from map\n{self.STACK}"
        self.assertEqual(bench.reason_of(errors), "CUDA error: out of memory")

    def test_is_what_nobody_caught(self) -> None:
        errors = f"terminate called after throwing an instance of 'c10::Error'\n  what():  no segment\n{self.STACK}"
        self.assertEqual(bench.reason_of(errors), "no segment")

    def test_is_the_exception_below_the_frames_of_python(self) -> None:
        errors = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    run()\nValueError: of b\n'
        self.assertEqual(bench.reason_of(errors), "ValueError: of b")

    def test_is_not_a_warning_before_it(self) -> None:
        errors = "a.py:220: UserWarning: no CUDA path\n  warnings.warn(\nunavailable: no GPU\n"
        self.assertEqual(bench.reason_of(errors), "no GPU")
        self.assertEqual(bench.reason_of("[W1122 a.cpp:28] Warning: old name\nno segment\n"), "no segment")

    def test_names_neither_the_folder_nor_an_address(self) -> None:
        errors = f"{ROOT}/bench/peers/torch.cpp:12: bad pointer 0x7f3A00c0 of 3\n"
        self.assertEqual(bench.reason_of(errors), "bench/peers/torch.cpp:12: bad pointer of 3")

    def test_is_empty_where_nothing_was_said(self) -> None:
        self.assertEqual(bench.reason_of("\n" + self.STACK), "")


class Page(unittest.TestCase):
    def test_what_is_missing_left_out_or_failed_is_named(self) -> None:
        found = bench.Findings(samples=timed("vpmm", 100), missing={"rmm-pool": "python3 has no librmm"})
        found.leave_out("hot_path, 8 threads", "there are 2 cores", "vpmm")
        found.leave_out("hot_path, 8 threads", "there are 2 cores", "none")
        found.failed.append("growth with cuda-async ended with 1: no memory")
        text = bench.page(found, {"date": "2026-01-01"}, "")
        self.assertIn("- rmm-pool: python3 has no librmm", text)
        self.assertIn("- hot_path, 8 threads: there are 2 cores (vpmm, none)", text)
        self.assertIn("- growth with cuda-async ended with 1: no memory", text)

    def test_sections_without_figures_are_not_there(self) -> None:
        text = bench.page(bench.Findings(samples=timed("vpmm", 100)), {"date": "2026-01-01"}, "")
        self.assertIn("## Hot path", text)
        self.assertNotIn("## Missing", text)
        self.assertNotIn("## A server", text)


if __name__ == "__main__":
    unittest.main()
