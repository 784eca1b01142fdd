# SPDX-License-Identifier: Apache-2.0
# vpmm: converts other libraries' streams and memory to numbers.

from __future__ import annotations

import operator
from typing import Any, Protocol, SupportsIndex

from vpmm.errors import InvalidArgumentError

__all__ = ["StreamLike", "address_of", "stream_handle"]

_END = 1 << 64  # the first number that is no address or handle


class _HasCudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


class _NumbaStream(Protocol):
    @property
    def handle(self) -> Any: ...  # noqa: ANN401  a ctypes pointer or a CUstream


class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...


class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


# The type of a stream argument; see stream_handle().
StreamLike = SupportsIndex | None | _HasCudaStream | _NumbaStream | _CupyStream | _TorchStream


def _number(handle: Any) -> int | None:  # noqa: ANN401  whatever a library keeps its stream in
    """An int, a ctypes pointer (whose null is None), or an object that converts to an int, such as a CUstream."""
    value: Any = getattr(handle, "value", handle)
    if value is None:
        return 0
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _integer(value: Any) -> int | None:  # noqa: ANN401  NumPy's integers, too
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _known_handle(stream: Any) -> int | None:  # noqa: ANN401  any library's
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return _number(protocol()[1])
    for name in ("handle", "ptr", "cuda_stream"):
        if hasattr(stream, name):
            number = _number(getattr(stream, name))
            if number is not None:
                return number
    return _integer(stream)


def stream_handle(stream: object) -> int:
    """The CUstream of `stream` as an int; None is the legacy default stream, 0.

    Accepts ints, NumPy's included, objects with ``__cuda_stream__``, and the streams of Numba (``handle``), CuPy
    (``ptr``) and PyTorch (``cuda_stream``). Raises TypeError for anything else, and vpmm.InvalidArgumentError for a
    number that is no handle.
    """
    handle = 0 if stream is None else _known_handle(stream)
    if handle is None:
        raise TypeError(f"{stream!r} is no CUDA stream: must be an int, None or an object with __cuda_stream__")
    if not 0 <= handle < _END:
        raise InvalidArgumentError(f"{stream!r} is no CUDA stream: a handle is a number from 0 on, of 64 bits")
    return handle


def _known_address(array: Any) -> int | None:  # noqa: ANN401  whatever has memory
    if hasattr(array, "data_ptr") and getattr(array, "is_cuda", False):  # of PyTorch, also one that requires grad
        return _number(array.data_ptr())
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _number(interface["data"][0])
    if hasattr(array, "handle") and hasattr(array, "size"):
        return _number(array.handle)
    return _integer(array)


def address_of(array: Any) -> int:  # noqa: ANN401  whatever has memory
    """The start address of an array.

    Accepts tensors of PyTorch, objects with ``__cuda_array_interface__``, a cuda.core.Buffer, and an int itself.
    Raises TypeError for anything else, and vpmm.InvalidArgumentError for a number that is no address.
    """
    address = _known_address(array)
    if address is None:
        kind = type(array).__name__
        raise TypeError(f"{kind} has no memory that CUDA knows: neither an int nor an array nor a cuda.core.Buffer")
    if not 0 <= address < _END:
        raise InvalidArgumentError(f"{address} is no address")
    return address
