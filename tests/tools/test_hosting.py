# SPDX-License-Identifier: Apache-2.0
"""tests: what the hosting service, pre-commit and development containers are told to run exists."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402 - needs the path above
import wheels  # noqa: E402 - needs the path above

TO_JSON = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def interpreter_with_yaml() -> str | None:
    for python in filter(None, (sys.executable, os.environ.get("VPMM_PACKAGE_PYTHON"))):
        if subprocess.run([python, "-c", "import yaml"], capture_output=True, check=False).returncode == 0:
            return python
    return None


PYTHON = interpreter_with_yaml()


@functools.cache
def read(path: Path | str) -> Any:  # noqa: ANN401  as the file is
    with (ROOT / path).open() as file:
        done = subprocess.run([str(PYTHON), "-c", TO_JSON], stdin=file, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{path}: {done.stderr}")
    return json.loads(done.stdout)


def dev_verbs() -> set[str]:
    return check_docs.dev_verbs((ROOT / "dev").read_text())


@unittest.skipIf(PYTHON is None, "PyYAML is not installed; build/venv has it")
class Workflow(unittest.TestCase):
    """.github/workflows/ci.yml"""

    def setUp(self) -> None:
        self.workflow = read(".github/workflows/ci.yml")
        self.jobs: dict[str, Any] = self.workflow["jobs"]

    def commands(self) -> list[str]:
        """Of all steps, once for each verb of the matrix."""
        runs = [step["run"] for job in self.jobs.values() for step in job["steps"] if "run" in step]
        verbs = [each["verb"] for each in self.jobs["check"]["strategy"]["matrix"]["include"]]
        return [run.replace("${{ matrix.verb }}", verb) for run in runs for verb in verbs]

    def test_calls_verbs_that_dev_has(self) -> None:
        called = {verb for run in self.commands() for verb in re.findall(r"\./dev (\S+)", run)}
        self.assertLessEqual({"test", "asan", "tsan", "tidy", "docs", "wheel", "packages"}, called)
        self.assertLessEqual(called, dev_verbs())

    def test_runs_scripts_that_exist(self) -> None:
        scripts = {script for run in self.commands() for script in re.findall(r"\b(?:tools|tests)/\S+", run)}
        self.assertIn("tools/check_release.py", scripts)
        for script in scripts:
            self.assertTrue((ROOT / script).is_file(), script)

    def test_runs_the_tests_on_both_systems(self) -> None:
        cases = self.jobs["check"]["strategy"]["matrix"]["include"]
        systems = {each.get("container", self.jobs["check"]["runs-on"]) for each in cases if each["verb"] == "test"}
        self.assertEqual(systems, {"debian:12", "ubuntu-24.04"})

    def test_builds_one_wheel_for_each_group_of_pythons(self) -> None:
        oldest, stable = wheels.OLDEST, wheels.STABLE
        expected = [f"3.{minor}" for minor in range(oldest[1], stable[1] + 1)]
        self.assertEqual(self.jobs["wheels"]["strategy"]["matrix"]["python"], expected)
        project = (ROOT / "pyproject.toml").read_text()
        self.assertIn(f'requires-python = ">={expected[0]}"', project)
        classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
        self.assertLessEqual(set(expected), set(classifiers))

    def test_makes_a_release_of_checked_tags_only(self) -> None:
        self.assertIn("refs/tags/v", self.jobs["release-check"]["if"])
        for job in ("wheels", "packages"):
            self.assertIn("release-check", self.jobs[job]["needs"])
        self.assertLessEqual({"check", "wheels", "packages"}, set(self.jobs["release"]["needs"]))

    def test_puts_wheels_the_source_distribution_and_packages_into_the_release(self) -> None:
        steps = [step for job in ("wheels", "packages") for step in self.jobs[job]["steps"]]
        made = [step["with"]["name"] for step in steps if "upload-artifact" in step.get("uses", "")]
        self.assertEqual(made, ["wheel-${{ matrix.python }}", "sdist", "packages"])
        create = self.jobs["release"]["steps"][-1]["run"]
        self.assertEqual(re.findall(r"\bfiles/(\S+)/\*", create), ["wheel-*", "sdist", "packages"])

    def test_needs_jobs_that_exist(self) -> None:
        for job in self.jobs.values():
            needs = job.get("needs", [])
            self.assertLessEqual({needs} if isinstance(needs, str) else set(needs), set(self.jobs))

    def test_jobs_end_in_time_and_may_write_only_where_they_publish(self) -> None:
        self.assertEqual(self.workflow["permissions"], {"contents": "read"})
        self.assertIn("concurrency", self.workflow)
        for name, job in self.jobs.items():
            self.assertIn("timeout-minutes", job, name)
        self.assertEqual({name for name in self.jobs if "permissions" in self.jobs[name]}, {"deploy-docs", "release"})

    def test_actions_are_pinned_by_their_major_version(self) -> None:
        for job in self.jobs.values():
            for step in job["steps"]:
                self.assertRegex(step.get("uses", "a/b@v1"), r"^[\w-]+/[\w-]+@v\d+$")


@unittest.skipIf(PYTHON is None, "PyYAML is not installed; build/venv has it")
class IssueForms(unittest.TestCase):
    def test_have_a_name_and_fields_with_names_of_their_own(self) -> None:
        self.assertEqual(len(FORMS), 4)
        for path in FORMS:
            form = read(path)
            if path.name == "config.yml":
                continue
            self.assertTrue(form["name"] and form["description"], path.name)
            ids = [field["id"] for field in form["body"]]
            self.assertEqual(len(ids), len(set(ids)), path.name)
            for field in form["body"]:
                self.assertIn(field["type"], ("textarea", "input"))
                self.assertTrue(field["attributes"]["label"])

    def test_a_bug_comes_with_what_one_needs_to_look_into_it(self) -> None:
        body = {field["id"]: field for field in read(".github/ISSUE_TEMPLATE/bug.yml")["body"]}
        self.assertLessEqual({"program", "info", "gpu", "recording"}, set(body))
        self.assertIn("vpmm info", body["info"]["attributes"]["label"])
        self.assertIn("driver", body["gpu"]["attributes"]["label"])

    def test_the_documents_check_reads_them(self) -> None:
        pages = {page for pattern in check_docs.DOCUMENTS for page in ROOT.glob(pattern)}
        self.assertLessEqual({*FORMS, ROOT / ".github/pull_request_template.md"}, pages)


@unittest.skipIf(PYTHON is None, "PyYAML is not installed; build/venv has it")
class PreCommit(unittest.TestCase):
    def setUp(self) -> None:
        self.hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]

    def test_runs_scripts_that_exist(self) -> None:
        words = [word for hook in self.hooks for word in shlex.split(hook["entry"]) if "/" in word]
        self.assertEqual(words, ["tools/check_docs.py", "tools/check_layers.py"])
        for word in words:
            self.assertTrue((ROOT / word).is_file(), word)

    def test_takes_the_ruff_that_dev_and_the_site_take(self) -> None:
        files = (".pre-commit-config.yaml", "tools/site/requirements.txt", "dev")
        pinned = {pin for file in files for pin in re.findall(r"\bruff==[\d.]+", (ROOT / file).read_text())}
        self.assertEqual(len(pinned), 1, pinned)


class DevelopmentContainer(unittest.TestCase):
    def test_builds_with_a_verb_that_dev_has(self) -> None:
        container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
        program, verb = container["postCreateCommand"].split()
        self.assertEqual(program, "./dev")
        self.assertIn(verb, dev_verbs())


if __name__ == "__main__":
    unittest.main()
