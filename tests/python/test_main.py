"""tests: python -m vpmm."""

from __future__ import annotations

import gzip
import tempfile
import unittest
from pathlib import Path

from program import run

PROGRAM = """
import os, sys
import helper
import vpmm
pool = vpmm.Pool.default(int(sys.argv[1]))
pool.allocate(12345, 0)
print(__name__, os.environ["NUMBA_CUDA_MEMORY_MANAGER"], sys.argv[1:], __file__ == sys.argv[0], helper.NAME)
sys.exit(5)
"""


class Main(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = self.folder / "program.py"
        self.program.write_text(PROGRAM)
        (self.folder / "helper.py").write_text("NAME = 'helper'\n")

    def test_run_runs_a_program_as_python_does_with_the_variable_set(self) -> None:
        done = run("-m", "vpmm", "run", str(self.program), "0", "--flag", "-x")
        self.assertEqual(done.stdout, "__main__ vpmm ['0', '--flag', '-x'] True helper\n")
        self.assertEqual((done.returncode, done.stderr), (5, ""))

    def test_run_records_the_pool_of_each_device_that_is_used(self) -> None:
        trace = self.folder / "trace.csv.gz"
        done = run("-m", "vpmm", "run", "--record", str(trace), str(self.program), "0")
        self.assertEqual((done.returncode, done.stderr), (5, ""))
        with gzip.open(trace, "rt") as file:
            self.assertIn("12345", file.read())
        self.assertEqual(list(self.folder.glob("*.device*")), [])

    def test_a_second_device_has_a_file_of_its_own(self) -> None:
        from vpmm.commands.run import recording_path

        path = self.folder / "trace.csv.gz"
        self.assertEqual(recording_path(path, 0), str(path))
        self.assertEqual(recording_path(path, 1), str(self.folder / "trace.device1.csv.gz"))
        self.assertEqual(recording_path(Path("trace"), 2), "trace.device2")

    def test_a_recording_that_cannot_be_written_is_an_error_of_the_program(self) -> None:
        done = run("-m", "vpmm", "run", "--record", "/no/such/folder/trace.csv.gz", str(self.program), "0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/folder", done.stderr)

    def test_a_program_that_is_not_there_is_named_in_one_line(self) -> None:
        done = run("-m", "vpmm", "run", "nope.py")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "vpmm: can't open file 'nope.py': No such file or directory\n")

    def test_info_names_version_and_devices(self) -> None:
        done = run("-m", "vpmm", "info")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^vpmm \d+\.\d+\.\d+, /.*_vpmm.*\.so\n")
        self.assertRegex(done.stdout, r"device 0: \d+ of \d+ bytes are free")

    def test_info_says_in_a_line_what_is_wrong(self) -> None:
        done = run("-m", "vpmm", "info", VPMM_DRIVER="nonsense")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^vpmm: VPMM_DRIVER=nonsense.*\n$")

    def test_without_a_verb_it_says_how_it_is_used(self) -> None:
        done = run("-m", "vpmm")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: vpmm", done.stderr)


if __name__ == "__main__":
    unittest.main()
