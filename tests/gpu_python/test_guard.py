# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, with VPMM_GUARD=1 planted errors of Numba's kernels are caught, and named.

Each runs in a process of its own and prints what it finds; the test prints it again.
"""

from __future__ import annotations

import importlib.util
import unittest

from planted import PlantedErrors, succeeds

if importlib.util.find_spec("numba") is None:
    raise unittest.SkipTest("Numba is not installed")

# An index is an unsigned number, which Numba does not count from the end; -2 MiB is 2**64 - 2 MiB. Numba's memory
# manager postpones frees, unless its limit is 0.
PROGRAM = """
import sys
import numpy as np
vars(np).setdefault("row_stack", np.vstack)  # as in test_stress.py
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


@unittest.skipUnless(
    succeeds("import sys; from numba import cuda; sys.exit(not cuda.is_available())"), "there is no GPU"
)
class UnderNumba(PlantedErrors, unittest.TestCase):
    PROGRAM = PROGRAM
    VARIABLES = {"VPMM_MAX_PENDING_DEALLOCS_COUNT": "0"}  # noqa: RUF012


if __name__ == "__main__":
    unittest.main()
