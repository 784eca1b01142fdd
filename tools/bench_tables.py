# SPDX-License-Identifier: Apache-2.0
"""The benchmark's figures as Markdown tables: each with its ratio to ours in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench_samples import Sample, Table, pivot

OURS = "vpmm"
GIB = 1 << 30


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """`left`: columns of words; the others hold numbers and are set to the right."""
    rules = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rules, *rows])


def number(value: float) -> str:
    """Three digits that matter, with thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def against_ours(peers: dict[str, float], peer: str) -> str:
    """`1,123 (9.1x)`: nine times what ours takes."""
    if peer not in peers:
        return "-"
    ours = peers.get(OURS)
    is_ratio = peer != OURS and ours is not None and ours > 0
    return number(peers[peer]) + (f" ({peers[peer] / ours:.2g}x)" if is_ratio else "")


def peers_of(table: Table) -> list[str]:
    return list(dict.fromkeys(peer for peers in table.values() for peer in peers))


def case_name(row: tuple[str, int]) -> str:
    case, threads = row
    return case if threads == 1 else f"{case}, {threads} threads"


def by_peer(table: Table, cell: Callable[[dict[str, float], str], str] = against_ours) -> str:
    if not table:
        return ""
    peers = peers_of(table)
    rows = [[case_name(row), *(cell(values, peer) for peer in peers)] for row, values in table.items()]
    return markdown(["", *peers], rows)


def plain(values: dict[str, float], peer: str) -> str:
    return f"{values[peer]:.3f}" if peer in values else "-"


def per_peer_rows(samples: list[Sample], part: str) -> str:
    """For traces: a row for each case and peer, footprint and times side by side."""
    live = pivot(samples, part, "peak live")
    ratio = pivot(samples, part, "peak held / peak live")
    halves = ["allocate sum first half", "allocate sum second half"]
    columns = ["allocate p50", "allocate p99", "allocate worst", "allocate sum", *halves, "refused"]
    figures = {metric: pivot(samples, part, metric) for metric in columns}
    rows = []
    for row, peers in live.items():
        for peer in peers:
            found = [figures[metric].get(row, {}) for metric in columns]
            rows.append(
                [case_name(row), peer, f"{peers[peer] / GIB:.2f}", plain(ratio.get(row, {}), peer)]
                + [against_ours(values, peer) for values in found[:-1]]
                + [f"{found[-1].get(peer, 0):.0f}"]
            )
    times = ["p50 us", "p99 us", "worst us", "sum ms", "1st half ms", "2nd half ms"]
    head = ["", "peer", "peak live GiB", "peak held / live", *times, "refused"]
    return markdown(head, rows, left=2)


def section(title: str, text: str, *tables: str) -> str:
    return "\n\n".join([f"## {title}", text, *filter(None, tables)])


def hot_path(samples: list[Sample]) -> str:
    return section(
        "Hot path",
        "Nanoseconds for one deallocate and one allocate, warm; every thread has a stream and, for random, its own "
        "live allocations. `none` is what the benchmark itself takes, and part of every figure. `mimalloc` serves "
        "the host. `checks` asks the driver what `vpmm` must ask of a stream handle (cuStreamIsCapturing and "
        "cuStreamGetId), and does nothing else.",
        by_peer(pivot(samples, "hot_path", "time")),
    )


def workloads(samples: list[Sample]) -> str:
    return section(
        "RMM's workloads",
        "random_allocations: milliseconds for a loop of 2 N steps, and peak held over peak live; RMM's allocators "
        "begin with half of the GPU's memory. multi_stream_allocations: microseconds for four kernels with 8 bytes "
        "each, and that over the kernels alone.",
        by_peer(pivot(samples, "random_allocations", "time")),
        by_peer(pivot(samples, "random_allocations", "peak held / peak live"), plain),
        by_peer(pivot(samples, "multi_stream", "time")),
        by_peer(pivot(samples, "multi_stream", "over the kernels alone"), plain),
    )


def replay(samples: list[Sample]) -> str:
    return section(
        "Recorded programs",
        "Each library through its own interface, one thread, as fast as it goes. *Held* is device memory that the "
        "allocator has, in use or not; times are those of allocate calls on the host.",
        per_peer_rows(samples, "replay"),
    )


def growth(samples: list[Sample]) -> str:
    return section(
        "Memory that is not there yet",
        "Microseconds. *first*: by an allocator that holds nothing; *grow*: by one with 2 MiB live; *gather*: a "
        "request as large as all that is free, in eight pieces apart. The second table says how much was taken from "
        "the driver for *gather*, over the request.",
        by_peer(pivot(samples, "growth", "time")),
        by_peer(pivot(samples, "growth", "grown"), plain),
    )


def small_cases(samples: list[Sample]) -> str:
    return section(
        "Sequences that split memory up",
        "Peak held over peak live; `bench/workloads/small_cases.py` has them and says where they come from.",
        by_peer(pivot(samples, "small_cases", "peak held / peak live"), plain),
    )


def serve(samples: list[Sample]) -> str:
    return section(
        "A server with four threads",
        "serve_streams with a stream for each of four threads and GPU work on every allocation.",
        per_peer_rows(samples, "serve"),
    )


SECTIONS: dict[str, Callable[[list[Sample]], str]] = {
    "hot_path": hot_path,
    "random_allocations": workloads,
    "replay": replay,
    "growth": growth,
    "small_cases": small_cases,
    "serve": serve,
}


def headlines(samples: list[Sample]) -> str:
    """The few figures that the project has goals for, with the peers' beside them."""
    wanted = [
        ("hot_path", "time", "ns", ("pair 256 B", 1)),
        ("hot_path", "time", "ns", ("pair 2 MiB", 1)),
        ("hot_path", "time", "ns", ("random 1e3 <= 4 MiB", 1)),
        ("hot_path", "time", "ns", ("random 1e3 <= 4 MiB", 8)),
        ("hot_path", "time", "ns", ("random 1e3 <= 64 KiB", 1)),
        ("hot_path", "time", "ns", ("random 1e6 <= 64 KiB", 1)),
        ("growth", "time", "us", ("first 1 GiB", 1)),
        ("growth", "time", "us", ("gather 1 GiB", 1)),
        ("replay", "peak held / peak live", "x", ("gnn", 1)),
        ("replay", "peak held / peak live", "x", ("gpt_train", 1)),
        ("replay", "peak held / peak live", "x", ("serve_streams", 1)),
        ("replay", "peak held / peak live", "x", ("gpt_ckpt", 1)),
        ("replay", "peak held / peak live", "x", ("moe_train", 1)),
        ("serve", "peak held / peak live", "x", ("recorded pace", 4)),
        ("serve", "peak held / peak live", "x", ("as fast as possible", 4)),
    ]
    found = [
        (f"{case_name(row)} [{unit}]", pivot(samples, part, metric).get(row, {})) for part, metric, unit, row in wanted
    ]
    found = [(name, values) for name, values in found if values]
    peers = list(dict.fromkeys(peer for _, values in found for peer in values))
    rows = [[name, *(number(values[peer]) if peer in values else "-" for peer in peers)] for name, values in found]
    widths = [max(len(cells[i]) for cells in [["", *peers], *rows]) for i in range(len(peers) + 1)]
    lines = [["", *peers], *rows]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )
