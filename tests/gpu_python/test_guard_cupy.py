# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, with VPMM_GUARD=1 planted errors of CuPy's kernels are caught, and named.

Each runs in a process of its own and prints what it finds; the test prints it again.
"""

from __future__ import annotations

import importlib.util
import unittest

from planted import PlantedErrors, succeeds

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


@unittest.skipUnless(succeeds("import sys, cupy; sys.exit(cupy.cuda.runtime.getDeviceCount() == 0)"), "there is no GPU")
class UnderCupy(PlantedErrors, unittest.TestCase):
    PROGRAM = PROGRAM
    VARIABLES = {"VPMM_CUPY": "1"}  # noqa: RUF012


if __name__ == "__main__":
    unittest.main()
