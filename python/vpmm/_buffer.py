# SPDX-License-Identifier: Apache-2.0
# vpmm: an object that owns memory of a pool, for programs without an array library.

from __future__ import annotations

from types import EllipsisType, TracebackType
from typing import Any

from vpmm import _vpmm
from vpmm._finalizers import at_death
from vpmm._streams import StreamLike, stream_handle
from vpmm._vpmm import Pool
from vpmm.errors import InvalidArgumentError

__all__ = ["Buffer"]

_CUDA = 2  # kDLCUDA
_LEGACY = 1  # CU_STREAM_LEGACY, which the array protocols use for handle 0
_NO_ORDER = -1  # DLPack's value for consumers that need no ordering


class Buffer:
    """Owns device memory: `size` bytes of a pool, for work on `stream`.

    `size` is a number of bytes or a text such as ``"64MiB"``. `stream` is a CUstream as an int, None for the default
    stream, or any library's stream object, which the buffer keeps alive. The memory comes from the process-wide pool of
    `device` (default 0), or from `pool`; both are a TypeError. Any array library can make arrays of it without a copy,
    through ``__cuda_array_interface__`` and DLPack; the arrays keep it alive. close() and the end of a ``with`` block
    free it in stream order. A buffer that is collected is freed on any thread; work queued on any stream by then may
    still use it. Any thread may call any method. Raises vpmm.OutOfMemoryError.
    """

    def __init__(
        self,
        size: int | str,
        stream: StreamLike = None,
        *,
        pool: Pool | None = None,
        device: int | None = None,
        alignment: int | str = 0,
    ) -> None:
        if pool is not None and not hasattr(pool, "allocate"):
            raise TypeError(f"pool is {pool!r}: must be a vpmm.Pool, or None")
        if pool is not None and device is not None:
            raise TypeError(f"device is {device!r} and pool is {pool!r}: give one of both, for a pool has its device")
        self._pool = pool if pool is not None else Pool.default(0 if device is None else device)
        self._nbytes = _vpmm.parse_bytes(size)
        self._stream_object = stream  # keeps the handle valid
        self._stream = stream_handle(stream)
        self._ptr = self._pool.allocate(self._nbytes, self._stream, alignment)
        self._end = at_death(self, self._pool.deallocate_deferred, self._ptr)

    @property
    def ptr(self) -> int:
        """The address on the device; 0 for a buffer of no bytes."""
        return self._ptr

    @property
    def nbytes(self) -> int:
        """Bytes requested."""
        return self._nbytes

    @property
    def stream(self) -> int:
        """The CUstream of the allocation."""
        return self._stream

    @property
    def pool(self) -> Pool:
        """The pool that the memory comes from."""
        return self._pool

    @property
    def device(self) -> int:
        """The ordinal of its device."""
        return self._pool.device

    @property
    def is_closed(self) -> bool:
        """Whether it or its pool was closed. The address is then invalid or reused."""
        return not self._end.alive or self._pool.is_closed

    def _require_memory(self, error: type[Exception]) -> None:
        if self.is_closed:
            raise error("this buffer is closed")

    # --- its end ---

    def close(self, stream: StreamLike | EllipsisType = ...) -> None:
        """Frees the memory now; work queued on `stream` so far is the last to use it. A second call does nothing.

        The default is the stream of the allocation. If other streams use the memory, name them with record_use(), or
        order `stream` behind them. Arrays made of the buffer must not be used any more. Raises vpmm.Error, and frees
        nothing, if the stream no longer exists.
        """
        handle = self._stream if isinstance(stream, EllipsisType) else stream_handle(stream)
        if self._end.detach() is None or self._pool.is_closed:
            return
        try:
            self._pool.deallocate(self._ptr, handle)
        except BaseException:
            self._end = at_death(self, self._pool.deallocate_deferred, self._ptr)
            raise

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- others that use it ---

    def record_use(self, stream: StreamLike) -> None:
        """Declares that work on `stream` uses the memory: the free then waits for the work queued there by that time.

        Raises vpmm.InvalidArgumentError if the buffer is closed.
        """
        self._require_memory(InvalidArgumentError)
        self._pool.record_use(self._ptr, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: contiguous bytes, ready once the work queued so far on `stream` is done.

        Raises vpmm.InvalidArgumentError if the buffer is closed.
        """
        self._require_memory(InvalidArgumentError)
        return {
            "shape": (self._nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (self._ptr, False),
            "version": 3,
            "stream": self._stream or _LEGACY,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """(2, device): CUDA's."""
        return _CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # noqa: ANN401  a capsule
        """A DLPack capsule of the bytes, which keeps the buffer alive.

        `stream` is the consumer's stream, as the protocol defines it: None and 1 are the default stream, 2 is the
        thread's default stream, -1 means no ordering, and other values are a CUstream. Work on it waits for the work
        queued on the buffer's stream, and a free waits for it. Raises BufferError for a closed buffer, for another
        device, and for `copy` True.
        """
        self._require_memory(BufferError)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"memory of {self.__dlpack_device__()} is not copied to the device {dl_device}")
        if copy:
            raise BufferError("this memory is exported as it is, and not as a copy")
        self._order(stream)
        options = {} if max_version is None else {"max_version": max_version}
        return _vpmm.as_dlpack(self, self._ptr, self._nbytes, self.device).__dlpack__(**options)

    def _order(self, consumer: int | None) -> None:
        if consumer == 0:
            raise BufferError("the stream 0 means nothing in DLPack: 1 is the default stream, 2 that of the thread")
        consumer = _LEGACY if consumer is None else consumer
        if consumer in (_NO_ORDER, self._stream or _LEGACY):
            return
        self._pool.record_use(self._ptr, consumer)
        self._pool.stream_wait(consumer, self._stream)

    def __reduce__(self) -> str:
        raise TypeError("a Buffer owns its memory and is neither copied nor pickled; vpmm.ipc_export shares it")

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"<vpmm.Buffer of {self._nbytes} bytes at {self._ptr:#x} on device {self.device}{state}>"
