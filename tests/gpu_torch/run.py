#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder: skips and failures with their reasons, then `N passed, N failed, N skipped`.

    python3 tests/gpu_torch/run.py            # all
    python3 tests/gpu_torch/run.py compile    # those with that word in their name

Ends with 0 only if nothing failed, and, with VPMM_REQUIRE_GPU=1, nothing was skipped either.
"""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))

from run_tests import TallyResult  # noqa: E402  from the folder above


def main(words: list[str]) -> int:
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*" for word in words] or None
    tests = loader.discover(str(HERE), top_level_dir=str(HERE))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=TallyResult).run(tests)
    assert isinstance(result, TallyResult)
    tally = result.tally
    if os.environ.get("VPMM_REQUIRE_GPU") == "1":
        tally.skips_fail()
    for name, reason in tally.skipped.items():
        print(f"skipped: {name}: {reason}")
    for name, reason in tally.failed.items():
        print(f"failed: {name}: {reason.strip().splitlines()[-1]}")
    print(tally.last_line())
    return 1 if tally.failed or not (tally.passed or tally.skipped) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
