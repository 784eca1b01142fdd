# SPDX-License-Identifier: Apache-2.0
"""The benchmark's figures as one picture, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_samples import Sample, Table, pivot

# The same colour for the same peer in every panel.
COLOURS = {
    "vpmm": "#0b6e4f",
    "vpmm-bound": "#6fbf73",
    "vpmm-latency": "#a8d5ba",
    "cuda": "#555555",
    "cuda-async": "#76b900",
    "torch-native": "#ee4c2c",
    "torch-expandable": "#f5a48f",
    "rmm-vpmm": "#3d5a80",
    "rmm-pool": "#7400b8",
    "rmm-arena": "#b388eb",
    "rmm-async": "#d7bff5",
    "cupy": "#2a9df4",
    "mimalloc": "#b0b0b0",
}


def grouped_bars(axes: Any, table: Table, title: str, unit: str, scale: str = "log") -> None:  # noqa: ANN401 - optional
    """A group for each row, a bar for each peer."""
    peers = [peer for peer in COLOURS if any(peer in values for values in table.values())]
    width = 0.8 / max(1, len(peers))
    for i, peer in enumerate(peers):
        places = [row + i * width for row, values in enumerate(table.values()) if peer in values]
        heights = [values[peer] for values in table.values() if peer in values]
        axes.bar(places, heights, width, label=peer, color=COLOURS[peer])
    axes.set_xticks([row + 0.4 for row in range(len(table))], [case for case, _ in table], rotation=20, fontsize=7)
    axes.set(title=title, ylabel=unit, yscale=scale)
    axes.legend(fontsize=6)


def thread_lines(axes: Any, samples: list[Sample]) -> None:  # noqa: ANN401 - optional
    case = "random 1e3 <= 4 MiB"
    table = {row: values for row, values in pivot(samples, "hot_path", "time").items() if row[0] == case}
    for peer, colour in COLOURS.items():
        points = [(threads, values[peer]) for (_, threads), values in table.items() if peer in values]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=peer, color=colour)
    axes.set(title=f"{case}, a stream per thread", xlabel="threads", ylabel="ns", xscale="log", yscale="log")
    axes.minorticks_off()
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.legend(fontsize=6)


def one_thread(samples: list[Sample]) -> Table:
    return {row: values for row, values in pivot(samples, "hot_path", "time").items() if row[1] == 1}


def footprints(samples: list[Sample]) -> Table:
    metric = "peak held / peak live"
    return pivot(samples, "replay", metric) | {
        (f"serve, {case}", threads): values for (case, threads), values in pivot(samples, "serve", metric).items()
    }


def growth(samples: list[Sample]) -> Table:
    return {row: values for row, values in pivot(samples, "growth", "time").items() if not row[0].startswith("grow")}


def draw(samples: list[Sample], title: str, path: Path) -> str | None:
    """Why there is no picture; None when there is."""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return "python3 has no matplotlib"
    panels: list[tuple[str, Callable[[Any], None]]] = [
        ("hot_path", lambda axes: grouped_bars(axes, one_thread(samples), "deallocate + allocate, one thread", "ns")),
        ("hot_path", lambda axes: thread_lines(axes, samples)),
        ("replay", lambda axes: grouped_bars(axes, footprints(samples), "peak held / peak live", "x", "linear")),
        ("growth", lambda axes: grouped_bars(axes, growth(samples), "memory that is not there yet", "us")),
    ]
    measured = {sample.part for sample in samples}
    panels = [panel for panel in panels if panel[0] in measured]
    if not panels:
        return "nothing was measured that it shows"
    figure, all_axes = pyplot.subplots(len(panels), 1, figsize=(11, 4.2 * len(panels)), squeeze=False)
    for (_, fill), axes in zip(panels, all_axes.flat, strict=True):
        fill(axes)
    figure.suptitle(title, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path)
    return None
