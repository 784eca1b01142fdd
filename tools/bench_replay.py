# SPDX-License-Identifier: Apache-2.0
"""Replays every trace through the allocators that `vpmm replay` knows: raw JSON, and a table for people."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
OURS = ["vpmm", "vpmm-page"]
# Measured on a GPU only: the simulator's versions of these are stand-ins.
PEERS = ["cuda", "cuda-async"]
GIB = 1 << 30
MIB = 1 << 20

COLUMNS: list[tuple[str, str]] = [
    ("trace", "---"),
    ("allocator", "---"),
    ("peak live GiB", "---:"),
    ("peak mapped / live", "---:"),
    ("mapped / rounded", "---:"),
    ("driver calls", "---:"),
    ("driver ms", "---:"),
    ("1st half", "---:"),
    ("2nd half", "---:"),
    ("worst allocate ms", "---:"),
    ("p99 allocate us", "---:"),
    ("failed", "---:"),
    ("corruptions", "---:"),
    ("hazards", "---:"),
    ("seconds", "---:"),
]
CALL_COLUMNS: list[tuple[str, str]] = [
    ("trace", "---"),
    ("call of `vpmm`", "---"),
    ("calls", "---:"),
    ("total ms", "---:"),
    ("mean us", "---:"),
    ("p50 us", "---:"),
    ("p90 us", "---:"),
    ("p99 us", "---:"),
    ("max us", "---:"),
    ("MiB a call", "---:"),
]
# Of the calls that JSON has, the ones that the page shows.
MAPPING_CALLS = ["mem_create", "mem_map", "mem_set_access", "mem_unmap", "mem_release"]


def name_of(result: dict[str, Any]) -> str:
    return Path(result["trace"]).name.removesuffix(".gz").removesuffix(".csv")


def cells(result: dict[str, Any]) -> list[str]:
    live, mapped, rounded = result["peak_live_bytes"], result["peak_mapped_bytes"], result["peak_rounded_bytes"]
    # The simulator's stream-ordered pool is too crude for its footprint to mean anything.
    crude = result["driver"] == "sim" and result["allocator"] == "cuda-async"
    return [
        name_of(result),
        result["allocator"],
        f"{live / GIB:.2f}",
        "-" if crude or not live else f"{mapped / live:.3f}",
        "-" if crude or not rounded else f"{mapped / rounded:.3f}",
        f"{result['driver_calls']:,}",
        f"{result['driver_time_us'] / 1000:.1f}",
        f"{result['driver_time_first_half_us'] / 1000:.1f}",
        f"{result['driver_time_second_half_us'] / 1000:.1f}",
        f"{result['worst_allocate_us'] / 1000:.2f}",
        f"{result['p99_allocate_us']:.1f}",
        str(result["failed_allocations"]),
        str(result["corruptions"]),
        "-" if result["hazards"] is None else str(result["hazards"]),
        f"{result['seconds']:.1f}",
    ]


def markdown(columns: list[tuple[str, str]], rows: list[list[str]]) -> str:
    lines = [[name for name, _ in columns], [rule for _, rule in columns], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(results: list[dict[str, Any]]) -> str:
    return markdown(COLUMNS, [cells(result) for result in results])


def call_cells(result: dict[str, Any], call: str) -> list[str]:
    times = result["driver_calls_by_kind"][call]
    return [
        name_of(result),
        call,
        f"{times['count']:,}",
        f"{times['total_us'] / 1000:.1f}",
        *(f"{times[key]:.1f}" for key in ("mean_us", "p50_us", "p90_us", "p99_us", "max_us")),
        "-" if times["bytes"] is None else f"{times['bytes'] / times['count'] / MIB:.1f}",
    ]


def call_table(results: list[dict[str, Any]]) -> str:
    ours = [result for result in results if result["allocator"] == "vpmm"]
    rows = [
        call_cells(result, call) for result in ours for call in MAPPING_CALLS if call in result["driver_calls_by_kind"]
    ]
    return markdown(CALL_COLUMNS, rows)


def page(record: dict[str, Any]) -> str:
    facts = "\n".join(f"- {key}: {value}" for key, value in record["machine"].items())
    return (
        f"# Replay on the {record['driver']} driver, {record['date']}\n\n{facts}\n- version: {record['version']}\n\n"
        f"    {record['command']}\n\n{table(record['results'])}\n\n{call_table(record['results'])}\n"
    )


def replay(vpmm: Path, driver: str, traces: list[Path], more: list[str]) -> tuple[str, list[dict[str, Any]]]:
    allocators = OURS + (PEERS if driver == "cuda" else [])
    words = ["replay", *(str(trace.relative_to(ROOT)) for trace in traces), "--driver", driver, "--json"]
    for allocator in allocators:
        words += ["--allocator", allocator]
    words += more
    print("$", vpmm, *words, flush=True)
    done = subprocess.run([str(vpmm), *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    # Whoever repeats it has a build folder of their own.
    return " ".join(["vpmm", *words]), [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run(vpmm: Path, driver: str, out: Path, more: list[str]) -> tuple[str, bool]:
    """Writes replay-<driver>.json and .md; returns the table, and whether all went well."""
    traces = sorted((ROOT / "bench/traces").glob("*.csv.gz"))
    command, results = replay(vpmm, driver, traces, more)
    record = {
        "driver": driver,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine.describe(),
        "version": machine.first_line(str(vpmm), "--version"),
        "command": command,
        "results": results,
    }
    out.mkdir(parents=True, exist_ok=True)
    name = f"replay-{driver}" + ("-paced" if "--paced" in more else "")
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / f"{name}.md").write_text(page(record))
    bad = [r for r in results if r["failed_allocations"] or r["corruptions"] or r["hazards"]]
    return table(results), bool(results) and not bad
