# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, PyTorch on VPMM computes what it does on its own allocator, to the bit.

Each case of cases.py runs in a process with PyTorch's allocator and in one with VPMM_TORCH=1. Where the results differ
and a second run of the first kind differs from the first as well, PyTorch itself is not deterministic: a skip says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 240  # for one process; the first compiles
CLEARED = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "VPMM_TORCH")

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed")

sys.path.insert(0, str(HERE))

import cases  # noqa: E402  needs the path above


def missing(name: str) -> str | None:
    """What the case needs and this machine lacks."""
    import torch

    if name in cases.NEED_MODULE and importlib.util.find_spec(cases.NEED_MODULE[name]) is None:
        return f"{cases.NEED_MODULE[name]} is not installed"
    gpus = torch.cuda.device_count()
    if not cases.ON_GPU:
        return "needs a GPU" if name in cases.NEED_GPU and name not in ON_GLOO else None
    if name in cases.NEED_TWO_GPUS and gpus < 2:
        return f"needs two GPUs, and PyTorch sees {gpus}"
    return None if gpus else "PyTorch sees no GPU"


# Without a GPU their processes talk over gloo.
ON_GLOO = ("distributed_data_parallel", "fully_shard_by_parameter", "nccl_collectives")


def run(name: str, folder: str, **more: str) -> dict[str, Any]:
    """What a process that ran the case printed; raises AssertionError with its last words if it failed."""
    kept = {key: value for key, value in os.environ.items() if key not in CLEARED}
    # What the compiler chose by measuring is kept between the runs, so that both run the same kernels.
    settings = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "TORCHINDUCTOR_DETERMINISTIC": "1"}
    settings["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    command = [sys.executable, str(HERE / "cases.py"), name]
    done = subprocess.run(
        command, capture_output=True, text=True, env=kept | settings | more, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        which = "VPMM" if more else "PyTorch's own allocator"
        raise AssertionError(f"under {which} it ended with {done.returncode}\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def difference(one: list[Any], other: list[Any]) -> str | None:
    """The first result that differs, and how many do."""
    if [label for label, _ in one] != [label for label, _ in other]:
        return f"other results: {len(one)} and {len(other)}"
    differing = [(label, a, b) for (label, a), (_, b) in zip(one, other, strict=True) if a != b]
    if not differing:
        return None
    label, a, b = differing[0]
    return f"{len(differing)} of {len(one)} results differ, the first is {label}: {a} and {b}"


def check(test: unittest.TestCase, name: str) -> None:
    reason = missing(name)
    if reason is not None:
        test.skipTest(reason)
    with tempfile.TemporaryDirectory() as folder:
        native = run(name, folder)
        ours = run(name, folder, VPMM_TORCH="1")
        test.assertTrue(native["results"])
        if cases.ON_GPU:
            test.assertTrue(ours["served"], "VPMM_TORCH=1, and PyTorch did not take VPMM everywhere")
        found = difference(native["results"], ours["results"])
        if found is None:
            return
        itself = difference(native["results"], run(name, folder)["results"])
    if itself is not None:
        test.skipTest(f"PyTorch's own allocator does not give the same twice: {itself}")
    test.fail(found)


class PytorchOnVpmm(unittest.TestCase):
    """A test for each case."""


def test_of(name: str) -> Callable[[PytorchOnVpmm], None]:
    return lambda self: check(self, name)


for one in cases.CASES:
    setattr(PytorchOnVpmm, f"test_{one}_is_as_with_pytorchs_own_allocator", test_of(one))


if __name__ == "__main__":
    unittest.main()
