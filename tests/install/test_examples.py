# SPDX-License-Identifier: Apache-2.0
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
ARENA = "emm-plugin/libarena.so"
# What to run once all are built, and words that show that it got to what it is about.
EXPECTED = {
    "emm-managers": (
        ["emm-managers/managers", ARENA],
        ["driver: simulator", *(f"\n{name} " for name in ("vpmm", "stream_ordered", "default", "arena")), "as written"],
    ),
    "emm-plugin": (
        ["emm-plugin/use_arena", ARENA],
        ["manager is arena", "first and last byte: 7 and 7", "a terabyte: mem_alloc failed"],
    ),
    "quickstart_c": (["quickstart_c/quickstart"], ["freeing the cache", "live 32 MiB"]),
    "quickstart_cpp": (
        ["quickstart_cpp/quickstart"],
        ["weights at 0x", "as a result: out of device memory", "as an exception: "],
    ),
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
        with tempfile.TemporaryDirectory(prefix="vpmm-examples-") as folder:
            scratch = Path(folder)
            run("cmake", "--install", BUILD, "--prefix", scratch / "prefix")
            for project in projects:
                build = scratch / project.name
                run("cmake", "-S", project, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={scratch / 'prefix'}")
                run("cmake", "--build", build)
            for name, ((program, *arguments), expected) in EXPECTED.items():
                with self.subTest(example=name):
                    output = run(scratch / program, *(scratch / argument for argument in arguments))
                    for words in expected:
                        self.assertIn(words, output)
            self.assertIn(" 0 failed", run(scratch / "prefix/bin/vpmm", "emm-check", scratch / ARENA))


if __name__ == "__main__":
    unittest.main()
