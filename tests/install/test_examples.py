"""tests: each example builds alone against the installed package and runs on the simulator.

VPMM_BUILD_FOLDER names the build to install; the default is that of the dev preset.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev"))
SIMULATED = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_")} | {"VPMM_DRIVER": "sim"}
# Words that show that the example got to what it is about.
EXPECTED = {
    "quickstart_c": ["giving up the cache", "live 32 MiB"],
    "quickstart_cpp": ["weights at 0x", "as a result: out of device memory", "as an exception: "],
}


def run(*command: object) -> str:
    """The output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=SIMULATED, timeout=600, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Examples(unittest.TestCase):
    def test_each_builds_against_the_installed_package_and_runs(self) -> None:
        projects = sorted(path.parent for path in ROOT.glob("examples/*/CMakeLists.txt"))
        self.assertEqual({project.name for project in projects}, set(EXPECTED))
        with tempfile.TemporaryDirectory(prefix="vpmm-examples-") as scratch:
            prefix = Path(scratch) / "prefix"
            run("cmake", "--install", BUILD, "--prefix", prefix)
            for project in projects:
                with self.subTest(example=project.name):
                    self.build_and_run(project, Path(scratch) / project.name, prefix)

    def build_and_run(self, project: Path, build: Path, prefix: Path) -> None:
        run("cmake", "-S", project, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", build)
        output = run(build / "quickstart")
        for words in EXPECTED[project.name]:
            self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main()
