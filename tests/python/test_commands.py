# SPDX-License-Identifier: Apache-2.0
"""tests: every verb ends with its result, or with one line that says what was wrong, whatever terminal and file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from vpmm import recordings
from vpmm.recordings import Event, Kind, Recording

from convert_case import ConvertCase

PROGRAM = """import sys, vpmm
pool = vpmm.Pool.default()
pool.deallocate(pool.allocate(100, 0), 0)
print(__name__, sys.argv[1:], sys.path[0])
sys.exit(5)
"""
LARGE = (1 << 31, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1)


class CommandCase(ConvertCase):
    def vpmm(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vpmm", *map(str, arguments)]
        environment = os.environ | {"PYTHONIOENCODING": "utf-8"} | variables
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            check=False,
            timeout=180,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=self.folder,
        )

    def assert_ended_well(self, done: subprocess.CompletedProcess[str]) -> None:
        """The result and nothing else, or one line of an error; warnings may stand before."""
        self.assertIn(done.returncode, (0, 2), done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("vpmm: warning")]
        if done.returncode == 2:
            self.assertEqual(len(errors), 1, done.stderr)

    def recording(self, name: str, *events: Event) -> Path:
        path = self.folder / f"{name}.vpmm"
        recordings.write(Recording(header={"source": "vpmm"}, events=list(events), end={}), path)
        return path


class HostileNames(CommandCase):
    """Texts that command a terminal: in a file, and its name."""

    EVIL = "x\x1b]0;title\x07\x9b2J\u202e"

    def recorded(self) -> Path:
        events = [
            Event(Kind.ALLOCATE, 1, 1 << 20, 5000, stream=0, thread=1, tag=1, stack=1),
            Event(Kind.MARK, 2, value=1),
            Event(Kind.ALLOCATE_FAILED, 3, 0, 1 << 20, value=1, stream=0, tag=1, stack=1),
            Event(Kind.OUT_OF_MEMORY, 4, 0, 1 << 20, value=1),
        ]
        frames = {1: (recordings.Frame(self.EVIL, 1, self.EVIL),)}
        header = dict.fromkeys(("source", "version", "device_name"), self.EVIL) | {"command": [self.EVIL]}
        texts = {1: self.EVIL}
        made = Recording(header, events, texts, frames, texts, {0: self.EVIL}, texts, end=None)
        path = self.folder / f"{self.EVIL}.vpmm"
        recordings.write(made, path)
        return path

    def test_reach_no_terminal(self) -> None:
        recorded, other = self.recorded(), self.file("1,2\n", f"{self.EVIL}.csv")
        log = self.file(
            f"Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.000000,{self.EVIL},0x1,1,0\n", f"log{self.EVIL}.csv"
        )
        out = self.folder / "out.json"
        for words in (
            ["report", "--text", recorded],
            ["report", "--text", recorded, recorded],
            ["report", "--text", "--together", recorded, recorded],
            ["top", "--once", "--file", recorded],
            ["explain", "0x100000", recorded],
            ["explain", "--stream", "-1", recorded],
            ["convert", recorded, out],
            ["convert", recorded, "--after", "no such mark", out],
            ["convert", log, out],
            ["convert", other, out],
            ["convert", self.folder / f"{self.EVIL}.none", out],
            ["replay", recorded],
            ["replay", other],
        ):
            done = self.vpmm(*words, VPMM_DRIVER="sim")
            self.assertIn(done.returncode, (0, 2), done.stderr)
            for line in (done.stdout + done.stderr).split("\n"):
                self.assertTrue(line.replace("\u202e", "").isprintable(), (words, line))


class AnyFile(CommandCase):
    def files(self) -> list[Path]:
        failed = [Event(Kind.ALLOCATE_FAILED, time, 0, size) for time, size in enumerate((1 << 20, *LARGE))]
        made = [self.recording("empty"), self.recording("failed", *failed)]
        made.append(self.recording("frees", Event(Kind.FREE, 0, 4096, 10)))
        made.append(self.recording("zero", Event(Kind.ALLOCATE, 0, 4096, 0), Event(Kind.FREE, 1, 4096, 0)))
        for size in LARGE:
            address = min(1 << 40, (1 << 64) - size)
            made.append(
                self.recording(
                    f"large-{size:x}",
                    Event(Kind.MAP, 0, address, size),
                    Event(Kind.ALLOCATE, 1, address, size, stream=1),
                    Event(Kind.MARK, 2),
                    Event(Kind.PAUSE, size, 0, size, size),
                    Event(Kind.SAMPLE, size, size, size, size),
                    Event(Kind.OUT_OF_MEMORY, size, 0, size),
                )
            )
        made.append(self.file("op,id,bytes,stream,time_us\n", "header.csv"))
        made += [self.file(b"", "nothing"), self.folder / "missing", self.folder]
        return made

    def test_is_read_or_refused_in_one_line_by_every_verb(self) -> None:
        verbs: list[tuple[object, ...]] = [
            ("report", "--text"),
            ("report", "-o", self.folder / "page.html"),
            ("try",),
            ("top", "--once", "--file"),
        ]
        for file in self.files():
            for verb in verbs:
                with self.subTest(file=file.name, verb=verb[0]):
                    self.assert_ended_well(self.vpmm(*verb, file))
            with self.subTest(file=file.name, verb="convert"):
                self.assert_ended_well(self.vpmm("convert", file, self.folder / "out.pickle"))


class AnyTerminal(CommandCase):
    def test_takes_a_report_and_a_picture_in_its_encoding(self) -> None:
        events = [Event(Kind.ALLOCATE, i, 4096 * i + 4096, 4096, stream=0) for i in range(40)]
        file = self.recording("ü", *events)
        for encoding in ("ascii", "latin-1", "cp1252", "utf-8"):
            for columns in ("1", "20", "50", "80", "300", "none"):
                for verb in (("report", "--text"), ("top", "--once", "--file")):
                    done = self.vpmm(*verb, file, PYTHONIOENCODING=encoding, COLUMNS=columns, TERM="dumb")
                    self.assertEqual((done.returncode, done.stderr), (0, ""), (encoding, columns, verb))
        picture = self.vpmm("report", "--text", file, PYTHONIOENCODING="ascii").stdout
        self.assertIn("#", picture)
        self.assertNotIn("?", picture.partition("What to change")[0].partition("\n")[2])
        self.assertIn("▃", self.vpmm("report", "--text", file).stdout)

    def test_no_line_is_wider_than_the_terminal(self) -> None:
        trace = self.file("op,id,bytes,stream,time_us\na,0,3000000,0,0\na,1,100,1,5\nf,0,0,0,9\n", "trace.csv")
        words = (
            ["info"],
            ["report", "--text", trace],
            ["try", trace],
            ["replay", "--fit", "--calls", trace],
            ["fit", trace],
        )
        for columns in (50, 80):
            for each in words:
                done = self.vpmm(*each, COLUMNS=str(columns), VPMM_DRIVER="sim")
                self.assertEqual((done.returncode, done.stderr), (0, ""), each)
                for line in done.stdout.splitlines():
                    if not line.strip().startswith("/"):  # the path of the library
                        self.assertLessEqual(len(line), columns, (each, line))

    def test_no_line_of_a_help_is_wider_than_the_terminal(self) -> None:
        verbs = re.findall(r"^    ([\w-]+) ", self.vpmm("--help", COLUMNS="80").stdout, re.MULTILINE)
        self.assertLess({"convert", "report", "run", "top", "try"}, set(verbs))
        for columns in (40, 50, 80):
            for words in ([], *([verb] for verb in verbs)):
                done = self.vpmm(*words, "--help", COLUMNS=str(columns))
                self.assertEqual((done.returncode, done.stderr), (0, ""), words)
                for line in done.stdout.splitlines():
                    self.assertLessEqual(len(line), columns, (words, line))

    def test_a_file_name_that_no_encoding_has_is_named_as_far_as_it_goes(self) -> None:
        name = os.fsdecode(b"odd\xff.vpmm")
        path = self.folder / name
        path.write_bytes(b"")
        self.assert_ended_well(self.vpmm("report", "--text", path))

    def test_a_closed_standard_output_is_no_error(self) -> None:
        file = self.recording("one", Event(Kind.ALLOCATE, 0, 4096, 4096))
        command = f"exec {sys.executable} -m vpmm report --text {file} >&-"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Trying(CommandCase):
    def test_a_failed_request_counts_as_live_for_every_row(self) -> None:
        mib = 1 << 20
        file = self.recording(
            "oom", Event(Kind.ALLOCATE, 0, 1 << 40, 50 * mib), Event(Kind.ALLOCATE_FAILED, 1, 0, 25 * mib)
        )
        done = self.vpmm("try", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 requests, 75.00 MiB live at the peak", done.stdout)
        row = next(line for line in done.stdout.splitlines() if line.startswith("VPMM, page"))
        self.assertRegex(row, r" 76\.00 MiB +1\.013 ")


class Running(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.file(PROGRAM, "program.py")

    def test_a_module_and_a_text_run_as_python_runs_them(self) -> None:
        for words, first in ((["-m", "program"], str(self.folder)), (["-c", PROGRAM], "")):
            recorded = self.folder / f"run{words[0]}.vpmm"
            done = self.vpmm("run", "--use", "numba", "--record", recorded, *words, "-x", "--use", "y")
            self.assertEqual(
                (done.returncode, done.stdout), (5, f"__main__ ['-x', '--use', 'y'] {first}\n"), done.stderr
            )
            self.assertGreater(len(recordings.read(recorded).events), 0)

    def test_a_package_runs_its_main_module(self) -> None:
        (self.folder / "package").mkdir()
        self.file("import sys\nprint(__package__, sys.argv[0])\n", "package/__main__.py")
        done = self.vpmm("run", "-m", "package")
        self.assertEqual(done.stdout, f"package {self.folder / 'package/__main__.py'}\n")

    def test_what_is_missing_is_named_in_one_line(self) -> None:
        for words, code, said in (
            (["-m", "no_such_module"], 1, "No module named no_such_module"),
            (["-m"], 2, "expected one argument"),
            (["-c"], 2, "expected one argument"),
            (["--use", "torch,foo", "program.py"], 2, "`foo` is no library that VPMM knows"),
            (["missing.py"], 2, "can't open file 'missing.py'"),
        ):
            done = self.vpmm("run", *words)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)

    def test_an_exception_is_shown_with_the_programs_frames_alone(self) -> None:
        self.file("def f():\n    raise ValueError('mine')\nf()\n", "raises.py")
        for words in (["raises.py"], ["-m", "raises"], ["-c", "import raises"]):
            done = self.vpmm("run", *words)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr.splitlines()[-1], "ValueError: mine")
            self.assertNotIn("runpy", done.stderr)
            self.assertNotIn("commands/run.py", done.stderr)
            self.assertIn("in f", done.stderr)

    def test_an_interrupt_ends_it_as_it_ends_python_and_is_shown_in_the_same_way(self) -> None:
        self.file("def f():\n    raise KeyboardInterrupt\nf()\n", "stops.py")
        for words in (["stops.py"], ["-m", "stops"], ["-c", "import stops"]):
            done = self.vpmm("run", *words)
            self.assertEqual(done.returncode, -signal.SIGINT)
            self.assertEqual(done.stderr.splitlines()[-1], "KeyboardInterrupt")
            self.assertEqual(done.stderr.count("Traceback"), 1)
            for frame in ("runpy", "commands/run.py", "__main__.py"):
                self.assertNotIn(frame, done.stderr)

    def test_help_shows_a_script_a_module_and_a_text(self) -> None:
        text = self.vpmm("run", "--help").stdout
        for way in ("SCRIPT ...", "-m MODULE ...", "-c CODE ...", "-m pytest"):
            self.assertIn(way, text)

    def test_an_exit_without_a_code_and_a_text_as_code_are_as_in_python(self) -> None:
        for code, expected in (("import sys; sys.exit()", 0), ("import sys; sys.exit('said')", 1), ("1/0", 1)):
            self.assertEqual(self.vpmm("run", "-c", code).returncode, expected)


class Writing(CommandCase):
    def test_a_page_of_the_default_name_says_that_it_replaced_a_file(self) -> None:
        trace = self.file("op,id,bytes,stream,time_us\na,0,100,0,0\n", "trace.csv")
        first, second = (self.vpmm("report", trace) for _ in range(2))
        self.assertRegex(first.stdout, r"^report\.html: \d+\.\d\d KiB\n$")
        self.assertRegex(second.stdout, r"^report\.html: \d+\.\d\d KiB, in place of the file that was there\n$")
        self.assertNotIn("in place", self.vpmm("report", trace, "-o", "report.html").stdout)

    def test_an_ending_without_a_format_is_refused_and_nothing_is_written(self) -> None:
        trace = self.file("op,id,bytes,stream,time_us\na,0,100,0,0\n", "trace.csv")
        done = self.vpmm("convert", trace, "out.foo")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^vpmm: out\.foo: no format has the ending \.foo, but \.pickle, .*--to .*\n$")
        self.assertFalse((self.folder / "out.foo").exists())
        self.assertEqual(self.vpmm("convert", "--to", "csv", trace, "out.foo").returncode, 0)


class Messages(CommandCase):
    def test_a_handler_that_raises_loses_its_message_and_no_other(self) -> None:
        for hook in ("lambda args: lost.append(args.exc_type.__name__)", "lambda args: 1 / 0", "sys.unraisablehook"):
            with self.subTest(hook):
                self.check_messages(hook)

    def check_messages(self, hook: str) -> None:
        code = f"""import logging, sys, time, vpmm
seen, lost = [], []
sys.unraisablehook = {hook}
class Handler(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())
        if len(seen) == 1:
            raise ConnectionError("away")
        if len(seen) == 2:
            raise SystemExit
vpmm.log_to_logging()
logger = logging.getLogger("vpmm")
logger.setLevel(logging.DEBUG)
logger.propagate = False
logger.addHandler(Handler())
while len(seen) < 4:
    vpmm.Pool(0, log="info").close()
    time.sleep(0.01)
print(lost)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        lost = ["ConnectionError", "SystemExit"] if "append" in hook else []
        self.assertEqual((done.returncode, done.stdout), (0, f"{lost}\n"), done.stderr)
        self.assertEqual("ConnectionError: away" in done.stderr, hook == "sys.unraisablehook")


if __name__ == "__main__":
    unittest.main()
