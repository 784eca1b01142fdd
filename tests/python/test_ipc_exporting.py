# SPDX-License-Identifier: Apache-2.0
"""tests: what can be exported to other processes: arrays, DLPack tensors, buffers and addresses."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any

import vpmm

from ipc_case import MIB, Array, Sharing, interface_of, read_all

NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype = ctypes.py_object
NEW.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
GIVE_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor:
    """What gives itself by DLPack only."""

    def __init__(self, ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, **more: int) -> None:
        fields = {"device": 2, "code": 2, "bits": 32, "lanes": 1, "offset": 0} | more
        self.device = fields["device"]
        self.asked: list[object] = []
        self.given_back = 0
        sizes = ctypes.c_int64 * len(shape)
        self.shape = sizes(*shape)
        self.strides = None if strides is None else sizes(*strides)
        from vpmm._exported import _Tensor

        self.tensor = _Tensor(
            ptr, self.device, 0, len(shape), fields["code"], fields["bits"], fields["lanes"], self.shape, self.strides
        )
        self.tensor.byte_offset = fields["offset"]
        self.destructor = GIVE_BACK(self.give_back)

    def give_back(self, capsule: int) -> None:
        self.given_back += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, stream: object = None) -> object:
        self.asked.append(stream)
        return NEW(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(self.destructor, ctypes.c_void_p))


class Buffer:
    """A cuda.core.Buffer, whose handle is a CUdeviceptr."""

    def __init__(self, ptr: int, size: int) -> None:
        self.handle, self.size = ctypes.c_uint64(ptr), size


class Exporting(Sharing):
    def test_an_array_with_gaps_or_nothing_in_it_is_refused(self) -> None:
        ptr = self.memory()
        cases = [
            (Array(ptr, (5,), (16,)), "not contiguous"),
            (Array(ptr, (5,), (-8,)), "not contiguous"),
            (Array(ptr, (5,), (0,)), "not contiguous"),
            (Array(ptr, (2, 3), (32, 8)), "not contiguous"),
            (Array(ptr, (2, 0)), "no bytes"),
            (Array(ptr, (2,), mask=Array(ptr, (2,))), "mask"),
            (Buffer(ptr, 0), "no bytes"),
        ]
        for array, message in cases:
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                vpmm.ipc_export(array)

    def test_an_address_needs_a_size_and_nothing_else_takes_one(self) -> None:
        ptr = self.memory()
        with self.assertRaisesRegex(TypeError, "give `size`"):
            vpmm.ipc_export(ptr)
        with self.assertRaisesRegex(TypeError, "knows its own"):
            vpmm.ipc_export(Array(ptr, (5,)), 40)
        with self.assertRaisesRegex(ValueError, "size=0"):
            vpmm.ipc_export(ptr, 0)
        with self.assertRaisesRegex(TypeError, "list has no memory"):
            vpmm.ipc_export([1])

    def test_what_is_no_device_memory_and_what_is_too_long_is_an_error_that_names_it(self) -> None:
        ptr = self.memory()
        host = ctypes.create_string_buffer(80)
        with self.assertRaisesRegex(vpmm.Error, f"{ctypes.addressof(host):#x}"):
            vpmm.ipc_export(ctypes.addressof(host), 80)
        with self.assertRaisesRegex(vpmm.Error, "not inside the allocation"):
            vpmm.ipc_export(ptr, 1 << 40)
        self.pool.deallocate_any_stream(ptr)
        self.assertEqual(self.live(), 0)

    def test_dlpack_gives_the_memory_and_gets_its_capsule_back(self) -> None:
        ptr = self.memory(MIB, b"....text")
        cases: list[tuple[Tensor, tuple[Any, ...]]] = [
            (Tensor(ptr, (2, 3), None, offset=4), ((2, 3), None, "<f4")),
            (Tensor(ptr, (2, 3), (1, 2), offset=4), ((2, 3), (4, 8), "<f4")),
            (Tensor(ptr, (6,), None, offset=4, code=4, bits=32), ((24,), None, "|u1")),  # no type of NumPy's
            (Tensor(ptr, (6,), None, offset=4, code=6, bits=8), ((6,), None, "|b1")),
        ]
        for tensor, (shape, strides, typestr) in cases:
            with self.subTest(shape=shape, typestr=typestr):
                handle = vpmm.ipc_export(tensor)
                self.assertEqual((tensor.asked, tensor.given_back), ([-1], 1))
                self.assertEqual(self.ask(read_all, handle)[:4], b"text")
                interface = self.ask(interface_of, handle)
                self.assertEqual((interface["shape"], interface["strides"]), (shape, strides))
                self.assertEqual(interface["typestr"][1:], typestr[1:])

    def test_tensors_with_gaps_of_odd_items_or_of_the_host_are_refused(self) -> None:
        ptr = self.memory()
        cases = [
            (Tensor(ptr, (2, 3), (4, 1)), "not contiguous"),
            (Tensor(ptr, (2,), None, bits=4), "4 bits"),
            (Tensor(ptr, (2,), None, device=1), "kind 1"),
        ]
        for tensor, message in cases:
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                vpmm.ipc_export(tensor)
            self.assertEqual(tensor.given_back, len(tensor.asked))

    def test_where_the_interface_raises_dlpack_is_asked(self) -> None:
        class Half(Tensor):
            @property
            def __cuda_array_interface__(self) -> dict[str, Any]:
                raise TypeError("bfloat16")

        handle = vpmm.ipc_export(Half(self.memory(), (4,), None, code=4, bits=16))
        self.assertEqual(handle.size, 8)

    def test_a_buffer_of_cuda_core_is_its_bytes(self) -> None:
        handle = vpmm.ipc_export(Buffer(self.memory(MIB, b"text"), 4))
        self.assertEqual(self.ask(read_all, handle), b"text")


if __name__ == "__main__":
    unittest.main()
