# SPDX-License-Identifier: Apache-2.0
"""tests: the switch for PyTorch where PyTorch is not, or cannot be used."""

from __future__ import annotations

import importlib.util
import tempfile
import unittest
from pathlib import Path

from program import output_of, run

STAND_IN = """
__version__ = "{version}"
class version:
    cuda = {cuda!r}
    git_version = "0"
"""


class Switch(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def torch(self, version: str, cuda: str | None) -> str:
        """A folder for PYTHONPATH with a PyTorch that says so of itself."""
        from program import PACKAGE_PARENT

        (self.folder / "torch.py").write_text(STAND_IN.format(version=version, cuda=cuda))
        return f"{self.folder}:{PACKAGE_PARENT}"

    def error_with(self, version: str, cuda: str | None) -> str:
        code = "import vpmm\ntry:\n    vpmm.use_for_torch()\nexcept vpmm.Error as error:\n    print(error)"
        return output_of(code, PYTHONPATH=self.torch(version, cuda))

    def test_an_older_version_is_refused_by_name(self) -> None:
        self.assertIn(
            "PyTorch 2.10.1+cu130 is not supported: 2.11 or newer is needed", self.error_with("2.10.1+cu130", "13.0")
        )

    def test_another_major_version_is_refused(self) -> None:
        self.assertIn("PyTorch 3.0.0 is not supported", self.error_with("3.0.0", "13.0"))

    def test_a_build_without_cuda_is_refused_by_name(self) -> None:
        self.assertIn("PyTorch 2.11.0+cpu is a build without CUDA", self.error_with("2.11.0+cpu", None))

    def test_without_the_variable_nothing_is_loaded(self) -> None:
        for value in ("", "0", "no"):
            code = "import sys, vpmm_autoload\nvpmm_autoload.autoload()\n"
            code += "print('vpmm' in sys.modules, 'torch' in sys.modules)"
            self.assertEqual(output_of(code, VPMM_TORCH=value), "False False\n")

    def test_what_goes_wrong_at_import_is_one_line_with_the_reason(self) -> None:
        code = "import vpmm_autoload\nvpmm_autoload.autoload()\nprint('on it goes')"
        for options in (["-W", "default"], ["-W", "error"], []):
            done = run(*options, "-c", code, VPMM_TORCH="1", PYTHONPATH=self.torch("2.9.0", "13.0"))
            self.assertEqual((done.returncode, done.stdout), (0, "on it goes\n"))
            said = "vpmm: VPMM_TORCH is set, but PyTorch keeps its own CUDA allocator: PyTorch 2.9.0"
            self.assertTrue(done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr)

    def test_where_vpmm_is_required_what_goes_wrong_ends_the_import(self) -> None:
        code = "import vpmm_autoload\nvpmm_autoload.autoload()\nprint('on it goes')"
        done = run("-c", code, VPMM_TORCH="require", PYTHONPATH=self.torch("2.9.0", "13.0"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("ImportError: VPMM_TORCH=require, and PyTorch cannot use VPMM: PyTorch 2.9.0", done.stderr)

    def test_a_value_that_is_none_is_named_and_counts_as_0(self) -> None:
        code = "import sys, vpmm_autoload\nvpmm_autoload.start()\nprint(vpmm_autoload.asked_for())"
        for value, said in (("enabled", 1), ("2", 1), ("", 0), ("off", 0), (" FALSE ", 0)):
            done = run("-c", code, VPMM_TORCH=value)
            self.assertEqual(done.stdout, "{}\n")
            self.assertEqual(done.stderr.count("counts as 0: it must be 1, 0 or require"), said, value)

    def test_the_guides_check_works_after_an_import_of_the_package(self) -> None:
        for name in ("torch", "cupy", "rmm"):
            self.assertEqual(output_of(f"import vpmm\nprint(vpmm.{name}.is_installed())"), "False\n")

    def test_the_entry_point_names_the_function(self) -> None:
        code = (
            "from importlib.metadata import entry_points\n"
            "print([point.value for point in entry_points(group='torch.backends') if point.name == 'vpmm'])"
        )
        self.assertEqual(output_of(code), "['vpmm_autoload:autoload']\n")

    @unittest.skipIf(importlib.util.find_spec("torch") is not None, "PyTorch is installed here")
    def test_without_pytorch_the_verb_says_so(self) -> None:
        done = run("-m", "vpmm", "build-torch")
        self.assertEqual(done.returncode, 1)
        self.assertIn("PyTorch is not installed here", done.stderr)


if __name__ == "__main__":
    unittest.main()
