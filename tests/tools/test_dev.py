# SPDX-License-Identifier: Apache-2.0
"""tests: the verbs of ./dev that need no build: help, clean, and what they say of a wrong name or a missing tool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "bash git env nproc dirname cat xargs find rm mkdir awk tr sort head tail id mv".split()


class Dev(unittest.TestCase):
    """A copy of the script in a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        shutil.copy(ROOT / "dev", self.folder)

    def dev(self, *arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
        command, environment = [str(self.folder / "dev"), *arguments], os.environ | {"PATH": path}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def stub(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def stub_tools(self) -> str:
        """A PATH where pip and apt reach nothing, and there is neither ruff nor mypy."""
        (self.folder / "bin").mkdir()
        for tool in TOOLS:
            (self.folder / "bin" / tool).symlink_to(str(shutil.which(tool)))
        for present in ["clang-format", "clang++", "run-clang-tidy", "ccache", "cmake", "ninja"]:
            self.stub(present, "exit 0")
        self.stub("g++", "cat >/dev/null")  # finds every header
        self.stub("apt-get", "exit 1")
        self.stub("python3", 'case "$*" in "-m venv"*) exit 1 ;; esac')
        return str(self.folder / "bin")

    def test_help_has_each_verb_once(self) -> None:
        script = (self.folder / "dev").read_text()
        verbs = re.findall(r"^  ([a-z][a-z-]*)(?: \|[ a-z|-]*)?\) \S+.*;;$", script, re.MULTILINE)
        shown = re.findall(r"^  ([a-z-]+) ", self.dev("--help").stdout, re.MULTILINE)
        self.assertGreater(len(verbs), 10)
        self.assertEqual(sorted(verbs), sorted(shown))

    def test_every_way_to_ask_for_help_is_answered(self) -> None:
        answers = [self.dev(*words) for words in ([], ["help"], ["-h"], ["--help"])]
        self.assertEqual({answer.returncode for answer in answers}, {0})
        self.assertEqual(len({answer.stdout for answer in answers}), 1)

    def test_a_verbs_help_is_its_part_and_does_nothing_else(self) -> None:
        (self.folder / "build").mkdir()
        help_of_clean = self.dev("clean", "--help")
        self.assertEqual(help_of_clean.returncode, 0)
        self.assertIn("--all", help_of_clean.stdout)
        self.assertNotIn("golden", help_of_clean.stdout)
        self.assertTrue((self.folder / "build").exists())

    def test_what_a_verb_does_not_take_is_refused_before_it_does_anything(self) -> None:
        for words, complaint in (
            (["asan", "pool"], "asan takes no arguments: pool"),
            (["docs", "x", "y"], "docs takes no arguments: x y"),
            (["clean", "pool"], "clean takes --all or nothing: pool"),
            (["build", "--nosuch"], "build takes a preset and targets: --nosuch"),
        ):
            done = self.dev(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", f"dev: {complaint}\n"), words)

    def test_help_is_asked_for_anywhere(self) -> None:
        self.assertEqual(self.dev("tidy", "extra", "--help").stdout, self.dev("tidy", "-h").stdout)

    def test_a_verb_that_is_none_is_named_and_fails(self) -> None:
        for words in ["fly"], ["fly", "--help"]:
            answer = self.dev(*words)
            self.assertEqual(answer.returncode, 1)
            self.assertIn("there is no verb 'fly'", answer.stderr)

    def test_a_suite_that_is_none_gets_the_list_before_anything_is_built(self) -> None:
        for name in "tools", "tests":
            (self.folder / name).symlink_to(ROOT / name)
        answer = self.dev("test", "pol")
        self.assertEqual(answer.returncode, 2)
        self.assertRegex(answer.stderr, r"there is no suite 'pol'.* pool .*python")
        self.assertFalse((self.folder / "build").exists())

    def test_clean_keeps_what_pip_installed_unless_told(self) -> None:
        for name in "dev", "site", "venv-torch", "venv", "cccl", "plugin-headers":
            (self.folder / "build" / name).mkdir(parents=True)
        self.assertEqual(self.dev("clean").returncode, 0)
        self.assertEqual(
            {path.name for path in (self.folder / "build").iterdir()}, {"venv", "venv-torch", "cccl", "plugin-headers"}
        )
        self.assertEqual(self.dev("clean", "--all").returncode, 0)
        self.assertFalse((self.folder / "build").exists())
        self.assertEqual(self.dev("clean").returncode, 0)

    def test_format_and_tidy_fail_where_a_tool_is_missing_and_name_it(self) -> None:
        path = self.stub_tools()
        formatting, tidying = self.dev("format", path=path), self.dev("tidy", path=path)
        self.assertEqual([formatting.returncode, tidying.returncode], [1, 1])
        self.assertRegex(formatting.stderr, r"missing, and pip could not install: ruff==")
        self.assertRegex(tidying.stderr, r"missing, and pip could not install: ruff==\S+ mypy==")


if __name__ == "__main__":
    unittest.main()
