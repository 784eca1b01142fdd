# SPDX-License-Identifier: Apache-2.0
"""tests: the scripts of vpmm completion, and what it says without shtab."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from program import run

# Completes the words that bash would hand over, and prints the answers.
ASK = """
. "$1"; shift
function=$(complete -p vpmm | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
"$function" vpmm
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Completion(unittest.TestCase):
    def test_without_shtab_a_line_says_how_to_get_it(self) -> None:
        code = "import sys; sys.modules['shtab'] = None; from vpmm.__main__ import main; sys.exit(main())"
        done = run("-c", code, "completion", "bash")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^vpmm: vpmm completion needs shtab, .*: pip install shtab\n$")

    def test_another_shell_is_refused_with_those_that_are_known(self) -> None:
        done = run("-m", "vpmm", "completion", "fish")
        self.assertEqual(done.returncode, 2)
        for shell in ("bash", "zsh", "tcsh"):
            self.assertIn(shell, done.stderr.splitlines()[-1])

    @unittest.skipUnless(importlib.util.find_spec("shtab"), "shtab is not installed")
    def test_each_shell_has_a_script_with_all_verbs(self) -> None:
        for shell in ("bash", "zsh", "tcsh"):
            done = run("-m", "vpmm", "completion", shell)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for verb in ("convert", "explain", "ps", "replay", "top"):
                self.assertIn(verb, done.stdout)

    @unittest.skipUnless(importlib.util.find_spec("shtab") and shutil.which("bash"), "shtab or bash is not installed")
    def test_bash_completes_verbs_options_choices_and_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script")
            script.write_text(run("-m", "vpmm", "completion", "bash").stdout)
            for words, expected in (
                (["re"], "replay report"),
                (["top", "--in"], "--interval"),
                (["convert", "--to", "mem"], "memory_viz"),
                (["replay", "scr"], "script"),
                (["report", "scr"], "script"),
                (["explain", "0x7f00", "scr"], "script"),
            ):
                command = ["bash", "-c", ASK, "bash", str(script), "vpmm", *words]
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
                self.assertEqual(done.stdout.split(), expected.split(), words)


if __name__ == "__main__":
    unittest.main()
