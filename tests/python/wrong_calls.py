# SPDX-License-Identifier: Apache-2.0
"""tests: calls that type checkers must refuse, for `./dev tidy`. Nothing runs them; to ignore no error is one."""

from __future__ import annotations

import vpmm


def settings(pool: vpmm.Pool) -> None:
    vpmm.Pool(0, page_sise="2MiB")  # type: ignore[call-arg]
    vpmm.Pool(prefer="fast")  # type: ignore[arg-type]
    vpmm.configure(capacity=1.5)  # type: ignore[arg-type]
    pool.set_capacity(1.5)  # type: ignore[arg-type]


def recordings(pool: vpmm.Pool) -> None:
    pool.record_start("run.vpmm", stacks="natve")  # type: ignore[arg-type]
    vpmm.record("run.vpmm", stacks="pyton")  # type: ignore[arg-type]


def calls(pool: vpmm.Pool) -> None:
    pool.allocate(100)  # type: ignore[call-arg]
    pool.allocate(bytes=1, strm=0)  # type: ignore[call-arg]
    pool.trim(1, 2, 3)  # type: ignore[call-arg]
    vpmm.device_count(1)  # type: ignore[call-arg]
    vpmm.Buffer(1, size=2)  # type: ignore[misc]


def what_is_right(pool: vpmm.Pool) -> int:
    vpmm.Pool(0, page_size="2 MiB", prefer="latency", capacity=None)
    pool.record_start("run.vpmm", stacks="native")
    vpmm.record("run.vpmm", stacks=True)
    return pool.memory_info().free + vpmm.memory_info().total
