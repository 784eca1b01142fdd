"""tests: on a GPU, with VPMM_GUARD=1 planted errors of Numba's kernels are caught, and named.

Each runs in a process of its own and prints what it finds; the test prints it again.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

if importlib.util.find_spec("numba") is None:
    raise unittest.SkipTest("Numba is not installed")

# An index is an unsigned number, which Numba does not count from the end; -2 MiB is 2**64 - 2 MiB. Numba's memory
# manager postpones frees, unless its limit is 0.
PROGRAM = """
import sys
import numpy as np
import vpmm
vpmm.use_for_numba()
from numba import cuda
error = sys.argv[1]
@cuda.jit("void(uint8[:], uint64, boolean, uint8[:])")
def touch(array, at, writes, out):
    if writes:
        array[at] = 1
    else:
        out[0] = array[at]
victim = cuda.to_device(np.zeros(5000, np.uint8))
out = cuda.to_device(np.zeros(1, np.uint8))
begin = victim.device_ctypes_pointer.value
offset, writes = {"none": (0, True), "read": (5000 + 4096, False), "write": (5000 + 4096, True), "free": (17, False),
                  "under": (-(2 << 20), False), "short": (5003, True)}[error]
cuda.synchronize()
array = victim
if error == "free":
    vpmm.Pool.default().deallocate(begin, None)  # behind the back of Numba, which keeps the array
    cuda.synchronize()
    vpmm.trim()
try:
    touch[1, 1](array, np.uint64(offset % 2**64), writes, out)
    cuda.synchronize()
    if error != "free":
        del array, victim
        cuda.current_context().deallocations.clear()
    cuda.synchronize()
    vpmm.trim()
    print("no fault; damaged", vpmm.stats()["damaged_allocations"], "guarded", vpmm.stats()["guarded_allocations"])
except Exception as fault:
    print("fault:", fault)
print(vpmm.explain(begin + offset), flush=True)
import os
os._exit(0)  # finalizers would find a broken context
"""


def run(error: str) -> str:
    settings = os.environ | {"VPMM_GUARD": "1", "VPMM_MAX_PENDING_DEALLOCS_COUNT": "0"}
    command = [sys.executable, "-c", PROGRAM, error]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=300, check=False)
    print(f"--- {error}: exit status {done.returncode}\n{done.stdout}{done.stderr[-1500:]}", flush=True)
    return done.stdout + done.stderr


def has_gpu() -> bool:
    code = "import sys; from numba import cuda; sys.exit(not cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(has_gpu(), "there is no GPU")
class PlantedErrors(unittest.TestCase):
    def check(self, error: str, *expected: str) -> None:
        said = run(error)
        for each in expected:
            self.assertRegex(said, each)

    def test_without_an_error_nothing_is_reported(self) -> None:
        self.check("none", "no fault; damaged 0 guarded [1-9]")

    def test_a_read_beyond_the_end_faults(self) -> None:
        self.check("read", "fault: .*(ILLEGAL_ADDRESS|700)", "4096 bytes beyond the end of an allocation\n  5000 bytes")

    def test_a_write_beyond_the_end_faults(self) -> None:
        self.check(
            "write", "fault: .*(ILLEGAL_ADDRESS|700)", "4096 bytes beyond the end of an allocation\n  5000 bytes"
        )

    def test_a_use_after_its_free_faults(self) -> None:
        self.check("free", "fault: .*(ILLEGAL_ADDRESS|700)", "at byte 17: a use after its free\n  5000 bytes")

    def test_an_access_before_the_begin_faults(self) -> None:
        self.check("under", "fault: .*(ILLEGAL_ADDRESS|700)", "2097152 bytes before the begin of an allocation")

    def test_a_short_overrun_is_found_in_the_margin(self) -> None:
        self.check("short", "no fault; damaged 1", "1 bytes, the first 3 bytes beyond its end; 5000 bytes at")


if __name__ == "__main__":
    unittest.main()
