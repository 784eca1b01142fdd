# SPDX-License-Identifier: Apache-2.0
"""NBEP 7's example: Numba on the pool, with a log of its allocations. Needs a GPU and numba-cuda.

python examples/numba_example.py
"""

import sys

import vpmm

vpmm.use_for_numba()  # before the imports below: without numba-cuda, it raises an error that says what to install

import numpy as np  # noqa: E402
from numba import cuda  # noqa: E402

with vpmm.csv_log(sys.stdout, locations=True, memory=True):
    a = np.zeros(10)
    d_a = cuda.to_device(a)
    del d_a
