# SPDX-License-Identifier: Apache-2.0
"""tests: a stand-in for vLLM: the class of its own allocator, which nothing here may use."""

from __future__ import annotations

from typing import Any

cumem_available = False  # built without its extension


class CuMemAllocator:
    instance: Any = None
    default_tag = "default"

    @staticmethod
    def get_instance() -> Any:  # noqa: ANN401
        assert cumem_available, "no extension"
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance
