# SPDX-License-Identifier: Apache-2.0
"""tests: Numba's plugin and the real pool together, on the simulated GPU; CUDA itself is a stand-in."""

from __future__ import annotations

import unittest

from numba_stand_ins import missing, run_python

ABSENT = missing("vpmm._vpmm", "numba", "numba_cuda", "cuda.core", "numpy")

# A manager whose context is current; what Numba's driver object would do is written down in `cuda`.
PROGRAM = """
import gc, os, sys, threading
from numba_stand_ins import *
import vpmm
from numba import cuda as numba_cuda
target = numba_cuda.cudadrv.driver
cuda = RecordingCuda(target)
for name in cuda.functions():
    setattr(target.driver, name, getattr(cuda, name))
import vpmm.plugins.cuda_core
vpmm.plugins.cuda_core.Buffer = StandInBuffer
context = Context()
manager = vpmm.NumbaMemoryManager(context=context)
manager.initialize()
def live():
    vpmm.Pool.default(0).synchronize()  # what finalizers pushed is taken in by the next call
    figures = vpmm.stats()
    return figures['live_allocations'], figures['live_bytes']
"""


@unittest.skipIf(ABSENT, ABSENT)
class NumbaOnSimulator(unittest.TestCase):
    def prints(self, expected: str, code: str, **variables: str) -> None:
        done = run_python(PROGRAM + code, VPMM_DRIVER="sim", **variables)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))

    def test_arrays_come_from_the_process_wide_pool_and_go_back(self) -> None:
        code = """
memory = [manager.memalloc(size) for size in (80, 1 << 20, 64 << 20)]
print(live()[0], vpmm.stats()['mapped_bytes'] >= 65 << 20)
del memory
print(live())
"""
        self.prints("3 True\n(0, 0)\n", code)

    def test_its_memory_has_its_name_as_a_tag_if_a_limit_names_it(self) -> None:
        code = """
memory = manager.memalloc(3 << 20)
print([(tag.name, tag.live_bytes, tag.limit_bytes) for tag in vpmm.tags()])
try:
    manager.memalloc(2 << 20)
except MemoryError as error:
    print('the tag "numba" has 3 MiB of its limit of 4 MiB' in str(error))
"""
        self.prints(f"[('numba', {3 << 20}, {4 << 20})]\nTrue\n", code, VPMM_LIMITS="numba=4MiB")

    def test_two_contexts_of_a_device_share_the_pool_and_a_reset_frees_one_ones_memory(self) -> None:
        code = """
other = vpmm.NumbaMemoryManager(context=Context())
mine, theirs = manager.memalloc(1 << 20), other.memalloc(4 << 20)
manager.reset()
print(live() == (1, 4 << 20))
again = manager.memalloc(1 << 20)
del mine
print(live()[0])
del again, theirs
print(live()[0])
"""
        self.prints("True\n2\n0\n", code)

    def test_running_out_of_memory_is_caught_by_any_of_three_names_and_leaves_the_pool_usable(self) -> None:
        code = """
for kind in (MemoryError, vpmm.Error, target.CudaAPIError):
    try:
        manager.memalloc(1 << 30)
    except kind as error:
        print(error.code.name, 'asked' in str(error))
with manager.defer_cleanup():
    for _ in range(20):
        memory = manager.memalloc(40 << 20)
        del memory
print(live()[0])
"""
        self.prints("CUDA_ERROR_OUT_OF_MEMORY True\n" * 3 + "0\n", code, VPMM_CAPACITY="64MiB", VPMM_LOG="quiet")

    def test_memory_info_counts_what_the_pool_could_hand_out(self) -> None:
        code = """
before = manager.get_memory_info()
memory = manager.memalloc(64 << 20)
during = manager.get_memory_info()
del memory
vpmm.Pool.default(0).synchronize()
after = manager.get_memory_info()
print(before.total == during.total, before.free - during.free >= 64 << 20, after.free - during.free >= 64 << 20)
"""
        self.prints("True True True\n", code)

    def test_a_memory_resource_draws_on_the_same_pool(self) -> None:
        code = """
resource = context.device._dev.memory_resource
buffer = resource.allocate(1 << 20, stream=1)
print(live()[0], manager.memalloc(80).size)
buffer.close()
print(live()[0])
"""
        self.prints("1 80\n0\n", code)

    def test_threads_that_allocate_and_drop_leave_nothing(self) -> None:
        code = """
def work():
    for count in range(400):
        kept = [manager.memalloc(80 << (count % 16)), manager.memhostalloc(16)]
        kept.append(kept)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
manager.get_memory_info()
print(live(), len(cuda.host))
"""
        self.prints("(0, 0) 0\n", code)

    def test_the_log_has_the_columns_and_the_line_of_the_program(self) -> None:
        code = """
import io
text = io.StringIO()
with vpmm.csv_log(text, locations=True):
    memory = manager.memalloc(80)
    del memory
header, alloc, free = text.getvalue().splitlines()
print(header.split(',')[0], alloc.split(',')[:2], alloc.split(',')[4], free.split(',')[:2], '<string>' in alloc)
"""
        self.prints("Event Type ['Alloc', '0'] 80 ['Free', '0'] True\n", code)

    def test_exit_and_a_forked_child_are_quiet_with_everything_alive(self) -> None:
        code = """
keep = [manager.memalloc(80), manager.memalloc(64 << 20), manager.memhostalloc(80), manager.memallocmanaged(80, True)]
keep.append(context.device._dev.memory_resource.allocate(1 << 20, stream=1))
child = os.fork()
if child == 0:
    del keep
    gc.collect()
    manager.reset()
    os._exit(0)
print(os.waitpid(child, 0)[1], live()[0])
"""
        self.prints("0 3\n", code)

    def test_a_child_that_is_forked_before_the_pool_is_open_has_its_own(self) -> None:
        code = (
            "import vpmm, os\nchild = os.fork()\nif child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
        )
        done = run_python(
            "import sys\n" + code + PROGRAM + "memory = manager.memalloc(80)\ndel memory\nprint(live())",
            VPMM_DRIVER="sim",
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "(0, 0)\n", ""))

    def test_an_order_is_set_and_one_that_differs_from_the_open_pools_is_an_error(self) -> None:
        code = """
vpmm.use_for_numba(order='legacy')
try:
    vpmm.NumbaMemoryManager(context=Context()).initialize()
except vpmm.Error as error:
    print('any_stream' in str(error).lower())
vpmm.use_for_numba(order='context')
vpmm.NumbaMemoryManager(context=Context()).initialize()
"""
        self.prints("True\n", code)


if __name__ == "__main__":
    unittest.main()
