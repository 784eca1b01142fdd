# SPDX-License-Identifier: Apache-2.0
"""tests: the runner of the tests on a GPU forgets no module, and tells skips apart."""

from __future__ import annotations

import os
import sys
import tempfile
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


class Skips(unittest.TestCase):
    def row(self, gpus: int) -> gpu_tests.Row:
        with (
            tempfile.TemporaryDirectory() as folder,
            open(os.devnull, "w") as log,
            mock.patch("importlib.util.find_spec"),
            mock.patch.object(gpu_tests, "gpu_count", return_value=gpus),
            mock.patch("builtins.print"),
        ):
            program = Path(folder, "test_program.py")
            program.write_text(PROGRAM)
            return gpu_tests.run_python("suite", program, [], Path(folder), log)

    def test_those_of_a_machine_or_a_version_are_noted_and_others_count(self) -> None:
        row = self.row(1)
        self.assertEqual((row.passed, row.failed, row.skipped), (1, 0, 1))
        self.assertEqual(row.note, "1 skipped: PyTorch 2.11 has no such option; 1 skipped: needs two GPUs")

    def test_with_two_gpus_their_tests_must_run(self) -> None:
        row = self.row(2)
        self.assertEqual((row.passed, row.skipped, row.note), (1, 2, "1 skipped: PyTorch 2.11 has no such option"))


if __name__ == "__main__":
    unittest.main()
