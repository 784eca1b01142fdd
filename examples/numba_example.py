"""Numba on the pool, with a log of what it allocates: the example of NBEP 7. Needs a GPU and numba-cuda.

python examples/numba_example.py
"""

import sys

import numpy as np
from numba import cuda

import vpmm

vpmm.use_for_numba()

with vpmm.csv_log(sys.stdout, locations=True, memory=True):
    a = np.zeros(10)
    d_a = cuda.to_device(a)
    del d_a
