# SPDX-License-Identifier: Apache-2.0
"""tests: Numba's plugin against the real classes of numba-cuda, with a pool and a driver that write down each call."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import unittest
import weakref
from collections.abc import Callable
from typing import Any

from numba_plugin_case import PluginTest
from numba_stand_ins import (
    Context,
    Pools,
    RecordingPool,
    attributes,
    run_python,
)


class NumbaMemalloc(PluginTest):
    def test_memory_comes_from_the_pool_and_goes_back_when_it_is_dropped(self) -> None:
        memory = self.ready().memalloc(80)
        (address,) = self.pool.live
        self.assertEqual(memory.device_pointer_value, address)
        self.assertEqual(memory.size, 80)
        del memory
        self.assertEqual(self.pool.calls, [("allocate_any_stream", 80), ("deallocate_deferred", address)])
        self.assertEqual(self.cuda.calls, [])

    def test_the_pointer_is_what_numba_and_others_read(self) -> None:
        memory = self.ready().memalloc(80)
        self.assertIs(type(memory), self.target.MemoryPointer)
        self.assertIsInstance(memory.device_pointer, self.target.binding.CUdeviceptr)
        self.assertIsInstance(memory.device_ctypes_pointer, ctypes.c_size_t)
        self.assertEqual(memory.refct, 1)
        self.assertTrue(memory.is_managed)
        self.assertTrue(memory.__cuda_memory__)

    def test_a_slice_outlives_its_root_and_a_root_its_slices(self) -> None:
        root = self.ready().memalloc(100)
        view = root.view(10, 20)
        del view
        self.assertEqual(len(self.pool.live), 1)
        view = root.view(10, 20)
        del root
        self.assertEqual(len(self.pool.live), 1)
        del view
        self.assertEqual(self.pool.live, {})

    def test_zero_bytes_are_a_null_pointer_that_nobody_frees(self) -> None:
        memory = self.ready().memalloc(0)
        self.assertIsNone(memory.device_pointer_value)
        self.assertEqual(memory.size, 0)
        self.assertIs(memory.view(0)._view if hasattr(memory.view(0), "_view") else memory, memory)
        del memory
        self.assertNotIn("deallocate_deferred", self.pool.names())

    def test_a_size_of_numpys_is_taken(self) -> None:
        import numpy as np

        memory = self.ready().memalloc(np.int64(80))
        self.assertEqual(list(self.pool.live.values()), [80])
        self.assertIs(type(next(iter(self.pool.live.values()))), int)
        del memory

    def test_an_explicit_free_is_the_only_one(self) -> None:
        memory = self.ready().memalloc(80)
        memory.free()
        with self.assertRaisesRegex(RuntimeError, "Freeing dead memory"):
            memory.free()
        del memory
        self.assertEqual(self.pool.names().count("deallocate_deferred"), 1)

    def test_running_out_of_memory_is_an_error_of_all_three_kinds(self) -> None:
        import vpmm

        manager = self.ready()
        self.pool.out_of_memory = True
        with self.assertRaisesRegex(MemoryError, "80 bytes are not there") as caught:
            manager.memalloc(80)
        self.assertIsInstance(caught.exception, vpmm.OutOfMemoryError)
        self.assertIsInstance(caught.exception, self.target.CudaAPIError)
        self.assertEqual(
            caught.exception.code,  # type: ignore[attr-defined]  # CudaAPIError's
            self.target.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY,
        )

    def test_a_device_array_of_numba_lives_on_it(self) -> None:
        import numpy as np
        from numba.cuda.cudadrv import devicearray

        self.context.memalloc = self.ready().memalloc  # type: ignore[attr-defined]
        with attributes(devicearray.devices, get_context=lambda: self.context):
            array = devicearray.DeviceNDArray(shape=(10,), strides=(8,), dtype=np.dtype(np.float64))
            self.assertEqual(list(self.pool.live.values()), [80])
            part = array.gpu_data.view(16, 40)
            del array
            self.assertEqual(len(self.pool.live), 1)
            del part
        self.assertEqual(self.pool.live, {})


class NumbaFinalizers(PluginTest):
    def test_one_on_another_thread_only_pushes(self) -> None:
        held = [self.ready().memalloc(80), self.manager.memhostalloc(80), self.manager.memallocmanaged(80, True)]
        self.cuda.calls.clear()
        self.pool.calls.clear()
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        self.assertEqual(self.pool.names(), ["deallocate_deferred"])
        self.assertEqual(self.cuda.calls, [])

    def test_the_collector_may_run_inside_an_allocation(self) -> None:
        manager = self.ready()
        gc.disable()
        self.addCleanup(gc.enable)
        cycle: list[Any] = [manager.memalloc(80), manager.memhostalloc(80)]
        cycle.append(cycle)
        del cycle
        self.pool.while_allocating.append(gc.collect)
        memory = manager.memalloc(96)
        self.assertEqual(list(self.pool.live.values()), [96])
        del memory

    def test_host_memory_is_freed_at_the_next_call_with_the_context_current(self) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: self.manager.memalloc(80),
            lambda: self.manager.memhostalloc(80),
            lambda: self.manager.get_memory_info(),
        ]
        for number, call in enumerate(calls):
            with self.subTest(number=number):
                memory = self.ready().memhostalloc(80)
                address = memory.handle
                del memory
                self.assertIn(address, self.cuda.host)
                again = call()
                self.assertIn(("cuMemFreeHost", address), self.cuda.calls)
                free = self.cuda.names().index("cuMemFreeHost")
                self.assertEqual(self.cuda.calls[free - 2], ("cuCtxPushCurrent", "context"))
                self.assertEqual(self.cuda.names()[free - 1], "cuThreadExchangeStreamCaptureMode")
                self.assertEqual(self.cuda.current, [])
                self.assertEqual(self.cuda.modes[-1], "global")
                del again

    def test_an_error_of_a_late_free_is_nobodys_and_stops_no_other(self) -> None:
        memory = [self.ready().memhostalloc(80), self.manager.memhostalloc(80)]
        del memory
        self.cuda.failing["cuMemFreeHost"] = [700]
        self.assertEqual(self.manager.memalloc(80).size, 80)
        self.assertEqual(self.cuda.names().count("cuMemFreeHost"), 2)
        self.assertEqual(self.cuda.current, [])

    def test_everything_is_quiet_at_exit(self) -> None:
        done = run_python(PROGRAM + "keep = everything(); print('end'); pool.calls.clear(); cuda.calls.clear()")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "end\nat exit []\n", ""))

    def test_everything_is_quiet_in_a_forked_child(self) -> None:
        done = run_python(
            PROGRAM
            + """
keep = everything()
cuda.calls.clear()
child = os.fork()
if child == 0:
    del keep
    manager.reset()
    print('child', cuda.calls, flush=True)
    os._exit(0)
print('child ended with', os.waitpid(child, 0)[1])
del keep
manager.reset()
print(len(cuda.host), len(cuda.pinned))
cuda.calls.clear()
"""
        )
        expected = "child []\nchild ended with 0\n0 0\nat exit []\n"
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))

    def test_what_the_collector_finds_in_threads_is_freed_once(self) -> None:
        manager = self.ready()
        errors: list[BaseException] = []

        def storm() -> None:
            try:
                for count in range(300):
                    kept: list[Any] = [manager.memalloc(80), manager.memhostalloc(16), manager.memallocmanaged(16)]
                    kept.append(kept)
                    if count % 50 == 0:
                        manager.reset()
            except BaseException as error:  # reported by the test
                errors.append(error)

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        manager.reset()
        self.assertEqual(errors, [])
        self.assertEqual((self.pool.live, self.cuda.host), ({}, {}))


# A program for a process of its own: one of each kind of memory, and at exit a line with the driver calls made since.
PROGRAM = """
import atexit, ctypes, os, sys
import weakref
log = []
weakref.finalize(Ellipsis.__class__, lambda: None)
def last():
    print('at exit', cuda.calls, flush=True)
atexit.register(lambda: None)
from numba_stand_ins import *
import vpmm.plugins.numba as plugin
from numba import cuda as numba_cuda
target = numba_cuda.cudadrv.driver
pools = Pools()
plugin.Pool = pools
import vpmm.plugins.cuda_core as core
core.Pool = pools
cuda = RecordingCuda(target)
for name in cuda.functions():
    setattr(target.driver, name, getattr(cuda, name))
# Finalizers run at exit in reverse order of their making: this one is older than all that memory has.
first = weakref.finalize(cuda, last)
context = Context()
manager = plugin.make_memory_manager(numba_cuda)(context=context)
manager.initialize()
pool = pools.default(0)
page = ctypes.create_string_buffer(4096)
def everything():
    here = ctypes.addressof(page)
    return [manager.memalloc(80), manager.memhostalloc(80), manager.memhostalloc(80, mapped=True),
            manager.memallocmanaged(80, True), manager.mempin(page, here, 64),
            manager.mempin(page, here + 64, 64, True)]
"""


class NumbaReset(PluginTest):
    def test_it_frees_what_this_manager_allocated_and_nothing_else(self) -> None:
        other = self.manager_class(context=Context())
        mine, theirs = self.ready().memalloc(80), other.memalloc(96)
        mapped, managed = self.manager.memhostalloc(80, mapped=True), self.manager.memallocmanaged(80, True)
        self.manager.reset()
        self.assertEqual(list(self.pool.live.values()), [96])
        self.assertEqual(self.cuda.host, {})
        del mine, mapped, managed
        self.assertEqual(list(self.pool.live.values()), [96])
        del theirs

    def test_it_keeps_nothing_alive(self) -> None:
        class Owner:
            """Has the memory that is pinned."""

        owner = Owner()
        gone = weakref.ref(owner)
        memory = self.ready().mempin(owner, ctypes.addressof(ctypes.create_string_buffer(64)), 64, True)
        self.manager.reset()
        del owner, memory
        self.assertIsNone(gone())

    def test_a_later_finalizer_does_not_free_the_next_owner_of_its_address(self) -> None:
        old = self.ready().memalloc(80)
        self.manager.reset()
        new = self.manager.memalloc(80)
        self.assertEqual(old.device_pointer_value, new.device_pointer_value)
        del old
        self.assertEqual(len(self.pool.live), 1)
        del new
        self.assertEqual(self.pool.live, {})

    def test_it_may_come_first_and_twice_and_calls_no_cuda_then(self) -> None:
        self.manager.reset()
        self.manager.reset()
        self.assertEqual(self.cuda.calls, [])
        self.assertEqual(self.manager.memalloc(80).size, 80)

    def test_it_needs_no_current_context_and_survives_a_dead_one(self) -> None:
        memory = self.ready().memhostalloc(80)
        self.cuda.failing["cuCtxPushCurrent"] = [709]
        self.manager.reset()
        del memory
        self.cuda.failing.clear()
        self.assertEqual(self.manager.memalloc(80).size, 80)
        self.assertNotIn("cuMemFreeHost", self.cuda.names())

    def test_a_reset_while_cleanup_is_deferred_frees_all_the_same(self) -> None:
        memory = self.ready().memhostalloc(80)
        with self.manager.defer_cleanup():
            self.manager.reset()
            self.assertEqual(self.cuda.host, {})
        del memory
        self.assertEqual(self.pool.names().count("defer_cleanup_end"), 1)


class NumbaDeferCleanup(PluginTest):
    def test_it_nests_and_survives_exceptions(self) -> None:
        manager = self.ready()
        dropped = manager.memhostalloc(80)
        with manager.defer_cleanup():
            with contextlib.suppress(KeyError), manager.defer_cleanup():
                raise KeyError
            del dropped
            manager.get_memory_info()
            self.assertEqual(len(self.cuda.host), 1)
        manager.get_memory_info()
        self.assertEqual(self.cuda.host, {})
        calls = [name for name in self.pool.names() if name.startswith("defer")]
        self.assertEqual(calls, ["defer_cleanup_begin"] * 2 + ["defer_cleanup_end"] * 2)

    def test_device_memory_goes_to_the_pool_at_once_and_is_used_again(self) -> None:
        manager = self.ready()
        with manager.defer_cleanup():
            address = manager.memalloc(80).device_pointer_value
            self.assertEqual(manager.memalloc(80).device_pointer_value, address)


class NumbaInitialize(PluginTest):
    def test_it_asks_for_the_device_once(self) -> None:
        self.manager.initialize()
        with attributes(self.manager, _start=lambda: self.fail("initialize() is more than a test")):
            self.manager.initialize()
        self.assertEqual(self.cuda.names(), ["cuCtxGetDevice"])

    def test_the_device_is_the_current_contexts_even_where_numba_has_a_bare_handle(self) -> None:
        self.cuda.device = 3
        manager = self.manager_class(context=Context(device=self.target.binding.CUdevice(0)))
        manager.initialize()
        self.assertEqual(list(self.pools.by_device), [3])
        manager.reset()

    def test_what_the_collector_runs_inside_the_first_call_may_call_it_too(self) -> None:
        pools = self.pools

        class Reentering(Pools):
            def default(inner, device: int) -> RecordingPool:  # noqa: N805  the test's own self is used
                if device not in pools.by_device:
                    pools.default(device)
                    self.manager.initialize()
                return pools.default(device)

        import vpmm.plugins.numba as plugin

        with attributes(plugin, Pool=Reentering()):
            thread = threading.Thread(target=self.manager.initialize, daemon=True)
            thread.start()
            thread.join(30)
            self.assertFalse(thread.is_alive(), "the first call waits for itself")

    def test_the_instance_that_numba_reads_the_version_from_calls_nothing(self) -> None:
        dummy = self.manager_class(context=None)
        self.assertEqual(dummy.interface_version, 1)
        dummy.reset()
        self.assertEqual((self.cuda.calls, self.pools.by_device), ([], {}))

    def test_two_managers_of_a_device_share_its_pool(self) -> None:
        other = self.manager_class(context=Context())
        first, second = self.manager.memalloc(80), other.memalloc(96)
        self.assertEqual(sorted(self.pool.live.values()), [80, 96])
        del first, second

    def test_memory_info_is_the_pools(self) -> None:
        info = self.ready().get_memory_info()
        self.assertIsInstance(info, self.target.MemoryInfo)
        self.assertEqual((info.free, info.total), (600, 1000))


class NumbaOrder(PluginTest):
    def test_what_a_free_waits_for_is_set_when_the_pool_is_opened(self) -> None:
        import vpmm.plugins.numba as plugin

        for order, settings in ((None, {}), ("legacy", {"any_stream": "legacy"})):
            with self.subTest(order=order), attributes(plugin, _order=order):
                self.manager_class(context=Context()).initialize()
                self.assertEqual(self.pools.settings, settings)


if __name__ == "__main__":
    unittest.main()
