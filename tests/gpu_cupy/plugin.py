# SPDX-License-Identifier: Apache-2.0
"""tests: a plugin of pytest that puts CuPy on the pool, and writes down what became of each test of CuPy's own suites.

run.py has pytest load it in both runs; `--vpmm` makes the difference. A test that CuPy's suite gives an allocator of
its own gets that one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vpmm", action="store_true", help="CuPy's memory from the pool")
    parser.addoption("--vpmm-outcomes", required=True, metavar="FILE", help="a line of JSON for each test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(Path(config.getoption("--vpmm-outcomes"))), "vpmm-outcomes")


@pytest.fixture(autouse=True)
def memory_of_the_pool(request: pytest.FixtureRequest) -> Iterator[None]:
    """Again before each test: tests of the suite set allocators of their own."""
    if request.config.getoption("--vpmm"):
        import vpmm

        vpmm.use_for_cupy()
    yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the pool served: a run in which it served nothing says nothing."""
    if session.config.getoption("--vpmm"):
        import vpmm

        served = vpmm.Pool.default(0).statistics()["allocations"]
        with Path(session.config.getoption("--vpmm-outcomes")).open("a") as file:
            file.write(json.dumps({"served": served}) + "\n")


class Outcomes:
    """At once, so that a test that ends the process is known by its missing line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        words = str(report.longrepr).strip().splitlines()[-1:] if report.failed else []
        line = {"test": report.nodeid, "outcome": report.outcome, "words": words}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
