# SPDX-License-Identifier: Apache-2.0
"""tests: a stand-in for vLLM: the function that finds the allocator, its protocol, and hooks of tags."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from vllm import has

if has("graphs"):
    DEFERRABLE_TAGS = ("weights", "kv_cache")

if has("function"):

    class MemAllocator(Protocol):
        def use_memory_pool(self, tag: str | None = None) -> Any: ...  # noqa: ANN401
        def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None: ...
        def wake_up(self, tags: list[str] | None = None) -> None: ...
        def get_current_usage(self) -> int: ...

    def get_mem_allocator_instance() -> MemAllocator:
        from vllm.device_allocator.cumem import CuMemAllocator

        return CuMemAllocator.get_instance()


if has("hooks"):
    hooks: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}

    def run_before_unmap_hooks(allocations: Iterable[Any], tags: Collection[str] | None = None) -> None:
        awake = {each.tag for each in allocations if not each.is_asleep}
        for tag in sorted(awake & hooks.keys()):
            if tags is None or tag in tags:
                hooks[tag][0]()

    def run_after_map_hooks(allocations: Iterable[Any]) -> None:
        for tag in sorted(hooks.keys() - {each.tag for each in allocations if each.is_asleep}):
            hooks[tag][1]()
