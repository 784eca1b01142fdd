# SPDX-License-Identifier: Apache-2.0
"""tests: the log of allocations has NBEP 7's columns, and what passes through the package."""

from __future__ import annotations

import csv
import gc
import io
import tempfile
import threading
import unittest
from collections import deque
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import vpmm

from program import run

COLUMNS = (
    "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,"
    "Location"
)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


class CsvLog(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool()
        self.file = io.StringIO()

    def test_the_columns_are_those_of_nbep_7(self) -> None:
        with vpmm.csv_log(self.file):
            pass
        self.assertEqual(self.file.getvalue(), COLUMNS + "\n")

    def test_an_allocation_and_its_free_are_two_rows(self) -> None:
        with vpmm.csv_log(self.file):
            ptr = self.pool.allocate(80, 2)
            self.pool.deallocate(ptr, 2)
        alloc, free = rows_of(self.file.getvalue())
        for row, kind, size, live in ((alloc, "Alloc", "80", "1"), (free, "Free", "0", "0")):
            self.assertEqual(row["Event Type"], kind)
            self.assertEqual((row["Device ID"], row["Address"], row["Stream"]), ("0", f"{ptr:#x}", "2"))
            self.assertEqual((row["Size (bytes)"], row["Current Allocs"]), (size, live))
            self.assertEqual((row["Free Memory"], row["Total Memory"], row["Location"]), ("0", "0", ""))
            self.assertAlmostEqual(float(row["End"]) - float(row["Start"]), float(row["Elapsed"]), places=5)
            self.assertGreater(float(row["Elapsed"]), 0)
        self.assertGreaterEqual(float(free["Start"]), float(alloc["End"]))

    def test_every_way_in_and_out_is_logged(self) -> None:
        ways_out: list[Callable[[int], None]] = [
            self.pool.deallocate_any_stream,
            self.pool.deallocate_deferred,
            lambda ptr: self.pool.deallocate(ptr, 0),
            lambda ptr: self.pool.deallocate_many([ptr, 0], 0),
        ]
        with vpmm.csv_log(self.file):
            ptrs = [self.pool.allocate(80, 0), self.pool.allocate_any_stream(80), *self.pool.allocate_many([80, 80], 0)]
            for ptr, give_back in zip(ptrs, ways_out, strict=True):
                give_back(ptr)
            self.pool.allocate(0, 0)
            self.pool.deallocate_deferred(0)
            with self.assertRaises(vpmm.Error):
                self.pool.deallocate(0x4200, 0)
        rows = rows_of(self.file.getvalue())
        self.assertEqual([row["Event Type"] for row in rows], ["Alloc"] * 4 + ["Free"] * 4)
        self.assertEqual([int(row["Address"], 16) for row in rows], ptrs * 2)

    def test_outside_the_block_nothing_is_logged(self) -> None:
        before = self.pool.allocate(80, 0)
        with vpmm.csv_log(self.file):
            self.pool.deallocate(before, 0)
        self.pool.allocate(80, 0)
        (row,) = rows_of(self.file.getvalue())
        self.assertEqual((row["Event Type"], row["Current Allocs"]), ("Free", "0"))

    def test_locations_are_the_lines_of_the_program(self) -> None:
        program = compile("ptr = pool.allocate(80, 0)\n\npool.deallocate(ptr, 0)\n", "/a, folder/program.py", "exec")
        with vpmm.csv_log(self.file, locations=True):
            exec(program, {"pool": self.pool, "__name__": "program"})
        self.assertEqual(
            [row["Location"] for row in rows_of(self.file.getvalue())],
            ["/a, folder/program.py:1", "/a, folder/program.py:3"],
        )

    def test_memory_is_asked_for_when_wanted(self) -> None:
        with vpmm.csv_log(self.file, memory=True):
            self.pool.deallocate(self.pool.allocate(80, 0), 0)
        for row in rows_of(self.file.getvalue()):
            self.assertGreater(int(row["Total Memory"]), int(row["Free Memory"]))
            self.assertGreater(int(row["Free Memory"]), 0)

    def test_two_logs_may_run_and_stop_twice(self) -> None:
        other = io.StringIO()
        first = vpmm.csv_log(self.file)
        with vpmm.csv_log(other):
            self.pool.allocate(80, 0)
            first.stop()
            first.stop()
            self.pool.allocate(80, 0)
        self.assertEqual((len(rows_of(self.file.getvalue())), len(rows_of(other.getvalue()))), (1, 2))

    def test_a_path_is_written_and_closed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log.csv")
            with vpmm.csv_log(path) as log:
                for _ in range(1500):
                    self.pool.deallocate_deferred(self.pool.allocate_any_stream(80))
                self.assertGreater(len(path.read_text().splitlines()), 1000, "rows reach the file now and then")
            log.stop()
            rows = rows_of(path.read_text())
        self.assertEqual(len(rows), 3000)
        self.assertEqual({row["Current Allocs"] for row in rows}, {"0", "1"})

    def test_what_is_no_file_is_an_error_that_names_it(self) -> None:
        with self.assertRaisesRegex(TypeError, "path_or_file is 3: must be a path, or a file that can be written to"):
            vpmm.csv_log(3)  # type: ignore[arg-type]  # wrong on purpose

    def test_a_finalizer_inside_a_write_is_logged_once(self) -> None:
        pool = self.pool

        class Collecting(io.StringIO):
            def write(self, text: str) -> int:
                pool.deallocate_deferred(held.pop()) if held else None
                return super().write(text)

        file = Collecting()
        held: list[int] = []
        with vpmm.csv_log(file):
            for _ in range(1024):
                held.append(pool.allocate_any_stream(80))
        events = [row["Event Type"] for row in rows_of(file.getvalue())]
        self.assertEqual(events.count("Alloc"), 1024)
        self.assertEqual(events.count("Free"), 1023, "the last is freed by the end of the log")

    def test_a_log_that_is_never_stopped_is_finished_at_exit(self) -> None:
        code = """
import os, sys
import vpmm
log = vpmm.csv_log(sys.argv[1])
stopped = vpmm.csv_log(sys.argv[2])
pool = vpmm.Pool()
ptr = pool.allocate(80, 0)
stopped.stop()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
pool.deallocate(ptr, 0)
"""
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("log.csv", "stopped.csv")]
            done = run("-c", code, *map(str, paths))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            events = [[row["Event Type"] for row in rows_of(path.read_text())] for path in paths]
        self.assertEqual(events, [["Alloc", "Free"], ["Alloc"]])

    def test_a_row_that_is_made_while_another_thread_writes_is_not_lost(self) -> None:
        class Address(int):
            """The other thread runs while it is formatted."""

            def __format__(self, form: str) -> str:
                thread = threading.Thread(target=log._write)
                thread.start()
                thread.join()
                return super().__format__(form)

        with vpmm.csv_log(self.file) as log:
            for address in (16, 32):
                log._note("Alloc", 0, Address(address), 0, 80, 0.0, 0.0)
        self.assertEqual([row["Address"] for row in rows_of(self.file.getvalue())], ["0x10", "0x20"])

    def test_a_log_that_fails_is_reported_and_disturbs_nobody(self) -> None:
        with mock.patch("sys.unraisablehook") as hook, vpmm.csv_log(self.file) as log:
            log._rows = None  # type: ignore[assignment]  # broken on purpose
            ptr = self.pool.allocate(80, 0)
            self.pool.deallocate_deferred(ptr)
            log._rows = deque()
        self.assertEqual(hook.call_count, 2)
        gc.collect()


if __name__ == "__main__":
    unittest.main()
