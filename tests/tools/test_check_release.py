# SPDX-License-Identifier: Apache-2.0
"""tests: check_release finds each kind of planted fault, and nothing in the tree itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_release  # noqa: E402 - needs the path above

FILES = ["CMakeLists.txt", "include/vpmm/vpmm.h", "pyproject.toml", "CHANGELOG.md", "python/CMakeLists.txt"]
VERSION = check_release.versions(ROOT)["CMakeLists.txt"]
ME = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@x", "GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@x"}


class Release(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for path in FILES:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)

    def findings(self, release: bool = False) -> list[str]:
        return list(check_release.check(self.root, release))

    def change(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        self.assertIn(old, text)
        (self.root / path).write_text(text.replace(old, new, 1))

    def git(self, *words: str) -> None:
        command = ["git", "-c", "init.defaultBranch=main", *words]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True, env=os.environ | ME)

    def commit(self) -> None:
        self.git("init")
        self.git("add", ".")
        self.git("commit", "-m", "x")

    def date_the_changes(self) -> None:
        changes = self.root / "CHANGELOG.md"
        state = check_release.found_in(self.root, "CHANGELOG.md", rf"^(## {VERSION} \(.*\))$")
        changes.write_text(changes.read_text().replace(state, f"## {VERSION} (2026-01-31)"))

    def test_the_tree_itself_has_no_findings(self) -> None:
        self.assertEqual(list(check_release.check(ROOT, release=False)), [])

    def test_another_version_in_any_file_is_found(self) -> None:
        major = VERSION.split(".")[0]
        for path, old, new in [
            ("include/vpmm/vpmm.h", f"VERSION_MAJOR {major}", "VERSION_MAJOR 77"),
            ("CHANGELOG.md", f"## {VERSION} ", "## 77.0.0 "),
            ("pyproject.toml", 'input = "CMakeLists.txt"', 'input = "CHANGELOG.md"'),
            ("python/CMakeLists.txt", "find_package(vpmm ", "find_package(vpmm 77."),
        ]:
            with self.subTest(path):
                kept = (self.root / path).read_text()
                self.change(path, old, new)
                self.assertEqual([finding.split(":")[0] for finding in self.findings()], [path])
                (self.root / path).write_text(kept)

    def test_a_commit_with_a_tag_or_about_to_get_one_needs_a_date(self) -> None:
        self.date_the_changes()
        self.assertEqual(self.findings(release=True), [])
        self.change("CHANGELOG.md", "(2026-01-31)", "(not released)")
        self.assertEqual(self.findings(), [])
        self.assertIn("has no date", "".join(self.findings(release=True)))
        self.commit()
        self.git("tag", f"v{VERSION}")
        self.assertIn("has no date", "".join(self.findings()))
        self.change("CHANGELOG.md", "(not released)", "(soon)")
        self.assertIn("neither a date", "".join(self.findings()))

    def test_a_tag_must_be_the_version_and_no_later_commit_may_have_it(self) -> None:
        self.date_the_changes()
        self.commit()
        self.git("tag", f"v{VERSION}")
        self.assertEqual(self.findings(), [])
        self.git("tag", "v77.0.0")
        self.assertEqual(self.findings(), [f"the tag v77.0.0 of this commit is not v{VERSION}"])
        self.git("commit", "--allow-empty", "-m", "y")
        self.assertIn("needs a new version", "".join(self.findings()))


if __name__ == "__main__":
    unittest.main()
