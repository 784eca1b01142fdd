# SPDX-License-Identifier: Apache-2.0
"""gpu_rmm: what pytest loads beside RMM's own tests: our resource is the current one, or the upstream of all others.

VPMM_TEST_RMM names the way: `current` sets it before each test, `upstream` puts it in the place of CudaMemoryResource
as well, so that RMM's pools and adaptors which a test makes stack on it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

WAY = os.environ.get("VPMM_TEST_RMM", "current")


def pytest_configure() -> None:
    if WAY == "upstream":
        import rmm.mr

        import vpmm.rmm

        rmm.mr.CudaMemoryResource = type(vpmm.rmm.memory_resource(0))


@pytest.fixture(autouse=True)
def on_vpmm() -> Generator[None, None, None]:
    """RMM's own conftest makes another resource the current one after each test."""
    import vpmm.rmm

    vpmm.use_for_rmm()
    assert vpmm.rmm.is_installed()
    yield
