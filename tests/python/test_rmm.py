# SPDX-License-Identifier: Apache-2.0
"""tests: RMM's resources over the pool, compiled and through Python, with RMM's own package on the simulator."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path

from vpmm import recordings

from program import PACKAGE_PARENT, output_of, run

ABSENT = "" if importlib.util.find_spec("rmm") else "rmm not installed"
BUILD = os.environ.get("VPMM_BUILD_FOLDER")
CACHE = str(Path(BUILD, "rmm")) if BUILD else tempfile.mkdtemp(prefix="vpmm-test-rmm-")
BEGIN = """
import rmm, rmm.mr
import vpmm, vpmm.rmm
MIB = 1 << 20
def live():
    return vpmm.stats()["live_allocations"], vpmm.stats()["live_bytes"]
"""
WITHOUT_CYTHON = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "Cython" else find_spec(name, *more)
"""
USES = """
resource = vpmm.rmm.memory_resource(0)
pointer = resource.allocate(5 * MIB)
print(live())
resource.deallocate(pointer, 5 * MIB)
print(live(), resource.allocate(0))
try:
    resource.allocate(1 << 45)
except MemoryError as error:
    print("out of device memory: asked for 32 TiB" in str(error))
try:
    resource.allocate(1 << 50)
except MemoryError as error:
    print("more than the GPU has" in str(error))
asked = []
def callback(size):
    asked.append(size)
    return len(asked) < 2
try:
    rmm.mr.FailureCallbackResourceAdaptor(resource, callback).allocate(1 << 45)
except MemoryError:
    print(asked == [1 << 45] * 2)
"""
USED = f"(1, {5 << 20})\n(0, 0) 0\nTrue\nTrue\nTrue\n"


@unittest.skipIf(ABSENT, ABSENT)
class Rmm(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        run("-m", "vpmm", "build-rmm", VPMM_CACHE_DIR=CACHE)  # which says that it compiles

    def output(self, code: str, **environment: str) -> str:
        return output_of(BEGIN + code, VPMM_CACHE_DIR=CACHE, **environment)


class Compiled(Rmm):
    def test_it_allocates_frees_and_fails_as_rmm_expects(self) -> None:
        self.assertEqual(self.output(USES + "print(resource)"), USED + "<vpmm.rmm.MemoryResource of device 0>\n")

    def test_its_memory_has_its_name_as_a_tag_if_asked(self) -> None:
        code = (
            "resource = vpmm.rmm.memory_resource(0)\npointer = resource.allocate(5 * MIB)\n"
            "print([(tag.name, tag.live_bytes) for tag in vpmm.tags()])\nresource.deallocate(pointer, 5 * MIB)\n"
            "print(vpmm.tags())"
        )
        self.assertEqual(self.output(code), "[]\n()\n")
        self.assertEqual(self.output(code, VPMM_TAG_LIBRARIES="1"), f"[('rmm', {5 << 20})]\n()\n")

    def test_the_streams_that_rmm_names_are_the_pools(self) -> None:
        code = """
import gzip, os, tempfile
from rmm.pylibrmm.stream import DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM
path = os.path.join(tempfile.mkdtemp(), "trace.csv.gz")
resource = vpmm.rmm.memory_resource(0)
with vpmm.record(path):
    for stream in (DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM):
        resource.deallocate(resource.allocate(MIB, stream), MIB, stream)
with gzip.open(path, "rt") as lines:
    print([line.split(",")[0] + line.split(",")[3] for line in list(lines)[1:]])
"""
        self.assertEqual(self.output(code), "['a0', 'f0', 'a1', 'f1']\n")

    def test_adaptors_stack_on_it(self) -> None:
        code = """
resource = rmm.mr.TrackingResourceAdaptor(vpmm.rmm.memory_resource(0))
resource = rmm.mr.StatisticsResourceAdaptor(rmm.mr.LimitingResourceAdaptor(resource, 8 * MIB))
pointer = resource.allocate(5 * MIB)
print(resource.allocation_counts.current_bytes // MIB, live()[0])
try:
    resource.allocate(4 * MIB)
except MemoryError as error:
    print("limit" in str(error).lower())
resource.deallocate(pointer, 5 * MIB)
pool = rmm.mr.PoolMemoryResource(vpmm.rmm.memory_resource(0), initial_pool_size=8 * MIB, maximum_pool_size=8 * MIB)
print(live())
"""
        self.assertEqual(self.output(code), f"5 1\nTrue\n(1, {8 << 20})\n")

    def test_a_second_process_needs_no_compiler(self) -> None:
        self.output(USES)
        self.assertEqual(self.output(USES, CXX="false"), USED)

    def test_threads_allocate_at_the_same_time(self) -> None:
        code = """
from concurrent.futures import ThreadPoolExecutor
resource = vpmm.rmm.memory_resource(0)
def work(number):
    for size in range(1, 300):
        resource.deallocate(resource.allocate(size * 1000 + number), size * 1000 + number)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
print(live(), vpmm.stats()["allocations"])
"""
        self.assertEqual(self.output(code), f"(0, 0) {8 * 299}\n")

    def test_when_memory_runs_out_the_pools_callback_is_asked(self) -> None:
        code = """
pool = vpmm.configure(capacity=8 * MIB)
resource = vpmm.rmm.memory_resource(0)
kept = [resource.allocate(6 * MIB)]
def give_back(device, size):
    if kept:
        resource.deallocate(kept.pop(), 6 * MIB)
        return True
    return False
pool.set_out_of_memory_callback(give_back)
resource.allocate(7 * MIB)
print(kept, live()[0])
"""
        self.assertEqual(self.output(code), "[] 1\n")

    def test_a_device_that_cannot_be_is_refused_by_name(self) -> None:
        code = """
try:
    vpmm.rmm.memory_resource(64)
except ValueError as error:
    print(error)
try:
    vpmm.rmm.memory_resource(1).allocate(1)
except RuntimeError as error:
    print("device 1" in str(error))
"""
        self.assertEqual(self.output(code), "there is no device 64\nTrue\n")

    def test_the_process_ends_well_with_memory_in_use_and_the_resource_set(self) -> None:
        code = """
vpmm.use_for_rmm()
keep = [rmm.mr.get_per_device_resource(0).allocate(size) for size in (100, 5 * MIB)]
print("done")
"""
        self.assertEqual(self.output(code), "done\n")

    def test_a_forked_child_is_refused_and_frees_nothing(self) -> None:
        code = """
import os
resource = vpmm.rmm.memory_resource(0)
pointer = resource.allocate(MIB)
child = os.fork()
if child == 0:
    resource.deallocate(pointer, MIB)
    try:
        resource.allocate(MIB)
    except RuntimeError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), live()[0])
"""
        self.assertEqual(self.output(code), "7 1\n")

    def test_the_verb_prints_where_the_library_is(self) -> None:
        done = run("-m", "vpmm", "build-rmm", VPMM_CACHE_DIR=CACHE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(Path(done.stdout.strip()).is_file(), done.stdout)

    def test_the_verb_run_records_what_it_allocates(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program, trace = Path(folder, "program.py"), Path(folder, "trace.csv")
            program.write_text("import rmm.mr\nrmm.mr.get_per_device_resource(0).allocate(5 << 20)\n")
            done = run("-m", "vpmm", "run", "--use", "rmm", "--record", str(trace), str(program), VPMM_CACHE_DIR=CACHE)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual([event.bytes for event in recordings.read(trace).events], [5 << 20])


class Benchmark(Rmm):
    def test_it_measures_both_of_our_resources(self) -> None:
        script = str(Path(__file__).resolve().parents[2] / "bench/rmm_allocations.py")
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--resources", "vpmm", "vpmm-callbacks", "--rounds", "1", "--pairs", "20", "--out", folder]
            done = run(script, *arguments, VPMM_CACHE_DIR=CACHE)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = Path(folder, "rmm-allocations.md").read_text()
        self.assertIn("| | vpmm | vpmm-callbacks |", text)
        self.assertRegex(text, r"\| 64 MiB, 8 threads, per-thread default \| [\d.]+ \(")


class Installing(Rmm):
    def test_it_gives_every_device_a_resource_and_opens_no_pool(self) -> None:
        code = """
vpmm.use_for_rmm()
print(vpmm.rmm.is_installed())
vpmm.configure(capacity=1 << 30)  # refused once the pool is open
try:
    rmm.mr.get_per_device_resource(0).allocate(2 << 30)
except MemoryError:
    print("limited")
"""
        self.assertEqual(self.output(code), "True\nlimited\n")

    def test_it_replaces_none_of_rmms_own_resources(self) -> None:
        code = """
before = dict(vars(rmm.mr))
vpmm.use_for_rmm()
print(vpmm.rmm.is_installed(), vars(rmm.mr) == before, hasattr(rmm.mr, "ManagedMemoryResource"))
"""
        self.assertEqual(self.output(code), "True True True\n")

    def test_resources_may_come_and_go(self) -> None:
        code = """
import sys
kind = type(vpmm.rmm.memory_resource(0))
before = sys.getrefcount(kind)
for _ in range(100):
    vpmm.rmm.memory_resource(0)
print(kind.__module__, sys.getrefcount(kind) - before)
"""
        self.assertEqual(self.output(code), "vpmm_rmm_resource 0\n")

    @unittest.skipUnless(BUILD and Path(BUILD, "sim_gpu/libcuda.so.1").exists(), "no simulated libcuda")
    def test_memory_of_each_device_is_of_its_pool(self) -> None:
        code = """
vpmm.use_for_rmm()
print(vpmm.device_count(), vpmm.rmm.is_installed(0), vpmm.rmm.is_installed(1), vpmm.rmm.is_installed(2))
pointer = rmm.mr.get_per_device_resource(1).allocate(5 * MIB)
print(vpmm.stats(0)["live_bytes"], vpmm.stats(1)["live_bytes"] // MIB)
"""
        library = str(Path(BUILD or "", "sim_gpu/libcuda.so.1"))
        said = self.output(code, VPMM_DRIVER="cuda", LD_PRELOAD=library, VPMM_SIM_GPU_DEVICES="2")
        self.assertEqual(said, "2 True True False\n0 5\n")

    def test_a_second_time_it_leaves_ours_and_what_stacks_on_it(self) -> None:
        code = """
vpmm.use_for_rmm()
stacked = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_per_device_resource(0))
rmm.mr.set_per_device_resource(0, stacked)
vpmm.use_for_rmm()
print(rmm.mr.get_per_device_resource(0) is stacked, vpmm.rmm.is_installed())
"""
        self.assertEqual(self.output(code), "True True\n")

    def test_after_the_program_set_another_it_takes_its_place_again(self) -> None:
        code = """
vpmm.use_for_rmm()
rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
print(vpmm.rmm.is_installed())
vpmm.use_for_rmm()
print(vpmm.rmm.is_installed())
"""
        self.assertEqual(self.output(code), "False\nTrue\n")


class ThroughPython(Rmm):
    def test_it_does_the_same_where_the_resource_cannot_be_compiled(self) -> None:
        code = WITHOUT_CYTHON + "import warnings\nwarnings.simplefilter('ignore')\n"
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(output_of(code + BEGIN + USES, VPMM_CACHE_DIR=empty, VPMM_LOG="error"), USED)

    def test_its_memory_has_its_name_as_a_tag_if_asked(self) -> None:
        code = (
            "import warnings\nwarnings.simplefilter('ignore')\n"
            "resource = vpmm.rmm.memory_resource(0)\npointer = resource.allocate(5 * MIB)\n"
            "print([(tag.name, tag.live_bytes) for tag in vpmm.tags()])\nresource.deallocate(pointer, 5 * MIB)\n"
            "print(vpmm.tag_info('rmm').live_bytes)"
        )
        with tempfile.TemporaryDirectory() as empty:
            limit = {"VPMM_LIMITS": "rmm=25%", "VPMM_LOG": "error"}
            said = output_of(WITHOUT_CYTHON + BEGIN + code, VPMM_CACHE_DIR=empty, **limit)
        self.assertEqual(said, f"[('rmm', {5 << 20})]\n0\n")

    def test_it_says_why_once(self) -> None:
        code = (
            WITHOUT_CYTHON
            + BEGIN
            + """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    vpmm.use_for_rmm()
    vpmm.rmm.memory_resource(0)
print(len(caught), "pip install cython" in str(caught[0].message), vpmm.rmm.is_installed())
"""
        )
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(output_of(code, VPMM_CACHE_DIR=empty, VPMM_LOG="error"), "1 True True\n")

    def test_a_compiler_that_fails_is_quoted(self) -> None:
        code = "try:\n    vpmm.rmm.build()\nexcept vpmm.Error as error:\n    print(error)"
        with tempfile.TemporaryDirectory() as empty:
            wrong = {"CXX": "g++ -include /no/such/header", "VPMM_LOG": "error"}
            said = output_of(BEGIN + code, VPMM_CACHE_DIR=empty, **wrong)
        self.assertIn("the resource for RMM", said)
        self.assertIn("/no/such/header", said)


class WithoutRmm(unittest.TestCase):
    def test_an_older_version_is_refused_by_name(self) -> None:
        code = "import vpmm\ntry:\n    vpmm.use_for_rmm()\nexcept vpmm.Error as error:\n    print(error)"
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder, "rmm")
            package.mkdir()
            (package / "__init__.py").write_text('__version__ = "26.04.00"\n')
            (package / "mr.py").touch()
            said = output_of(code, PYTHONPATH=f"{folder}:{PACKAGE_PARENT}")
        self.assertEqual(said, "RMM 26.04.00 is not supported: 26.06 or newer is needed\n")

    @unittest.skipUnless(ABSENT, "RMM is installed here")
    def test_without_rmm_the_verb_says_so(self) -> None:
        done = run("-m", "vpmm", "build-rmm")
        self.assertEqual(done.returncode, 1)
        self.assertIn("RMM is not installed here", done.stderr)


if __name__ == "__main__":
    unittest.main()
