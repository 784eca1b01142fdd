# SPDX-License-Identifier: Apache-2.0
"""The benchmark's figures as rows of CSV, one for each measured value, and what several rows come to."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COLUMNS = "part,case,peer,threads,metric,unit,repeat,value"


@dataclass(frozen=True)
class Sample:
    """One measured value."""

    part: str
    case: str
    peer: str
    threads: int
    metric: str
    unit: str
    repeat: int
    value: float

    def line(self) -> str:
        head = [self.part, self.case, self.peer, self.threads, self.metric, self.unit, self.repeat]
        return ",".join(map(str, head)) + f",{self.value:.9g}"


def parse_sample(line: str) -> Sample | None:
    """None for a line that is no sample: comments, and whatever a library prints."""
    fields = line.split(",")
    if len(fields) != COLUMNS.count(",") + 1 or line.startswith("#"):
        return None
    part, case, peer, threads, metric, unit, repeat, value = fields
    try:
        return Sample(part, case, peer, int(threads), metric, unit, int(repeat), float(value))
    except ValueError:
        return None


# A row of a table (case, threads), and in it a value for each peer.
Table = dict[tuple[str, int], dict[str, float]]


def pivot(samples: Iterable[Sample], part: str, metric: str) -> Table:
    """Medians over the repeats, in the order in which cases and peers first appear."""
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.part == part and sample.metric == metric:
            values[sample.case, sample.threads][sample.peer].append(sample.value)
    return {row: {peer: statistics.median(found) for peer, found in peers.items()} for row, peers in values.items()}


def spread(samples: Iterable[Sample], part: str, metric: str) -> float | None:
    """The median over all cases of (largest - smallest) / median of its repeats; None where nothing was repeated."""
    repeats: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.part == part and sample.metric == metric:
            repeats[sample.case, sample.threads, sample.peer].append(sample.value)
    ratios = [
        (max(found) - min(found)) / statistics.median(found)
        for found in repeats.values()
        if len(found) > 1 and statistics.median(found) > 0
    ]
    return statistics.median(ratios) if ratios else None


def write_csv(path: Path, facts: dict[str, str], samples: Iterable[Sample]) -> None:
    lines = [f"# {key}: {value}" for key, value in facts.items()]
    path.write_text("\n".join([*lines, COLUMNS, *(sample.line() for sample in samples)]) + "\n")


def read_csv(path: Path) -> tuple[dict[str, str], list[Sample]]:
    facts: dict[str, str] = {}
    samples = []
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            key, _, value = line[2:].partition(": ")
            facts[key] = value
        elif sample := parse_sample(line):
            samples.append(sample)
    return facts, samples
