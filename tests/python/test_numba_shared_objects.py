# SPDX-License-Identifier: Apache-2.0
"""tests: what Numba's plugin changes on objects that are Numba's and cuda.core's, while a manager needs it."""

from __future__ import annotations

import gc
import os
import threading
import unittest
import weakref

from numba_plugin_case import PluginTest
from numba_stand_ins import Context, StandInBuffer, attributes


class NumbaExtents(PluginTest):
    def ask(self, address: int) -> tuple[int, int]:
        begin, size = self.target.driver.cuMemGetAddressRange(address)
        return int(begin), size

    def test_an_array_is_as_large_as_it_was_asked_for_and_not_as_what_is_mapped_around_it(self) -> None:
        memory = self.ready().memalloc(40)
        begin = int(memory.handle)
        self.assertEqual(self.ask(begin), (begin, 40))
        self.assertEqual(self.ask(begin + 39), (begin, 40))
        self.assertEqual(self.target.device_extents(memory), (begin, begin + 40))
        self.assertEqual(self.cuda.calls, [])

    def test_memory_of_others_is_the_drivers_to_answer_for(self) -> None:
        self.ready()
        self.assertEqual(self.ask(0x5000), (0x5000 - 16, 1 << 21))
        self.assertEqual(self.cuda.names(), ["cuMemGetAddressRange"])

    def test_the_last_reset_puts_the_drivers_function_back(self) -> None:
        original = self.target.driver.cuMemGetAddressRange
        other = self.manager_class(context=Context())
        for manager in (self.manager, other):
            manager.initialize()
            manager.initialize()
        self.assertNotEqual(self.target.driver.cuMemGetAddressRange, original)
        self.manager.reset()
        self.assertNotEqual(self.target.driver.cuMemGetAddressRange, original)
        other.reset()
        self.assertEqual(self.target.driver.cuMemGetAddressRange, original)
        other.initialize()
        self.assertNotEqual(self.target.driver.cuMemGetAddressRange, original)
        other.reset()
        self.assertEqual(self.target.driver.cuMemGetAddressRange, original)

    def test_a_manager_that_dies_without_a_reset_leaves_nothing(self) -> None:
        original = self.target.driver.cuMemGetAddressRange
        self.ready()
        del self.manager
        gc.collect()
        self.assertEqual(self.target.driver.cuMemGetAddressRange, original)

    def test_a_function_that_the_program_put_there_later_stays(self) -> None:
        self.ready()

        def theirs(pointer: int) -> tuple[int, int]:
            return pointer, 1

        with attributes(self.target.driver, cuMemGetAddressRange=theirs):
            self.manager.reset()
            self.assertEqual(self.ask(7), (7, 1))

    def test_a_function_that_somebody_puts_over_ours_stays_and_calls_it(self) -> None:
        memory = self.ready().memalloc(40)
        begin, ours = int(memory.handle), self.target.driver.cuMemGetAddressRange
        asked = []

        def around(pointer: int) -> tuple[int, int]:
            asked.append(pointer)
            begin, size = ours(pointer)
            return int(begin), size

        with attributes(self.target.driver, cuMemGetAddressRange=around):
            for _ in range(2):
                self.assertEqual(self.ask(begin + 1), (begin, 40))
                self.manager.reset()
                self.assertEqual(self.ask(0x5000), (0x5000 - 16, 1 << 21))
                self.manager.initialize()
                memory = self.manager.memalloc(40)
                begin = int(memory.handle)
            self.assertEqual(self.target.driver.cuMemGetAddressRange, around)
        self.assertEqual(len(asked), 4)
        self.manager.reset()
        self.assertNotEqual(self.target.driver.cuMemGetAddressRange, ours)

    def test_cycles_of_reset_and_initialize_leave_no_finalizers(self) -> None:
        self.ready()
        before = len(weakref.finalize._registry)  # type: ignore[attr-defined]  # the only place where they are counted
        for _ in range(10):
            self.manager.reset()
            self.manager.initialize()
        self.assertEqual(len(weakref.finalize._registry), before)  # type: ignore[attr-defined]


class NumbaKernelArguments(PluginTest):
    def setUp(self) -> None:
        super().setUp()
        self.device = self.context.device._dev

    def test_the_resource_is_there_from_initialize_to_reset(self) -> None:
        from vpmm.plugins.cuda_core import MemoryResource

        self.manager.initialize()
        self.assertIsInstance(self.device.memory_resource, MemoryResource)
        self.manager.reset()
        self.assertIsNone(self.device._memory_resource)
        self.manager.initialize()
        self.assertIsInstance(self.device.memory_resource, MemoryResource)
        self.manager.reset()

    def test_memory_of_arguments_is_freed_by_a_reset_and_its_stream_is_not_touched(self) -> None:
        import vpmm.plugins.cuda_core

        self.manager.initialize()
        with attributes(vpmm.plugins.cuda_core, Buffer=StandInBuffer):
            buffer = self.device.memory_resource.allocate(16, 0x1234)
        self.manager.reset()
        self.assertEqual(self.pool.live, {})
        buffer.close()
        self.assertNotIn("deallocate", self.pool.names())

    def test_a_resource_of_the_programs_is_put_back(self) -> None:
        from vpmm.plugins.cuda_core import MemoryResource

        own = object()
        self.device.memory_resource = own
        self.manager.initialize()
        self.assertIsInstance(self.device.memory_resource, MemoryResource)
        self.manager.reset()
        self.assertIs(self.device.memory_resource, own)

    def test_a_resource_that_the_program_set_later_stays(self) -> None:
        own = object()
        self.manager.initialize()
        self.device.memory_resource = own
        self.manager.reset()
        self.assertIs(self.device.memory_resource, own)

    def test_managers_of_a_device_share_a_resource_that_goes_with_the_last_of_them(self) -> None:
        import vpmm.plugins.cuda_core

        for installer_first in (True, False):
            with self.subTest(installer_first=installer_first):
                managers = [self.manager_class(context=Context(device=self.context.device)) for _ in range(2)]
                for manager in managers:
                    manager.initialize()
                    manager.initialize()
                resource = self.device.memory_resource
                with attributes(vpmm.plugins.cuda_core, Buffer=StandInBuffer):
                    resource.allocate(16, 0x1234)
                first, last = managers if installer_first else managers[::-1]
                first.reset()
                first.reset()
                self.assertIs(self.device.memory_resource, resource)
                self.assertEqual(list(self.pool.live.values()), [16], "another context's kernel may use it")
                last.reset()
                self.assertIsNone(self.device._memory_resource)
                self.assertEqual(self.pool.live, {})

    def test_a_manager_that_dies_without_a_reset_leaves_it_too(self) -> None:
        import vpmm.plugins.cuda_core

        other = self.manager_class(context=Context(device=self.context.device))
        for manager in (self.manager, other):
            manager.initialize()
        resource = self.device.memory_resource
        with attributes(vpmm.plugins.cuda_core, Buffer=StandInBuffer):
            resource.allocate(16, 0x1234)
        del self.manager, manager
        gc.collect()
        self.assertIs(self.device.memory_resource, resource)
        other.reset()
        self.assertIsNone(self.device._memory_resource)
        other.initialize()
        with attributes(vpmm.plugins.cuda_core, Buffer=StandInBuffer):
            self.device.memory_resource.allocate(16, 0x1234)
        del other
        gc.collect()
        self.assertIsNone(self.device._memory_resource)
        self.assertEqual(self.pool.live, {})

    def test_our_resource_that_the_program_set_by_itself_is_left_alone(self) -> None:
        from vpmm.plugins import cuda_core

        own = cuda_core.MemoryResource(0)
        self.device.memory_resource = own
        self.manager.initialize()
        self.assertIs(self.device.memory_resource, own)
        with attributes(cuda_core, Buffer=StandInBuffer):
            buffer = own.allocate(16, 0x1234)
        self.manager.reset()
        self.assertIs(self.device.memory_resource, own)
        self.assertEqual(list(self.pool.live.values()), [16])
        buffer.close()

    def test_a_reset_lets_another_thread_in_while_it_drops_streams_of_others(self) -> None:
        import vpmm.plugins.cuda_core

        manager = self.ready()
        reached: list[bool] = []

        class Stream:
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, 0x1234

            def __del__(self) -> None:
                thread = threading.Thread(target=manager.initialize, daemon=True)
                thread.start()
                thread.join(30)
                reached.append(not thread.is_alive())

        with attributes(vpmm.plugins.cuda_core, Buffer=StandInBuffer):
            self.device.memory_resource.allocate(16, Stream()).stream = None
        manager.reset()
        self.assertEqual(reached, [True])

    def test_it_can_be_left_out(self) -> None:
        import vpmm
        import vpmm.plugins.numba as plugin

        os.environ["VPMM_NUMBA_KERNEL_ARGUMENTS"] = "off"
        self.addCleanup(os.environ.pop, "VPMM_NUMBA_KERNEL_ARGUMENTS", None)
        self.manager.initialize()
        self.assertIsNone(self.device.memory_resource)
        os.environ["VPMM_NUMBA_KERNEL_ARGUMENTS"] = "no"
        original = self.target.driver.cuMemGetAddressRange
        self.manager.reset()
        with self.assertRaisesRegex(vpmm.Error, 'must be "on" or "off"'):
            self.manager_class(context=Context()).initialize()
        self.assertNotEqual(self.target.driver.cuMemGetAddressRange, original)
        with attributes(plugin, _kernel_arguments=False):
            self.manager_class(context=self.context).initialize()
        self.assertIsNone(self.device.memory_resource)


if __name__ == "__main__":
    unittest.main()
