# vpmm: what other libraries call a stream, or memory, as a number.

from __future__ import annotations

from typing import Any

from vpmm.errors import Error

__all__ = ["address_of", "stream_handle"]


def _number(handle: Any) -> int | None:  # noqa: ANN401  whatever a library keeps its stream in
    """An int, a ctypes pointer (whose null is None) or anything that converts to an int, such as a CUstream."""
    value: Any = getattr(handle, "value", handle)
    if value is None:
        return 0
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def stream_handle(stream: object) -> int:
    """The CUstream of `stream` as an int; None is the legacy default stream, 0.

    Knows ints, objects with ``__cuda_stream__`` and the streams of Numba (``handle``), CuPy (``ptr``) and PyTorch
    (``cuda_stream``). Raises vpmm.Error for anything else.
    """
    if stream is None:
        return 0
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    for name in ("handle", "ptr", "cuda_stream"):
        if hasattr(stream, name):
            number = _number(getattr(stream, name))
            if number is not None:
                return number
    if isinstance(stream, int):
        return stream
    raise Error(f"{stream!r} is no CUDA stream: neither an int nor an object with __cuda_stream__")


def address_of(array: Any) -> int:  # noqa: ANN401  whatever has memory
    """Where the memory of `array` begins: an int itself, or the data of its ``__cuda_array_interface__``."""
    if isinstance(array, int):
        return array
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise Error(f"{type(array).__name__} has no memory that CUDA knows: neither an int nor an array")
    return int(interface["data"][0])
