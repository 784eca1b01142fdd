# SPDX-License-Identifier: Apache-2.0
"""tests: Numba on the pool of a real GPU, driven hard; each case is a process of its own with a time limit.

A case passes when its process ends with 0 and nothing on standard error, where finalizers that failed would be named.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import unittest

STRESS_SECONDS = int(os.environ.get("VPMM_STRESS_SECONDS", "5"))  # of the case that repeats rounds
SECONDS = 150 + STRESS_SECONDS

BEGIN = f"""
import faulthandler
faulthandler.dump_traceback_later({SECONDS - 30}, exit=True)
import gc, mmap, os, subprocess, sys, threading, warnings
import numpy as np
vars(np).setdefault('row_stack', np.vstack)  # numba-cuda 0.30 asks for it, and NumPy 2.5 lacks it
"""
NUMBA_FIRST = "from numba import cuda\nimport vpmm\nvpmm.use_for_numba()\n"
VPMM_FIRST = "import vpmm\nvpmm.use_for_numba()\nfrom numba import cuda\n"
REST = """
from cuda.bindings import driver as cu
warnings.simplefilter('error')
cuda.current_context()  # Numba itself cannot be begun by several threads at a time
N = 1 << 18  # as many threads as a large GPU runs at a time

def kernels():
    @cuda.jit
    def fill(array, value):
        i = cuda.grid(1)
        if i < array.size:
            array[i] = value
    @cuda.jit
    def copy_late(source, target):
        for _ in range(2):
            cuda.nanosleep(1000000)
        i = cuda.grid(1)
        if i < source.size:
            target[i] = source[i]
    return fill, copy_late

fill, copy_late = kernels()

def blocks(count):
    return (count + 255) // 256

def nonblocking():
    error, stream = cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    assert error == 0, error
    return cuda.external_stream(int(stream))

def live():
    cuda.current_context().get_memory_info()
    vpmm.Pool.default(0).synchronize()
    return vpmm.stats()['live_allocations']

def own_pages():  # consecutive arrays of np.zeros share a page of the system, which cannot be pinned twice
    return np.frombuffer(mmap.mmap(-1, 1 << 20), np.int8)

def in_threads(count, work):
    errors = []
    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
"""
PRELUDE = BEGIN + NUMBA_FIRST + REST


def why_not() -> str:
    """Why these tests cannot run here; empty when they can."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver on this machine"
    absent = [name for name in ("vpmm", "numba", "numba_cuda", "numpy") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


class OnGpu(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls) -> None:
        reason = why_not()
        if reason and os.environ.get("VPMM_REQUIRE_GPU") == "1":
            raise AssertionError(reason)
        if reason:
            raise unittest.SkipTest(reason)

    def passes(self, code: str, prelude: str = PRELUDE, **variables: str) -> str:
        quiet = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "0"}
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "VPMM_"))}
        command = [sys.executable, "-c", prelude + code]
        done = subprocess.run(
            command,
            env=environment | quiet | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout


class Threads(OnGpu):
    def test_eight_threads_with_streams_of_their_own_keep_their_data(self) -> None:
        self.passes("""
fill[1, 32](cuda.device_array(32, np.int32), 0)
def work(seed):
    sizes = np.random.default_rng(seed)
    stream = cuda.stream()
    for count in range(200):
        n = int(2 ** sizes.uniform(4, 22))
        array = cuda.device_array(n, np.int32, stream=stream)
        fill[blocks(n), 256, stream](array, seed * 1000 + count)
        if count % 8 == 0:
            host = array.copy_to_host(stream=stream)
            stream.synchronize()
            assert (host == seed * 1000 + count).all(), (seed, count)
in_threads(8, work)
assert live() == 0, live()
""")

    def test_threads_that_share_streams_keep_their_data_beside_an_observer(self) -> None:
        out = self.passes(
            """
import queue, random, tempfile, time
fill[1, 32](cuda.device_array(32, np.int32), 0)
pool = vpmm.Pool.default(0)
streams = [nonblocking(), nonblocking()]
handed_over = queue.SimpleQueue()
end = time.monotonic() + int(os.environ['STRESS_SECONDS'])
all_done = threading.Event()
rounds = [0] * 7  # of each thread

def observe():
    with tempfile.TemporaryDirectory() as folder:
        observe_into(os.path.join(folder, 'recording.csv.gz'))

def observe_into(recording):
    looks = [pool.trim, lambda: pool.set_capacity(4 << 30), pool.dump, lambda: pool.set_capacity(None),
             lambda: pool.trim(16 << 20), pool.statistics, pool.reset_peaks, pool.synchronize]
    count = 0
    while not all_done.wait(0.001):
        looks[count % len(looks)]()
        if count % 16 == 0:
            pool.record_start(recording)
        if count % 16 == 15:
            pool.record_stop()
        count += 1
    if count % 16:
        pool.record_stop()

def work(number):
    dice = random.Random(number)
    stream = streams[number % 2]
    handle = int(stream.handle)
    live, count = [], 0
    while count < 100 or time.monotonic() < end:
        n = dice.choice((64, 5000, 290_000, 350_000, 420_000, 1 << 20))  # most are runs that cross a page
        array = cuda.device_array(n, np.int32, stream=stream)
        value = number * 10_000_000 + count
        fill[blocks(n), 256, stream](array, value)
        live.append((array, value))
        pool.deallocate(pool.allocate(dice.choice((256, 1_300_000, 2 << 20)), handle), handle)
        if len(live) > 12:
            array, value = live.pop(dice.randrange(len(live)))
            if dice.random() < 0.3:
                host = array.copy_to_host(stream=stream)
                stream.synchronize()
                assert (host == value).all(), (number, value)
            handed_over.put(array)  # whichever thread drops the last reference
        del array
        if dice.random() < 0.5 or handed_over.qsize() > 32:  # so that they do not pile up
            try:
                handed_over.get_nowait()
            except queue.Empty:
                pass
        count += 1
    rounds[number] = count

left = [6]
def member(number):
    if number == 0:
        return observe()
    try:
        work(number)
    finally:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                all_done.set()
lock = threading.Lock()
in_threads(7, member)
while not handed_over.empty():
    handed_over.get()
assert live() == 0, live()
print(f"{sum(rounds)} rounds, {vpmm.stats()['allocations']} allocations")
""",
            STRESS_SECONDS=str(STRESS_SECONDS),
        )
        print(out, end="")

    def test_memory_dropped_by_another_thread_is_not_used_too_early(self) -> None:
        self.passes("""
import queue
fill[1, 32](cuda.device_array(32, np.int32), 0)
copy_late[1, 32](cuda.device_array(32, np.int32), cuda.device_array(32, np.int32))
cuda.synchronize()
dropped = queue.Queue()
def drop():
    while dropped.get() is not None:
        pass
thread = threading.Thread(target=drop)
thread.start()
stream, other = cuda.stream(), cuda.stream()
for count in range(100):
    source, target = cuda.device_array(N, np.int32), cuda.device_array(N, np.int32)
    fill[blocks(N), 256, stream](source, count)
    copy_late[blocks(N), 256, stream](source, target)
    dropped.put(source)
    del source
    trash = [cuda.device_array(N, np.int32) for _ in range(4)]
    for array in trash:
        fill[blocks(N), 256, other](array, -1)
    del trash, array
    stream.synchronize()
    assert (target.copy_to_host() == count).all(), count
dropped.put(None)
thread.join()
""")

    def test_the_collector_runs_inside_allocations(self) -> None:
        self.passes("""
gc.set_threshold(1, 1, 1)
def work(number):
    for count in range(300):
        cycle = [cuda.device_array(1 << (count % 20), np.int8), cuda.pinned_array(64), cuda.mapped_array(64)]
        cycle.append(cycle)
in_threads(4, work)
gc.collect()
assert live() == 0, live()
""")


class Streams(OnGpu):
    def test_memory_dropped_while_a_nonblocking_stream_uses_it_keeps_its_data(self) -> None:
        self.passes("""
slow, fast = nonblocking(), nonblocking()
for count in range(150):
    source, target = cuda.device_array(N, np.int32), cuda.device_array(N, np.int32)
    fill[blocks(N), 256, slow](source, count)
    copy_late[blocks(N), 256, slow](source, target)
    del source
    trash = [cuda.device_array(N, np.int32) for _ in range(4)]
    for array in trash:
        fill[blocks(N), 256, fast](array, -1)
    fast.synchronize()
    del trash, array
    slow.synchronize()
    assert (target.copy_to_host() == count).all(), count
""")

    def test_the_legacy_order_is_enough_for_numbas_own_streams(self) -> None:
        self.passes(
            """
slow, fast = cuda.stream(), cuda.stream()
for count in range(150):
    source, target = cuda.device_array(N, np.int32), cuda.device_array(N, np.int32)
    fill[blocks(N), 256, slow](source, count)
    copy_late[blocks(N), 256, slow](source, target)
    del source
    trash = [cuda.device_array(N, np.int32) for _ in range(4)]
    for array in trash:
        fill[blocks(N), 256, fast](array, -1)
    del trash, array
    slow.synchronize()
    assert (target.copy_to_host() == count).all(), count
""",
            BEGIN + NUMBA_FIRST.replace("use_for_numba()", "use_for_numba(order='legacy')") + REST,
        )

    def test_kernel_arguments_come_from_the_pool_and_are_right_on_every_stream(self) -> None:
        for kernel_arguments in (True, False):
            with self.subTest(kernel_arguments=kernel_arguments):
                begin = NUMBA_FIRST.replace("use_for_numba()", f"use_for_numba(kernel_arguments={kernel_arguments})")
                out = self.passes(
                    """
warnings.simplefilter('ignore', DeprecationWarning)  # newer cuda.core wishes for other streams than Numba's
from numba.cuda.cudadrv import devicearray
view = devicearray._make_strided_memory_view  # it names its stream to NumPy, which refuses all but the default one
devicearray._make_strided_memory_view = lambda array, *, stream_ptr: view(array, stream_ptr=-1)
hosts = [np.zeros(N, np.int32) for _ in range(4)]
streams = [cuda.stream(), nonblocking(), cuda.default_stream(), cuda.stream()]
fill[1, 32](cuda.device_array(32, np.int32), 0)
before = vpmm.stats()['allocations']
for count in range(40):
    for number, (host, stream) in enumerate(zip(hosts, streams)):
        fill[blocks(N), 256, stream](host, count * 4 + number)
    for number, (host, stream) in enumerate(zip(hosts, streams)):
        stream.synchronize()
        assert (host == count * 4 + number).all(), (count, number)
fill[1, 32](np.zeros(0, np.int32), 1)
print(vpmm.stats()['allocations'] - before >= 160)
assert live() == 0, live()
""",
                    BEGIN + begin + REST,
                )
                self.assertEqual(out, f"{kernel_arguments}\n")


class Captures(OnGpu):
    def test_an_announced_capture_goes_on_beside_other_threads(self) -> None:
        self.passes("""
stream = nonblocking()
handle = cu.CUstream(int(stream.handle))
array = cuda.device_array(N, np.int32)
fill[blocks(N), 256, stream](array, 1)
stream.synchronize()
for count in range(20):
    stop = threading.Event()
    def beside(number):
        if number == 0:
            try:
                with vpmm.capture():
                    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                    assert cu.cuStreamBeginCapture(handle, mode)[0] == 0
                    fill[blocks(N), 256, stream](array, 100 + count)
                    for _ in range(20):
                        extra = cuda.device_array(N, np.int32)
                        del extra
                    error, graph = cu.cuStreamEndCapture(handle)
                    assert error == 0, error
                error, executable = cu.cuGraphInstantiate(graph, 0)
                assert error == 0, error
                assert cu.cuGraphLaunch(executable, handle)[0] == 0
                stream.synchronize()
            finally:
                stop.set()
        else:
            while not stop.is_set():
                cuda.device_array(1 << (4 + number * 4), np.int8)
    in_threads(4, beside)
    assert (array.copy_to_host() == 100 + count).all(), count
""")

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "torch not installed")
    def test_torch_captures_a_graph_while_numba_allocates(self) -> None:
        self.passes("""
import torch
warnings.simplefilter('ignore')
x = torch.zeros(N, device='cuda')
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x * 2 + 1
torch.cuda.synchronize()
cuda.device_array(64, np.int8)
for count in range(10):
    stop = threading.Event()
    def beside(number):
        if number == 0:
            try:
                graph = torch.cuda.CUDAGraph()
                with vpmm.capture(), torch.cuda.graph(graph, capture_error_mode='thread_local'):
                    y = x * 2 + 1
                x.fill_(count)
                graph.replay()
                torch.cuda.synchronize()
                assert (y == 2 * count + 1).all().item(), count
            finally:
                stop.set()
        else:
            while not stop.is_set():
                cuda.device_array(1 << (4 + number * 4), np.int8)
    in_threads(3, beside)
""")


class Callbacks(OnGpu):
    def test_the_last_reference_may_be_dropped_by_cudas_own_thread(self) -> None:
        # Not by Stream.add_callback, which is broken in Numba 0.30.
        self.passes("""
import collections, ctypes
stream = cuda.stream()
fill[1, 32](cuda.device_array(32, np.int32), 0)
waiting = collections.deque()
main, threads = threading.get_ident(), set()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def drop(data):
    threads.add(threading.get_ident())
    waiting.popleft().clear()
callback = cu.CUhostFn(ctypes.cast(drop, ctypes.c_void_p).value)
for count in range(200):
    page = own_pages()
    held = [cuda.device_array(N, np.int32), cuda.pinned_array(64), cuda.mapped_array(64), cuda.managed_array(64)]
    held.append(cuda.current_context().mempin(page, page.ctypes.data, page.nbytes))
    fill[blocks(N), 256, stream](held[0], count)
    waiting.append(held)
    del held
    assert cu.cuLaunchHostFunc(int(stream.handle), callback, 0)[0] == 0
    if count % 50 == 0:
        stream.synchronize()
stream.synchronize()
assert main not in threads and threads, threads
assert live() == 0, live()
""")


class Endings(OnGpu):
    HOLD = """
stream = cuda.stream()
page = np.zeros(1 << 16, np.int8)
pinned = cuda.pinned(page)
pinned.__enter__()
keep = [cuda.device_array(N, np.int32), cuda.to_device(page), cuda.pinned_array(64), cuda.mapped_array(64),
        cuda.managed_array(64), cuda.device_array(64 << 20, np.int8)[5:]]
keep.append(keep)
fill[blocks(N), 256, stream](keep[0], 1)
copy_late[blocks(N), 256, stream](keep[0], cuda.device_array(N, np.int32))
"""

    def test_everything_may_be_alive_at_exit_with_either_order_of_imports(self) -> None:
        endings = {
            "the end of the program": "",
            "sys.exit": "sys.exit(0)",
            "an exit handler that allocates": """
import atexit
def late():
    try:
        keep.append(cuda.device_array(64, np.int8))
    except vpmm.Error:
        pass
atexit.register(late)
""",
            "a thread that allocates": """
def forever():
    try:
        while True:
            cuda.device_array(4096, np.int8)
    except vpmm.Error:
        pass
threading.Thread(target=forever, daemon=True).start()
""",
            "after numba.cuda.close()": "cuda.close()",
            "after a reset": "cuda.current_context().reset()",
        }
        for imports in (NUMBA_FIRST, VPMM_FIRST):
            for name, ending in endings.items():
                with self.subTest(ending=name, imports=imports.splitlines()[0]):
                    self.passes(self.HOLD + ending, BEGIN + imports + REST)

    def test_a_forked_child_may_drop_everything(self) -> None:
        self.passes(
            self.HOLD
            + """
cuda.synchronize()
child = os.fork()
if child == 0:
    pinned.__exit__(None, None, None)
    keep.clear()
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (keep[0].copy_to_host() == 1).all()
"""
        )

    def test_after_close_new_arrays_are_right_and_old_ones_may_be_dropped(self) -> None:
        self.passes("""
old = []
for count in range(6):
    fill, copy_late = kernels()
    arrays = [cuda.device_array(N, np.int32) for _ in range(8)]
    for number, array in enumerate(arrays):
        fill[blocks(N), 256](array, count * 8 + number)
    host = np.arange(N, dtype=np.int32)
    with cuda.pinned(host):
        there = cuda.to_device(host)
    old.clear()
    for number, array in enumerate(arrays):
        assert (array.copy_to_host() == count * 8 + number).all(), (count, number)
    assert (there.copy_to_host() == host).all()
    old += [*arrays, there, cuda.mapped_array(64), cuda.managed_array(64), cuda.pinned_array(64)]
    del arrays, array, there
    cuda.close()
old.clear()
assert live() == 0, live()
""")

    def test_a_storm_of_resets_leaves_the_next_arrays_right(self) -> None:
        self.passes("""
host = np.arange(N, dtype=np.int32)
old = []
stop = threading.Event()
def work(number):
    if number == 0:
        try:
            for count in range(200):
                there = cuda.to_device(host + count)
                assert (there.copy_to_host() == host + count).all(), count
                old.append((there, cuda.mapped_array(64), cuda.managed_array(64)))
                cuda.current_context().reset()
                if count % 10 == 9:
                    old.clear()
        finally:
            stop.set()
    else:
        context = cuda.current_context()
        while not stop.is_set():
            context.memalloc(1 << (8 + number * 4))
in_threads(4, work)
old.clear()
gc.collect()
assert live() == 0, live()
""")


class Host(OnGpu):
    def test_the_same_pages_are_pinned_again_and_again(self) -> None:
        self.passes("""
pages = [own_pages() for _ in range(4)]
def work(number):
    page = pages[number]
    for count in range(200):
        with cuda.pinned(page):
            pass
        with cuda.defer_cleanup(), cuda.mapped(page) as mapped:
            assert mapped.size == page.size
in_threads(4, work)
""")


class Children(OnGpu):
    def test_a_child_with_the_same_environment_maps_nothing_ahead(self) -> None:
        code = """
import os, subprocess, sys
import numpy as np
from numba import cuda
import vpmm
array = cuda.device_array(64, np.int8)
print(vpmm.stats()['mapped_bytes'] >> 20, flush=True)
if len(sys.argv) == 1:
    with open(os.environ['CODE']) as file:
        sys.exit(subprocess.run([sys.executable, '-c', file.read(), 'child']).returncode)
"""
        import tempfile

        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(code)
            file.flush()
            out = self.passes(code, "", NUMBA_CUDA_MEMORY_MANAGER="vpmm", VPMM_PAGES="64", CODE=file.name)
        parent, child = (int(line) for line in out.split())
        self.assertGreaterEqual(parent, 128)
        self.assertLess(child, 64)


if __name__ == "__main__":
    unittest.main()
