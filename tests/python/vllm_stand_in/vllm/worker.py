# SPDX-License-Identifier: Apache-2.0
"""tests: a stand-in for vLLM: how its worker uses allocator and backend. The names are bound when it is imported."""

from __future__ import annotations

from typing import Any

from vllm import has
from vllm.device_allocator.cumem import CuMemAllocator

if has("function"):
    from vllm.device_allocator import get_mem_allocator_instance


class Worker:
    def __init__(self, backend: str = "cumem") -> None:
        self._backend = backend
        self._made: Any = None

    def backend(self) -> Any:  # noqa: ANN401
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        if self._made is None:
            found = SleepModeBackendFactory.get_backend_class(self._backend)
            if not found.is_supported():
                raise ValueError(f"{self._backend} is not supported")
            self._made = found()
        return self._made

    def memory_of(self, tag: str) -> Any:  # noqa: ANN401  a context manager
        allocator = get_mem_allocator_instance() if has("function") else CuMemAllocator.get_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "one engine in a process"
        return allocator.use_memory_pool(tag=tag)

    def sleep(self, level: int = 1) -> None:
        if has("backends"):
            self.backend().suspend(level)
        else:
            CuMemAllocator.get_instance().sleep(offload_tags=("weights",) if level == 1 else ())

    def wake_up(self, tags: list[str] | None = None) -> None:
        if has("backends"):
            self.backend().resume(tags)
        else:
            CuMemAllocator.get_instance().wake_up(tags)

    def shutdown(self) -> None:
        if has("backends") and CuMemAllocator.instance is not None:
            CuMemAllocator.instance.release_pools()
