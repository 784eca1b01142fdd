# SPDX-License-Identifier: Apache-2.0
"""tests: every claim of the README, of docs/where-it-loses.md and of each section that promises or limits has a proof.

claims.toml has them in the order of their pages. A claim is proved by tests, or by figures that stand in a file of
results; a sentence of a page that is in no claim fails here.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import operator
import re
import statistics
import sys
import tomllib
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from test_named_tests import defined_tests

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/torch"))
import tables  # noqa: E402  after its folder is known

WHOLE_PAGES = ["README.md", "docs/where-it-loses.md"]
PAGES = ["*.md", "docs/**/*.md", "examples/**/*.md"]
CLAIMS: dict[str, Any] = tomllib.loads((ROOT / "tests/docs/claims.toml").read_text())
# Limits, Limits for ..., What it costs and saves, Differences from ..., What is promised, and the like.
CLAIMING = re.compile(
    r"^#+ (?:Limits|Limitations|What it costs|What is promised|The promise|Differences (?:from|in)|What stays the same)"
    r"\b[^\n]*\n(.*?)(?=^#+ |\Z)",
    re.DOTALL | re.MULTILINE,
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"(?:#|//) (.*)")
HEADING_OR_RULE = re.compile(r"^#+ .*$|^\|[-|]+\|$|^#include .*$", re.MULTILINE)
MEASURED = re.compile(r"\d[\d,]*(?:\.\d+)?(?=(?: ms| us| ns| times)\b)")
OPERATORS = {ast.Div: operator.truediv, ast.Mult: operator.mul, ast.Sub: operator.sub, ast.Add: operator.add}
CONSTANTS = {1000.0, 2.0**26}  # between units; and the 64 MiB of the promise


def words(text: str) -> str:
    return " ".join(text.split())


def read(path: str) -> str:
    return (ROOT / path).read_text()


def comments_only(block: re.Match[str]) -> str:
    """Of code its comments; a block without a language is a picture, and stays."""
    return "\n".join(COMMENT.findall(block.group(2))) if block.group(1) else block.group(2)


def claiming_text(page: str) -> str:
    """What needs a proof: of some pages all, of others their sections of limits, costs, promises and differences."""
    text = read(page)
    parts = [text] if page in WHOLE_PAGES else CLAIMING.findall(text)
    return words(HEADING_OR_RULE.sub("", BLOCK.sub(comments_only, "\n".join(parts))))


def claiming_pages() -> list[str]:
    found = {str(path.relative_to(ROOT)) for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(page for page in found if claiming_text(page))


def claims() -> Iterator[tuple[str, dict[str, Any]]]:
    for page, entries in CLAIMS.items():
        for entry in entries:
            yield page, entry


def unproved(page: str) -> str:
    """What is left of a page's text without its claims."""
    left = claiming_text(page)
    for entry in CLAIMS.get(page, []):
        left = left.replace(words(entry["text"]), " ", 1)
    return re.sub(r"[^\w]+", " ", left).strip()


def numbers(row: str) -> set[float]:
    return {float(number.replace(",", "")) for number in re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?", row)}


def value(formula: str, known: set[float]) -> float:
    """Of a formula over numbers that stand in a file."""

    def of(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](of(node.left), of(node.right)))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int | float), formula
        number = float(node.value)
        assert number in known | CONSTANTS, f"{number} is not in the row"
        return number

    return of(ast.parse(formula, mode="eval").body)


def rows(figure: dict[str, str]) -> set[float]:
    """The numbers of the lines that a figure is from; `row` is how each of them begins, and no other line."""
    known: set[float] = set()
    lines = read(figure["file"]).splitlines()
    for begin in figure["row"].split(" ; "):
        found = [line for line in lines if line.startswith(begin)]
        assert len(found) == 1, f"{len(found)} lines of {figure['file']} begin with {begin}"
        separators = ",=" if figure["file"].endswith((".csv", ".txt")) else "="
        known |= numbers(found[0].translate(dict.fromkeys(map(ord, separators), " ")))
    return known


class Claims(unittest.TestCase):
    def test_every_sentence_of_a_claiming_page_is_a_claim(self) -> None:
        pages = claiming_pages()
        self.assertGreater(len(pages), len(WHOLE_PAGES))
        for page in pages:
            with self.subTest(page=page):
                self.assertEqual(unproved(page), "")

    def test_sections_of_many_names_are_claiming(self) -> None:
        for heading in (
            "## Limits",
            "### Limits for a hostile process of the same user",
            "## What it costs and saves",
            "## Differences from the native allocator",
            "## What is promised",
        ):
            self.assertEqual(CLAIMING.findall(f"# A\n{heading}\nA claim.\n## Next\nNone.\n"), ["A claim.\n"], heading)
        self.assertEqual(CLAIMING.findall("## What to do\nNone.\n"), [])

    def test_every_claim_stands_in_its_page(self) -> None:
        for page, entry in claims():
            with self.subTest(page=page):
                self.assertIn(words(entry["text"]), claiming_text(page))

    def test_every_claim_has_a_proof_that_exists(self) -> None:
        defined = defined_tests()
        for page, entry in claims():
            with self.subTest(page=page, text=entry["text"]):
                proofs = [*entry.get("tests", []), *entry.get("figures", [])]
                self.assertTrue(proofs or entry.get("no_claim") or "not measured" in entry["text"])
                for name in entry.get("tests", []):
                    self.assertTrue((ROOT / name).is_file() if "/" in name else name in defined, name)

    def test_every_figure_is_that_of_its_file(self) -> None:
        for page, entry in claims():
            for figure in entry.get("figures", []):
                with self.subTest(page=page, figure=figure):
                    said, decimals = figure["is"].replace(",", ""), len(figure["is"].partition(".")[2])
                    found = value(figure.get("of", said), rows(figure))
                    self.assertEqual(f"{found:.{decimals}f}", said)
                    self.assertIn(figure["is"], entry["text"])

    def test_every_measured_figure_of_a_claim_without_a_test_is_looked_up(self) -> None:
        for page, entry in claims():
            if entry.get("figures") and not entry.get("tests"):
                with self.subTest(page=page, text=entry["text"]):
                    self.assertLessEqual(set(MEASURED.findall(entry["text"])), {f["is"] for f in entry["figures"]})


class Readme(unittest.TestCase):
    def test_it_is_short(self) -> None:
        self.assertLess(len(read("README.md").splitlines()), 110)

    def test_its_version_is_that_of_the_project(self) -> None:
        version = re.search(r"project\(vpmm VERSION ([\d.]+)", read("CMakeLists.txt"))
        assert version is not None
        self.assertIn(f"Version {version.group(1)}, alpha", words(read("README.md")))

    def test_the_five_packages_are_what_cmake_looks_for_and_install_md_installs(self) -> None:
        named = re.findall(r"(?:vpmm_need\(\S+ \S+|vpmm_miss\(.*\)\") ([\w-]+-dev)\b", read("cmake/dependencies.cmake"))
        packages = set(named)
        installed = re.search(r"^apt install g\+\+ ((?:.*\\\n)*.*)", read("docs/install.md"), re.MULTILINE)
        assert installed is not None
        self.assertEqual(len(packages), 5)
        self.assertEqual({name for name in re.findall(r"[\w-]+", installed.group(1)) if "-dev" in name}, packages)

    def test_no_call_that_the_pool_requires_is_newer_than_cuda_12_0(self) -> None:
        symbols = re.findall(
            r"^VPMM_CUDA_SYMBOL\(\w+, \w+, (\d+), required", read("src/driver/cuda/cuda_symbols.def"), re.M
        )
        self.assertGreater(len(symbols), 0)
        self.assertLessEqual(max(map(int, symbols)), 12000)


NAMES = {
    "native": "PyTorch's allocator (`native`)",
    "expandable": "PyTorch's expandable segments (`expandable`)",
    "vpmm": "**VPMM**",
}
RESULTS: dict[str, tables.Row] = json.loads(read("bench/results/torch-programs.json"))["results"]


# VPMM's runs of these were on another machine than the other allocators'.
ELSEWHERE = ("rl", "serve")


class PytorchPrograms(unittest.TestCase):
    """Fourteen programs, as bench/results has them."""

    def test_the_readmes_table_is_their_mean_and_worst(self) -> None:
        for allocator, name in NAMES.items():
            held = [row[allocator]["held_bytes"] / tables.live(row) for row in RESULTS.values()]
            time = [
                tables.step_seconds(row[allocator])
                / min(tables.step_seconds(row[rival]) for rival in ("native", "expandable"))
                for program, row in RESULTS.items()
                if program not in ELSEWHERE
            ]
            cells = [f"{statistics.fmean(part):.2f}, {max(part):.2f}" for part in (held, time)]
            cells[0] = f"**{cells[0]}**" if allocator == "vpmm" else cells[0]
            self.assertIn(f"| {name} | {cells[0]} | {cells[1]} |", read("README.md"))

    def test_the_readmes_row_is_the_mean_and_worst_of_those_written_later(self) -> None:
        times = {}
        for part, left_out in (("more", "bert"), ("fresh", "gpt")):
            later = json.loads(read(f"bench/results/torch-programs-{part}.json"))["results"]
            for program, row in later.items():
                if program.partition(",")[0] != left_out:  # which ran again
                    seconds = {allocator: tables.step_seconds(run) for allocator, run in row.items()}
                    times[program] = seconds.pop("vpmm") / min(seconds.values())
        fastest: dict[tuple[str, str], float] = {}  # of several runs in turn
        for run in json.loads(read("bench/results/torch-programs-pairs.json"))["runs"]:
            key = run["program"], run["allocator"].removesuffix("-timed")
            step = statistics.median(run["milliseconds"][run["warmup"] :])
            fastest[key] = min(fastest.get(key, step), step)
        for program in {program for program, _ in fastest}:
            times[program] = fastest[program, "vpmm"] / fastest[program, "expandable"]
        self.assertEqual(len(times), 9)
        later = f"in nine programs written later {statistics.fmean(times.values()):.2f} ({max(times.values()):.2f}) |"
        self.assertIn(later, read("README.md"))

    def test_seven_of_twelve_lose_time_and_eleven_hold_least(self) -> None:
        found = {name: shortfalls for name, row in RESULTS.items() if (shortfalls := tables.shortfalls(row))}
        timed = [time for name, (_, time) in found.items() if name not in ELSEWHERE]
        self.assertEqual(len(timed), 12)
        self.assertEqual(sum(time > tables.SAME_SPEED for time in timed), 7)
        self.assertEqual(sum(held < 1 for held, _ in found.values()), 11)

    def test_the_readmes_picture_has_their_bars(self) -> None:
        path = re.compile(r'<g id="patch_\d+">\s*<path d="M [\d.]+ ([\d.]+) \s*L [\d.]+ [\d.]+ \s*L [\d.]+ ([\d.]+) ')
        heights = [float(low) - float(high) for low, high in path.findall(read("bench/results/torch-held.svg"))]
        order = sorted(RESULTS, key=lambda name: -tables.severity(RESULTS[name]))
        held = [
            RESULTS[name][allocator]["held_bytes"] / tables.live(RESULTS[name]) for allocator in NAMES for name in order
        ]
        bars = heights[2 : 2 + len(held)]  # behind the background of the picture and of its axes
        for bar, expected in zip(bars, held, strict=True):
            self.assertAlmostEqual(bar / bars[0], expected / held[0], places=4)


class Simulator(unittest.TestCase):
    """The recorded programs, the first five as tests/replay/golden.txt has them."""

    PAGE = 2 << 20

    TRACES = ("gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train")
    OTHERS = ("unet_diffusion", "vit_multires", "llama_generate", "rl_loop", "eval_between")

    @staticmethod
    def rows(trace: str) -> Iterator[list[str]]:
        with gzip.open(ROOT / f"bench/traces/{trace}.csv.gz", "rt") as file:
            next(file)
            yield from csv.reader(file)

    def peak(self, trace: str, unit_of: Callable[[int], int]) -> int:
        """The most that lives, each size rounded up to its unit."""
        sizes: dict[str, int] = {}
        live = peak = 0
        for operation, number, asked, *_ in self.rows(trace):
            if operation == "a":
                unit = unit_of(int(asked))
                sizes[number] = -(-int(asked) // unit) * unit
                live += sizes[number]
                peak = max(peak, live)
            else:
                live -= sizes.pop(number)
        return peak

    def test_the_page_of_the_traces_has_what_is_in_them(self) -> None:
        for trace in self.TRACES + self.OTHERS:
            made = [row for row in self.rows(trace) if row[0] == "a"]
            large = sum(int(row[2]) >= self.PAGE for row in made)
            streams = len({row[3] for row in made})
            peak = self.peak(trace, lambda _: 1) / (1 << 30)
            cells = f"{len(made):,} | {large:,} | {streams} | {peak:.2f} GiB |"
            self.assertRegex(
                read("bench/traces/README.md"), rf"(?m)^\| `{trace}\.csv\.gz` \| .* \| {re.escape(cells)}$"
            )

    def test_the_table_of_recorded_programs_is_what_the_pool_does(self) -> None:
        golden = {tuple(line.split()[:3]): line for line in read("tests/replay/golden.txt").splitlines()}
        peaks = {trace: self.peak(trace, lambda size: self.PAGE if size >= self.PAGE else 256) for trace in self.TRACES}
        for label, setting in (("`vpmm`", "balanced"), ("`footprint`", "footprint"), ("`vpmm-page`", "page")):
            figures = [dict(re.findall(r"(\w+)=(\d+)", golden[trace, setting, "recorded"])) for trace in self.TRACES]
            cells = [
                f"{int(figure['mapped']) / peaks[trace]:.3f}, {int(figure['driver_us']) / 1000:.0f} ms"
                for trace, figure in zip(self.TRACES, figures, strict=True)
            ]
            self.assertIn(f"| {label} | {' | '.join(cells)} |", read("docs/where-it-loses.md"))


if __name__ == "__main__":
    unittest.main()
