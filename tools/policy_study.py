#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows what the pool's policy costs in memory and time: one table over the recorded programs, and over variants.

    python3 tools/policy_study.py --program build/dev/bin/vpmm
    python3 tools/policy_study.py --program build/dev/bin/vpmm --variants --lag 0.5 5 20 --out study.md
    VPMM_PREFER=latency python3 tools/policy_study.py --program build/dev/bin/vpmm --only gnn moe --no-fit

The pool's settings come from the environment. All figures but the last two columns are the simulator's, the same in
every run. Those two are times of this machine, with the libcuda that costs nothing: they need `vpmm_bench`, from the
same build, and are left out without it. They vary with what else runs here.

With `--variants` the programs also run with other sizes and with several streams, and random programs run: a policy
that was tuned to the recorded sizes shows it there. `--out` writes the table to a file, and with a name that ends in
.json the raw figures.

The exit code is 1 if an allocation failed, contents were lost or a hazard was found.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "bench/traces"
HEADER = "op,id,bytes,stream,time_us\n"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FIT_ALLOWANCE = 64 * MIB  # for what the pool itself needs
USUAL_LAG_MS = 0.5
REPEATS = 5  # of times on a clock, of which the least counts
SPREAD_STREAMS = 4
SEVERAL_STREAMS = ("serve_streams", "eval_between")  # of the recorded programs

# op, id, bytes, stream, time_us
Line = tuple[str, int, int, int, int]
Change = Callable[[Iterator[Line]], Iterator[Line]]


# --- programs ---


def lines_of(trace: Path) -> Iterator[Line]:
    with gzip.open(trace, "rt") as file:
        next(file)
        for text in file:
            op, number, size, stream, time_us = text.split(",")
            yield op, int(number), int(size), int(stream), int(time_us)


def write(lines: Iterable[Line], path: Path) -> None:
    with path.open("w") as file:
        file.write(HEADER)
        file.writelines(f"{op},{number},{size},{stream},{time}\n" for op, number, size, stream, time in lines)


def scaled(factor: float) -> Change:
    """Every size times the factor, at least a byte."""

    def change(lines: Iterator[Line]) -> Iterator[Line]:
        for op, number, size, stream, time in lines:
            yield op, number, max(1, round(size * factor)) if size else 0, stream, time

    return change


def jittered(lines: Iterator[Line]) -> Iterator[Line]:
    """Every allocation's size times a factor of its own, from 0.9 to 1.1."""
    chance = random.Random(1)
    for op, number, size, stream, time in lines:
        if op == "a":
            size = max(1, round(size * chance.uniform(0.9, 1.1))) if size else 0
        yield op, number, size if op == "a" else 0, stream, time


def spread(lines: Iterator[Line]) -> Iterator[Line]:
    """Allocations take turns among four streams; each is freed on its own."""
    for op, number, size, _, time in lines:
        yield op, number, size, number % SPREAD_STREAMS, time


def uniform(least: int, most: int) -> Callable[[random.Random], int]:
    return lambda chance: chance.randint(least, most)


def log_uniform(least: int, most: int) -> Callable[[random.Random], int]:
    return lambda chance: int(least * (most / least) ** chance.random())


def random_program(size: Callable[[random.Random], int], most_live: int, seed: int) -> Iterator[Line]:
    """30,000 calls, 20 us apart. Which allocation is freed is chance; how many may live changes every 2,000 calls."""
    chance = random.Random(seed)
    live: list[int] = []
    made = 0
    level = most_live
    for call in range(30_000):
        if call % 2_000 == 0:
            level = most_live if call % 4_000 == 0 else chance.randint(most_live // 4, most_live)
        # Towards the level quickly, then up and down below it.
        if not live or (len(live) < level and chance.random() < 0.6):
            live.append(made)
            yield "a", made, size(chance), 0, 20 * call
            made += 1
        else:
            place = chance.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            yield "f", live.pop(), 0, 0, 20 * call


@dataclass(frozen=True)
class Program:
    """A trace in a file, or lines that become one while it runs."""

    name: str
    group: str
    source: Path | Callable[[], Iterator[Line]]
    has_streams: bool = False

    def run_on(self, action: Callable[[Path], Any]) -> Any:  # noqa: ANN401 - what the action returns
        """What the action makes of the trace's file. A file written for it does not stay."""
        if isinstance(self.source, Path):
            return action(self.source)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{self.name}.csv"
            write(self.source(), path)
            return action(path)


def name_of(trace: Path) -> str:
    return trace.name.removesuffix(".csv.gz")


def recorded_programs() -> list[Program]:
    traces = sorted(TRACES.glob("*.csv.gz"))
    return [Program(name_of(trace), "recorded", trace, name_of(trace) in SEVERAL_STREAMS) for trace in traces]


def variants_of(recorded: Program) -> list[Program]:
    trace = recorded.source
    assert isinstance(trace, Path)

    def variant(group: str, change: Change, has_streams: bool) -> Program:
        return Program(f"{recorded.name} {group}", group, lambda: change(lines_of(trace)), has_streams)

    return [
        variant("x 0.25", scaled(0.25), recorded.has_streams),
        variant("x 0.6", scaled(0.6), recorded.has_streams),
        variant("jittered", jittered, recorded.has_streams),
        variant("spread", spread, True),
    ]


def random_programs() -> list[Program]:
    sizes = {
        "uniform to 64 MiB": uniform(256, 64 * MIB),
        "log-uniform to 64 MiB": log_uniform(256, 64 * MIB),
        "log-uniform to 1 GiB": log_uniform(256, GIB),
        "1 to 8 MiB": uniform(MIB, 8 * MIB),
    }

    def program(name: str, most_live: int, seed: int) -> Program:
        return Program(f"{most_live:,} {name}", "random", lambda: random_program(sizes[name], most_live, seed))

    return [program(name, most_live, seed) for seed, name in enumerate(sizes, 1) for most_live in (1_000, 100)]


# --- runs ---


@dataclass
class Figures:
    """What one program came to at one distance between the host and the GPU."""

    program: str
    group: str
    lag_ms: float
    replay: dict[str, Any]  # as `vpmm replay --json` has it
    clock: dict[str, float] = field(default_factory=dict)  # as vpmm_bench has it

    @property
    def live(self) -> int:
        return int(self.replay["peak_live_bytes"])

    def over_live(self, key: str, less: int = 0) -> float | None:
        value = self.replay.get(key)
        return None if value is None or not self.live else (value - less) / self.live

    def milliseconds(self, key: str) -> float:
        return float(self.replay[key]) / 1000

    @property
    def is_good(self) -> bool:
        return not any(self.replay[key] for key in ("failed_allocations", "hazards", "corruptions"))

    @property
    def allocate_ns(self) -> float | None:
        return self.clock["sum"] * 1e6 / self.replay["allocations"] if "sum" in self.clock else None


@dataclass(frozen=True)
class Study:
    """How programs are run."""

    vpmm: Path
    bench: Path | None
    lags_ms: list[float]
    with_fit: bool

    def figures_of(self, program: Program) -> list[Figures]:
        """One for each lag."""
        found: list[Figures] = program.run_on(lambda trace: self._run(program, trace))
        print(".", end="", file=sys.stderr, flush=True)
        return found

    def _run(self, program: Program, trace: Path) -> list[Figures]:
        lags = self.lags_ms if program.has_streams else [USUAL_LAG_MS]
        found = []
        for place, lag_ms in enumerate(lags):
            replay = self._replay(trace, lag_ms, with_fit=self.with_fit and place == 0)
            found.append(Figures(program.name, program.group, lag_ms, replay))
        return found

    def _replay(self, trace: Path, lag_ms: float, with_fit: bool) -> dict[str, Any]:
        command = [str(self.vpmm), "replay", str(trace), "--driver", "sim", "--json"]
        command += ["--lag-us", str(round(lag_ms * 1000)), *(["--fit"] if with_fit else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode not in (0, 1) or len(lines) != 1:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        result: dict[str, Any] = json.loads(lines[0])
        return result

    def clock_of(self, program: Program) -> dict[str, float]:
        """The least of several repeats: `sum` in ms, `p50` and `p99` in us."""
        least: dict[str, float] = program.run_on(self._clock) if self.bench else {}
        print(".", end="", file=sys.stderr, flush=True)
        return least

    def _clock(self, trace: Path) -> dict[str, float]:
        command = [str(self.bench), "replay", "--peer", "vpmm", "--driver", "zero-cost", "--trace"]
        done = subprocess.run([*command, *[str(trace)] * REPEATS], capture_output=True, text=True, check=False)
        least: dict[str, float] = {}
        for cells in (line.split(",") for line in done.stdout.splitlines() if line.startswith("replay,")):
            what, value = cells[-4].removeprefix("allocate "), float(cells[-1])
            if what in ("sum", "p50", "p99"):
                least[what] = min(value, least.get(what, value))
        return least


# --- the table ---

COLUMNS = (
    "program",
    "lag ms",
    "live GiB",
    "rounded / live",
    "mapped / live",
    "fit / live",
    "driver ms",
    "2nd half",
    "plans",
    "worst ms",
    "failed",
    "hazards",
    "corrupt",
    "allocate ns",
    "p99 us",
)


def text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def row(figures: Figures) -> list[str]:
    return [
        figures.program,
        f"{figures.lag_ms:g}",
        f"{figures.live / GIB:.2f}",
        text(figures.over_live("peak_rounded_bytes"), ".3f"),
        text(figures.over_live("peak_mapped_bytes"), ".3f"),
        text(figures.over_live("fit_bytes", FIT_ALLOWANCE), ".3f"),
        f"{figures.milliseconds('driver_time_us'):.1f}",
        f"{figures.milliseconds('driver_time_second_half_us'):.1f}",
        text(figures.replay.get("plans"), ",d"),
        f"{figures.milliseconds('worst_allocate_us'):.2f}",
        *(text(figures.replay[key], "d") for key in ("failed_allocations", "hazards", "corruptions")),
        text(figures.allocate_ns, ".0f"),
        text(figures.clock.get("p99"), ".1f"),
    ]


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def summary(name: str, some: list[Figures]) -> list[str]:
    """Means of ratios and of times of an allocate, sums of the rest, and the worst of the worst."""

    def ratio(key: str, less: int = 0) -> str:
        return text(mean(each.over_live(key, less) for each in some), ".4f")

    return [
        f"**{name}**",
        "",
        f"{sum(each.live for each in some) / GIB:.2f}",
        ratio("peak_rounded_bytes"),
        ratio("peak_mapped_bytes"),
        ratio("fit_bytes", FIT_ALLOWANCE),
        f"{sum(each.milliseconds('driver_time_us') for each in some):.1f}",
        f"{sum(each.milliseconds('driver_time_second_half_us') for each in some):.1f}",
        text(total(each.replay.get("plans") for each in some), ",d"),
        f"{max(each.milliseconds('worst_allocate_us') for each in some):.2f}",
        *(
            text(total(each.replay[key] for each in some), "d")
            for key in ("failed_allocations", "hazards", "corruptions")
        ),
        text(mean(each.allocate_ns for each in some), ".0f"),
        text(mean(each.clock.get("p99") for each in some), ".1f"),
    ]


def first_lags(found: list[Figures]) -> dict[str, float]:
    """The lag that comes first, of each program: fits and times on a clock are of that one."""
    return {each.program: each.lag_ms for each in reversed(found)}


def groups_of(found: list[Figures]) -> dict[str, list[Figures]]:
    """By the kind of program, and by lag where there are several; in the order of `found`."""
    groups: dict[str, list[Figures]] = {}
    first = first_lags(found)
    for each in found:
        late = "" if each.lag_ms == first[each.program] else f", {each.lag_ms:g} ms behind"
        groups.setdefault(each.group + late, []).append(each)
    return groups


def table(found: list[Figures]) -> str:
    """In Markdown, with the columns aligned: each group and its summary, then all programs at their first lag."""
    rows: list[list[str]] = []
    groups = groups_of(found)
    for name, some in groups.items():
        rows += [row(each) for each in some]
        rows.append(summary(f"{len(some)} {name}", some))
    first = first_lags(found)
    everyone = [each for each in found if each.lag_ms == first[each.program]]
    if len({each.group for each in everyone}) > 1:
        rows.append(summary(f"all {len(everyone)}", everyone))
    widths = [max(len(cells[place]) for cells in [list(COLUMNS), *rows]) for place in range(len(COLUMNS))]

    def line(cells: Iterable[str]) -> str:
        padded = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = line("-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths))
    return "\n".join([line(COLUMNS), rule, *map(line, rows)])


def as_json(found: list[Figures]) -> str:
    return json.dumps([vars(each) for each in found], indent=1)


def settings() -> str:
    """The pool's settings that are not the defaults, in one line."""
    set_here = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("VPMM_"))
    return " ".join(set_here) or "defaults"


# --- the command ---


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, metavar="VPMM", help="the command-line program vpmm")
    parser.add_argument("--bench", type=Path, help="vpmm_bench (default: the one in the same build, if there is one)")
    parser.add_argument("--variants", action="store_true", help="also variants of each program, and random programs")
    parser.add_argument(
        "--lag",
        type=float,
        nargs="+",
        default=[USUAL_LAG_MS],
        metavar="MS",
        help="how far the GPU is behind the host, for programs with several streams; fits are those of the first",
    )
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="programs whose name holds one of these")
    parser.add_argument("--no-fit", action="store_true", help="do not look for the smallest GPU, which takes longest")
    parser.add_argument("--no-clock", action="store_true", help="do not run vpmm_bench")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time on the simulator (default: 2)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too; .json: the raw figures")
    return parser.parse_args(arguments)


def bench_beside(options: argparse.Namespace) -> Path | None:
    if options.no_clock:
        return None
    bench: Path = options.bench or options.program.resolve().parent.parent / "bench/vpmm_bench"
    return bench if bench.exists() else None


def programs(options: argparse.Namespace) -> list[Program]:
    recorded = recorded_programs()
    chosen = list(recorded)
    if options.variants:
        variants = [variants_of(program) for program in recorded]
        chosen += [program for same_kind in zip(*variants, strict=True) for program in same_kind]
        chosen += random_programs()
    return [each for each in chosen if not options.only or any(part in each.name for part in options.only)]


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    chosen = programs(options)
    if not chosen:
        print("policy_study: no program has such a name", file=sys.stderr)
        return 2
    study = Study(options.program, bench_beside(options), options.lag, not options.no_fit)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            by_program = list(pool.map(study.figures_of, chosen))
        for program, some in zip(chosen, by_program, strict=True):
            some[0].clock = study.clock_of(program)  # one at a time: others would disturb it
    except (OSError, RuntimeError) as error:
        print(f"policy_study: {error}", file=sys.stderr)
        return 2
    print(file=sys.stderr)
    found = [each for some in by_program for each in some]
    found.sort(key=lambda each: options.lag.index(each.lag_ms) if each.lag_ms in options.lag else 0)
    page = f"Settings: {settings()}\n\n{table(found)}\n"
    print(page, end="")
    if options.out:
        options.out.write_text(as_json(found) + "\n" if options.out.suffix == ".json" else page)
    return 0 if all(each.is_good for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
