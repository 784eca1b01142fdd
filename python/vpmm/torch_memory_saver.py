# SPDX-License-Identifier: Apache-2.0
# vpmm: the interface of the package torch_memory_saver, over tags of the process-wide pools.

"""Programs that were written for the package torch_memory_saver, such as SGLang, pause and resume memory of the pools.

PyTorch must allocate through VPMM (VPMM_TORCH=1). ``vpmm.torch_memory_saver.install()`` puts the object
``torch_memory_saver`` of this module in the place of the package's. A region is a tag of the calling thread in the pool
of the current device; regions with and without a copy in host memory are two tags, which pause() and resume() treat as
one. docs/guides/training-and-rollout.md is the guide.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any, Literal

import vpmm
from vpmm.plugins import torch as plugin

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

_NAME = "torch_memory_saver"
_CHILDREN = {"VPMM_TORCH": "1", "VPMM_TORCH_MEMORY_SAVER": "1"}
_NOT_PAUSED = "not paused (torch_memory_saver)"


def _unsupported(message: str) -> vpmm.Error:
    return vpmm.Error(message, "VPMM_ERROR_UNSUPPORTED")


class TorchMemorySaver:
    """Regions whose memory gives up its physical memory and keeps its addresses. Any thread may call any method.

    pause() and resume() do nothing for a tag without a region. A tag is up to two tags of VPMM on each device, with and
    without a copy. Each of these is paused and resumed as a whole or not at all; if one fails, it is as before, those
    before it stay changed, and the call may be repeated.
    """

    def __init__(self) -> None:
        self._regions: dict[tuple[str, bool, int], None] = {}  # tag, backup, device; in the order of their making
        self._hook_mode = "torch"
        self._capacities: dict[int, int | None] = {}  # by device: before a margin was set
        self._retain_cpu_backup = os.environ.get("TMS_RETAIN_CPU_BACKUP", "0") == "1"

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: Literal["mmap", "pinned"] | None = None,
    ) -> Iterator[None]:
        """Memory that this thread allocates on the current device in the block can be paused.

        With `enable_cpu_backup` a pause copies the contents to host memory, otherwise they are lost. Regions nest.
        `cpu_backup_backend` has no effect. Raises vpmm.Error for `enable_disk_backup`, and if PyTorch does not allocate
        through VPMM; ValueError for a `cpu_backup_backend` without `enable_cpu_backup`.
        """
        if enable_disk_backup:
            raise _unsupported("enable_disk_backup: VPMM keeps contents in host memory, with enable_cpu_backup=True")
        if cpu_backup_backend not in (None, "mmap", "pinned"):
            raise ValueError(f'cpu_backup_backend is {cpu_backup_backend!r}: must be "mmap", "pinned" or None')
        if cpu_backup_backend is not None and not enable_cpu_backup:
            raise ValueError(f"cpu_backup_backend={cpu_backup_backend!r} needs enable_cpu_backup=True")
        device = _current_device()
        with self._tag(tag, enable_cpu_backup, device):
            self._regions.setdefault((tag, enable_cpu_backup, device))
            yield

    def _tag(self, tag: str, backup: bool, device: int, thread: bool = True) -> vpmm.Tag:
        keep = backup and self._retain_cpu_backup
        name = _tag_of(tag, backup)
        return vpmm.tag(name, suspendable=True, backup=backup, keep_host_copy=keep, thread=thread, device=device)

    def _enter_for_the_process(self) -> None:
        backup, device = os.environ.get("TMS_INIT_ENABLE_CPU_BACKUP") == "1", _current_device()
        self._tag("default", backup, device, thread=False).__enter__()
        self._regions.setdefault(("default", backup, device))

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,  # noqa: ANN401  a torch.cuda.CUDAGraph
        pool: Any = None,  # noqa: ANN401  a pool or its handle
        stream: Any = None,  # noqa: ANN401  a torch.cuda.Stream
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: Literal["mmap", "pinned"] | None = None,
    ) -> Iterator[None]:
        """As ``torch.cuda.graph``, and the graph's own memory can be paused.

        A `pool` in which something was allocated outside a region stays as it is.
        """
        import torch

        with (
            self.region(tag, enable_cpu_backup, cpu_backup_backend=cpu_backup_backend),
            torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode),
        ):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Memory that this thread allocates on the current device in the block cannot be paused.

        At its end the memory of the device that is free in the pool goes back to the driver, as in the package.
        """
        device = _current_device()
        try:
            with vpmm.tag(_NOT_PAUSED, thread=True, device=device):
                yield
        finally:
            vpmm.trim(device=device)

    def pause(self, tag: str | None = None) -> None:
        """Gives the physical memory of a tag back to the driver, on all devices; None: of all tags.

        Waits for all work of the devices. Raises what vpmm.suspend() raises.
        """
        for name, device in self._tags_of(tag):
            vpmm.suspend(name, to_driver=True, device=device)

    def resume(self, tag: str | None = None) -> None:
        """Gives a tag physical memory at its addresses again, on all devices; None: all tags.

        Memory without a copy in host memory has undefined contents. Raises what vpmm.resume() raises.
        """
        for name, device in self._tags_of(tag):
            vpmm.resume(name, device=device)

    def _tags_of(self, tag: str | None) -> list[tuple[str, int]]:
        return [(_tag_of(name, backup), device) for name, backup, device in list(self._regions) if tag in (None, name)]

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether copies in host memory stay allocated, and pinned from the next pause on, after a resume.

        False drops them at the next resume. TMS_RETAIN_CPU_BACKUP=1 sets it at first.
        """
        return self._retain_cpu_backup

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        self._retain_cpu_backup = bool(retain)
        for tag, backup, device in list(self._regions):
            with self._tag(tag, backup, device):  # the tag has the new setting from here on
                pass

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """Has no effect: PyTorch's allocator is VPMM."""
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, mode: Literal["preload", "torch"]) -> None:
        if mode not in ("preload", "torch"):
            raise ValueError(f'hook_mode is {mode!r}: must be "preload" or "torch"')
        self._hook_mode = mode

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes of the current device that its pool leaves to others. Setting it limits the pool's capacity."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, margin: int) -> None:
        device = _current_device()
        pool = vpmm.Pool.default(device)
        before = self._capacities.setdefault(device, pool.get_capacity())
        if margin == 0:
            pool.set_capacity(before)
            return
        import torch

        left = max(torch.cuda.get_device_properties(device).total_memory - margin, 1)
        pool.set_capacity(left if before is None else min(left, before))

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:  # noqa: ANN401  tensors
        """A tensor in host memory with the contents of a contiguous tensor at the last pause; None: there is no copy.

        A copy lasts until resume(), with `retain_cpu_backup` until the next pause(). With `zero_copy` it is the memory
        of the copy itself, and must not be used afterwards.
        """
        import torch

        if not (x.is_cuda and x.is_contiguous()):
            raise ValueError(f"a contiguous tensor on a GPU is needed, and this is on {x.device} with {x.stride()=}")
        if x.numel() == 0:
            return torch.empty_like(x, device="cpu")
        try:
            view = vpmm.host_copy(x.data_ptr(), x.numel() * x.element_size(), x.device.index)
        except vpmm.Error as error:
            if error.code == "VPMM_ERROR_INVALID_POINTER":
                return None
            raise
        tensor = torch.frombuffer(view, dtype=x.dtype).view(x.shape)
        return tensor if zero_copy else tensor.clone()

    def set_disk_backup_dir(self, path: str) -> None:
        """Raises vpmm.Error: nothing is kept on disk."""
        raise _unsupported(f"set_disk_backup_dir({path!r}): VPMM keeps contents in host memory, not on disk")


def _tag_of(name: str, backup: bool) -> str:
    return f"{name} (backup)" if backup else name


def _current_device() -> int:
    if not plugin.is_installed():
        raise _unsupported("vpmm.torch_memory_saver needs PyTorch to allocate through VPMM: set VPMM_TORCH=1")
    import torch

    return int(torch.cuda.current_device())


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """In processes that are started in the block, PyTorch allocates through VPMM and install() has been called.

    It sets variables of the environment, for the block.
    """
    before = {name: os.environ.get(name) for name in _CHILDREN}
    os.environ.update(_CHILDREN)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def install() -> None:
    """Puts the object of this module in the place of ``torch_memory_saver.torch_memory_saver``.

    Also if that package is not installed. Call it before the program imports the object from the package.
    VPMM_TORCH_MEMORY_SAVER=1 does the same at the end of ``import torch``. With TMS_INIT_ENABLE=1 all memory of the
    process on the device that is current when PyTorch first uses CUDA is in the region "default" from then on, with a
    copy in host memory for TMS_INIT_ENABLE_CPU_BACKUP=1.
    """
    try:
        module = importlib.import_module(_NAME)
    except ImportError:
        module = types.ModuleType(_NAME, __doc__)
        module.__spec__ = ModuleSpec(_NAME, None)
        sys.modules[_NAME] = module
    for name in ("TorchMemorySaver", "configure_subprocess", "torch_memory_saver"):
        setattr(module, name, globals()[name])
    if os.environ.get("TMS_INIT_ENABLE") == "1":
        torch = importlib.import_module("torch")
        torch.cuda._lazy_call(torch_memory_saver._enter_for_the_process)
