#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests that a real GPU answers, then the same under compute-sanitizer; a short table comes last.

Where this Python has nanobind, Numba and PyTorch are driven on the GPU too, those that it has. Raw results land in one
folder: GoogleTest's XML of each suite, one log with everything printed, summary.json.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import machine

ROOT = Path(__file__).resolve().parent.parent
SUITES = ["contract", "contract_reset", "gpu", "gpu_reset", "emm", "conformance"]
# For machines with two GPUs or more.
PEER_SUITES = ["gpu_peer"]
# These run on the simulator unless told otherwise. Faults need it, and managers that are broken on purpose, for what
# they do to a real driver may end the process.
ON_EITHER = {"emm", "conformance"}
SIMULATOR_ONLY = "*EmmFault*:*OnSimulator*:*Broken*"
# The sanitizer slows every call down: it gets fewer operations, and no suite that breaks a context on purpose.
MEMCHECK_SUITES = ["contract", "gpu", "emm"]
MEMCHECK_OPERATIONS = "2000"
MEMCHECK_STRESS_SECONDS = "0"  # three rounds of threads, four programs
MEMCHECK_BUSY_FACTOR = "6"
# These tests need streams side by side, pass in the plain run and were seen to fail under the sanitizer with 0 memory
# errors. That it serialises streams and makes destroying one wait is our guess at why.
NEED_STREAMS_SIDE_BY_SIDE = "*destroyed_stream*:*outlives_its_stream*:*never_delays_another*:*complete_in_a_moment*"
# The sanitizer of CUDA 13.0 reports every device access to managed memory of CU_MEM_ATTACH_HOST as out of bounds, also
# on devices with concurrent managed access, which CUDA allows it there.
FALSE_ALARMS = "*attached_to_the_host*"
# It also waits for the process of a death test, to which it cannot attach.
STARTS_A_PROCESS = "*DeathTest*:*SharingContract*"
MEMCHECK_LEFT_OUT = f"{NEED_STREAMS_SIDE_BY_SIDE}:{FALSE_ALARMS}:{STARTS_A_PROCESS}"
# tests/gpu_python/test_*.py, and what each needs.
PYTHON_SUITES = {
    "stress": ["numba_cuda"],
    "ipc": ["numba_cuda"],
    "cupy": ["cupy"],
    "buffer": ["cupy", "torch"],
    "guard": ["numba_cuda"],
    "guard_cupy": ["cupy"],
    "guard_rmm": ["cupy", "rmm"],
}
# What each needs, and whether PyTorch allocates through VPMM in the very process of the tests.
TORCH_SUITES = {
    "torch_vpmm/test_allocator.py": (["torch"], True),
    "torch_vpmm/test_counting.py": (["torch"], True),
    "torch_vpmm/test_devices.py": (["torch"], True),
    "torch_vpmm/test_fill.py": (["torch"], True),
    "torch_vpmm/test_foreign_allocators.py": (["torch"], True),
    "torch_vpmm/test_history.py": (["torch"], True),
    "torch_vpmm/test_options.py": (["torch"], True),
    "torch_vpmm/test_private_pools.py": (["torch"], True),
    "torch_vpmm/test_programs.py": (["torch"], True),
    "torch_vpmm/test_streams.py": (["torch"], True),
    "torch_vpmm/test_tags.py": (["torch"], True),
    "torch_vpmm/test_trackers.py": (["torch"], True),
    "torch_vpmm/test_vllm.py": (["torch"], True),
    "gpu_torch/run.py": (["torch", "transformers", "torchvision", "torch_geometric"], False),
}
# The other modules of tests/torch_vpmm, with the reason why no real GPU runs them.
TORCH_ON_SIMULATOR = {
    "torch_vpmm/test_failing_calls.py": "the library's answers are made up there, on any GPU",
    "torch_vpmm/test_invalid_captures.py": "CUDA decides what an invalid capture leaves",
    "torch_vpmm/test_nestings.py": "its programs run on a real one in gpu_torch/test_nestings.py",
    "torch_vpmm/test_pages.py": "starts each block of a page on the simulated GPU",
}
TWO_GPUS = "needs two GPUs"
NO_DEVICE = 100  # of CUDA's errors
# Reasons of skips that are right on any machine.
RIGHT_SKIPS = {"needs seven GPUs of the simulator", "PyTorch 2.11 has no such option"}
STRESS_SECONDS = int(os.environ.get("VPMM_STRESS_SECONDS", "0"))  # what the stress tests get instead of their default
SUITE_SECONDS = 240 + 4 * STRESS_SECONDS  # the threads and the random programs of `gpu`, on each of two drivers
NUMBA_SECONDS = 600 + STRESS_SECONDS  # each case starts processes that import Numba, or PyTorch
MEMCHECK_SECONDS = 120


@dataclass
class Row:
    """One line of the table."""

    suite: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    note: str = ""


def existing(suites: list[str]) -> list[str]:
    return [suite for suite in suites if any((ROOT / "tests" / suite).glob("*.cpp"))]


@functools.cache
def gpu_count() -> int:
    """As the tests see them: the driver heeds CUDA_VISIBLE_DEVICES, and needs no nvidia-smi."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if error not in (0, NO_DEVICE):
        sys.exit(f"the GPUs cannot be counted: CUDA error {error}")
    return count.value


def end_by_an_exception() -> None:
    """So that SIGTERM, too, ends the command that runs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run_logged(command: list[str], seconds: int, log: TextIO, **variables: str) -> tuple[str, int | None]:
    """Output, which is in the log at once, and exit code; the code is None when time ran out.

    Then, and when an exception ends this function, the command and all that it started are killed.
    """
    log.write(f"\n$ {' '.join(command)}\n")
    log.flush()
    begin = os.fstat(log.fileno()).st_size
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | variables, start_new_session=True
    )
    code = None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with open(log.name, "rb") as written:
        written.seek(begin)
        return written.read().decode(errors="replace"), code


def read_gtest(report: Path, suite: str, code: int | None, seconds: float) -> Row:
    """Counts cases in GoogleTest's XML. With a GPU required a skip is a failure, so it is counted as one by exit."""
    row = Row(suite, 0, 0, 0, seconds)
    if code is None:
        row.note = f"stopped after {SUITE_SECONDS} s"
    elif not report.exists():
        row.note = f"ended with {code} before it could report"
    else:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None:
                row.failed += 1
            elif case.find("skipped") is not None or case.get("result") == "skipped":
                row.skipped += 1
            elif case.get("status") == "run":
                row.passed += 1
        if code != 0 and row.failed == 0:
            row.note = f"ended with {code}"
    if row.note:
        row.failed += 1
    return row


def on_cuda(suite: str) -> tuple[list[str], dict[str, str]]:
    """Patterns of the tests that the real driver does not run, and the variables that choose it."""
    return ([SIMULATOR_ONLY], {"VPMM_DRIVER": "cuda"}) if suite in ON_EITHER else ([], {})


def run_suite(build: Path, out: Path, suite: str, log: TextIO) -> Row:
    report = out / f"{suite}.xml"
    report.unlink(missing_ok=True)
    command = [str(build / "tests" / f"vpmm_test_{suite}"), f"--gtest_output=xml:{report}"]
    left_out, variables = on_cuda(suite)
    if left_out:
        command.append(f"--gtest_filter=-{':'.join(left_out)}")
    begin = time.monotonic()
    output, code = run_logged(command, SUITE_SECONDS, log, **variables)
    row = read_gtest(report, suite, code, round(time.monotonic() - begin, 1))
    if row.failed:
        print("\n".join(output.splitlines()[-60:]))
    return row


def run_suite_of_python(build: Path, name: str, log: TextIO) -> Row:
    needed = PYTHON_SUITES[name]
    suite = name if needed == [name] else f"{needed[0].partition('_')[0]} {name}"
    return run_python(suite, ROOT / f"tests/gpu_python/test_{name}.py", needed, build, log)


def run_torch(build: Path, name: str, log: TextIO) -> Row:
    needed, is_inside = TORCH_SUITES[name]
    cache = str(build.resolve() / "torch")
    variables = {"VPMM_CACHE_DIR": cache} | ({"VPMM_TORCH": "1"} if is_inside else {})
    return run_python(f"torch {Path(name).stem}", ROOT / "tests" / name, needed, build, log, **variables)


def excused_skips(output: str) -> list[str]:
    """Reasons that unittest printed of skips that are right on this machine."""
    reasons = re.findall(r"\.\.\. skipped ['\"](.+)['\"]$", output, re.MULTILINE)
    return [each for each in reasons if each in RIGHT_SKIPS or (each == TWO_GPUS and gpu_count() < 2)]


def is_for_skips(program: Path, code: int | None, skipped: int) -> bool:
    """Whether the exit code of a program says no more than that it skipped: gpu_torch/run.py, with a GPU required."""
    return code == 1 and skipped > 0 and program.name == "run.py" and os.environ.get("VPMM_REQUIRE_GPU") == "1"


def run_python(suite: str, program: Path, needed: list[str], build: Path, log: TextIO, **variables: str) -> Row:
    """By unittest, which prints what became of its cases last: `Ran 3 tests ...` and `OK (skipped=1)`.

    Skips that are right on this machine are no skips of the row, but are counted in its note.
    """
    missing = [module for module in (*needed, "nanobind") if importlib.util.find_spec(module) is None]
    if missing:
        return Row(suite, 0, 0, 0, 0.0, f"not run: {', '.join(missing)} not installed")
    path = os.pathsep.join(filter(None, [str(build.resolve() / "python"), os.environ.get("PYTHONPATH")]))
    begin = time.monotonic()
    command = [sys.executable, str(program)] + (["-v"] if program.name.startswith("test_") else [])
    output, code = run_logged(command, NUMBA_SECONDS, log, PYTHONPATH=path, **variables)
    row = Row(suite, 0, 0, 0, round(time.monotonic() - begin, 1))
    ran = re.search(r"^Ran (\d+) tests?", output, re.MULTILINE)
    if ran is None:
        row.failed, row.note = (
            1,
            "stopped: out of time" if code is None else f"ended with {code} before it could report",
        )
    else:
        counts = {name: int(count) for name, count in re.findall(r"(failures|errors|skipped)=(\d+)", output)}
        row.failed, row.skipped = counts.get("failures", 0) + counts.get("errors", 0), counts.get("skipped", 0)
        row.passed = max(0, int(ran.group(1)) - row.failed - row.skipped)
        excused = excused_skips(output)
        notes = [f"{excused.count(each)} skipped: {each}" for each in sorted(set(excused))]
        if code != 0 and not row.failed and not is_for_skips(program, code, row.skipped):
            row.failed = 1
            notes.insert(0, "stopped: out of time" if code is None else f"ended with {code}")
        row.skipped -= len(excused)
        row.note = "; ".join(notes)
    if row.failed or row.skipped:
        print("\n".join(output.splitlines()[-60:]))
    return row


def find_sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def run_memcheck(sanitizer: str, build: Path, suite: str, log: TextIO) -> Row:
    # Calls that must be refused are part of the contract, hence no API errors.
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "86"]
    left_out, variables = on_cuda(suite)
    patterns = ":".join([MEMCHECK_LEFT_OUT, *left_out])
    command = [sanitizer, *options, str(build / "tests" / f"vpmm_test_{suite}"), f"--gtest_filter=-{patterns}"]
    begin = time.monotonic()
    output, code = run_logged(
        command,
        MEMCHECK_SECONDS,
        log,
        VPMM_SOAK_OPERATIONS=MEMCHECK_OPERATIONS,
        VPMM_STRESS_SECONDS=MEMCHECK_STRESS_SECONDS,
        VPMM_BUSY_FACTOR=MEMCHECK_BUSY_FACTOR,
        **variables,
    )
    row = Row(f"memcheck {suite}", 0, 0, 0, round(time.monotonic() - begin, 1))
    errors = re.search(r"ERROR SUMMARY: (\d+) error", output)
    if errors is None:
        row.note = "stopped: out of time" if code is None else f"no summary, ended with {code}"
    else:
        row.note = f"{errors.group(1)} errors" + ("" if code == 0 else f", ended with {code}")
    clean = errors is not None and errors.group(1) == "0" and code == 0
    row.passed, row.failed = (1, 0) if clean else (0, 1)
    if not clean:
        print("\n".join(output.splitlines()[-40:]))
    return row


def table(rows: list[Row]) -> str:
    lines = [f"{'suite':24} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}  note"]
    lines += [f"{r.suite:24} {r.passed:7} {r.failed:7} {r.skipped:8} {r.seconds:8.1f}  {r.note}".rstrip() for r in rows]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end_by_an_exception()
    has_peers = gpu_count() > 1
    suites = existing(SUITES + (PEER_SUITES if has_peers else []))
    targets = [f"vpmm_test_{suite}" for suite in suites]
    targets += ["vpmm_python_package"] if importlib.util.find_spec("nanobind") else []
    subprocess.run(["cmake", "--build", str(options.build), "-j", str(options.jobs), "--target", *targets], check=True)
    rows = []
    with (options.out / "gpu-tests.log").open("w") as log:
        for suite in suites:
            print(f"running {suite}", flush=True)
            rows.append(run_suite(options.build, options.out, suite, log))
        for name in PYTHON_SUITES:
            print(f"running Python, {name}", flush=True)
            rows.append(run_suite_of_python(options.build, name, log))
        for name in TORCH_SUITES:
            print(f"running PyTorch, {name}", flush=True)
            rows.append(run_torch(options.build, name, log))
        sanitizer = find_sanitizer()
        for suite in existing(MEMCHECK_SUITES) if sanitizer else []:
            print(f"running {suite} under compute-sanitizer", flush=True)
            rows.append(run_memcheck(str(sanitizer), options.build, suite, log))
    summary = {"machine": machine.describe(), "rows": [asdict(row) for row in rows]}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{table(rows)}")
    if sanitizer is None:
        print("compute-sanitizer was not found: no memcheck run")
    if not has_peers:
        print(f"the driver counts fewer than two GPUs: not run: {', '.join(PEER_SUITES)}")
    return 1 if not rows or any(row.failed or row.skipped for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
