#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs RMM's own tests over our resource, from a tree of RMM's sources that stays where it lies.

    python3 tests/gpu_rmm/run.py --rmm-source DIR --build build/gpu [--wheels FOLDER...] [--out FOLDER]

The tree must be of the version of RMM's wheels. C++: the typed suites for resources, and programs of ours with Thrust,
CUB, RMM's containers and CCCL's buffer, for the legacy and the per-thread default stream. Python: all of
python/rmm/rmm/tests three times: with RMM's own resource, with ours as the current one, and with ours in the place of
CudaMemoryResource as well. A test that passes natively and not with ours is a difference; reasons.json names those that
are expected. `--wheels`: what is not installed comes from there, without a network, into build/rmm-packages. Ends with
0 only if every difference is expected and each run passed something.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDED = {  # module: package
    "rmm": "rmm-cu13",
    "pytest": "pytest",
    "Cython": "cython",
    "numba_cuda": "numba-cuda",
    "distributed": "distributed",
}
SUITE_SECONDS = 500
SUITES = {
    "suites": ("suites.cpp", []),
    "suites-per-thread": ("suites.cpp", ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]),
    "programs": ("programs.cu", ["-arch=native"]),
    "programs-per-thread": ("programs.cu", ["-arch=native", "--default-stream=per-thread"]),
}
WAYS = ("native", "current", "upstream")


@dataclass
class Outcomes:
    """Of one run: the state of each test, and what a failure said."""

    states: dict[str, str] = field(default_factory=dict)  # passed, failed, skipped
    words: dict[str, str] = field(default_factory=dict)

    def count(self, state: str) -> int:
        return sum(each == state for each in self.states.values())


def read_junit(path: Path) -> Outcomes:
    """GoogleTest's and pytest's reports."""
    outcomes = Outcomes()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped") is not None or case.get("status") == "notrun"
        outcomes.states[name] = "failed" if bad is not None else "skipped" if skipped else "passed"
        if bad is not None:
            outcomes.words[name] = (bad.get("message") or bad.text or "").strip()
    return outcomes


def died(path: Path, code: int) -> Outcomes:
    """A run that ended without its report is one failure."""
    if path.exists():
        return read_junit(path)
    return Outcomes({"the whole run": "failed"}, {"the whole run": f"ended with {code} and wrote no report"})


class Packages:
    """Where RMM's packages are: installed here, or put into a folder from wheels."""

    def __init__(self, wheels: list[Path], folder: Path) -> None:
        self.path = [str(folder)] if wheels else []
        missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
        if wheels and missing and not folder.exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(folder)]
            subprocess.run([*install, *(f"--find-links={path}" for path in wheels), *missing], check=True)

    def environment(self, *more: str, **variables: str) -> dict[str, str]:
        path = os.pathsep.join([*more, *self.path, os.environ.get("PYTHONPATH", "")])
        return os.environ | {"PYTHONPATH": path} | variables

    def folder(self, package: str) -> Path:
        code = f"import importlib.util as u; print(list(u.find_spec('{package}').submodule_search_locations)[0])"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())


def build_suite(options: argparse.Namespace, packages: Packages, name: str, program: Path) -> None:
    source, flags = SUITES[name]
    librmm, logger = packages.folder("librmm"), packages.folder("rapids_logger")
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    compiler = [cuda / "bin/nvcc"] if source.endswith(".cu") else ["g++", "-isystem", cuda / "include"]
    include = [ROOT / "include", librmm / "include/rapids", librmm / "include", logger / "include"]
    libraries = [librmm / "lib64/librmm.so", logger / "lib64/librapids_logger.so"]
    folders = [options.build, cuda / "lib64", *(path.parent for path in libraries)]
    command = [*compiler, "-std=c++20", "-O1", "-w", *flags, *(f"-I{path}" for path in include)]
    command += [f"-I{options.rmm_source / 'cpp/tests/mr'}", HERE / source, "-o", program, *libraries]
    for word in ("--disable-new-dtags", *(f"-rpath={path}" for path in folders)):  # for what RMM's libraries need, too
        command += ["-Xlinker", word]
    command += [*(f"-L{path}" for path in folders), "-lvpmm", "-lcudart", "-lgtest", "-lgtest_main", "-lpthread"]
    subprocess.run([str(word) for word in command], check=True)


def run_suite(options: argparse.Namespace, packages: Packages, name: str) -> Outcomes:
    program, report = options.out / name, options.out / f"{name}.xml"
    build_suite(options, packages, name, program)
    command = [str(program), f"--gtest_output=xml:{report}", f"--gtest_filter={options.only}"]
    with open(options.out / f"{name}.log", "w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=SUITE_SECONDS, check=False)
    return died(report, done.returncode)


def run_python(options: argparse.Namespace, packages: Packages, way: str) -> Outcomes:
    report = options.out / f"python-{way}.xml"
    tests = options.rmm_source / "python/rmm/rmm/tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tests}"]
    command += [f"--junit-xml={report}", *([] if way == "native" else ["-p", "on_vpmm"]), str(tests)]
    ours = [str(HERE), str(options.build / "python")]
    cache = {"VPMM_CACHE_DIR": str(options.out / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = packages.environment(*ours, VPMM_TEST_RMM=way, **cache)
    with open(options.out / f"python-{way}.log", "w") as log, tempfile.TemporaryDirectory() as folder:
        run = {"stdout": log, "stderr": log, "env": environment, "cwd": folder, "timeout": SUITE_SECONDS}
        done = subprocess.run(command, check=False, **run)  # type: ignore[call-overload]  # options of several types
    return died(report, done.returncode)


def differences(runs: dict[str, Outcomes]) -> dict[tuple[str, str], str]:
    """(run, test): what it said, for tests that fail, and in Python do not fail natively."""
    found = {}
    native = runs.get("python native", Outcomes())
    for run, outcomes in runs.items():
        if outcomes is native:
            continue
        for test, state in outcomes.states.items():
            if state == "failed" and not (run.startswith("python") and native.states.get(test) == "failed"):
                found[run, test] = outcomes.words.get(test, "")
    return found


def reason_for(reasons: dict[str, str], run: str, test: str) -> str:
    """Empty: none is known. The patterns are matched against `run: test`."""
    return next((reason for pattern, reason in reasons.items() if fnmatch(f"{run}: {test}", pattern)), "")


def report(runs: dict[str, Outcomes], reasons: dict[str, str]) -> tuple[str, bool]:
    """The tables, and whether every difference has a reason and each run passed something."""
    lines = ["| run | passed | failed | skipped |", "|---|---|---|---|"]
    for run, outcomes in runs.items():
        lines.append(
            f"| {run} | {' | '.join(str(outcomes.count(state)) for state in ('passed', 'failed', 'skipped'))} |"
        )
    unexpected = 0
    found = differences(runs)
    if found:
        lines += ["", "| run | test | reason |", "|---|---|---|"]
    for (run, test), words in found.items():
        reason = reason_for(reasons, run, test)
        unexpected += not reason
        first = words.splitlines()[0] if words else "it failed"
        lines.append(f"| {run} | {test} | {reason or f'**unexpected**: {first[:200]}'} |")
    lines += ["", f"{len(found)} differences, {unexpected} unexpected"]
    return "\n".join(lines), unexpected == 0 and bool(runs) and all(each.count("passed") for each in runs.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rmm-source", type=Path, required=True, help="a tree of RMM's sources")
    parser.add_argument("--build", type=Path, default=ROOT / "build/gpu", help="folder with libvpmm.so and python/")
    parser.add_argument("--wheels", type=Path, nargs="+", default=[], help="folders of wheels of what is not installed")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build/gpu-rmm")))
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES), help="of C++, which to build")
    parser.add_argument("--only", default="*", help="filter of GoogleTest's for the C++ suites")
    parser.add_argument("--no-cpp", action="store_true")
    parser.add_argument("--no-python", action="store_true")
    options = parser.parse_args()
    options.build, options.rmm_source = options.build.resolve(), options.rmm_source.resolve()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    packages = Packages(options.wheels, ROOT / "build/rmm-packages")
    runs = {}
    if not options.no_cpp:
        runs |= {f"C++ {name}": run_suite(options, packages, name) for name in options.suites}
    if not options.no_python:
        runs |= {f"python {way}": run_python(options, packages, way) for way in WAYS}
    text, is_good = report(runs, json.loads((HERE / "reasons.json").read_text()))
    (options.out / "rmm.md").write_text(text + "\n")
    print(text)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
