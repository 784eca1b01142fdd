# SPDX-License-Identifier: Apache-2.0
"""tests: which interpreters tools/wheels.py builds wheels with; tests/install/test_wheel.py builds one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import wheels  # noqa: E402  found there
from wheels import Interpreter  # noqa: E402


class Wheels(unittest.TestCase):
    def test_versions_with_the_stable_abi_share_the_wheel_of_the_oldest(self) -> None:
        given = [Interpreter(f"python3.{minor}", (3, minor)) for minor in (14, 9, 12, 10, 13, 11)]
        chosen = [each.path for each in wheels.one_for_each_wheel(given)]
        self.assertEqual(chosen, ["python3.10", "python3.11", "python3.12"])

    def test_a_version_that_is_here_twice_is_built_once(self) -> None:
        given = [Interpreter("python3.11", (3, 11)), Interpreter("python3", (3, 11))]
        self.assertEqual(wheels.one_for_each_wheel(given), given[:1])

    def test_a_launcher_without_its_python_is_passed_over(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shim = Path(folder, "python3.12")
            shim.write_text("#!/bin/sh\necho 'not installed' >&2\nexit 127\n")
            shim.chmod(0o755)
            self.assertIsNone(wheels.interpreter(str(shim)))
        self.assertIsNone(wheels.interpreter("/no/such/python"))
        found = wheels.interpreter(sys.executable)
        self.assertEqual(found, Interpreter(sys.executable, sys.version_info[:2]))

    def test_the_page_on_installing_names_every_extra_of_the_package(self) -> None:
        table = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
        extras = re.findall(r"^([\w-]+) = ", table, re.MULTILINE)
        page = (ROOT / "docs/install.md").read_text()
        self.assertEqual(sorted(re.findall(r"^\| `vpmm\[([\w-]+)\]`", page, re.MULTILINE)), sorted(extras))

    def test_a_name_that_is_no_python_is_refused_before_anything_is_built(self) -> None:
        for named in ("/no/such/python", "3.99"):
            answer = subprocess.run([ROOT / "dev", "wheel", named], capture_output=True, text=True, check=False)
            self.assertEqual((answer.returncode, answer.stderr), (1, f"wheels: {named} is no Python that runs\n"))

    def test_a_command_that_fails_ends_with_its_words_and_a_hint(self) -> None:
        with self.assertRaises(SystemExit) as ended:
            wheels.run(["sh", "-c", "echo too recent >&2; exit 3"], hint=wheels.NEWER_COMPILER)
        text = str(ended.exception)
        self.assertRegex(text, r"^wheels: sh .* ended with 3\ntoo recent\nwheels: this system's g\+\+ compiles")

    def test_arguments_are_looked_at_before_anything_is_built(self) -> None:
        done = subprocess.run([ROOT / "dev", "wheel", "--bogus"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("unrecognized arguments: --bogus", done.stderr)

    def test_a_version_alone_is_the_python_of_that_name(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "python3.99").symlink_to(sys.executable)
            with mock.patch.dict(os.environ, {"PATH": folder}):
                found = Interpreter(str(Path(folder, "python3.99")), sys.version_info[:2])
                self.assertEqual([wheels.interpreter(name) for name in ("3.99", "python3.99")], [found, found])
                self.assertIsNone(wheels.interpreter("3.98"))

    def test_the_notices_are_moved_to_the_licences_that_the_metadata_lists(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package, info = Path(folder), Path(folder, "vpmm-1.dist-info")
            for path in (info / "licenses", package / "vpmm/licenses"):
                path.mkdir(parents=True)
            (package / "vpmm/licenses/THIRD-PARTY-NOTICES").write_text("of fmt")
            (package / "vpmm/licenses/LICENSE").write_text("VPMM's, as in the metadata")
            (info / "METADATA").write_text("Name: vpmm\nVersion: 1\n")
            with self.assertRaises(SystemExit):
                wheels.move_notices(package)
            (info / "METADATA").write_text("Name: vpmm\nLicense-File: LICENSE\nVersion: 1\n\nA pool.\n")
            wheels.move_notices(package)
            expected = "Name: vpmm\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-NOTICES\nVersion: 1\n\nA pool.\n"
            self.assertEqual((info / "METADATA").read_text(), expected)
            self.assertEqual((info / "licenses/THIRD-PARTY-NOTICES").read_text(), "of fmt")
            self.assertFalse((package / "vpmm/licenses").exists())

    def test_a_check_builds_nothing(self) -> None:
        options = ["--build", "/none", "--tools", "/none", "--headers", "/none", "--out", "/none", "--check"]
        subprocess.run([sys.executable, ROOT / "tools/wheels.py", *options, sys.executable], check=True)
        self.assertFalse(Path("/none").exists())


if __name__ == "__main__":
    unittest.main()
