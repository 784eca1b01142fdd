# SPDX-License-Identifier: Apache-2.0
"""tests: the study of policies runs each program as it says, with a stand-in for vpmm, and sums up what came out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import policy_study as study  # noqa: E402 - needs the path above

# Live memory is a GiB and 1.25 GiB are mapped; each event of a trace is a plan, and the lag is the time in the driver.
VPMM = """#!/bin/sh
echo "$@" >>"$0.calls"
case "$2" in *.gz) events=1000 ;; *) events=$(($(wc -l <"$2") - 1)) ;; esac
fit=null
for word in "$@"; do
  [ "$before" = --lag-us ] && lag=$word
  [ "$word" = --fit ] && fit=1140850688
  before=$word
done
echo '{"allocations": 1000, "failed_allocations": 0, "hazards": 0, "corruptions": '${CORRUPTIONS:-0}', \
"peak_live_bytes": 1073741824, "peak_rounded_bytes": 1073741824, "peak_mapped_bytes": 1342177280, \
"driver_time_us": '$lag', "driver_time_second_half_us": 250, "worst_allocate_us": 100, "plans": '$events', \
"fit_bytes": '$fit'}'
exit $((${CORRUPTIONS:-0} != 0))
"""
BENCH = """#!/bin/sh
for ms in 4 2 3; do echo "replay,1,000 of gnn,vpmm,1,allocate sum,ms,0,$ms"; done
"""


class PolicyStudy(unittest.TestCase):
    """The command, run in this process."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.vpmm = self.script("vpmm", VPMM)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_")}
        patch = mock.patch.dict(os.environ, clean, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run_with(self, *arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = study.main(["--program", str(self.vpmm), *arguments])
        return code, out.getvalue()

    def rows(self, page: str) -> dict[str, list[str]]:
        lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in page.splitlines()[2:]]
        return {cells[0]: cells for cells in lines[2:]}

    def test_a_row_has_ratios_over_live_memory_and_the_least_time_of_an_allocate(self) -> None:
        bench = self.script("bench", BENCH)
        code, page = self.run_with("--only", "gnn", "--bench", str(bench))
        self.assertEqual(code, 0)
        self.assertTrue(page.startswith("Settings: defaults\n"), page)
        expected = "gnn 0.5 1.00 1.000 1.250 1.000 0.5 0.2 1,000 0.10 0 0 0 2000 -"
        self.assertEqual(" ".join(self.rows(page)["gnn"]), expected)

    def test_programs_with_several_streams_run_at_each_lag_and_the_first_one_has_the_fit(self) -> None:
        code, page = self.run_with("--only", "gnn", "serve_streams", "--lag", "5", "20")
        self.assertEqual(code, 0)
        calls = (self.folder / "vpmm.calls").read_text().splitlines()
        found = {(Path(words[1]).name, words[6], "--fit" in words) for words in map(str.split, calls)}
        gnn, serve = "gnn.csv.gz", "serve_streams.csv.gz"
        self.assertEqual(found, {(gnn, "500", True), (serve, "5000", True), (serve, "20000", False)})
        self.assertIn("**1 recorded, 20 ms behind**", self.rows(page))

    def test_variants_are_files_that_do_not_stay(self) -> None:
        code, page = self.run_with("--only", "gnn", "1,000 1 to 8 MiB", "--variants", "--no-fit")
        self.assertEqual(code, 0)
        rows = self.rows(page)
        for variant in ("x 0.25", "x 0.6", "jittered", "spread"):
            self.assertEqual(rows[f"gnn {variant}"][8], "18,297")
        self.assertEqual(rows["1,000 1 to 8 MiB"][8], "30,000")
        self.assertEqual(rows["**all 6**"][4], "1.2500")
        written = [Path(line.split()[1]) for line in (self.folder / "vpmm.calls").read_text().splitlines()]
        self.assertEqual([path for path in written if path.suffix == ".csv" and path.exists()], [])

    def test_lost_contents_are_the_exit_code_and_settings_and_raw_figures_are_kept(self) -> None:
        raw = self.folder / "raw.json"
        with mock.patch.dict(os.environ, {"CORRUPTIONS": "3", "VPMM_PREFER": "latency"}):
            code, page = self.run_with("--only", "gnn", "--no-fit", "--out", str(raw))
        self.assertEqual(code, 1)
        self.assertTrue(page.startswith("Settings: VPMM_PREFER=latency\n"), page)
        self.assertEqual([each["replay"]["corruptions"] for each in json.loads(raw.read_text())], [3])

    def test_a_program_that_cannot_run_and_a_name_that_none_has_are_refused(self) -> None:
        self.script("vpmm", "#!/bin/sh\nexit 2\n")
        self.assertEqual(self.run_with("--only", "gnn")[0], 2)
        self.assertEqual(self.run_with("--only", "no such program")[0], 2)


class Variants(unittest.TestCase):
    """What becomes of a program's lines."""

    LINES = (("a", 0, 1000, 0, 0), ("a", 5, 4 << 20, 0, 9), ("f", 0, 0, 0, 9), ("f", 5, 4 << 20, 0, 12))

    def test_sizes_are_scaled_and_nothing_becomes_a_request_for_no_bytes(self) -> None:
        sizes = [line[2] for line in study.scaled(0.25)(iter(self.LINES))]
        self.assertEqual(sizes, [250, 1 << 20, 0, 1 << 20])
        self.assertEqual(next(study.scaled(0.25)(iter([("a", 0, 1, 0, 0)])))[2], 1)

    def test_jitter_is_a_tenth_at_most_and_the_same_each_time(self) -> None:
        same = [("a", number, 1 << 20, 0, 0) for number in range(1000)]
        ratios = [line[2] / (1 << 20) for line in study.jittered(iter(same))]
        self.assertTrue(all(0.9 <= ratio <= 1.1 for ratio in ratios))
        self.assertGreater(len(set(ratios)), 900)
        self.assertEqual(ratios, [line[2] / (1 << 20) for line in study.jittered(iter(same))])

    def test_spread_allocations_take_turns_and_are_freed_on_their_own_stream(self) -> None:
        self.assertEqual([line[3] for line in study.spread(iter(self.LINES))], [0, 1, 0, 1])

    def test_random_programs_free_what_lives_and_keep_to_their_bound(self) -> None:
        for program in study.random_programs():
            assert not isinstance(program.source, Path)
            live: Counter[int] = Counter()
            most = 0
            for op, number, size, _, _ in program.source():
                live[number] += 1 if op == "a" else -1
                self.assertEqual(live[number], 1 if op == "a" else 0)
                self.assertTrue(op == "f" or 0 < size <= 1 << 30)
                if op == "f":
                    del live[number]
                most = max(most, len(live))
            self.assertEqual(f"{most:,}", program.name.split()[0])


if __name__ == "__main__":
    unittest.main()
