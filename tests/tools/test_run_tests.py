# SPDX-License-Identifier: Apache-2.0
"""tests: run_tests counts what ctest and unittest report, and never turns a missing result into a pass."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import run_tests  # noqa: E402 - needs the path above

JUNIT = """<testsuite>
<testcase name="A.passes" status="run"><system-out>ok</system-out></testcase>
<testcase name="A.fails" status="fail"><failure message=""/><system-out>x.cpp:4: Failure</system-out></testcase>
<testcase name="A.skips" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN      ] A.skips
t.cpp:2: Skipped
no GPU:
  libcuda.so.1 was not found

[  SKIPPED ] A.skips (0 ms)</system-out></testcase>
<testcase name="B_NOT_BUILT" status="notrun"><skipped message="Unable to find executable"/></testcase>
<testcase name="A.off" status="disabled"/>
</testsuite>"""


class Junit(unittest.TestCase):
    def tally(self) -> run_tests.Tally:
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(JUNIT)
            file.flush()
            return run_tests.read_junit(Path(file.name))

    def test_each_case_is_counted_once(self) -> None:
        self.assertEqual(self.tally().last_line(), "1 passed, 2 failed, 2 skipped")

    def test_a_binary_that_was_not_built_is_a_failure(self) -> None:
        self.assertEqual(self.tally().failed["B_NOT_BUILT"], "Unable to find executable")

    def test_a_skip_keeps_its_reason(self) -> None:
        self.assertEqual(self.tally().skipped["A.skips"], "no GPU: libcuda.so.1 was not found")

    def test_a_skip_without_a_reason_says_so(self) -> None:
        self.assertEqual(run_tests.skip_reason("t.cpp:2: Skipped\n\n[  SKIPPED ] x"), "no reason given")

    def test_a_required_gpu_turns_skips_into_failures(self) -> None:
        tally = self.tally()
        tally.skips_fail()
        self.assertEqual(tally.last_line(), "1 passed, 4 failed, 0 skipped")


class Sample(unittest.TestCase):
    """Never collected (load_tests below): its outcomes are what the next class looks at."""

    def test_passes(self) -> None:
        pass

    def test_fails(self) -> None:
        self.fail("planted")

    def test_has_one_failing_subtest(self) -> None:
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)

    @unittest.skip("planted reason")
    def test_skips(self) -> None:
        pass


class Hanging(unittest.TestCase):
    def test_a_hangs(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                time.sleep(60)
            except Exception:  # as a loop that waits for a server
                continue

    def test_b_runs(self) -> None:
        pass


class BrokenSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        raise RuntimeError("planted")

    def test_never_runs(self) -> None:
        pass


class Unittest(unittest.TestCase):
    def run_class(self, case: type[unittest.TestCase]) -> run_tests.Tally:
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        runner = unittest.TextTestRunner(stream=io.StringIO(), resultclass=run_tests.TallyResult)
        return runner.run(tests).tally  # type: ignore[attr-defined]  # a TallyResult

    def test_outcomes_are_sorted_and_a_failing_subtest_fails_its_test(self) -> None:
        tally = self.run_class(Sample)
        self.assertEqual(tally.last_line(), "1 passed, 2 failed, 1 skipped")
        self.assertIn("planted reason", tally.skipped.values())

    def test_a_case_that_hangs_fails_and_the_next_one_runs(self) -> None:
        with unittest.mock.patch.object(run_tests, "CASE_SECONDS", 0.1):
            tally = self.run_class(Hanging)
        self.assertEqual(tally.last_line(), "1 passed, 1 failed, 0 skipped")
        (reason,) = tally.failed.values()
        self.assertRegex(reason, r"in test_a_hangs\n(.*\n)*run_tests\.CaseTimeout: the case took more than 0.1 seconds")

    def test_a_class_that_cannot_be_set_up_is_a_failure(self) -> None:
        self.assertEqual(self.run_class(BrokenSetUp).last_line(), "0 passed, 1 failed, 0 skipped")


class Merging(unittest.TestCase):
    def merged(self) -> run_tests.Tally:
        full = run_tests.Tally(passed=["a", "b"], failed={"c": "planted"}, skipped={"d": "nowhere"})
        bare = run_tests.Tally(passed=["a"], skipped={"b": "no numba", "c": "no numba", "d": "nowhere either"})
        return run_tests.merge({"full": full, "bare": bare})

    def test_a_case_that_ran_in_one_way_is_no_skip(self) -> None:
        self.assertEqual(self.merged().passed, ["full: a", "full: b", "bare: a"])
        self.assertEqual(set(self.merged().failed), {"full: c"})
        self.assertEqual(set(self.merged().skipped), {"d"})

    def test_an_interpreter_that_dies_is_a_failure(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            interpreter = Path(folder, "python")
            interpreter.write_text("#!/bin/sh\necho planted words\nexit 3\n")
            interpreter.chmod(0o755)
            tally = run_tests.Run("tests/python", interpreter).tally(Path(folder))
        self.assertEqual(list(tally.failed), ["tests/python"])
        self.assertRegex(tally.failed["tests/python"], "^planted words\n.*ended with 3 and wrote no result$")

    def test_an_interpreter_that_dies_after_the_last_case_is_a_failure(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            interpreter = Path(folder, "python")
            result = json.dumps({"passed": ["a"], "failed": {}, "skipped": {}})
            interpreter.write_text(f"#!/bin/sh\nprintf '%s' '{result}' >\"$5\"\nkill -SEGV $$\n")
            interpreter.chmod(0o755)
            tally = run_tests.Run("tests/python", interpreter).tally(Path(folder))
        self.assertEqual(tally.passed, ["a"])
        self.assertIn("ended with -11", tally.failed["tests/python"])

    def test_suites_whose_interpreter_is_missing_are_one_skip_each_with_the_reason(self) -> None:
        suites = [run_tests.PACKAGE_SUITE, run_tests.TORCH_SUITE, run_tests.TORCH_VPMM_SUITE]
        command = [sys.executable, ROOT / "tools/run_tests.py", "--build", "build", "--no-package", "planted", *suites]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertIn("tests/python: planted\n", done.stdout)
        self.assertIn("tests/torch_vpmm: no interpreter with PyTorch was named\n", done.stdout)
        self.assertIn("tests/torch_vpmm with the newest PyTorch: no interpreter with it was named\n", done.stdout)
        self.assertTrue(done.stdout.endswith("\n0 passed, 0 failed, 4 skipped\n"), done.stdout)

    def test_a_file_of_pytorchs_runs_under_the_launcher_of_its_suite(self) -> None:
        chosen = run_tests.choose(["torch_vpmm", "python/test_pool", "tools"])
        runs = run_tests.python_runs(chosen, [Path("a/bin/python"), Path("b/bin/python")], Path("t/bin/python"))
        self.assertEqual(
            [(run.suite, str(run.interpreter), run.launcher[-1:], run.needs_package) for run in runs],
            [
                ("tests/python/test_pool.py", "a/bin/python", (), True),
                ("tests/python/test_pool.py", "b/bin/python", (), True),
                ("tests/torch_vpmm", "t/bin/python", ("--vpmm",), True),
                ("tests/tools", sys.executable, (), False),
            ],
        )

    def test_files_that_run_with_the_newest_pytorch_too_count_as_another_way_of_their_suite(self) -> None:
        oldest, newest = Path("old/bin/python"), Path("new/bin/python")
        for name, count in (("torch_vpmm", 3), ("torch_vpmm/test_options", 1), ("torch_vpmm/test_tags", 0)):
            chosen = run_tests.choose([name])
            runs = run_tests.python_runs(chosen, [], oldest, newest)
            self.assertEqual([run.interpreter for run in runs], [oldest] + [newest] * count)
            self.assertEqual({run.launcher[-1] for run in runs}, {"--vpmm"})
        runs = run_tests.python_runs(run_tests.choose(["torch_vpmm"]), [], oldest, newest)
        results = {run: run_tests.Tally(passed=[run.suite]) for run in runs}
        ways = run_tests.ways_of("tests/torch_vpmm", results, newest)
        self.assertEqual(ways["old"].passed, ["tests/torch_vpmm"])
        self.assertEqual(ways["new"].passed, run_tests.TORCH_NEWEST_SUITES)

    def test_a_suite_alone_writes_its_result(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tally.json")
            command = [
                sys.executable,
                ROOT / "tools/run_tests.py",
                "--only",
                "tests/docs/test_named_tests.py",
                "--tally",
                path,
            ]
            done = subprocess.run(command, capture_output=True, timeout=300, check=False)
            tally = run_tests.Tally(**json.loads(path.read_text()))
        self.assertEqual(done.returncode, 0)
        self.assertGreater(len(tally.passed), 0)


class Suites(unittest.TestCase):
    def test_a_room_is_a_label_of_ctest_and_one_target(self) -> None:
        for name in "pool", "tests/pool", "./tests/pool/":
            chosen = run_tests.choose([name])
            self.assertEqual((chosen.cpp, chosen.python), (["pool"], []))
            self.assertEqual(chosen.targets(), ["vpmm_test_pool"])

    def test_a_python_suite_is_a_folder_or_a_file_of_it(self) -> None:
        chosen = run_tests.choose(["tests/docs", "python/test_pool", "tests/tools/test_dev.py"])
        self.assertEqual(chosen.python, ["tests/docs", "tests/python/test_pool.py", "tests/tools/test_dev.py"])
        self.assertEqual(chosen.python_in("tests/python"), ["tests/python/test_pool.py"])
        self.assertEqual(chosen.targets(), ["vpmm_python_suites"])

    def test_the_tools_need_no_build(self) -> None:
        self.assertEqual(run_tests.choose(["tools"]).targets(), [])

    def test_a_folder_with_both_kinds_of_tests_runs_both(self) -> None:
        chosen = run_tests.choose(["cuda_mr"])
        self.assertEqual((chosen.cpp, chosen.python), (["cuda_mr"], ["tests/cuda_mr"]))

    def test_every_folder_with_tests_is_a_suite_unless_it_needs_a_gpu(self) -> None:
        every = run_tests.all_suites()
        with_python = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/*/test_*.py")}
        self.assertEqual({folder for folder in with_python if "/gpu_" not in folder}, set(every.python))
        with_cpp = {path.parent.name for path in ROOT.glob("tests/*/*_test.cpp")} - {"support"}
        self.assertEqual(with_cpp - set(every.cpp), set())

    def test_what_is_no_suite_is_an_error_that_names_all(self) -> None:
        for name in "pol", "python/test_none", "gpu_python", "python/program":
            with self.assertRaisesRegex(ValueError, f"no suite '{name}'.* pool .*torch_vpmm"):
                run_tests.choose([name])

    def test_one_file_alone_sums_up(self) -> None:
        command = [sys.executable, ROOT / "tools/run_tests.py", "--build", "build", "tools/test_check_layers"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.assertRegex(done.stdout.splitlines()[-1], r"^[1-9]\d* passed, 0 failed, 0 skipped$")


def load_tests(loader: unittest.TestLoader, *_: object) -> unittest.TestSuite:
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Junit, Unittest, Merging, Suites))


if __name__ == "__main__":
    unittest.main()
