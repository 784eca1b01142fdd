# SPDX-License-Identifier: Apache-2.0
"""tests: pinned, mapped and managed memory of Numba's plugin, and pages that are pinned in place."""

from __future__ import annotations

import _thread
import ctypes
import gc
import sys
import threading
import time
import unittest
import weakref
from typing import Any

from numba_plugin_case import PluginTest
from numba_stand_ins import Context, attributes


class NumbaHostMemory(PluginTest):
    def test_pinned_memory_is_a_buffer_with_an_int_address(self) -> None:
        import numpy as np

        memory = self.ready().memhostalloc(80)
        self.assertIsInstance(memory, self.target.PinnedMemory)
        self.assertIsInstance(memory.host_pointer, int)
        array = np.ndarray(10, dtype=np.float64, buffer=memory)
        array[:] = 3
        self.assertEqual(array.sum(), 30)

    def test_mapped_and_managed_memory_are_owned_buffers(self) -> None:
        import numpy as np

        manager = self.ready()
        for memory, kind in (
            (manager.memhostalloc(80, mapped=True), self.target.MappedOwnedPointer),
            (manager.memallocmanaged(80, True), self.target.ManagedOwnedPointer),
        ):
            with self.subTest(kind=kind.__name__):
                self.assertIsInstance(memory, kind)
                array = np.ndarray(10, dtype=np.float64, buffer=memory)
                array[:] = 3
                self.assertEqual(array.sum(), 30)
        del memory, array
        manager.get_memory_info()
        self.assertEqual(self.cuda.host, {})

    def test_a_slice_of_mapped_memory_does_not_free_it(self) -> None:
        memory = self.ready().memhostalloc(80, mapped=True)
        view = memory.view(8, 16)
        del view
        self.manager.get_memory_info()
        self.assertEqual(len(self.cuda.host), 1)
        view = memory.view(8, 16)
        del memory
        self.manager.get_memory_info()
        self.assertEqual(len(self.cuda.host), 1)
        del view
        self.manager.get_memory_info()
        self.assertEqual(self.cuda.host, {})

    def test_flags_reach_the_driver(self) -> None:
        binding = self.target.binding
        manager = self.ready()
        manager.memhostalloc(8, True, True, True)
        manager.memallocmanaged(8, True)
        manager.memallocmanaged(8, False)
        flags = [call[2] for call in self.cuda.calls if call[0] in ("cuMemHostAlloc", "cuMemAllocManaged")]
        everything = binding.CU_MEMHOSTALLOC_DEVICEMAP | binding.CU_MEMHOSTALLOC_PORTABLE
        everything |= binding.CU_MEMHOSTALLOC_WRITECOMBINED
        managed = binding.CUmemAttach_flags
        expected = [everything, managed.CU_MEM_ATTACH_GLOBAL.value, managed.CU_MEM_ATTACH_HOST.value]
        self.assertEqual(flags, expected)

    def test_without_memory_all_that_is_idle_is_given_up_before_one_more_try(self) -> None:
        dropped = self.ready().memhostalloc(80)
        address = dropped.handle
        with self.manager.defer_cleanup():
            del dropped
            self.cuda.failing["cuMemAllocManaged"] = [self.target.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY]
            memory = self.manager.memallocmanaged(80, True)
            self.assertIn(("cuMemFreeHost", address), self.cuda.calls)
        self.assertIn("trim", self.pool.names())
        self.assertEqual(self.cuda.names().count("cuMemAllocManaged"), 2)
        del memory

    def test_other_errors_are_numbas(self) -> None:
        manager = self.ready()
        self.cuda.failing["cuMemHostAlloc"] = [1]
        with self.assertRaises(self.target.CudaAPIError):
            manager.memhostalloc(80)
        self.assertEqual(self.cuda.names().count("cuMemHostAlloc"), 1)

    def test_memory_whose_device_address_is_refused_is_given_back(self) -> None:
        manager = self.ready()
        self.cuda.failing["cuMemHostGetDevicePointer"] = [1]
        with self.assertRaises(self.target.CudaAPIError):
            manager.memhostalloc(80, mapped=True)
        manager.get_memory_info()
        self.assertEqual(self.cuda.host, {})


class NumbaPinning(PluginTest):
    def setUp(self) -> None:
        super().setUp()
        self.page = ctypes.create_string_buffer(4096)
        self.address = ctypes.addressof(self.page)

    def test_pages_are_unpinned_as_soon_as_they_are_dropped_even_while_cleanup_is_deferred(self) -> None:
        manager = self.ready()
        with manager.defer_cleanup():
            for mapped in (False, True, False):
                memory = manager.mempin(self.page, self.address, 4096, mapped)
                self.assertIs(memory.owned, self.page)
                self.assertEqual(self.cuda.pinned, {self.address})
                del memory
                self.assertEqual(self.cuda.pinned, set())
        self.assertEqual(self.cuda.current, [])

    def test_numbas_mapped_frees_by_hand_and_drops_later(self) -> None:
        memory = self.ready().mempin(self.page, self.address, 4096, True)
        memory.free()
        self.assertEqual(self.cuda.pinned, set())
        again = self.manager.mempin(self.page, self.address, 4096, True)
        del memory
        self.assertEqual(self.cuda.pinned, {self.address})
        del again
        self.assertEqual(self.cuda.pinned, set())

    def test_pages_dropped_on_another_thread_of_python_are_unpinned_at_once(self) -> None:
        held = [self.ready().mempin(self.page, self.address, 4096)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        self.assertEqual(self.cuda.pinned, set())
        self.assertEqual(self.cuda.current, [])

    def test_pages_dropped_where_cuda_may_not_be_called_are_unpinned_before_the_next_are_pinned(self) -> None:
        held = [self.ready().mempin(self.page, self.address, 4096)]
        owners = sys.getrefcount(self.page)
        self.cuda.calls.clear()
        is_over = threading.Event()

        def drop() -> None:  # as one of CUDA's callbacks: on a thread that `threading` has not started
            held.clear()
            is_over.set()

        _thread.start_new_thread(drop, ())
        self.assertTrue(is_over.wait(60))
        self.assertEqual(self.cuda.calls, [])
        self.assertEqual(sys.getrefcount(self.page), owners, "pages that are pinned still are not freed")
        with self.manager.defer_cleanup():
            memory = self.manager.mempin(self.page, self.address, 4096)
        self.assertEqual(self.cuda.pinned, {self.address})
        del memory
        self.assertEqual(sys.getrefcount(self.page), owners - 1, "nobody holds it any more")

    def test_threads_that_pin_their_own_pages_again_and_again_are_never_refused(self) -> None:
        manager = self.ready()
        unregister = self.cuda.cuMemHostUnregister

        def slow(pointer: int) -> None:
            time.sleep(1e-4)  # another thread runs, as it does when a driver waits for its lock
            unregister(pointer)

        def push(context: object) -> None:
            time.sleep(0)

        errors: list[BaseException] = []

        def work() -> None:
            page = ctypes.create_string_buffer(4096)
            try:
                for _ in range(100):
                    memory = manager.mempin(page, ctypes.addressof(page), 4096)
                    del memory
            except BaseException as error:  # reported by the test
                errors.append(error)

        calls = {"cuMemHostUnregister": slow, "cuCtxPushCurrent": push, "cuCtxPopCurrent": lambda: None}
        with attributes(self.target.driver, **calls):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((errors, self.cuda.pinned), ([], set()))

    def test_an_owner_that_refers_to_its_own_pin_is_collected_and_its_pages_are_unpinned(self) -> None:
        class Owner:
            """Has the memory that is pinned, and the pin."""

        owner: Any = Owner()
        owner.pin = self.ready().mempin(owner, self.address, 4096)
        gone = weakref.ref(owner)
        del owner
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(self.cuda.pinned, set())

    def test_an_owner_that_takes_no_weak_references_lives_as_long_as_its_pin(self) -> None:
        owner = bytearray(64)
        memory = self.ready().mempin(owner, self.address, 4096)
        self.assertIs(memory.owned, owner)
        held = sys.getrefcount(owner)
        del memory
        self.assertEqual(self.cuda.pinned, set())
        self.assertLess(sys.getrefcount(owner), held)

    def test_pages_of_a_reset_manager_stay_alone(self) -> None:
        memory = self.ready().mempin(self.page, self.address, 4096)
        self.manager.reset()
        self.assertEqual(self.cuda.pinned, set())
        other = self.manager_class(context=Context())
        kept = other.mempin(self.page, self.address, 4096)
        del memory
        self.assertEqual(self.cuda.pinned, {self.address})
        del kept


if __name__ == "__main__":
    unittest.main()
