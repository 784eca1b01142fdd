#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small faults in a room and tells which of them its tests do not find: the mutation score.

Faults are drawn from the syntax tree of every source and header of src/ROOM: other comparisons, connectives and sums,
conditions that are always true or false, other numbers and results, statements left out. All are compiled at once, in
a copy of the tree; a variable chooses one at run time, so that a fault costs the tests that come by it, and no
compilation. Constants, arguments of macros and functions that only check (validate, is_sound) have no faults. A fault
that changes nothing that anybody can see is named in tests/mutation/equivalent.toml, with the reason. It is not tried,
as it would run every case that comes by, unless its file has another such place.

The room torch_allocator is the PyTorch plugin, which tests/torch_vpmm tests on the simulated GPU. It needs a build with
the Python package and the simulated GPU, and the interpreter with PyTorch that ./dev test makes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from mutation import sites, torch_plugin, trial  # noqa: E402

# Suites that test a room from above, for what its own do not find.
TESTED_BY = {
    "arena": ["context"],
    "guard": ["context"],
    "host_copy": ["context"],
    "pool": ["context", "judge"],
    "small": ["context", "judge"],
    "time": ["context"],
    "vm": ["pool", "context"],
}
EQUIVALENT = ROOT / "tests/mutation/equivalent.toml"


def equivalents() -> set[tuple[str, str, str, str]]:
    """File, line, code and what takes its place of faults that nobody can see."""
    listed = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(each["file"], each["line"], each["code"], each["fault"]) for each in listed}


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev mutate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("room", help=f"a folder of src, as pool, or {torch_plugin.ROOM}")
    parser.add_argument("--mutants", type=int, default=300, help="how many faults; 300 without it")
    parser.add_argument("--seed", type=int, help="draws the same faults again from the same sources")
    parser.add_argument("--skip", type=int, default=0, help="leave out as many of the draw, which another run tries")
    parser.add_argument("--suite", action="append", help="test suites; the one of the room's name without it")
    parser.add_argument("--also", action="append", help="suites for what the others do not find; see TESTED_BY")
    parser.add_argument("--alone", action="store_true", help="no suites but those of --suite, or of the room's name")
    parser.add_argument(
        "--longest", type=float, default=5, help="of other suites, leave out cases that take more seconds; 5 without it"
    )
    parser.add_argument("--file", action="append", default=[], help="only faults in sources whose name contains this")
    parser.add_argument("--seconds", type=float, default=math.inf, help="leave out faults whose turn comes later")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutate", help="where the copy of the tree stands")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    options = parse(words)
    rooms = sorted([*(path.name for path in (ROOT / "src").iterdir() if path.is_dir()), torch_plugin.ROOM])
    if options.room not in rooms:
        sys.exit(f"mutate: there is no room '{options.room}'; there are: {' '.join(rooms)}")
    until = time.monotonic() + options.seconds
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    is_plugin = options.room == torch_plugin.ROOM
    suites = options.suite or [torch_plugin.SUITE if is_plugin else options.room]
    also = TESTED_BY.get(options.room, []) if options.also is None else options.also
    also = [] if options.alone else also
    make = torch_plugin.PluginTree if is_plugin else trial.Tree
    tree = make(ROOT, options.folder.resolve() / (options.room if is_plugin else "tree"), options.jobs)
    tree.copy()
    tree.configure()
    drawn, sources = sites.find(tree.folder, tree.sources_of(options.room), tree.units_of(options.room))
    drawn = [each for each in drawn if "validate" not in Path(each.file).name]
    drawn = [each for each in drawn if not options.file or any(part in each.file for part in options.file)]
    random.Random(seed).shuffle(drawn)
    print(
        f"room {options.room}: {len(drawn)} faults, of which {options.mutants} are drawn with seed {seed}", flush=True
    )
    targets = [f"vpmm_test_{suite}" for suite in [*suites, *also]]
    planted = trial.plant(tree, options.room, sources, drawn, options.mutants, targets)
    cases = trial.measure(tree, suites, len(drawn), math.inf)
    print(f"{len(cases)} cases, {sum(case.seconds for case in cases):.0f} s alone", flush=True)
    planted = {number: planted[number] for number in sorted(planted)[options.skip :]}
    places = {number: line_of(sources[mutant.file], mutant.line) for number, mutant in planted.items()}
    listed = equivalents()
    known = {n for n, mutant in planted.items() if (mutant.file, places[n], mutant.before, mutant.after) in listed}
    to_try = [n for n, mutant in planted.items() if n not in known or not is_alone(sources[mutant.file], mutant)]
    verdicts = trial.judge_all(
        tree,
        to_try,
        cases,
        until,
        lambda number: print(f"not found: {planted[number]}", flush=True),
    )
    reached = list(planted) if len(verdicts) == len(to_try) else [n for n in planted if n <= max(verdicts, default=0)]
    survivors = [n for n, verdict in verdicts.items() if verdict.found_by is None and n not in known]
    verdicts = {n: verdict for n, verdict in verdicts.items() if verdict.found_by or n not in known}
    unseen = len(reached) - len(verdicts)
    if len(reached) < len(planted):
        print(f"to go on with this draw: --skip {options.skip + len(reached)}", flush=True)
    others: dict[int, trial.Verdict] = {}
    if also and survivors:
        others = trial.judge_all(tree, survivors, trial.measure(tree, also, len(drawn), options.longest), until)
    planted = {number: planted[number] for number in verdicts}
    return report(options, seed, planted, places, verdicts, others, unseen)


def is_alone(source: sites.Source, mutant: sites.Mutant) -> bool:
    """Whether equivalent.toml can mean no other fault: the line is once in its file, the code once in the line."""
    line = line_of(source, mutant.line)
    return source.bytes.decode().count(line) == 1 and line.count(mutant.before) == 1


def line_of(source: sites.Source, line: int) -> str:
    return source.bytes.decode().splitlines()[line - 1].strip()


def report(
    options: argparse.Namespace,
    seed: int,
    planted: dict[int, sites.Mutant],
    places: dict[int, str],
    verdicts: dict[int, trial.Verdict],
    others: dict[int, trial.Verdict],
    unseen: int,
) -> int:
    """Prints survivors with their lines and the score, and writes all to a file. Returns 0: none is left."""
    found = sum(verdict.found_by is not None for verdict in verdicts.values())
    elsewhere = sum(verdict.found_by is not None for verdict in others.values())
    rows, left = [], 0
    for number, mutant in sorted(planted.items(), key=lambda each: (each[1].file, each[1].line)):
        verdict, other = verdicts[number], others.get(number)
        row = {"file": mutant.file, "line": mutant.line, "code": mutant.before, "fault": mutant.after}
        rows.append(
            {**row, "found_by": verdict.found_by, "elsewhere": other and other.found_by, "cases": verdict.cases}
        )
        if verdict.found_by is None:
            left += other is None or other.found_by is None
            reach = "no case comes by" if verdict.cases == 0 else f"{verdict.cases} cases come by"
            note = f"; found by {other.found_by}" if other and other.found_by else ""
            print(f"survives: {mutant}   ({reach}{note})\n    {places[number]}", flush=True)
    tried = len(planted)
    text = f"room {options.room}, seed {seed}: {found} of {tried} faults found ({100 * found / max(tried, 1):.1f} %)"
    if others:
        text += f"; with the suites above it {found + elsewhere} ({100 * (found + elsewhere) / max(tried, 1):.1f} %)"
    print(f"{text}; {unseen} more change nothing")
    out = options.folder / f"{options.room}-{seed}{f'-from-{options.skip}' if options.skip else ''}.json"
    out.write_text(json.dumps({"room": options.room, "seed": seed, "faults": rows}, indent=1) + "\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
