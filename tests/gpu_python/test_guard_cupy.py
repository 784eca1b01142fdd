"""tests: on a GPU, with VPMM_GUARD=1 planted errors of CuPy's kernels are caught, and named.

Each runs in a process of its own and prints what it finds; the test prints it again.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

if importlib.util.find_spec("cupy") is None:
    raise unittest.SkipTest("CuPy is not installed")

PROGRAM = r"""
import os, sys
import cupy
import vpmm
error = sys.argv[1]
touch = cupy.RawKernel(r'''extern "C" __global__ void touch(char* begin, long long at, int writes, char* out) {
  if (writes) begin[at] = 1; else out[0] = begin[at];
}''', "touch")
victim = cupy.zeros(5000, cupy.uint8)
out = cupy.zeros(1, cupy.uint8)
begin = victim.data.ptr
offset, writes = {"none": (0, 1), "read": (5000 + 4096, 0), "write": (5000 + 4096, 1), "free": (17, 0),
                  "under": (-(2 << 20), 0), "short": (5003, 1)}[error]
cupy.cuda.Device().synchronize()
if error == "free":
    del victim
    cupy.cuda.Device().synchronize()
    vpmm.trim()
try:
    touch((1,), (1,), (cupy.uint64(begin), cupy.int64(offset), cupy.int32(writes), out))
    cupy.cuda.Device().synchronize()
    victim = None
    cupy.cuda.Device().synchronize()
    vpmm.trim()
    print("no fault; damaged", vpmm.stats()["damaged_allocations"], "guarded", vpmm.stats()["guarded_allocations"])
except Exception as fault:
    print("fault:", fault)
print(vpmm.explain(begin + offset), flush=True)
os._exit(0)  # finalizers would find a broken context
"""


def run(error: str) -> str:
    settings = os.environ | {"VPMM_GUARD": "1", "VPMM_CUPY": "1"}
    command = [sys.executable, "-c", PROGRAM, error]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
    print(f"--- {error}: exit status {done.returncode}\n{done.stdout}{done.stderr[-1500:]}", flush=True)
    return done.stdout + done.stderr


def has_gpu() -> bool:
    code = "import sys, cupy; sys.exit(cupy.cuda.runtime.getDeviceCount() == 0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(has_gpu(), "there is no GPU")
class PlantedErrors(unittest.TestCase):
    def check(self, error: str, *expected: str) -> None:
        said = run(error)
        for each in expected:
            self.assertRegex(said, each)

    def test_without_an_error_nothing_is_reported(self) -> None:
        self.check("none", "no fault; damaged 0 guarded [1-9]")

    def test_accesses_beyond_the_end_fault(self) -> None:
        for error in ("read", "write"):
            self.check(
                error, "fault: .*(IllegalAddress|illegal)", "4096 bytes beyond the end of an allocation\n  5000 bytes"
            )

    def test_an_access_before_the_begin_faults(self) -> None:
        self.check("under", "fault: .*(IllegalAddress|illegal)")

    def test_a_use_after_a_free_faults(self) -> None:
        self.check("free", "fault: .*(IllegalAddress|illegal)", "freed")

    def test_a_short_overrun_is_found_at_the_free(self) -> None:
        self.check("short", "no fault; damaged 1")


if __name__ == "__main__":
    unittest.main()
