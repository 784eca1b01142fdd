# SPDX-License-Identifier: Apache-2.0
"""tests: python -m vpmm."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import vpmm
from vpmm import recordings

from program import PACKAGE_PARENT, run

SNAPSHOT = Path(__file__).resolve().parents[1] / "data" / "snapshot-oom.pickle.gz"

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

    def test_run_records_the_pool_of_the_device_that_is_used(self) -> None:
        trace = self.folder / "trace.csv.gz"
        done = run("-m", "vpmm", "run", "--record", str(trace), str(self.program), "0")
        self.assertEqual((done.returncode, done.stderr), (5, ""))
        with gzip.open(trace, "rt") as file:
            self.assertIn("12345", file.read())

    def test_run_records_pools_that_are_not_opened_through_the_package(self) -> None:
        library = Path(vpmm.__file__).parent / "libvpmm.so.0"
        self.program.write_text(f"""
import ctypes, os
os.chdir("/")
library, pool = ctypes.CDLL({str(library)!r}), ctypes.c_void_p()
library.vpmm_default_pool(0, ctypes.byref(pool))
library.vpmm_allocate(pool, ctypes.c_size_t(12345), None, ctypes.byref(ctypes.c_void_p()))
""")
        command = [sys.executable, "-m", "vpmm", "run", "--record", "run.csv", str(self.program)]
        environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT, "VPMM_DRIVER": "sim", "VPMM_RECORD": "/other"}
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (made,) = recordings.read(self.folder / "run.csv").events
        self.assertEqual(made.bytes, 12345)

    def test_run_records_as_the_variables_say_and_children_beside_it(self) -> None:
        self.program.write_text("""
import subprocess, sys, vpmm
pool = vpmm.Pool.default()
pool.allocate(1000, 0)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
""")
        begin = ["-m", "vpmm", "run", "--record", f"{self.folder}/run.%d.vpmm"]
        done = run(*begin, str(self.program), VPMM_RECORD_STACKS="python")
        self.assertEqual(done.returncode, 0, done.stderr)
        files = sorted(self.folder.glob("run.*"))
        self.assertRegex(" ".join(each.name for each in files), r"^run\.0\.vpmm run\.\d+\.0\.vpmm$")
        self.assertEqual([recordings.read(each).header["stacks"] for each in files], ["python"] * 2)
        run(*begin, "--stacks", "none", str(self.program), "alone", VPMM_RECORD_STACKS="python")
        self.assertEqual(recordings.read(files[0]).header["stacks"], "none")

    def test_a_run_that_recorded_nothing_says_so(self) -> None:
        self.program.write_text("import os, sys\nos.chdir('/')\nsys.exit(5)")
        (self.folder / "run.vpmm").write_text("of yesterday")
        for name in ("run.vpmm", "new.%p.vpmm"):
            done = run("-m", "vpmm", "run", "--record", str(self.folder / name), str(self.program))
            self.assertEqual(done.returncode, 5)
            self.assertRegex(done.stderr, rf"^vpmm: nothing was recorded to {self.folder}/{name}: .*\n$")

    def test_a_folder_for_a_recording_that_is_not_there_is_named_before_the_program_runs(self) -> None:
        done = run("-m", "vpmm", "run", "--record", "/no/such/folder/run.vpmm", str(self.program), "0")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "vpmm: --record /no/such/folder/run.vpmm: there is no such folder\n")

    def test_stacks_without_a_recording_are_an_error(self) -> None:
        done = run("-m", "vpmm", "run", "--stacks", "python", str(self.program), "0")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "vpmm: --stacks says how to record: --record FILE is missing\n")

    def test_a_program_that_is_not_there_is_named_in_one_line(self) -> None:
        done = run("-m", "vpmm", "run", "nope.py")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "vpmm: can't open file 'nope.py': No such file or directory\n")

    def test_run_without_a_program_asks_for_one_and_not_for_its_arguments(self) -> None:
        done = run("-m", "vpmm", "run")
        self.assertEqual(done.returncode, 2)
        self.assertIn("vpmm run: error: the following arguments are required: SCRIPT\n", done.stderr)

    def test_help_as_a_word_prints_what_the_option_does(self) -> None:
        for verb in ([], ["report"], ["run"], ["replay"], ["info"]):
            asked, option = run("-m", "vpmm", "help", *verb), run("-m", "vpmm", *verb, "--help")
            self.assertEqual((asked.returncode, asked.stdout, asked.stderr), (0, option.stdout, ""), verb)
        done = run("-m", "vpmm", "help", "explode")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("invalid choice: 'explode'", done.stderr)

    def test_info_names_version_and_devices(self) -> None:
        done = run("-m", "vpmm", "info")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^vpmm \d+\.\d+\.\d+, /.*_vpmm.*\.so\n")
        self.assertRegex(done.stdout, r"device 0: [0-9.]+ GiB of [0-9.]+ GiB are free")

    def test_info_names_the_libraries_that_are_installed_and_their_versions(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder, "cupy_of_a_test-7.8.9.dist-info")
            package.mkdir()
            (package / "METADATA").write_text("Metadata-Version: 2.1\nName: cupy-of-a-test\nVersion: 7.8.9\n")
            (package / "top_level.txt").write_text("cupy\n")
            path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
            done = run("-m", "vpmm", "info", PYTHONPATH=path)
        self.assertRegex(done.stdout, r"(?m)^installed: .*cupy-of-a-test 7\.8\.9")

    def test_no_verb_records_what_it_does_itself(self) -> None:
        recording = self.folder / "run.vpmm"
        recording.write_bytes(b"a program's")
        done = run("-m", "vpmm", "info", VPMM_RECORD=str(recording), VPMM_STATS="1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(recording.read_bytes(), b"a program's")

    def test_a_reader_that_has_enough_is_no_error(self) -> None:
        environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT, "VPMM_DRIVER": "sim"}
        for words in (["-m", "vpmm", "report", "--text", str(SNAPSHOT)], ["-u", "-m", "vpmm", "info"]):
            reading, writing = os.pipe()
            os.close(reading)
            done = subprocess.run(
                [sys.executable, *words], stdout=writing, stderr=subprocess.PIPE, env=environment, check=False
            )
            os.close(writing)
            self.assertEqual((done.returncode, done.stderr), (141, b""), words)

    def test_an_interrupted_verb_says_so(self) -> None:
        code = (
            "import signal, sys\nfrom vpmm import __main__, convert\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a job of the background
            "convert.load = lambda *given: signal.raise_signal(signal.SIGINT)\n"
            f"sys.argv = ['vpmm', 'report', {str(SNAPSHOT)!r}]\nsys.exit(__main__.main())"
        )
        done = run("-c", code)
        self.assertEqual((done.returncode, done.stderr), (130, "vpmm: interrupted\n"))

    def test_files_that_cannot_be_read_are_named_in_one_line(self) -> None:
        for words in (["report", "nofile"], ["try", "nofile"], ["convert", "nofile", "out.vpmm"]):
            done = run("-m", "vpmm", *words)
            self.assertEqual((done.returncode, done.stderr), (2, "vpmm: nofile: No such file or directory\n"))
        done = run("-m", "vpmm", "report", str(self.folder))
        self.assertEqual((done.returncode, done.stderr), (2, f"vpmm: {self.folder}: Is a directory\n"))

    def test_a_damaged_file_is_named_in_one_line(self) -> None:
        damaged = self.folder / "trace.csv.gz"
        damaged.write_bytes(gzip.compress(b"op,id,bytes,stream,time_us\n", mtime=0)[:10] + b"\xff" * 30)
        done = run("-m", "vpmm", "report", "--text", str(damaged))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, rf"^vpmm: {damaged}:0: the file cannot be decompressed: .*\n$")

    def test_a_recording_can_come_through_a_pipe(self) -> None:
        recording = b"op,id,bytes,stream,time_us\na,1,3000000,0,0\nf,1,0,0,9\n"
        command = [sys.executable, "-m", "vpmm", "report", "--text", "/dev/stdin"]
        environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT}
        done = subprocess.run(command, input=recording, env=environment, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_a_device_that_is_not_in_the_file_is_an_error_with_those_that_are(self) -> None:
        for words in (["report", "--text"], ["try"]):
            done = run("-m", "vpmm", *words, str(SNAPSHOT), "--device", "3")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("device 3 is not in this recording: 0", done.stderr)

    def test_a_snapshot_can_be_reported_and_has_its_failure_once(self) -> None:
        done = run("-m", "vpmm", "report", "--text", str(SNAPSHOT))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("A request failed", done.stdout)
        self.assertIn("PyTorch is out of memory: ", done.stdout)

    def test_info_prints_all_variables_and_says_in_a_line_what_is_wrong(self) -> None:
        for name, value in (("VPMM_PREFER", "nonsense"), ("VPMM_CAPACITY", "64M"), ("VPMM_USE", "torch,foo")):
            done = run("-m", "vpmm", "info", VPMM_RMM="1", VPMM_RECORD=f"{self.folder}/run.vpmm", **{name: value})
            self.assertEqual(done.returncode, 2)
            # Before that the package complains of a name that is no library, as in any program.
            said = rf"^(vpmm: VPMM_USE={value}: `foo` is no library .*\n)?vpmm: {name}={value}: must be .*\n$"
            self.assertRegex(done.stderr, said)
            for row in (
                rf"{name} +{value} +environment",
                r"VPMM_RMM +1 +environment",
                rf"VPMM_RECORD +{self.folder}/run.vpmm +environment",
                r"VPMM_CUPY +0 +default",
                r"VPMM_TORCH +0 +default",
            ):
                self.assertRegex(done.stdout, row)

    def test_info_without_a_driver_prints_all_variables_and_names_the_simulator(self) -> None:
        done = run("-m", "vpmm", "info", VPMM_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^vpmm: .*VPMM_DRIVER=sim.*\n$")
        self.assertRegex(done.stdout, r"VPMM_USE +none +default")

    def test_info_warns_once(self) -> None:
        done = run("-m", "vpmm", "info", VPMM_PAGE_SZE="4MiB")
        self.assertEqual((done.returncode, done.stderr.count("VPMM_PAGE_SZE")), (0, 1))

    def test_info_without_the_program_prints_the_variables_that_are_set(self) -> None:
        done = run("-m", "vpmm", "info", VPMM_CLI="/no/program", VPMM_CAPACITY="64M", VPMM_CUPY="1")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^vpmm: VPMM_CAPACITY=64M: must be .*\n$")
        self.assertIn("VPMM_CAPACITY=64M\n", done.stdout)
        self.assertIn("VPMM_CUPY=1\n", done.stdout)

    def test_options_print_the_version_and_the_folders_for_extensions(self) -> None:
        for option, expected in {
            "--version": f"vpmm {vpmm.__version__}\n",
            "--cmake-dir": f"{vpmm.cmake_dir()}\n",
            "--include-dir": f"{vpmm.include_dir()}\n",
        }.items():
            done = run("-m", "vpmm", option)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))
        self.assertTrue(Path(vpmm.cmake_dir(), "vpmmConfig.cmake").is_file())
        self.assertTrue(Path(vpmm.include_dir(), "vpmm", "vpmm.hpp").is_file())

    def test_without_a_verb_it_says_how_it_is_used(self) -> None:
        done = run("-m", "vpmm")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: vpmm", done.stderr)


if __name__ == "__main__":
    unittest.main()
