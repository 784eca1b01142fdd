# SPDX-License-Identifier: Apache-2.0
"""tests: CuPy on the pool: the functions in C that it calls, with a stand-in for CuPy, and the real one where it is."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import tempfile
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vpmm
from vpmm import _vpmm

from program import output_of, run

MIB = 1 << 20
STREAM = ctypes.CFUNCTYPE(ctypes.c_ssize_t)
MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
FREE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
HAS_CUPY = unittest.skipUnless(importlib.util.find_spec("cupy"), "CuPy is not installed")


class OutOfMemoryError(MemoryError):
    """As CuPy's."""

    def __init__(self, size: int, total: int, limit: int) -> None:
        super().__init__(f"allocating {size} bytes (so far: {total} bytes, limit: {limit} bytes)")


def capsule(pointer: int, name: bytes) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: object = make(pointer, name, None)
    return made


class Functions(unittest.TestCase):
    def setUp(self) -> None:
        self.current = 0
        self.function = STREAM(lambda: self.current)
        self.name = b"intptr_t (void)"
        pointer = ctypes.cast(self.function, ctypes.c_void_p).value
        assert pointer is not None
        self.capi = {"get_current_stream_ptr": capsule(pointer, self.name)}
        _vpmm.cupy_connect(types.SimpleNamespace(__pyx_capi__=self.capi), OutOfMemoryError, object, int)
        malloc, free = _vpmm.cupy_functions()
        self.malloc: Callable[..., Any] = MALLOC(malloc)
        self.free: Callable[..., Any] = FREE(free)
        self.pool = vpmm.Pool.default()
        self.live = self.pool.statistics()["live_bytes"]

    def grown(self) -> int:
        return self.pool.statistics()["live_bytes"] - self.live

    def test_memory_is_the_pools_and_goes_back(self) -> None:
        ptr = self.malloc(None, 3 * MIB, 0)
        self.assertEqual(self.pool.query(ptr).requested, 3 * MIB)
        self.free(None, ptr, 0)
        self.assertEqual(self.grown(), 0)

    def test_a_free_is_in_the_order_of_the_stream_that_was_current_at_the_allocation(self) -> None:
        self.current = 1
        first = self.malloc(None, 64 << 10, 0)
        self.current = 2
        self.free(None, first, 0)
        other = self.malloc(None, 64 << 10, 0)
        self.current = 1
        again = self.malloc(None, 64 << 10, 0)
        self.assertEqual(again, first, "its own stream may use it at once")
        self.assertNotEqual(other, first)
        for ptr in (other, again):
            self.free(None, ptr, 0)

    def test_a_request_that_does_not_fit_is_cupys_error_with_the_report_as_its_cause(self) -> None:
        with self.assertRaises(OutOfMemoryError) as caught:
            _vpmm.cupy_allocate(1 << 45, 0)
        self.assertIsInstance(caught.exception.__cause__, vpmm.OutOfMemoryError)
        report = str(caught.exception.__cause__)
        total = vpmm.memory_info().total
        self.assertEqual(
            str(caught.exception),
            f"allocating {1 << 45} bytes (so far: {self.live} bytes, limit: {total} bytes)\n{report.splitlines()[0]}",
        )
        self.assertIn("out of device memory", report)

    def test_more_than_any_address_space_is_cupys_error_too(self) -> None:
        with self.assertRaises(OutOfMemoryError):
            _vpmm.cupy_allocate(1 << 60, 0)

    def test_other_failures_are_errors_of_the_pool(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "device 77"):
            _vpmm.cupy_allocate(1000, 77)

    def test_nothing_happens_for_zero_bytes_and_addresses_of_others(self) -> None:
        self.assertEqual(_vpmm.cupy_allocate(0, 0), 0)
        self.free(None, 0, 0)
        self.free(None, 0x1234, 0)
        self.assertEqual(self.grown(), 0)

    def test_an_exception_that_is_under_way_survives_a_free(self) -> None:
        ptr = self.malloc(None, 1000, 0)
        with self.assertRaisesRegex(ValueError, "first"):
            try:
                raise ValueError("first")
            finally:
                self.free(None, ptr, 0)

    def test_a_cupy_without_the_function_is_refused(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "this CuPy has no function"):
            _vpmm.cupy_connect(types.SimpleNamespace(__pyx_capi__={}), OutOfMemoryError, object, int)

    def test_threads_may_allocate_and_free_each_others_memory(self) -> None:
        import threading

        made: list[int] = []

        def work() -> None:
            for i in range(200):
                made.append(_vpmm.cupy_allocate(1000 + i, 0))
                if i % 2:
                    _vpmm.cupy_free(made.pop(), 0)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ptr in made:
            _vpmm.cupy_free(ptr, 0)
        self.assertEqual(self.grown(), 0)


ON_A_STREAM = """
import ctypes, gc, sys, types, vpmm
sys.path.insert(0, {here!r})
from test_cupy_plugin import STREAM, OutOfMemoryError, capsule
from vpmm import _vpmm
cuda = ctypes.CDLL("libcuda.so.1")
class Stream:
    def __init__(self):
        made = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
        self.ptr = made.value
    def __del__(self):
        print("destroyed", cuda.cuStreamDestroy_v2(ctypes.c_void_p(self.ptr)))
class External:
    def __init__(self, ptr):
        self.ptr = ptr
here = [None]
function = STREAM(lambda: here[0].ptr)
capi = {{"get_current_stream_ptr": capsule(ctypes.cast(function, ctypes.c_void_p).value, b"intptr_t (void)")}}
_vpmm.cupy_connect(types.SimpleNamespace(__pyx_capi__=capi), OutOfMemoryError, lambda: here[0], External)
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
"""
SIM_GPU = Path(os.environ.get("VPMM_BUILD_FOLDER", "."), "sim_gpu/libcuda.so.1").resolve()


@unittest.skipUnless(SIM_GPU.exists(), "no simulated libcuda")
class OnAStream(unittest.TestCase):
    """CUDA crashes on a stream that was destroyed, and so does the simulated one."""

    def outcome(self, code: str, **variables: str) -> str:
        begin = ON_A_STREAM.format(here=str(Path(__file__).parent))
        return output_of(begin + code, LD_PRELOAD=str(SIM_GPU), VPMM_DRIVER="cuda", **variables)

    def test_an_allocation_keeps_the_object_of_its_stream_until_it_is_freed(self) -> None:
        code = (
            "here[0] = Stream()\nfirst, second = (_vpmm.cupy_allocate(3 << 20, 0) for _ in range(2))\n"
            "here[0] = Stream()\nprint('others')\n"
            "_vpmm.cupy_free(first, 0)\nprint('one is left')\n_vpmm.cupy_free(second, 0)\nprint('none')\n"
            "print(vpmm.stats()['live_bytes'])"
        )
        self.assertEqual(self.outcome(code), "others\none is left\ndestroyed 0\nnone\n0\n")

    def test_what_a_stream_freed_itself_is_had_without_waiting(self) -> None:
        code = (
            "from pathlib import Path\n"
            "vpmm_h = ctypes.CDLL(str(Path(vpmm.__file__).with_name('libvpmm.so.0')))\n"
            "pool, ptr = ctypes.c_void_p(), ctypes.c_void_p()\n"
            "print(vpmm_h.vpmm_default_pool(0, ctypes.byref(pool)))\n"
            "stream = Stream()\nmine, here[0] = ctypes.c_void_p(stream.ptr), stream\n"
            "attempt = lambda: vpmm_h.vpmm_try_allocate(\n"
            "    pool, ctypes.c_size_t(3000), ctypes.c_size_t(0), mine, ctypes.byref(ptr))\n"
            "print(attempt() == 0)\n"
            "first = _vpmm.cupy_allocate(3000, 0)\n_vpmm.cupy_free(first, 0)\n"
            "print(attempt(), ptr.value == first)\n"
            "print(vpmm_h.vpmm_try_deallocate(pool, ptr, mine), vpmm.stats()['live_bytes'])"
        )
        self.assertEqual(self.outcome(code), "0\nFalse\n0 True\n0 0\n")

    def test_memory_for_an_external_stream_is_freed_when_that_is_gone(self) -> None:
        code = (
            "own = Stream()\nhere[0] = External(own.ptr)\nptr = _vpmm.cupy_allocate(3 << 20, 0)\n"
            "del own\n_vpmm.cupy_free(ptr, 0)\nprint(vpmm.stats()['live_bytes'])"
        )
        self.assertEqual(self.outcome(code), "destroyed 0\n0\n")

    def test_its_memory_has_its_name_as_a_tag_if_a_limit_names_it(self) -> None:
        code = (
            "here[0] = Stream()\nfirst = _vpmm.cupy_allocate(3 << 20, 0)\nsmall = _vpmm.cupy_allocate(1000, 0)\n"
            "print(vpmm.tag_info('cupy').live_bytes == (3 << 20) + 1000)\n"
            "try:\n    _vpmm.cupy_allocate(2 << 20, 0)\n"
            "except OutOfMemoryError as error:\n    print('of its limit of 4 MiB' in str(error))\n"
            "_vpmm.cupy_free(first, 0)\n_vpmm.cupy_free(small, 0)\nhere[0] = None\n"
            "print(vpmm.tag_info('cupy').live_bytes)"
        )
        self.assertEqual(self.outcome(code, VPMM_LIMITS="cupy=4MiB"), "True\nTrue\ndestroyed 0\n0\n")

    def test_a_request_that_fails_keeps_no_stream(self) -> None:
        code = (
            "here[0] = Stream()\ntry:\n    _vpmm.cupy_allocate(1 << 45, 0)\n"
            "except OutOfMemoryError:\n    pass\nhere[0] = None\nprint('end')"
        )
        self.assertEqual(self.outcome(code), "destroyed 0\nend\n")


CUPYS_MEMORY = """
import ctypes, sys, types, cupy, vpmm
sys.path.insert(0, {here!r})
from test_cupy_plugin import STREAM, capsule
from vpmm import _vpmm
from vpmm.plugins.cupy import _RAISES, _version_of
if _version_of(cupy) < _RAISES:
    print('too old')
    sys.exit()
function = STREAM(lambda: 0)
capi = {{'get_current_stream_ptr': capsule(ctypes.cast(function, ctypes.c_void_p).value, b'intptr_t (void)')}}
errors = cupy.cuda.memory.OutOfMemoryError
_vpmm.cupy_connect(types.SimpleNamespace(__pyx_capi__=capi), errors, object, cupy.cuda.ExternalStream)
def memory(size, device=0):
    return cupy.cuda.memory.CFunctionAllocatorMemory(size, 0, *_vpmm.cupy_functions(), device)
live = lambda: vpmm.stats()['live_bytes']
"""


@HAS_CUPY
class CupysMemory(unittest.TestCase):
    """The functions in C under CuPy's own class of memory, which needs no GPU where it is told the device."""

    def outcome(self, code: str) -> str:
        said = output_of(CUPYS_MEMORY.format(here=str(Path(__file__).parent)) + code)
        if said == "too old\n":
            self.skipTest("this CuPy ends the process when a C allocator fails")
        return said

    def test_it_is_the_pools_until_the_object_dies(self) -> None:
        code = "held = memory(3 << 20)\nprint(live() == 3 << 20, held.ptr != 0)\ndel held\nprint(live())"
        self.assertEqual(self.outcome(code), "True True\n0\n")

    def test_an_error_passes_through_cupy_with_its_cause(self) -> None:
        code = (
            "for size, device in ((1 << 45, 0), (1000, 77)):\n"
            "    try:\n        memory(size, device)\n"
            "    except Exception as error:\n"
            "        print(type(error).__name__, getattr(error.__cause__, 'requested', None))\n"
            "memory(1000)\nprint(live())"
        )
        self.assertEqual(self.outcome(code), f"OutOfMemoryError {1 << 45}\nInvalidArgumentError None\n0\n")

    def test_memory_that_is_alive_when_the_interpreter_ends_does_no_harm(self) -> None:
        code = (
            "import atexit, builtins\n"
            "builtins.kept = [memory(1000 << i) for i in range(12)]\nin_cycle = [memory(1000)]\n"
            "in_cycle.append(in_cycle)\natexit.register(lambda: print('ends'))"
        )
        self.assertEqual(self.outcome(code), "ends\n")


class Installing(unittest.TestCase):
    @unittest.skipIf(importlib.util.find_spec("cupy"), "CuPy is installed here")
    def test_without_cupy_it_says_so(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "CuPy cannot be imported"):
            vpmm.use_for_cupy()

    @HAS_CUPY
    def test_cupy_has_the_allocator_after_it(self) -> None:
        code = (
            "import cupy, vpmm, vpmm.cupy\nprint(vpmm.cupy.is_installed())\nvpmm.use_for_cupy()\nvpmm.use_for_cupy()\n"
            "print(vpmm.cupy.is_installed())\n"
            "with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):\n    print(vpmm.cupy.is_installed())"
        )
        self.assertEqual(output_of(code), "False\nTrue\nFalse\n")

    @HAS_CUPY
    def test_the_run_verb_installs_it_and_names_it_to_children(self) -> None:
        code = "import os, cupy, vpmm.cupy\nprint(vpmm.cupy.is_installed(), os.environ['VPMM_USE'])"
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "program.py")
            script.write_text(code)
            done = run("-m", "vpmm", "run", "--use", "cupy", str(script), VPMM_USE="numba")
        self.assertEqual((done.returncode, done.stdout), (0, "True cupy\n"), done.stderr)

    @HAS_CUPY
    def test_the_variable_installs_it_when_cupy_is_imported(self) -> None:
        code = (
            "import vpmm_autoload\nvpmm_autoload.start()\nimport sys\nprint('vpmm' in sys.modules)\n"
            "import cupy, vpmm.cupy\nprint(vpmm.cupy.is_installed())"
        )
        for variables in ({"VPMM_USE": "cupy"}, {"VPMM_CUPY": "1"}):
            self.assertEqual(output_of(code, **variables), "False\nTrue\n")

    @HAS_CUPY
    def test_a_limit_of_cupys_own_pool_is_warned_of(self) -> None:
        code = "import cupy, vpmm\nvpmm.use_for_cupy()\nprint(vpmm.cupy.is_installed())"
        done = run("-W", "default", "-c", code, CUPY_GPU_MEMORY_LIMIT="50%")
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)
        self.assertIn("VpmmWarning: vpmm: CUPY_GPU_MEMORY_LIMIT has no effect: VPMM_CAPACITY limits", done.stderr)


class Variables(unittest.TestCase):
    """VPMM_USE, with stand-ins for libraries."""

    def test_a_library_is_seen_to_when_its_import_is_over(self) -> None:
        code = (
            "import sys, types, tempfile, pathlib\n"
            "folder = tempfile.mkdtemp()\n"
            "pathlib.Path(folder, 'cupy.py').write_text('ready = True')\n"
            "sys.path.insert(0, folder)\n"
            "plugin = types.ModuleType('vpmm.plugins.cupy')\n"
            "plugin.install = lambda: print('installed', sys.modules['cupy'].ready)\n"
            "import vpmm.plugins, vpmm_autoload\n"
            "sys.modules['vpmm.plugins.cupy'] = plugin\n"
            "vpmm_autoload.start()\nvpmm_autoload.start()\n"
            "import cupy\nimport cupy\nprint(cupy.__spec__.loader.__class__.__name__, cupy.__file__ is not None)"
        )
        self.assertEqual(output_of(code, VPMM_USE="cupy"), "installed True\nSourceFileLoader True\n")
        self.assertEqual(output_of(code), "SourceFileLoader True\n", "nobody asked")

    def test_looking_for_a_library_and_an_import_that_fails_leave_it_waited_for(self) -> None:
        code = (
            "import importlib.util, sys, types, tempfile, pathlib\n"
            "folder = tempfile.mkdtemp()\n"
            "pathlib.Path(folder, 'cupy.py').write_text('import settings')\n"
            "sys.path.insert(0, folder)\n"
            "plugin = types.ModuleType('vpmm.plugins.cupy')\n"
            "plugin.install = lambda: print('installed')\n"
            "import vpmm.plugins, vpmm_autoload\n"
            "sys.modules['vpmm.plugins.cupy'] = plugin\n"
            "vpmm_autoload.start()\n"
            "spec = importlib.util.find_spec('cupy')\n"
            "print(spec.origin, spec.loader.get_filename('cupy') == spec.origin)\n"
            "try:\n    import cupy\n"
            "except ImportError as error:\n    print(error.name)\n"
            "sys.modules['settings'] = types.ModuleType('settings')\n"
            "import cupy\n"
            "print(importlib.util.find_spec('cupy').loader.__class__.__name__)"
        )
        said = output_of(code, VPMM_USE="cupy")
        self.assertRegex(said, r"^/.*/cupy\.py True\nsettings\ninstalled\nSourceFileLoader\n$")

    def test_what_is_asked_for_later_is_seen_to_as_well(self) -> None:
        code = (
            "import os, sys, types, tempfile, pathlib\n"
            "folder = tempfile.mkdtemp()\n"
            "sys.path.insert(0, folder)\n"
            "import vpmm.plugins, vpmm_autoload\n"
            "for name in ('cupy', 'rmm'):\n"
            "    pathlib.Path(folder, name + '.py').write_text('')\n"
            "    plugin = types.ModuleType('vpmm.plugins.' + name)\n"
            "    plugin.install = lambda name=name: print('installed', name)\n"
            "    sys.modules[plugin.__name__] = plugin\n"
            "vpmm_autoload.start()\nos.environ['VPMM_USE'] = 'cupy,rmm'\nvpmm_autoload.start()\n"
            "import rmm\nimport cupy"
        )
        self.assertEqual(output_of(code, VPMM_CUPY="1"), "installed rmm\ninstalled cupy\n")

    def test_the_package_on_pythonpath_sees_to_them_when_it_is_imported(self) -> None:
        library = "sys.modules['rmm'] = types.ModuleType('rmm')\n"
        for first in ("import vpmm", "import vpmm_autoload as torch_calls\ntorch_calls.autoload()"):
            done = run("-W", "default", "-c", f"import sys, types\n{library}{first}\nprint('on')", VPMM_RMM="1")
            self.assertEqual((done.returncode, done.stdout), (0, "on\n"))
            self.assertIn("VPMM_RMM is set, but RMM keeps its own CUDA allocator: ", done.stderr)
            done = run("-c", f"import sys, types\n{library}{first}\nprint('on')", VPMM_RMM="require")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("ImportError: VPMM_RMM=require, and RMM cannot use VPMM", done.stderr)
        code = "import vpmm, vpmm_autoload, sys\nprint(vpmm_autoload._after_import in sys.meta_path)"
        self.assertEqual(output_of(code, VPMM_CUPY="require"), "True\n")
        self.assertEqual(output_of("import vpmm, sys\nprint('vpmm_autoload' in sys.modules)"), "False\n")

    def test_numba_that_was_imported_before_the_package_on_pythonpath_is_named(self) -> None:
        code = "import sys, types\nsys.modules['numba'] = types.ModuleType('numba')\nimport vpmm\n"
        done = run("-W", "default", "-c", code, VPMM_USE="numba")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("VPMM_USE is set, but Numba was imported before that was read", done.stderr)

    def test_a_name_that_is_none_is_reported_with_the_nearest(self) -> None:
        done = run("-W", "default", "-c", "import vpmm_autoload\nvpmm_autoload.start()", VPMM_USE="cuppy,torch")
        self.assertIn("VPMM_USE=cuppy,torch: `cuppy` is no library that VPMM knows: is `cupy` meant?", done.stderr)
        done = run("-W", "default", "-c", "import vpmm_autoload\nvpmm_autoload.start()", VPMM_USE="xyz")
        self.assertIn("it knows torch, cupy, rmm, numba", done.stderr)
        code = "import vpmm_autoload\nvpmm_autoload.start()\nprint(vpmm_autoload.asked_for())"
        done = run("-W", "default", "-c", code, VPMM_USE="none")
        self.assertEqual((done.stdout, done.stderr), ("{}\n", ""))

    def test_a_start_that_is_repeated_repeats_no_message(self) -> None:
        code = "import vpmm_autoload\nvpmm_autoload.start()\nvpmm_autoload.start()"
        done = run("-W", "default", "-c", code, VPMM_USE="cuppy", VPMM_RMM="2")
        self.assertEqual(len(done.stderr.splitlines()), 2)

    def test_what_goes_wrong_is_a_line_on_standard_error(self) -> None:
        code = (
            "import sys, types\nsys.modules['rmm'] = types.ModuleType('rmm')\nimport vpmm_autoload\n"
            "vpmm_autoload.start()\nprint('on it goes')"
        )
        done = run("-W", "default", "-c", code, VPMM_RMM="1")
        self.assertEqual((done.returncode, done.stdout), (0, "on it goes\n"))
        self.assertIn("VPMM_RMM is set, but RMM keeps its own CUDA allocator: ", done.stderr)

    def test_it_ends_no_import_where_warnings_are_errors(self) -> None:
        code = (
            "import sys, types\nsys.modules['rmm'] = types.ModuleType('rmm')\nimport vpmm_autoload\n"
            "vpmm_autoload.start()\nprint('on it goes')"
        )
        done = run("-W", "error", "-c", code, VPMM_USE="rm,rmm")
        self.assertEqual((done.returncode, done.stdout), (0, "on it goes\n"))
        self.assertIn("vpmm: VPMM_USE=rm,rmm: `rm` is no library", done.stderr)
        self.assertIn("vpmm: VPMM_USE is set, but RMM keeps its own CUDA allocator: ", done.stderr)

    def test_numba_reads_a_variable_of_its_own_which_the_user_may_have_set(self) -> None:
        code = "import os, vpmm_autoload\nvpmm_autoload.start()\nprint(os.environ['NUMBA_CUDA_MEMORY_MANAGER'])"
        self.assertEqual(output_of(code, VPMM_USE="numba"), "vpmm\n")
        named = "vpmm.plugins.numba"
        self.assertEqual(output_of(code, VPMM_USE="numba", NUMBA_CUDA_MEMORY_MANAGER=named), f"{named}\n")
        done = run("-W", "default", "-c", code, VPMM_USE="numba", NUMBA_CUDA_MEMORY_MANAGER="default")
        self.assertEqual((done.returncode, done.stdout), (0, "default\n"))
        self.assertIn("VPMM_USE is set, but so is NUMBA_CUDA_MEMORY_MANAGER=default, and Numba does as", done.stderr)

    def test_pytorch_is_asked_for_by_either_variable(self) -> None:
        code = "import vpmm_autoload\nprint(vpmm_autoload.asked_for())"
        self.assertEqual(output_of(code, VPMM_USE="torch, NUMBA"), "{'torch': 'VPMM_USE', 'numba': 'VPMM_USE'}\n")
        self.assertEqual(output_of(code, VPMM_TORCH="1", VPMM_USE="torch"), "{'torch': 'VPMM_TORCH'}\n")
        self.assertEqual(output_of(code, VPMM_TORCH="0"), "{}\n")


if __name__ == "__main__":
    unittest.main()
