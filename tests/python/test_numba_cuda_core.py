# SPDX-License-Identifier: Apache-2.0
"""tests: the memory resource for cuda.core, with a pool that writes down each call."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import unittest
import warnings
from typing import Any

from numba_stand_ins import CoreDevice, Pools, RecordingPool, StandInBuffer, attributes, missing, run_python

ABSENT = missing("vpmm._vpmm", "cuda.core")
LEGACY, STREAM, OTHER = 1, 0x1234, 0x5678


class Speaks:
    """A stream of some library."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Builder:
    """As cuda.core.GraphBuilder: it has a stream."""

    def __init__(self, handle: int) -> None:
        self.stream = Speaks(handle)


@unittest.skipIf(ABSENT, ABSENT)
class ResourceTest(unittest.TestCase):
    def setUp(self) -> None:
        import vpmm.plugins.cuda_core as plugin

        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        self.plugin = plugin
        self.pools = Pools()
        self.stack.enter_context(attributes(plugin, Pool=self.pools))
        self.resource = plugin.MemoryResource(0)

    @property
    def pool(self) -> RecordingPool:
        return self.pools.default(0)


class CudaCoreResource(ResourceTest):
    def setUp(self) -> None:
        super().setUp()
        self.stack.enter_context(attributes(self.plugin, Buffer=StandInBuffer))

    def test_the_short_name_is_the_plugins_class(self) -> None:
        import vpmm.cuda_core

        self.assertIs(vpmm.cuda_core.MemoryResource, self.plugin.MemoryResource)

    def test_it_says_what_its_memory_is(self) -> None:
        resource = self.plugin.MemoryResource(2)
        self.assertEqual(resource.device_id, 2)
        self.assertTrue(resource.is_device_accessible)
        self.assertFalse(resource.is_host_accessible or resource.is_managed)
        self.assertEqual(repr(resource), "<vpmm.cuda_core.MemoryResource of device 2>")

    def test_streams_of_all_kinds_are_taken_by_position_and_by_keyword(self) -> None:
        for stream in (STREAM, Speaks(STREAM), Builder(STREAM)):
            self.resource.allocate(16, stream)
            self.resource.allocate(16, stream=stream)
        self.assertEqual(self.pool.calls, [("allocate", 16, STREAM)] * 6)

    def test_the_default_stream_has_one_name(self) -> None:
        for stream in (None, 0, Speaks(0), LEGACY):
            self.resource.allocate(16, stream)
        self.assertEqual(self.pool.calls, [("allocate", 16, LEGACY)] * 4)

    def test_per_thread_default_streams_are_followed(self) -> None:
        code = "from vpmm.plugins import cuda_core; print(cuda_core._handle(None), cuda_core._handle(0))"
        for value, expected in (("1", "2 2\n"), ("0", "1 1\n"), ("", "1 1\n")):
            done = run_python(code, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=value)
            self.assertEqual((done.stdout, done.stderr), (expected, ""))

    def test_on_its_own_stream_it_is_freed_there(self) -> None:
        for free in (None, STREAM, Speaks(STREAM)):
            buffer = self.resource.allocate(16, STREAM)
            self.pool.calls.clear()
            self.resource.deallocate(buffer.handle, 16, free)
            self.assertEqual(self.pool.calls, [("deallocate", buffer.handle, STREAM)])

    def test_on_another_stream_it_waits_for_all(self) -> None:
        buffer = self.resource.allocate(16, stream=STREAM)
        self.pool.calls.clear()
        self.resource.deallocate(buffer.handle, 16, stream=OTHER)
        self.assertEqual(self.pool.calls, [("deallocate_deferred", buffer.handle)])

    def test_on_another_thread_no_stream_is_touched(self) -> None:
        buffer = self.resource.allocate(16, STREAM)
        self.pool.calls.clear()
        thread = threading.Thread(target=self.resource.deallocate, args=(buffer.handle, 16, STREAM))
        thread.start()
        thread.join()
        self.assertEqual(self.pool.calls, [("deallocate_deferred", buffer.handle)])

    def test_at_exit_no_stream_is_touched(self) -> None:
        code = """
from numba_stand_ins import *
import vpmm.plugins.cuda_core as plugin
pools = Pools()
plugin.Pool, plugin.Buffer = pools, StandInBuffer
resource = plugin.MemoryResource(0)
class Last:
    def __del__(self):
        buffer.close()
        print(pools.default(0).names())
buffer, last = resource.allocate(16, 0x1234), Last()
import weakref
weakref.finalize(last, print, 'finalizers')
"""
        done = run_python(code)
        self.assertEqual((done.stdout, done.stderr), ("finalizers\n['allocate', 'deallocate_deferred']\n", ""))

    def test_a_stream_that_is_gone_is_no_error(self) -> None:
        import vpmm

        def refuse(address: int, stream: int) -> None:
            raise vpmm.Error("the stream is gone")

        buffer = self.resource.allocate(16, STREAM)
        with attributes(self.pool, deallocate=refuse):
            self.resource.deallocate(buffer.handle, 16, STREAM)
        self.assertEqual(self.pool.live, {})

    def test_zero_bytes_and_null_are_silent(self) -> None:
        self.assertEqual(self.resource.allocate(0, stream=STREAM).handle, 0)
        self.resource.deallocate(0, 0)
        self.resource.deallocate(None, 0, None)
        self.resource.deallocate(0, 0, stream=STREAM)
        self.assertEqual(self.pool.calls, [])

    def test_a_foreign_address_is_an_error(self) -> None:
        import vpmm

        buffer = self.resource.allocate(16, STREAM)
        self.resource.deallocate(buffer.handle, 16)
        for address in (buffer.handle, 0x1000):
            with self.assertRaisesRegex(vpmm.Error, f"{address:#x} is not allocated from this memory resource"):
                self.resource.deallocate(address, 16, STREAM)

    def test_what_is_no_stream_is_named_and_nothing_is_lost(self) -> None:
        import vpmm

        buffer = self.resource.allocate(16, STREAM)
        for stream, error in (("x", TypeError), (object(), TypeError), (-5, vpmm.Error)):
            with self.subTest(stream=stream):
                with self.assertRaisesRegex(error, re.escape(repr(stream))):
                    self.resource.allocate(16, stream)
                with self.assertRaisesRegex(error, re.escape(repr(stream))):
                    self.resource.deallocate(buffer.handle, 16, stream)
        self.assertEqual(list(self.pool.live), [buffer.handle])
        self.resource.deallocate(buffer.handle, 16)
        self.assertEqual(self.pool.live, {})

    def test_no_memory_is_a_memory_error(self) -> None:
        self.pool.out_of_memory = True
        with self.assertRaises(MemoryError):
            self.resource.allocate(16, STREAM)

    def test_when_no_buffer_can_be_made_the_memory_goes_back(self) -> None:
        def refuse(*arguments: object, **keywords: object) -> None:
            raise RuntimeError("no context")

        with attributes(StandInBuffer, from_handle=refuse), self.assertRaisesRegex(RuntimeError, "no context"):
            self.resource.allocate(16, STREAM)
        self.assertEqual(self.pool.live, {})

    def test_abandoned_it_frees_all_and_ignores_what_buffers_say_later(self) -> None:
        buffer = self.resource.allocate(16, STREAM)
        self.resource.abandon()
        self.resource.abandon()
        self.assertEqual(self.pool.live, {})
        again = self.plugin.MemoryResource(0).allocate(16, STREAM)
        self.assertEqual(again.handle, buffer.handle)
        self.resource.deallocate(buffer.handle, 16, STREAM)
        self.assertEqual(len(self.pool.live), 1)

    def test_exchanging_does_not_make_the_devices_own_resource(self) -> None:
        class Lazy(CoreDevice):
            def __getattribute__(self, name: str) -> object:
                if name == "memory_resource":
                    raise AssertionError("the driver pool was made")
                return super().__getattribute__(name)

        device = Lazy()
        self.assertIsNone(self.plugin.exchange_resource(device, self.resource))
        self.assertIs(self.plugin.exchange_resource(device, None), self.resource)

    def test_where_the_private_name_is_gone_the_public_one_serves(self) -> None:
        class Public:
            memory_resource: Any = "default"

        device = Public()
        self.assertEqual(self.plugin.exchange_resource(device, self.resource), "default")
        self.assertIs(self.plugin.exchange_resource(device, "default"), self.resource)


class CudaCoreBuffers(ResourceTest):
    """With cuda.core's own Buffer and Stream."""

    def test_a_buffer_owns_its_memory(self) -> None:
        from cuda.core import Stream

        stream = Stream.from_handle(STREAM)
        buffer = self.resource.allocate(16, stream=stream)
        self.assertEqual((int(buffer.handle), buffer.size), (next(iter(self.pool.live)), 16))
        self.assertIs(buffer.memory_resource, self.resource)
        del buffer
        gc.collect()
        self.assertEqual(self.pool.live, {})

    def test_closing_on_the_allocating_stream_frees_there(self) -> None:
        from cuda.core import Stream

        stream = Stream.from_handle(STREAM)
        self.resource.allocate(16, stream).close(stream)
        self.assertEqual(self.pool.names(), ["allocate", "deallocate"])

    def test_a_buffer_of_another_librarys_stream_is_freed_on_that_stream(self) -> None:
        if not self.plugin._TAKES_STREAM:
            self.skipTest("before 1.2 a Buffer of cuda-core is not told its stream")
        self.resource.allocate(16, Speaks(STREAM)).close()
        self.assertEqual(self.pool.names(), ["allocate", "deallocate"])

    def test_numbas_empty_arrays_are_silent(self) -> None:
        from cuda.core import Buffer

        if self.plugin._TAKES_STREAM:
            self.skipTest("from 1.2 on cuda-core asks the driver for a context here; tests/gpu_python has this, too")
        buffer = Buffer.from_handle(ptr=0, size=0, mr=self.resource)
        del buffer
        self.assertEqual(self.pool.calls, [])


if __name__ == "__main__":
    unittest.main()
