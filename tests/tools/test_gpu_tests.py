# SPDX-License-Identifier: Apache-2.0
"""tests: the runner of the tests on a GPU forgets no module, tells skips apart and leaves no program running."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gpu_tests  # noqa: E402 - needs the path above

PROGRAM = """
import unittest
class Cases(unittest.TestCase):
    def test_passes(self):
        pass
    @unittest.skip("needs two GPUs")
    def test_of_two(self):
        pass
    @unittest.skip("PyTorch 2.11 has no such option")
    def test_of_another_version(self):
        pass
    @unittest.skip("its author's whim")
    def test_that_nobody_runs(self):
        pass
unittest.main()
"""


def modules(folder: str) -> set[str]:
    return {path.name for path in (ROOT / "tests" / folder).glob("test_*.py")}


class Tables(unittest.TestCase):
    def test_each_module_of_a_gpu_is_listed(self) -> None:
        self.assertEqual({f"test_{name}.py" for name in gpu_tests.PYTHON_SUITES}, modules("gpu_python"))

    def test_each_module_of_pytorch_is_listed_or_has_a_reason(self) -> None:
        listed = [name for name in gpu_tests.TORCH_SUITES if name.startswith("torch_vpmm/")]
        known = sorted([*listed, *gpu_tests.TORCH_ON_SIMULATOR])
        self.assertEqual(known, sorted(f"torch_vpmm/{name}" for name in modules("torch_vpmm")))


def row_of(text: str, gpus: int = 1, name: str = "test_program.py", seconds: int = 60) -> gpu_tests.Row:
    with (
        tempfile.TemporaryDirectory() as folder,
        open(Path(folder, "log"), "w") as log,
        mock.patch("importlib.util.find_spec"),
        mock.patch.object(gpu_tests, "gpu_count", return_value=gpus),
        mock.patch.object(gpu_tests, "NUMBA_SECONDS", seconds),
        mock.patch("builtins.print"),
    ):
        program = Path(folder, name)
        program.write_text(text)
        return gpu_tests.run_python("suite", program, [], Path(folder), log)


class Ends(unittest.TestCase):
    REPORT = "import os, sys, time; print('Ran 3 tests in 1 s', flush=True); "

    def test_a_program_that_crashes_after_its_report_failed(self) -> None:
        for end, note in (
            ("os.kill(os.getpid(), 6)", "ended with -6"),
            ("sys.exit(1)", "ended with 1"),
            ("time.sleep(60)", "stopped: out of time"),
        ):
            row = row_of(self.REPORT + end, seconds=1 if "sleep" in end else 60)
            self.assertEqual((row.failed, row.note), (1, note))

    def test_a_program_that_ends_with_1_for_skips_has_not_failed_where_a_gpu_is_required(self) -> None:
        skipped = self.REPORT + "print('OK (skipped=1)'); sys.exit(1)"
        with mock.patch.dict(os.environ, VPMM_REQUIRE_GPU="1"):
            row = row_of(skipped, name="run.py")
            self.assertEqual((row.passed, row.failed, row.skipped), (2, 0, 1))
            for text, name in (
                (skipped, "test_program.py"),
                (skipped.replace("exit(1)", "exit(2)"), "run.py"),
                (self.REPORT + "sys.exit(1)", "run.py"),
            ):
                self.assertEqual(row_of(text, name=name).failed, 1, name)
        with mock.patch.dict(os.environ, VPMM_REQUIRE_GPU="0"):
            self.assertEqual(row_of(skipped, name="run.py").failed, 1)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Processes(unittest.TestCase):
    COMMAND = ("sh", "-c", "sleep 60 & echo $!; wait")

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name, "log")

    def expect_end(self, process: int) -> None:
        end = time.monotonic() + 30
        while is_running(process):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_all_that_a_command_started_ends_when_its_time_is_over(self) -> None:
        with self.log.open("w") as log:
            log.write("before")
            output, code = gpu_tests.run_logged(list(self.COMMAND), 1, log)
            log.write("after")
        self.assertIsNone(code)
        self.expect_end(int(output))
        self.assertEqual(self.log.read_text(), f"before\n$ {' '.join(self.COMMAND)}\n{output}after")

    def test_it_ends_when_an_exception_ends_the_wait(self) -> None:
        before = signal.signal(signal.SIGALRM, lambda *_: sys.exit(3))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with self.log.open("w") as log, self.assertRaises(SystemExit):
            signal.alarm(1)
            gpu_tests.run_logged(list(self.COMMAND), 60, log)
        self.expect_end(int(self.log.read_text().splitlines()[-1]))


class Gpus(unittest.TestCase):
    def count(self, init: int, listed: int = 0) -> int:
        def count(to: ctypes._Pointer[ctypes.c_int]) -> int:
            ctypes.cast(to, ctypes.POINTER(ctypes.c_int))[0] = listed
            return 0

        driver = mock.Mock(cuInit=mock.Mock(return_value=init), cuDeviceGetCount=count)
        with mock.patch("ctypes.CDLL", return_value=driver):
            return gpu_tests.gpu_count.__wrapped__()

    def test_are_counted_by_the_driver(self) -> None:
        self.assertEqual(self.count(0, 2), 2)
        self.assertEqual(self.count(gpu_tests.NO_DEVICE), 0)
        with mock.patch("ctypes.CDLL", side_effect=OSError):
            self.assertEqual(gpu_tests.gpu_count.__wrapped__(), 0)

    def test_of_a_driver_that_is_broken_end_the_run(self) -> None:
        self.assertRaisesRegex(SystemExit, "cannot be counted: CUDA error 999", self.count, 999)


class Skips(unittest.TestCase):
    def test_those_of_a_machine_or_a_version_are_noted_and_others_count(self) -> None:
        row = row_of(PROGRAM)
        self.assertEqual((row.passed, row.failed, row.skipped), (1, 0, 1))
        self.assertEqual(row.note, "1 skipped: PyTorch 2.11 has no such option; 1 skipped: needs two GPUs")

    def test_with_two_gpus_their_tests_must_run(self) -> None:
        row = row_of(PROGRAM, gpus=2)
        self.assertEqual((row.passed, row.skipped, row.note), (1, 2, "1 skipped: PyTorch 2.11 has no such option"))


if __name__ == "__main__":
    unittest.main()
