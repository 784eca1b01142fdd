# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm.Buffer: who owns the memory and for how long, and what the array protocols say of it."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import threading
import unittest
from typing import Any

import vpmm
from vpmm._exported import _Tensor

from program import output_of

MIB = 1 << 20


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class BufferTest(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool(log="quiet")

    def live(self) -> int:
        self.pool.synchronize()  # what finalizers pushed is taken in
        return self.pool.statistics()["live_bytes"]


class Owning(BufferTest):
    def test_it_has_memory_of_the_pool_for_a_stream(self) -> None:
        buffer = vpmm.Buffer("3MiB", Stream(2), pool=self.pool, alignment="4MiB")
        found = self.pool.query(buffer.ptr)
        self.assertEqual((found.begin, found.requested), (buffer.ptr, 3 * MIB))
        self.assertEqual((buffer.nbytes, buffer.stream, buffer.device), (3 * MIB, 2, 0))
        self.assertEqual(buffer.ptr % (4 * MIB), 0)
        self.assertIs(buffer.pool, self.pool)
        self.assertEqual(vpmm.Buffer(1).pool, vpmm.Pool.default(0))

    def test_it_keeps_its_stream(self) -> None:
        stream = Stream(2)
        buffer = vpmm.Buffer(1, stream, pool=self.pool)
        self.assertIn(stream, gc.get_referents(buffer.__dict__))

    def test_collecting_it_frees_the_memory(self) -> None:
        buffer: vpmm.Buffer | None = vpmm.Buffer(3 * MIB, 0, pool=self.pool)
        self.assertEqual(self.live(), 3 * MIB)
        cycle: list[Any] = [buffer]
        cycle.append(cycle)
        del buffer, cycle
        gc.collect()
        self.assertEqual(self.live(), 0)

    def test_memory_info_takes_in_what_was_collected(self) -> None:
        vpmm.Buffer(3 * MIB, 0, pool=self.pool)
        self.assertEqual(self.pool.statistics()["live_bytes"], 3 * MIB)
        self.pool.memory_info()
        self.assertEqual(self.pool.statistics()["live_bytes"], 0)

    def test_closing_is_in_the_order_of_its_stream(self) -> None:
        buffer = vpmm.Buffer(64 * MIB, 2, pool=self.pool)
        self.assertFalse(buffer.is_closed)
        buffer.close()
        buffer.close()
        self.assertTrue(buffer.is_closed)
        self.assertEqual(self.pool.allocate(64 * MIB, 2), buffer.ptr, "the same stream has it at once")

    def test_closing_may_name_another_stream(self) -> None:
        buffer = vpmm.Buffer(64 * MIB, 1, pool=self.pool)
        buffer.close(Stream(2))
        self.assertGreater(self.pool.statistics()["pending_bytes"], 0)

    def test_a_free_that_fails_frees_nothing_and_may_be_made_again(self) -> None:
        buffer = vpmm.Buffer(3 * MIB, 1, pool=self.pool)
        with self.assertRaises(vpmm.Error):
            buffer.close(0x4200)
        with self.assertRaises(TypeError):
            buffer.close("nonsense")  # type: ignore[arg-type]  # wrong on purpose
        self.assertFalse(buffer.is_closed)
        buffer.close(None)
        self.assertEqual(self.live(), 0)

    def test_a_block_ends_it(self) -> None:
        with vpmm.Buffer(3 * MIB, pool=self.pool) as buffer:
            self.assertEqual(self.live(), 3 * MIB)
        self.assertTrue(buffer.is_closed)
        with self.assertRaises(ZeroDivisionError), vpmm.Buffer(3 * MIB, pool=self.pool):
            _ = 1 / 0
        self.assertEqual(self.live(), 0)

    def test_work_of_another_stream_is_waited_for(self) -> None:
        buffer = vpmm.Buffer(64 * MIB, 1, pool=self.pool)
        buffer.record_use(Stream(2))
        buffer.close()
        self.assertGreater(self.pool.statistics()["pending_bytes"], 0)

    def test_it_ends_with_a_pool_that_is_closed(self) -> None:
        with vpmm.Buffer(3 * MIB, pool=self.pool) as buffer:
            self.pool.close(discard=True)
            self.assertTrue(buffer.is_closed)

    def test_it_keeps_a_private_pool_open(self) -> None:
        buffer = vpmm.Buffer(3 * MIB, pool=self.pool)
        with self.assertRaisesRegex(vpmm.Error, "1 allocation lives"):
            self.pool.close()
        del buffer
        self.pool.close()

    def test_mistakes_are_named(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "size is -1"):
            vpmm.Buffer(-1)
        with self.assertRaisesRegex(TypeError, "'x' is no CUDA stream"):
            vpmm.Buffer(1, "x")  # type: ignore[arg-type]  # wrong on purpose
        for device in (0, 3):
            with self.assertRaisesRegex(TypeError, f"device is {device} and pool is <vpmm.Pool .*>: give one of both"):
                vpmm.Buffer(1, pool=self.pool, device=device)
        with self.assertRaisesRegex(TypeError, "device is False: must be a whole number"):
            vpmm.Buffer(1, device=False)
        with self.assertRaisesRegex(TypeError, "pool is 3: must be a vpmm.Pool, or None"):
            vpmm.Buffer(1, pool=3)  # type: ignore[arg-type]  # wrong on purpose
        with self.assertRaises(vpmm.OutOfMemoryError):
            vpmm.Buffer("100TiB", pool=self.pool)

    def test_it_is_neither_copied_nor_pickled(self) -> None:
        buffer = vpmm.Buffer(3 * MIB, pool=self.pool)
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "neither copied nor pickled"):
                way(buffer)
        self.assertEqual(self.live(), 3 * MIB)

    def test_it_prints_itself(self) -> None:
        buffer = vpmm.Buffer(5, pool=self.pool)
        self.assertEqual(repr(buffer), f"<vpmm.Buffer of 5 bytes at {buffer.ptr:#x} on device 0>")
        buffer.close()
        self.assertIn("on device 0, closed>", repr(buffer))


class AtExit(unittest.TestCase):
    def test_the_end_of_the_interpreter_is_quiet(self) -> None:
        code = """
import atexit, gc, sys, threading
import vpmm
kept = vpmm.Buffer("1MiB")
cycle = [vpmm.Buffer("1MiB")]
cycle.append(cycle)
del cycle
vpmm.keep = vpmm.Buffer("1MiB", pool=vpmm.Pool())
sys.modules["vpmm._vpmm"].keep = vpmm.Buffer("1MiB")
capsule = kept.__dlpack__()
atexit.register(kept.close)
class Late:
    def __init__(self):
        self.buffer = vpmm.Buffer("1MiB")
    def __del__(self):
        self.buffer.close()
late = Late()
threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
print("done")
"""
        self.assertEqual(output_of(code), "done\n")


class Interface(BufferTest):
    def test_it_is_bytes_on_a_stream(self) -> None:
        buffer = vpmm.Buffer(1000, 2, pool=self.pool)
        expected = {"shape": (1000,), "strides": None, "typestr": "|u1", "data": (buffer.ptr, False)}
        self.assertEqual(buffer.__cuda_array_interface__, expected | {"version": 3, "stream": 2})
        self.assertEqual(vpmm.Buffer(1, pool=self.pool).__cuda_array_interface__["stream"], 1, "0 is not allowed")

    def test_no_bytes_have_the_address_zero(self) -> None:
        buffer = vpmm.Buffer(0, 2, pool=self.pool)
        self.assertEqual(buffer.__cuda_array_interface__["data"], (0, False))
        buffer.record_use(1)
        buffer.__dlpack__(stream=1)
        buffer.close()

    def test_the_package_takes_it_as_memory(self) -> None:
        buffer = vpmm.Buffer(64 * MIB, 1)
        vpmm.record_use(buffer, 2)
        handle = vpmm.ipc_export(buffer)
        self.assertEqual(handle.size, 64 * MIB)
        handle.end_export()

    def test_what_is_closed_is_nobodys_array(self) -> None:
        buffer = vpmm.Buffer(1000, pool=self.pool)
        buffer.close()
        with self.assertRaisesRegex(ValueError, "this buffer is closed"):
            _ = buffer.__cuda_array_interface__
        with self.assertRaisesRegex(ValueError, "this buffer is closed"):
            buffer.record_use(0)
        with self.assertRaisesRegex(BufferError, "this buffer is closed"):
            buffer.__dlpack__()


class Calls:
    """A pool that writes down how streams are ordered."""

    device = 3
    is_closed = False

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def allocate(self, size: int, stream: int, alignment: int) -> int:
        return 0x7000

    def deallocate_deferred(self, ptr: int) -> None:
        self.made.append(("free", ptr))

    def record_use(self, ptr: int, stream: int) -> None:
        self.made.append(("use", ptr, stream))

    def stream_wait(self, waiting: int, first: int) -> None:
        self.made.append(("wait", waiting, first))


pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
rename = ctypes.pythonapi.PyCapsule_SetName
rename.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class DlPack(BufferTest):
    def assert_describes(self, tensor: _Tensor, buffer: vpmm.Buffer) -> None:
        self.assertEqual(tensor.data + tensor.byte_offset, buffer.ptr)
        self.assertEqual((tensor.device_type, tensor.device_id), buffer.__dlpack_device__())
        self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (1, 8, 1))
        self.assertEqual(tensor.shape[: tensor.ndim], [buffer.nbytes])
        self.assertTrue(not tensor.strides or tensor.strides[0] == 1)

    def test_a_capsule_describes_the_bytes(self) -> None:
        buffer = vpmm.Buffer(1000, 2, pool=self.pool)
        self.assertEqual(buffer.__dlpack_device__(), (2, 0))
        capsule = buffer.__dlpack__()
        self.assert_describes(Managed.from_address(pointer_of(capsule, b"dltensor")).tensor, buffer)
        capsule = buffer.__dlpack__(max_version=(1, 1), dl_device=(2, 0), copy=False)
        versioned = Versioned.from_address(pointer_of(capsule, b"dltensor_versioned"))
        self.assertEqual((versioned.major, versioned.flags), (1, 0))
        self.assert_describes(versioned.tensor, buffer)

    def test_an_array_of_it_keeps_the_memory(self) -> None:
        buffer = vpmm.Buffer(3 * MIB, pool=self.pool)
        capsule = buffer.__dlpack__(stream=-1)
        managed = pointer_of(capsule, b"dltensor")
        rename(capsule, b"used_dltensor")  # as consumers do, who call the deleter themselves
        del capsule, buffer
        gc.collect()
        self.assertEqual(self.live(), 3 * MIB)
        delete = Managed.from_address(managed).deleter  # called without the interpreter's lock
        thread = threading.Thread(target=delete, args=(managed,))
        thread.start()
        thread.join()
        self.assertEqual(self.live(), 0)

    def test_a_capsule_that_nobody_takes_gives_it_back(self) -> None:
        vpmm.Buffer(3 * MIB, pool=self.pool).__dlpack__()
        self.assertEqual(self.live(), 0)

    def test_the_consumers_stream_waits_and_is_waited_for(self) -> None:
        for own, consumer, calls in (
            (7, None, [("use", 0x7000, 1), ("wait", 1, 7)]),
            (7, 9, [("use", 0x7000, 9), ("wait", 9, 7)]),
            (0, 2, [("use", 0x7000, 2), ("wait", 2, 0)]),
            (7, -1, []),
            (7, 7, []),
            (0, 1, []),
            (0, None, []),
        ):
            with self.subTest(own=own, consumer=consumer):
                pool: Any = Calls()
                vpmm.Buffer(10, own, pool=pool).__dlpack__(stream=consumer)
                self.assertEqual(pool.made, [*calls, ("free", 0x7000)])

    def test_a_real_pool_waits_for_the_consumer_before_it_uses_the_memory_again(self) -> None:
        buffer = vpmm.Buffer(64 * MIB, 1, pool=self.pool)
        with self.assertRaises(vpmm.Error):
            buffer.__dlpack__(stream=0x4200)
        buffer.__dlpack__(stream=2)
        buffer.close()
        self.assertGreater(self.pool.statistics()["pending_bytes"], 0)

    def test_what_cannot_be_exported_is_an_error(self) -> None:
        buffer = vpmm.Buffer(10, pool=self.pool)
        with self.assertRaisesRegex(BufferError, "stream 0 means nothing"):
            buffer.__dlpack__(stream=0)
        with self.assertRaisesRegex(BufferError, r"not copied to the device \(1, 0\)"):
            buffer.__dlpack__(dl_device=(1, 0))
        with self.assertRaisesRegex(BufferError, "not as a copy"):
            buffer.__dlpack__(copy=True)


if __name__ == "__main__":
    unittest.main()
