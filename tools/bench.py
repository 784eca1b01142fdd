#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark: every part, with every peer that is here, each in a process of its own.

Writes raw CSV, Markdown tables and a picture. What is missing, was left out or failed is named, and the rest goes on.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import bench_plot
import bench_replay
import bench_samples
import bench_tables
import machine
from bench_samples import Sample

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "bench/traces"
UNAVAILABLE = 3  # exit code of vpmm_bench and cupy_pool.py

OURS = ["vpmm", "vpmm-bound"]
TORCH = ["torch-native", "torch-expandable"]
RMM = ["rmm-vpmm", "rmm-pool", "rmm-arena", "rmm-async"]
FLOORS = ["mimalloc", "checks", "none"]  # no allocators of GPU memory
# PyTorch reads it while it is loaded.
ENVIRONMENT = {"torch-expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


@dataclass(frozen=True)
class Job:
    """One part with several peers."""

    verb: str
    peers: list[str]
    arguments: list[str] = field(default_factory=list)
    quick: list[str] | None = None  # instead of the arguments, to show only that it runs
    seconds: int = 30  # for each peer
    needs_gpu: bool = False
    repeats: bool = False  # whether it takes --repeats


def jobs(letter: str, small_cases: list[Path]) -> list[Job]:
    """The jobs of a part."""
    names = ("gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train")
    traces = [str(TRACES / f"{name}.csv.gz") for name in names]
    serve = ["--trace", str(TRACES / "serve_streams.csv.gz")]
    tiny = ["--round-ms", "1", "--repeats", "1", "--threads", "1,2", "--only", "1e3"]
    return {
        "a": [Job("hot-path", [*OURS, "cuda-async", *TORCH, *RMM, "cupy", *FLOORS], ["--half"], quick=tiny,
                  repeats=True)],
        "b": [
            Job("random-allocations", ["vpmm", "vpmm-latency", "cuda-async", *TORCH, *RMM],
                ["--half"], quick=["--counts", "1000"], seconds=15),
            # Live memory follows the GPU's size, so that there are as many holes as a large program has.
            Job("random-allocations", ["vpmm", "vpmm-latency", "cuda-async"],
                ["--counts", "10000", "--sizes-mib", "64", "--share", "0.6"],
                quick=["--counts", "1000", "--sizes-mib", "64", "--share", "0.6"], seconds=15),
            Job("multi-stream", [*OURS, "cuda-async", *TORCH, *RMM], repeats=True),
        ],
        "c": [
            Job("replay", ["vpmm", "cuda-async", *TORCH, "rmm-pool", "rmm-arena", "cupy"], ["--trace", *traces],
                needs_gpu=True)
        ],
        "d": [
            Job("growth", ["vpmm", "cuda", "cuda-async", *TORCH, "rmm-pool"], quick=["--repeats", "1"], needs_gpu=True,
                repeats=True)
        ],
        "e": [
            Job("replay", ["vpmm", "cuda-async", *TORCH, "rmm-pool", "cupy"],
                ["--as", "small_cases", "--trace", *map(str, small_cases)])
        ],
        "f": [
            Job("serve", ["vpmm", "cuda-async", *TORCH], [*serve, "--paced"], quick=serve, needs_gpu=True),
            Job("serve", ["vpmm", "cuda-async", *TORCH], serve, needs_gpu=True),
        ],
    }[letter]  # fmt: skip


# In the order of their worth, should time run out.
PARTS = {
    "a": "hot path",
    "c": "recorded programs",
    "f": "a server with four threads",
    "d": "memory that is not there yet",
    "e": "sequences that split memory up",
    "b": "RMM's workloads",
}


@dataclass
class Findings:
    """What came out of all jobs so far."""

    samples: list[Sample] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # peer: why
    not_run: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (what, why): peers
    failed: list[str] = field(default_factory=list)

    def leave_out(self, what: str, why: str, peer: str = "") -> None:
        self.not_run.setdefault((what, why), []).append(peer)

    def left_out(self) -> list[str]:
        return [
            f"{what}: {why}" + (f" ({', '.join(peers)})" if all(peers) else "")
            for (what, why), peers in self.not_run.items()
        ]


class Runner:
    """Runs vpmm_bench, or CuPy's script, until time is up."""

    def __init__(self, program: Path | None, driver: str, options: argparse.Namespace) -> None:
        self.program, self.driver, self.is_quick = program, driver, options.quick
        self.peers = options.peers
        self.repeats = ["--repeats", str(options.repeats)] if options.repeats else []
        self.deadline = time.monotonic() + options.seconds
        self.found = Findings()
        self.not_built = self._read_not_built()

    def run(self, job: Job) -> None:
        if job.needs_gpu and self.driver != "cuda" and not self.is_quick:
            self.found.leave_out(job.verb, "it needs a GPU")
            return
        for peer in job.peers:
            if peer in self.found.missing:
                continue
            if self.peers and peer not in self.peers:
                self.found.leave_out(job.verb, "not asked for", peer)
                continue
            # Without a GPU the others' allocators have no memory to give.
            if self.driver != "cuda" and not peer.startswith("vpmm") and peer not in FLOORS:
                self.found.missing[peer] = "it needs a GPU"
            elif time.monotonic() > self.deadline:
                self.found.leave_out(job.verb, "out of time", peer)
            else:
                self._run_peer(job, peer)

    def _read_not_built(self) -> dict[str, str]:
        """`library: why not`, as CMake found it."""
        path = self.program.parent / "missing.txt" if self.program else None
        lines = path.read_text().splitlines() if path and path.exists() else []
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def _command(self, job: Job, peer: str, seconds: float) -> list[str]:
        if self.is_quick and job.quick is not None:
            arguments = job.quick
        else:
            arguments = job.arguments + (self.repeats if job.repeats else [])
        if peer == "cupy":
            return ["python3", str(ROOT / "bench/peers/cupy_pool.py"), job.verb, *arguments]
        driver = ["--peer", peer, "--driver", self.driver, "--seconds", f"{seconds:.0f}"]
        return [str(self.program), job.verb, *driver, *arguments]

    def _run_peer(self, job: Job, peer: str) -> None:
        seconds = min(job.seconds, max(1.0, self.deadline - time.monotonic()))
        command = self._command(job, peer, seconds)
        environment = os.environ | ENVIRONMENT.get(peer, {})
        begin = time.monotonic()
        try:
            # It stops by itself at `seconds`; the rest is for the case it is in by then, and for ending.
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + 20, check=False, env=environment, cwd=ROOT
            )
            output, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as expired:
            output, errors, code = (expired.stdout or b"").decode(), "", None
        self._read(job, peer, output, errors, code)
        print(f"{job.verb:20} {peer:18} {time.monotonic() - begin:6.1f} s", flush=True)

    def _read(self, job: Job, peer: str, output: str, errors: str, code: int | None) -> None:
        for line in output.splitlines():
            fields = line.split(",")
            if sample := bench_samples.parse_sample(line):
                self.found.samples.append(sample)
            elif line.startswith("# version,"):
                self.found.versions[fields[1]] = fields[2]
            elif line.startswith("# left out,"):
                self.found.leave_out(f"{fields[1]}, {fields[2]}", ",".join(fields[4:]), fields[3])
        reason = reason_of(errors)
        if code == UNAVAILABLE:
            self.found.missing[peer] = self.not_built.get(peer.split("-")[0], reason)
        elif code != 0:
            what = "stopped: it took too long" if code is None else f"ended with {code}: {reason}".removesuffix(": ")
            self.found.failed.append(f"{job.verb} with {peer} {what}")


# What says why, when a line begins with it: vpmm_bench and cupy_pool.py, and the C++ library where nobody catches.
SAYS_WHY = ("unavailable:", "what():")
# What stands around the reason. Python's frames and C++'s `what():` are indented, its own last words are not.
SAYS_NOTHING = re.compile(r"\s|frame #|Traceback |terminate called |.*Warning: ")


def reason_of(errors: str) -> str:
    """The line of a program's stderr that says why it failed, without what only this machine and run have.

    PyTorch's errors begin with the reason and end with the stack, one `frame #` a line.
    """
    lines = [line for line in errors.splitlines() if line.strip()]
    named = [line.strip() for line in lines if line.strip().startswith(SAYS_WHY)]
    plain = [line for line in lines if not SAYS_NOTHING.match(line)]
    reason = named[0].split(":", 1)[1] if named else next(iter(plain), "")
    return re.sub(r"\s*\b0x[0-9a-fA-F]+", "", reason.replace(f"{ROOT}/", "")).strip()


def facts_of(found: Findings, driver: str) -> dict[str, str]:
    facts = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **machine.describe()}
    facts["driver"] = driver
    facts["peers"] = "; ".join(f"{peer}: {version}" for peer, version in found.versions.items())
    facts["command"] = " ".join(["tools/bench.py", *sys.argv[1:]])
    spread = bench_samples.spread(found.samples, "hot_path", "time")
    if spread is not None:
        facts["spread"] = f"repeats of one case of the hot path lie {spread:.0%} apart (median over all cases)"
    return facts


def bullets(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]) if lines else ""


def page(found: Findings, facts: dict[str, str], picture: str) -> str:
    parts = {sample.part for sample in found.samples}
    blocks = [
        f"# Benchmark, {facts['date']}",
        "\n".join(f"- {key}: {value}" for key, value in facts.items()),
        picture,
        "A figure in brackets is the ratio to `vpmm` in the same run: 2x takes twice as long.",
        *(write(found.samples) for part, write in bench_tables.SECTIONS.items() if part in parts),
        bullets("Missing", [f"{peer}: {why}" for peer, why in found.missing.items()]),
        bullets("Left out", found.left_out()),
        bullets("Failed", found.failed),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


@dataclass(frozen=True)
class Results:
    """Where the results go, and what they are called."""

    out: Path
    name: str
    driver: str

    def write(self, found: Findings, is_final: bool = False) -> None:
        """After every part, so that a run that is cut off leaves what it has; the picture at the end."""
        self.out.mkdir(parents=True, exist_ok=True)
        facts = facts_of(found, self.driver)
        bench_samples.write_csv(self.out / f"{self.name}.csv", facts, found.samples)
        picture = self._draw(found, facts) if is_final else ""
        (self.out / f"{self.name}.md").write_text(page(found, facts, picture))

    def _draw(self, found: Findings, facts: dict[str, str]) -> str:
        try:
            title = f"{facts['gpu']}, {facts['date']}"
            reason = bench_plot.draw(found.samples, title, self.out / f"{self.name}.svg")
        except Exception as error:  # a picture is not worth the figures
            reason = repr(error)
        return f"![the same as a picture]({self.name}.svg)" if reason is None else f"No picture: {reason}."


def results_of(options: argparse.Namespace, parts: list[str], driver: str) -> Results:
    """Some parts alone do not overwrite what holds all of them."""
    is_gpu = driver == "cuda"
    name = "bench-cuda" if is_gpu else "bench-host"
    if set(parts) != set(PARTS):
        name += "-" + "".join(parts)
    return Results(options.out, name, "the GPU's" if is_gpu else "none: every driver call does nothing, at once")


def redraw(csv: Path) -> int:
    facts, samples = bench_samples.read_csv(csv)
    reason = bench_plot.draw(samples, f"{facts.get('gpu', '')}, {facts.get('date', '')}", csv.with_suffix(".svg"))
    if reason is not None:
        print(f"no picture: {reason}")
    return 0 if reason is None else 1


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vpmm", type=Path, help="the command line, relative to the repository")
    parser.add_argument("--bench", type=Path, help="vpmm_bench; without it only the command line's replay runs")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--driver", choices=["sim", "cuda"], help="default: cuda where there is a GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(f"{k}: {v}" for k, v in PARTS.items()))
    parser.add_argument("--seconds", type=float, default=360, help="parts that begin later than this are left out")
    parser.add_argument("--peers", type=lambda names: names.split(","), default=[], help="only these; default: all")
    parser.add_argument("--repeats", type=int, help="of each case of parts a, d and of multi_stream_allocations")
    parser.add_argument("--quick", action="store_true", help="shows that it runs; the figures mean nothing")
    parser.add_argument("--no-replay", action="store_true", help="without `vpmm replay`, the first half of part c")
    parser.add_argument("--plot", type=Path, metavar="CSV", help="only draw the picture of earlier figures")
    return parser.parse_known_args()


def main() -> int:
    options, more = parse()
    if options.plot:
        return redraw(options.plot)
    parts = [part for part in options.parts.split(",") if part]
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
        return 2
    peers = {peer for part in PARTS for job in jobs(part, []) for peer in job.peers}
    if unknown := [peer for peer in options.peers if peer not in peers]:
        print(f"there is no peer {unknown[0]}; there are {', '.join(sorted(peers))}")
        return 2
    driver = options.driver or ("sim" if machine.describe()["gpu"] == "none" else "cuda")
    results = results_of(options, parts, driver)
    program = options.bench.resolve() if options.bench else None
    runner = Runner(program, "cuda" if driver == "cuda" else "zero-cost", options)
    found = runner.found
    with tempfile.TemporaryDirectory() as folder:
        small_cases = write_small_cases(Path(folder))
        for part in parts:
            if part == "c" and options.vpmm and not options.no_replay:
                replay(options.vpmm, driver, options.out, more, found)
            if program:
                for job in jobs(part, small_cases):
                    runner.run(job)
                results.write(found)
    if program:
        results.write(found, is_final=True)
    print_summary(found)
    return 1 if found.failed or (program and not found.samples) else 0


def replay(vpmm: Path, driver: str, out: Path, more: list[str], found: Findings) -> None:
    try:
        table, is_good = bench_replay.run(vpmm, driver, out, more)
    except OSError as error:
        table, is_good = str(error), False
    print(f"\n{table}\n")
    if not is_good:
        found.failed.append("vpmm replay: it ended early, or its table shows refused requests, corruptions or hazards")


def write_small_cases(folder: Path) -> list[Path]:
    script = ROOT / "bench/workloads/small_cases.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def print_summary(found: Findings) -> None:
    for title, lines in [
        ("missing", [f"{peer}: {why}" for peer, why in found.missing.items()]),
        ("left out", found.left_out()),
        ("failed", found.failed),
    ]:
        for line in lines:
            print(f"{title}: {line}")
    if found.samples:
        print(f"\n{bench_tables.headlines(found.samples)}")


if __name__ == "__main__":
    sys.exit(main())
