# SPDX-License-Identifier: Apache-2.0
# plugins: vLLM's sleep-mode backend "vpmm". vLLM imports this module when the backend is selected.

"""``vllm serve --sleep-mode-backend vpmm``: as the backend "cumem", and the server does not start without VPMM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

from vpmm.plugins import torch as plugin

__all__ = ["Backend"]

_Cumem = SleepModeBackendFactory.get_backend_class("cumem")  # calls the allocator, which is VPMM's


class Backend(_Cumem):  # type: ignore[misc, valid-type]  # vLLM has no types here
    """Suspends and resumes the memory of vLLM's tags. After an error state() is as before."""

    _state: str

    def suspend(self, level: int = 1) -> None:
        """Level 1 copies the weights to host memory, level 2 discards them. Raises what Allocator.sleep() raises."""
        with self._state_unless_done():
            super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes memory of `tags`, None: of all. Raises what Allocator.wake_up() raises."""
        with self._state_unless_done():
            super().resume(tags)

    @contextlib.contextmanager
    def _state_unless_done(self) -> Iterator[None]:
        before = self._state
        try:
            yield
        except BaseException:
            self._state = before
            raise

    @classmethod
    def is_supported(cls) -> bool:
        """Whether PyTorch allocates through VPMM."""
        return plugin.is_installed()
