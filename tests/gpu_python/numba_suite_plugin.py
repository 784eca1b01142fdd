# SPDX-License-Identifier: Apache-2.0
"""tests: a plugin of pytest with what numba-cuda's own suite needs, and a line per test for a later comparison.

The wheel of numba-cuda has its tests and not the conftest that goes with them. tools/numba_suite.py runs pytest here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vpmm-setter", action="store_true", help="give Numba our manager by set_memory_manager")
    parser.addoption("--vpmm-outcomes", metavar="FILE", help="append a line of JSON per event of a test")
    parser.addoption("--vpmm-served", metavar="FILE", help="append how many allocations the pool served")
    parser.addoption("--vpmm-seconds", type=float, metavar="N", help="end a process in which a test takes longer")
    parser.addoption("--vpmm-skip", metavar="FILE", help="leave out the tests that this file names, one a line")


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    """CUDATestCase asks for this by name: whether to write down the input of checks that fail."""
    cls: Any = request.cls
    cls._dump_failed_filechecks = False


def set_manager(config: pytest.Config) -> None:
    """With --vpmm-setter."""
    if not config.getoption("--vpmm-setter"):
        return
    from numba import cuda
    from numba.cuda.cudadrv import driver

    import vpmm

    if driver._memory_manager is not vpmm.NumbaMemoryManager:
        cuda.set_memory_manager(vpmm.NumbaMemoryManager)


@pytest.fixture(autouse=True)
def manager_by_setter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Again before each test: tests of the suite set managers of their own, or none."""
    set_manager(request.config)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A kernel that never ends leaves no other way: what waits for it in the driver cannot be interrupted."""
    seconds = item.config.getoption("--vpmm-seconds")
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes down what the pool served: a run in which it served nothing says nothing."""
    path = session.config.getoption("--vpmm-served")
    vpmm = sys.modules.get("vpmm")
    if path and vpmm is not None:
        statistics = vpmm.Pool.default(0).statistics()
        with Path(path).open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "allocations": statistics["allocations"]}) + "\n")


class Outcomes:
    """Writes each start and report at once, so that a test that ends the process is known by its missing report."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _write(self, **line: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, start=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        text = "" if report.passed else str(report.longrepr)
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else text
        self._write(test=report.nodeid, when=report.when, outcome=outcome, text=str(reason)[-4000:])


def pytest_configure(config: pytest.Config) -> None:
    set_manager(config)  # before tests are collected: that makes the first context, which keeps its manager
    path = config.getoption("--vpmm-outcomes")
    if path and not hasattr(config, "workerinput"):  # workers of xdist send their reports to the one that started them
        config.pluginmanager.register(Outcomes(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--vpmm-skip")
    if path:
        done = set(Path(path).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid not in done]
