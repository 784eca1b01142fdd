# SPDX-License-Identifier: Apache-2.0
"""Builds a mutated copy of the tree and runs test suites against each of its faults."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.rewrite import rewrite
from mutation.sites import Mutant, Source

HEADER = Path(__file__).with_name("mutant.hpp")
ERROR = re.compile(
    r"^(?P<file>\S+?):(?P<line>\d+):\d+: (?:fatal )?error:|^(?P<unit>\S+):(?P<at>\d+):\d+:   required from"
)
FAILED = re.compile(r"\[  FAILED  \] ([^\s,]+)")
STARTED = re.compile(r"\[ RUN      \] (\S+)")
DATA_BYTES = 3 << 30  # a fault that allocates for ever ends there
CASES_AT_ONCE = 25  # in one process; an endless one among them costs no more than their time


@dataclass(frozen=True)
class Case:
    """One case of a suite: seconds it takes and the numbers of the faults that it comes by; all have 0, no fault."""

    suite: str
    name: str
    seconds: float
    seen: frozenset[int]


@dataclass
class Verdict:
    """What the suites said about one fault: the case that found it; None: it survived `cases` cases."""

    found_by: str | None
    cases: int


@dataclass
class Tree:
    """A copy of the tree in `folder`, with its own build; only what changed is copied and compiled again."""

    root: Path
    folder: Path
    jobs: int
    start_seconds: float = 0  # of a process, before its first case

    @property
    def build(self) -> Path:
        return self.folder / "build/dev"

    def copy(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.root, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for name in listed:
            if name and (self.root / name).is_file() and not name.startswith("bench/results"):
                self.write(name, (self.root / name).read_bytes())
        for path in (self.folder / "src").rglob("*"):  # of an earlier copy
            if path.is_file() and str(path.relative_to(self.folder)) not in listed:
                path.unlink()
        self.write("mutant.hpp", HEADER.read_bytes())

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            shutil.copymode(self.root / name if (self.root / name).exists() else HEADER, path)

    def configure(self) -> None:
        flags = f"-w -include {self.folder / 'mutant.hpp'}"
        self.run(["cmake", "--preset", "dev", "-DVPMM_STATIC=OFF", f"-DCMAKE_CXX_FLAGS={flags}"])

    def run(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def compile(self, targets: Sequence[str]) -> set[tuple[str, int]]:
        """Builds the targets. Returns the lines that the compiler refused, by file; RuntimeError for other failures."""
        command = ["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target", *targets, "--", "-k", "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return set()
        return self.refused_in(done.stdout + done.stderr[-2000:])

    def refused_in(self, said: str) -> set[tuple[str, int]]:
        """Lines of the tree that a compiler refused, by file. RuntimeError: there are none."""
        refused, root = set(), self.folder.resolve()
        for found in map(ERROR.match, said.splitlines()):
            if found:
                path = (self.build / (found["file"] or found["unit"])).resolve()
                if path.is_relative_to(root):
                    refused.add((str(path.relative_to(root)), int(found["line"] or found["at"])))
        if not refused:
            raise RuntimeError(said[-8000:])
        return refused

    def sources_of(self, room: str) -> str:
        return f"src/{room}"

    def units_of(self, room: str) -> list[tuple[Path, list[str]]]:
        """Translation units, each with the compiler's arguments as clang understands them."""
        commands = json.loads((self.build / "compile_commands.json").read_text())
        for entry in commands:
            if f"CMakeFiles/vpmm_{room}.dir/" in entry["command"]:
                words = entry["command"].split()
                arguments = [word for word in words if word.startswith(("-I", "-D", "-U", "-std="))]
                return [(path, arguments) for path in sorted((self.folder / self.sources_of(room)).glob("*.cpp"))]
        raise RuntimeError(f"nothing is compiled for a room '{room}'")

    def names_of(self, suite: str) -> list[str]:
        return cases_of(self.binary_of(suite))

    def run_cases(self, suite: str, names: Sequence[str], seconds: float, variables: dict[str, str]) -> str | None:
        return run_cases(self.binary_of(suite), names, seconds, variables)

    def binary_of(self, suite: str) -> Path:
        return self.build / "tests" / f"vpmm_test_{suite}"


def plant(
    tree: Tree, room: str, sources: dict[str, Source], drawn: Sequence[Mutant], wanted: int, targets: Sequence[str]
) -> dict[int, Mutant]:
    """Writes the first `wanted` of the faults into the tree and compiles. Those that do not compile give way.

    Returns the faults by number.
    """
    waiting = list(drawn)
    planted: dict[int, Mutant] = {}
    refused_in_all = 0
    while True:
        while len(planted) < wanted and waiting:
            number = len(drawn) - len(waiting) + 1
            planted[number] = waiting.pop(0)
        for name, source in sources.items():
            numbered = [(number, mutant) for number, mutant in planted.items() if mutant.file == name]
            tree.write(name, rewrite(source.bytes, numbered))
        refused = tree.compile([f"vpmm_{room}"]) or tree.compile(targets)  # most are refused by the first
        if not refused:
            print(f"{len(planted)} faults planted; the compiler refused {refused_in_all} others", flush=True)
            return planted
        bad = [number for number, mutant in planted.items() if touches(sources[mutant.file], mutant, refused)]
        if not bad:
            raise RuntimeError(f"the compiler refuses lines without a fault: {sorted(refused)[:5]}")
        refused_in_all += len(bad)
        for number in bad:
            del planted[number]


def touches(source: Source, mutant: Mutant, lines: set[tuple[str, int]]) -> bool:
    last = source.bytes.count(b"\n", 0, mutant.end) + 1
    return any((mutant.file, line) in lines for line in range(mutant.line, last + 1))


def run_cases(binary: Path, names: Sequence[str], seconds: float, variables: dict[str, str]) -> str | None:
    """Runs these cases of GoogleTest in one process until one fails."""
    command = [str(binary), f"--gtest_filter={':'.join(names)}", "--gtest_fail_fast"]
    return run_until_one_fails(command, FAILED, seconds, variables)


def run_until_one_fails(
    command: Sequence[str],
    failed: re.Pattern[str],
    seconds: float,
    variables: dict[str, str],
    folder: Path | None = None,
    data_bytes: int = DATA_BYTES,
) -> str | None:
    """Runs a program of tests. Returns what failed: a case's name, which `failed` finds, or how the process ended."""

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)  # tests become another user and open sockets in it
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **variables, "TMPDIR": temporary}, cwd=folder, preexec_fn=limit_memory,
        )  # fmt: skip
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):  # children that a test has left, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == 0:
        return None
    named = failed.findall(text)[:1] or STARTED.findall(text)[-1:]  # a process that dies says no more
    return named[0] if named else "endless" if code is None else f"ended with {code}"


def cases_of(binary: Path) -> list[str]:
    listed = subprocess.run([str(binary), "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    cases, fixture = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if word and not line.startswith(" ") and word.endswith("."):
            fixture = word
        elif line.startswith("  ") and "DISABLED_" not in fixture + word:
            cases.append(fixture + word.strip())
    return cases


def measure(tree: Tree, suites: Sequence[str], count: int, longest: float) -> list[Case]:
    """Runs each case alone without a fault, and notes which faults it comes by.

    Cases that fail, alone or after others, or take more than `longest` seconds, are left out.
    """

    def alone(suite: str, name: str) -> Case | None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(count + 1))
            file.flush()
            begin = time.monotonic()
            failed = tree.run_cases(suite, [name], 120, {"MUTANTS_SEEN": file.name})
            seconds = max(time.monotonic() - begin - tree.start_seconds, 0)
            file.seek(0)
            seen = frozenset({0, *(number for number, byte in enumerate(file.read()) if byte)})
        if failed:
            print(f"left out, as it fails without a fault: {suite}/{name} ({failed})", flush=True)
            return None
        if seconds > longest:
            print(f"left out, as it takes {seconds:.0f} s: {suite}/{name}", flush=True)
            return None
        return Case(suite, name, seconds, seen)

    with concurrent.futures.ThreadPoolExecutor(tree.jobs) as pool:
        named = [(suite, name) for suite in suites for name in tree.names_of(suite)]
        cases = [case for case in pool.map(lambda each: alone(*each), named) if case]
        while failed := set(pool.map(lambda part: first_failure(tree, 0, part), parts_of(cases))) - {None}:
            print(f"left out, as it fails after others without a fault: {' '.join(map(str, failed))}", flush=True)
            count = len(cases)
            cases = [case for case in cases if f"{case.suite}/{case.name}" not in failed]
            if len(cases) == count:
                raise RuntimeError(f"without a fault the cases end so together: {failed}")
    return cases


def parts_of(cases: Sequence[Case]) -> list[Sequence[Case]]:
    """Cases for one process each, the fastest first."""
    ordered = sorted(cases, key=lambda case: case.seconds)
    return [ordered[at : at + CASES_AT_ONCE] for at in range(0, len(ordered), CASES_AT_ONCE)]


def first_failure(tree: Tree, number: int, part: Sequence[Case]) -> str | None:
    """Suite and name of the first case that fails with a fault, or how their process ended."""
    for suite in sorted({case.suite for case in part}):
        own = [case for case in part if case.suite == suite]
        seconds = 4 + 5 * (tree.start_seconds + sum(case.seconds for case in own))
        found = tree.run_cases(suite, [case.name for case in own], seconds, {"MUTANT": str(number)})
        if found:
            return f"{suite}/{found}"
    return None


def judge(tree: Tree, number: int, cases: Sequence[Case]) -> Verdict:
    """Runs the cases that come by a fault until one fails."""
    reaching = [case for case in cases if number in case.seen]
    failures = (first_failure(tree, number, part) for part in parts_of(reaching))
    return Verdict(next(filter(None, failures), None), len(reaching))


def judge_all(
    tree: Tree,
    numbers: Sequence[int],
    cases: Sequence[Case],
    until: float = math.inf,
    tell: Callable[[int], None] = lambda number: None,
) -> dict[int, Verdict]:
    """Verdicts by number, without faults whose turn comes after `until` of the monotonic clock.

    `tell` hears of each survivor at once, as a run of hours may be stopped.
    """

    def in_time(number: int) -> Verdict | None:
        return judge(tree, number, cases) if time.monotonic() < until else None

    verdicts = {}
    with concurrent.futures.ThreadPoolExecutor(tree.jobs) as pool:
        running = {pool.submit(in_time, number): number for number in numbers}
        for done in concurrent.futures.as_completed(running):
            verdict = done.result()
            if verdict is None:
                continue
            verdicts[running[done]] = verdict
            if verdict.found_by is None:
                tell(running[done])
            if len(verdicts) % 50 == 0:
                print(f"{len(verdicts)} of {len(numbers)} faults tried", flush=True)
    return verdicts
