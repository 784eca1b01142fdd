# SPDX-License-Identifier: Apache-2.0
"""What the programs' raw figures say: tables in Markdown, programs that we lose first, and a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

RIVALS = ("native", "expandable", "cuda-async")
SHOWN = (*RIVALS, "vpmm", "vpmm-latency", "native-again", "shim")
OURS = "vpmm"
SAME_SPEED = 1.03  # of the fastest rival: no slower than this is as fast
GB = 1e9

Row = dict[str, dict[str, Any]]  # by allocator


def ran(row: Row, allocator: str) -> bool:
    return allocator in row and "failed" not in row[allocator]


def live(row: Row) -> float:
    """The most bytes that lived, as native counts: every allocator's denominator. Not a number without native."""
    return float(row["native"]["live_bytes"]) if ran(row, "native") else float("nan")


def step_seconds(figures: dict[str, Any]) -> float:
    """The median step after warm-up."""
    return float(statistics.median(figures["seconds"][figures["warmup"] :]))


def mean_seconds(figures: dict[str, Any]) -> float:
    return statistics.fmean(figures["seconds"][figures["warmup"] :])


def losses(row: Row, allocator: str) -> str:
    """How the losses compare with native's."""
    if not ran(row, "native"):
        return "no native"
    for step, (theirs, ours) in enumerate(zip(row["native"]["losses"], row[allocator]["losses"], strict=True), start=1):
        if theirs != ours:
            return f"differ from step {step} on, by {abs(ours - theirs) / max(abs(theirs), 1e-30):.1e}"
    return "equal"


def line(program: str, allocator: str, row: Row) -> str:
    """One run, as it ended."""
    figures = row[allocator]
    if "failed" in figures:
        said = figures.get("message", "").strip().splitlines()
        return f"{program:14} {allocator:12} {figures['failed']}: {said[-1][:200] if said else ''}"
    held = figures["held_bytes"]
    return (
        f"{program:14} {allocator:12} held {held / GB:6.2f} GB, {held / live(row):5.2f} of live;"
        f" {step_seconds(figures):7.4f} s a step, {mean_seconds(figures):7.4f} on average;"
        f" losses {losses(row, allocator)}; {figures['wall_seconds']:.0f} s in all"
    )


def limit_line(program: str, allocator: str, row: Row) -> str:
    limit = row[allocator]["limit"]
    return (
        f"{program:14} {allocator:12} runs with {limit['runs_bytes'] / live(row):.3f} of live,"
        f" not with {limit['fails_bytes'] / live(row):.3f}, by {limit['by']}"
    )


def shortfalls(row: Row) -> tuple[float, float] | None:
    """Ours over the best rival's: what is held, seconds a step. None where one side has no figures."""
    rivals = [row[name] for name in RIVALS if ran(row, name)]
    if not rivals or not ran(row, OURS):
        return None
    return (
        row[OURS]["held_bytes"] / min(figures["held_bytes"] for figures in rivals),
        step_seconds(row[OURS]) / min(step_seconds(figures) for figures in rivals),
    )


def severity(row: Row) -> float:
    """How badly we lose, most first: no figures are worst."""
    found = shortfalls(row)
    if found is None:
        return float("inf")
    held, seconds = found
    return max(held, seconds / SAME_SPEED)


def verdict(row: Row) -> str:
    found = shortfalls(row)
    if found is None:
        return "no figures"
    held, seconds = found
    lost = (["memory"] if held > 1 else []) + (["time"] if seconds > SAME_SPEED else [])
    return f"{held:.3f}, {seconds:.3f}" + (f": loses {' and '.join(lost)}" if lost else "")


def cell(row: Row, allocator: str) -> str:
    if not ran(row, allocator):
        return row[allocator]["failed"] if allocator in row else ""
    figures = row[allocator]
    return f"{figures['held_bytes'] / live(row):.3f}, {step_seconds(figures):.4f}, {mean_seconds(figures):.4f}"


def markdown(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body]) + "\n"


def allocation_cell(row: Row, allocator: str) -> str:
    if not ran(row, allocator):
        return ""
    figures = row[allocator]
    counts, pool = figures.get("counts", {}), figures.get("pool", {})
    if pool.get("driver_ns") is not None:
        return f"{pool['driver_calls']} calls, {pool['driver_ns'] / 1e6:.0f} ms"
    if pool:
        return f"{pool['driver_ms']} ms"
    if "timed" in figures:
        return f"{figures['timed']['calls']} calls, {figures['timed']['ns'] / 1e6:.0f} ms"
    return f"{counts.get('num_device_alloc', 0)}, {counts.get('num_alloc_retries', 0)}"


def limit_cell(row: Row, allocator: str) -> str:
    limit = row.get(allocator, {}).get("limit")
    return f"{limit['runs_bytes'] / live(row):.3f} ({limit['fails_bytes'] / live(row):.3f})" if limit else ""


MEMORY = """\
Held over live, seconds a step (median after warm-up), the same on average. Held is what the device lost at the peak, by
cudaMemGetInfo, for every allocator alike; live is native's `max_memory_allocated`. Last column: ours over the best
rival's, held and seconds; at most 1 and 1.03 are asked.
"""
ALLOCATION = """\
In allocation, over the whole program: CUDA's calls that allocate, map and free, and the time in them. Without
`--timed-calls` PyTorch's allocators only count: blocks or pieces taken from the driver, and how often they gave back
all they kept and tried again (cudaMallocAsync counts neither). VPMM's figures are `driver_calls`, `driver_ns`.
"""
LIMITS = """\
Smallest limit over live at which the program ran, and in brackets the largest at which it did not. `fraction`, by
set_per_process_memory_fraction, limits what an allocator holds, but for cudaMallocAsync what is in use, so that it says
little there; `ballast` takes the rest of the GPU away beforehand and means the same for all.
"""


def limits(rows: dict[str, Row], order: list[str], names: list[str]) -> list[str]:
    found = [figures["limit"]["by"] for row in rows.values() for figures in row.values() if "limit" in figures]
    if not found:
        return []
    body = [[name, *(limit_cell(rows[name], allocator) for allocator in names)] for name in order]
    return [LIMITS, f"By {', '.join(sorted(set(found)))}.\n", markdown(["program", *names], body)]


def report(rows: dict[str, Row], machine: dict[str, str], settings: dict[str, Any]) -> str:
    order = sorted((name for name in rows if rows[name]), key=lambda name: -severity(rows[name]))
    names = [name for name in SHOWN if any(name in row for row in rows.values())]
    others = [name for name in names if name != "native"]
    made = "\n".join(f"- {key}: {value}" for key, value in (machine | settings).items()) + "\n"
    memory, allocation, equality = [], [], []
    for program in order:
        row = rows[program]
        cells = [cell(row, name) for name in names]
        memory.append([program, f"{live(row) / GB:.2f}", *cells, verdict(row)])
        allocation.append([program, *(allocation_cell(row, name) for name in names)])
        equality.append([program, *(losses(row, name) if ran(row, name) else "" for name in others)])
    parts = ["# PyTorch programs\n", made]
    parts += [MEMORY, markdown(["program", "live, GB", *names, "ours over the best rival"], memory)]
    parts += [ALLOCATION, markdown(["program", *names], allocation)]
    parts += ["Losses of every step beside native's.\n", markdown(["program", *others], equality)]
    return "\n".join(parts + limits(rows, order, names))


def summary(rows: dict[str, Row]) -> str:
    """A line for each run, in few columns and in the order of the runs."""
    head = "program", "allocator", "live GB", "held GB", "held/live", "ms a step", "mean ms", "allocation"
    body: list[tuple[str, ...]] = [head]
    for program, row in rows.items():
        for allocator, figures in row.items():
            if not ran(row, allocator):
                body.append((program, allocator, *[""] * 5, figures["failed"]))
                continue
            held, times = figures["held_bytes"], (step_seconds(figures), mean_seconds(figures))
            memory = f"{live(row) / GB:.2f}", f"{held / GB:.2f}", f"{held / live(row):.3f}"
            numbers = (*memory, *(f"{1e3 * each:.1f}" for each in times))
            body.append((program, allocator, *numbers, allocation_cell(row, allocator)))
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in body]
    return "\n".join(line.rstrip() for line in lines) + "\n"


COLOURS = {
    "native": "#ee4c2c",
    "expandable": "#f5a48f",
    "cuda-async": "#76b900",
    "vpmm": "#0b6e4f",
    "vpmm-latency": "#58a58a",
    "native-again": "#b0b0b0",
    "shim": "#6fbf73",
}


HELD = "held at the peak / live at the peak"
SECONDS = "seconds a step / native's"


def plot(rows: dict[str, Row], path: Path, titles: tuple[str, ...] = (HELD, SECONDS)) -> None:
    """A panel for each title, with a group of bars for each program; nothing without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    mpl.use("svg")
    from matplotlib import pyplot

    order = sorted((name for name in rows if ran(rows[name], "native")), key=lambda name: -severity(rows[name]))
    size = (11, 3.5 * len(titles))
    figure, panels = pyplot.subplots(len(titles), 1, figsize=size, layout="constrained", squeeze=False)
    for axes, title in zip(panels[:, 0], titles, strict=True):
        for place, (allocator, colour) in enumerate(COLOURS.items()):
            bars = [(i, rows[name]) for i, name in enumerate(order) if ran(rows[name], allocator)]
            if title == HELD:
                heights = [row[allocator]["held_bytes"] / live(row) for _, row in bars]
            else:
                heights = [step_seconds(row[allocator]) / step_seconds(row["native"]) for _, row in bars]
            if bars:
                axes.bar([i + place * 0.14 for i, _ in bars], heights, 0.13, label=allocator, color=colour)
        axes.axhline(1, color="black", linewidth=0.5)
        axes.set_xticks([i + 0.28 for i in range(len(order))], order)
        axes.set(title=title)
    panels[0, 0].legend(fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
