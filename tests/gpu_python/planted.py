# SPDX-License-Identifier: Apache-2.0
"""tests: errors that a program plants in a kernel, each in a process of its own, and what is said of them."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

FAULT = "fault: .*(ILLEGAL_ADDRESS|IllegalAddress|700)"


def succeeds(code: str) -> bool:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


class PlantedErrors:
    """The cases of a test. The program gets the name of its error, and touches one byte of 5000."""

    PROGRAM: str
    VARIABLES: dict[str, str]

    def check(self, error: str, *expected: str) -> None:
        settings = os.environ | {"VPMM_GUARD": "1"} | self.VARIABLES
        command = [sys.executable, "-c", self.PROGRAM, error]
        done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
        print(f"--- {error}: exit status {done.returncode}\n{done.stdout}{done.stderr[-1500:]}", flush=True)
        assert isinstance(self, unittest.TestCase)
        for each in expected:
            self.assertRegex(done.stdout + done.stderr, each)

    def test_without_an_error_nothing_is_reported(self) -> None:
        self.check("none", "no fault; damaged 0 guarded [1-9]")

    def test_a_read_beyond_the_end_faults(self) -> None:
        self.check("read", FAULT, "4096 bytes beyond the end of an allocation\n  5000 bytes")

    def test_a_write_beyond_the_end_faults(self) -> None:
        self.check("write", FAULT, "4096 bytes beyond the end of an allocation\n  5000 bytes")

    def test_a_use_after_its_free_faults(self) -> None:
        self.check("free", FAULT, "at byte 17: a use after its free\n  5000 bytes")

    def test_an_access_before_the_begin_faults(self) -> None:
        self.check("under", FAULT, "2097152 bytes before the begin of an allocation")

    def test_a_short_overrun_is_found_in_the_margin(self) -> None:
        self.check("short", "no fault; damaged 1", "1 bytes, the first 3 bytes beyond its end; 5000 bytes at")
