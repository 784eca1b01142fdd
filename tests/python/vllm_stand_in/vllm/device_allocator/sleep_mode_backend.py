# SPDX-License-Identifier: Apache-2.0
"""tests: a stand-in for vLLM: sleep-mode backends, by name."""

from __future__ import annotations

import importlib
from typing import Any

from vllm import has

if not has("backends"):
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

from vllm.device_allocator import get_mem_allocator_instance


class CuMemBackend:
    def __init__(self) -> None:
        self._state = "RUNNING"

    def suspend(self, level: int = 1) -> None:
        self._state = "SUSPENDED"
        always = ("runtime", "cudagraph") if has("graphs") else ()
        get_mem_allocator_instance().sleep(offload_tags=("weights", *always) if level == 1 else always)

    def resume(self, tags: list[str] | None = None) -> None:
        self._state = "RESUMING"
        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"

    def state(self) -> str:
        return self._state

    @classmethod
    def is_supported(cls) -> bool:
        return True

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True


class SleepModeBackendFactory:
    _known: dict[str, tuple[str, str]] = {}  # noqa: RUF012  as vLLM's

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._known:
            raise ValueError(f"{name} is registered")
        cls._known[name] = (module_path, class_name)

    @classmethod
    def get_backend_class(cls, name: str) -> Any:  # noqa: ANN401
        module, class_name = cls._known[name]
        return getattr(importlib.import_module(module), class_name)


SleepModeBackendFactory.register_backend("cumem", __name__, "CuMemBackend")
