# SPDX-License-Identifier: Apache-2.0
# vpmm: the address, size and layout of an array of any library.

# ruff: noqa: ANN401  any library's arrays

from __future__ import annotations

import ctypes
import operator
from typing import Any, NamedTuple

from vpmm._streams import address_of
from vpmm.errors import InvalidArgumentError

__all__ = ["Layout", "Range", "range_of"]


class Layout(NamedTuple):
    """The fields of ``__cuda_array_interface__``; strides are in bytes, and None for C order."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    typestr: str


class Range(NamedTuple):
    """A range of memory, and the layout of the array in it if that is known."""

    ptr: int
    size: int
    layout: Layout | None


def _size_without_gaps(shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int) -> int:
    """The bytes of a contiguous array in C, Fortran or another order; an error if it has gaps."""
    size = item
    for extent in shape:
        size *= extent
    if size == 0:
        raise InvalidArgumentError("an array of no bytes has no memory to share")
    step = item
    for stride, extent in sorted(zip(strides, shape, strict=True)) if strides is not None else ():
        if extent == 1:
            continue
        if stride != step:
            raise InvalidArgumentError(
                f"an array of shape {shape} and strides {strides} is not contiguous: share the array that it is a "
                "part of, or a copy"
            )
        step *= extent
    return size


def _item_size(typestr: str) -> int:
    characters = int(typestr[2:])
    return 4 * characters if typestr[1] == "U" else characters


def _from_interface(interface: dict[str, Any]) -> Range:
    if interface.get("mask") is not None:
        raise InvalidArgumentError("an array with a mask is two pieces of memory: share them one by one")
    shape = tuple(int(extent) for extent in interface["shape"])
    given = interface.get("strides")
    strides = None if given is None else tuple(int(stride) for stride in given)
    typestr = str(interface["typestr"])
    size = _size_without_gaps(shape, strides, _item_size(typestr))
    return Range(int(interface["data"][0]), size, Layout(shape, strides, typestr))


# --- DLPack ---

_CUDA = 2  # kDLCUDA
_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLDataTypeCode; other codes have no typestr


class _Tensor(ctypes.Structure):
    """A DLTensor, the first member of a DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in items
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _from_dlpack(array: Any) -> Range:
    kind = int(array.__dlpack_device__()[0])
    if kind != _CUDA:
        raise InvalidArgumentError(
            f"the array is on a device of DLPack's kind {kind}, and not in the memory of a CUDA device"
        )
    capsule = array.__dlpack__(stream=-1)  # -1: nothing is read, so no ordering is needed
    tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    bits = tensor.bits * tensor.lanes
    if bits % 8 != 0:
        raise InvalidArgumentError(f"items of {bits} bits are not shared")
    strides = tuple(step * bits // 8 for step in tensor.strides[: tensor.ndim]) if tensor.strides else None
    size = _size_without_gaps(shape, strides, bits // 8)
    letter = _LETTERS.get(tensor.code) if tensor.lanes == 1 else None
    layout = Layout(shape, strides, f"<{letter}{bits // 8}") if letter else None
    return Range((tensor.data or 0) + tensor.byte_offset, size, layout)
    # The capsule ends here. Nobody consumed it, so its destructor releases what it holds.


# --- any of them ---


def _interface_of(array: Any) -> dict[str, Any] | None:
    try:
        interface: dict[str, Any] | None = array.__cuda_array_interface__
    except AttributeError:
        return None
    except Exception:  # PyTorch has tensors that only DLPack describes
        if hasattr(array, "__dlpack__"):
            return None
        raise
    return interface


def range_of(array: Any, size: int | None) -> Range:
    """The range of an argument of ``vpmm.ipc_export``; `size` is for addresses only."""
    if isinstance(array, int):
        if size is None:
            raise TypeError("an address alone does not say how much memory is meant: give `size`, in bytes")
        if operator.index(size) <= 0:
            raise InvalidArgumentError(f"size={size}: must be at least one byte")
        return Range(address_of(array), size, None)
    if size is not None:
        raise TypeError(f"`size` is for addresses: a {type(array).__name__} knows its own")
    interface = _interface_of(array)
    if interface is not None:
        return _from_interface(interface)
    if hasattr(array, "handle") and isinstance(getattr(array, "size", None), int):  # a cuda.core.Buffer
        if array.size == 0:
            raise InvalidArgumentError("a buffer of no bytes has no memory to share")
        return Range(address_of(array), array.size, None)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    raise TypeError(
        f"{type(array).__name__} has no memory that CUDA knows: neither __cuda_array_interface__ nor DLPack, and it is "
        "no cuda.core.Buffer"
    )
