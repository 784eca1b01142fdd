# SPDX-License-Identifier: Apache-2.0
# vpmm: the allocator of vLLM's sleep mode, over tags of the process-wide pools.

"""vLLM's sleep mode takes its memory from the pools, and gives it back when it sleeps.

PyTorch must allocate through VPMM (VPMM_TORCH=1). VPMM_VLLM=1 then calls ``vpmm.vllm.install()`` in each process of
vLLM. A tag of vLLM, such as "weights", is the tag "vllm:weights" of the pool. docs/guides/training-and-rollout.md is
the guide.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import vpmm
from vpmm.plugins import torch as plugin

__all__ = ["BACKEND", "Allocator", "allocator", "install"]

BACKEND = "vpmm"
"""The name of the sleep-mode backend, for versions of vLLM that have backends."""

_PREFIX = "vllm:"
_GRAPHS = "cudagraph"  # the tag that vLLM's own allocator gives to memory of graphs
_PACKAGE = "vllm.device_allocator"


def _unsupported(message: str) -> vpmm.Error:
    return vpmm.Error(message, "VPMM_ERROR_UNSUPPORTED")


@dataclass(frozen=True)
class _Allocation:
    """All memory of a tag, as vLLM's hooks read it."""

    tag: str
    is_asleep: bool


class Allocator:
    """The methods that vLLM calls of its sleep-mode allocator. Any thread may call any of them.

    Tags and their meaning are vLLM's; memory of a tag shares no page with other memory. Every method that changes
    memory raises vpmm.Error, and vpmm.OutOfMemoryError if host or device have too little memory; the process and the
    allocator can go on. Memory that sleeps keeps its addresses.
    """

    default_tag = "default"

    def __init__(self) -> None:
        self._tags: dict[tuple[str, int], None] = {}  # tag of vLLM, device; in the order of their making
        self._graph_pools: dict[int, Any] = {}  # by device, a torch.cuda.MemPool

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Memory that this thread allocates on the current device in the block has the tag. Blocks nest.

        None: the default tag. Raises vpmm.Error if PyTorch does not allocate through VPMM.
        """
        name, device = self.default_tag if tag is None else tag, _current_device()
        with vpmm.tag(_PREFIX + name, suspendable=True, thread=True, device=device):
            self._tags.setdefault((name, device))
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The id of a pool for graphs that this thread captures in the block: their own memory has a tag."""
        with self.use_memory_pool(_GRAPHS):
            import torch

            device = _current_device()
            if device not in self._graph_pools:
                self._graph_pools[device] = torch.cuda.MemPool()
            yield self._graph_pools[device].id

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Gives the memory of all tags back to the driver; that of `offload_tags` is copied to host memory.

        None: the default tag is copied. Other contents are lost. All tags of a device or none: an error leaves them as
        they were. But if the program has suspendable tags of its own that are awake, tags are suspended one by one,
        those with a copy first, and an error may then lose the contents of the others. A tag that sleeps already stays
        as it is. Waits for all work of the devices. Raises what vpmm.suspend() raises.
        """
        kept = _names(self.default_tag if offload_tags is None else offload_tags)
        self._suspend(lambda tag: True, kept)

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Gives the memory of `tags` back to the driver; the contents are lost. Otherwise as sleep()."""
        discarded = _names(tags)
        self._suspend(lambda tag: tag in discarded, ())

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Gives memory of `tags`, None: of all, physical memory at its addresses, with the contents that were copied.

        Other memory is zero. In versions of vLLM that name the tags which may stay asleep (DEFERRABLE_TAGS), all other
        tags wake, too. All memory that sleeps wakes as a whole or not at all; of a part of it each tag does. After an
        error the call may be repeated. Raises what vpmm.resume() raises.
        """
        gc.collect()
        may_stay = getattr(sys.modules.get(_PACKAGE), "DEFERRABLE_TAGS", None)

        def wakes(tag: str) -> bool:
            return tags is None or tag in tags or (may_stay is not None and tag not in may_stay)

        for device, names in self._by_device(wakes).items():
            _resume(vpmm.Pool.default(device), names)
        _call("run_after_map_hooks", self._allocations())

    def get_current_usage(self) -> int:
        """Bytes of live memory of all tags, asleep or not."""
        return sum(vpmm.tag_info(_PREFIX + tag, device).live_bytes for tag, device in list(self._tags))

    def release_pools(self) -> None:
        """Drops the pools of cudagraph_pool(); graphs that live keep their memory."""
        self._graph_pools.clear()

    def close(self) -> None:
        """As release_pools()."""
        self.release_pools()

    def _suspend(self, sleeps: Callable[[str], bool], kept: Collection[str]) -> None:
        gc.collect()
        try:
            chosen = {tag for tag, _ in list(self._tags) if sleeps(tag)}
            _call("run_before_unmap_hooks", self._allocations(), chosen)
            for device, names in self._by_device(sleeps).items():
                _suspend(vpmm.Pool.default(device), {name: name.removeprefix(_PREFIX) in kept for name in names})
        except BaseException:
            _call("run_after_map_hooks", self._allocations())
            raise
        if self._tags:
            import torch

            torch.accelerator.empty_cache()  # so far the memory is idle in the pool

    def _by_device(self, chosen: Callable[[str], bool]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for tag, device in list(self._tags):
            if chosen(tag):
                found.setdefault(device, []).append(_PREFIX + tag)
        return found

    def _allocations(self) -> list[_Allocation]:
        asleep = {device: vpmm.suspended(device) for _, device in list(self._tags)}
        return [_Allocation(tag, _PREFIX + tag in asleep[device]) for tag, device in list(self._tags)]


def _names(tags: tuple[str, ...] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _suspend(pool: vpmm.Pool, copied: dict[str, bool]) -> None:
    """Suspends tags, each with a copy or without. The memory stays in the pool, so that an error can be undone."""
    asleep = set(pool.suspended())
    awake = {name: is_copied for name, is_copied in copied.items() if name not in asleep}
    if set(pool.suspendable_tags()) - asleep == set(awake):
        for name, is_copied in awake.items():
            pool.make_suspendable(name, backup=is_copied)
        pool.suspend()  # all of them or none
        return
    done: list[str] = []
    try:
        for name in sorted(awake, key=lambda each: not awake[each]):  # contents that are discarded cannot come back
            pool.suspend(name, backup=awake[name])
            done.append(name)
    except BaseException:
        for name in reversed(done):
            pool.resume(name)
        raise


def _resume(pool: vpmm.Pool, names: list[str]) -> None:
    asleep = set(pool.suspended())
    if asleep <= set(names):
        pool.resume(zero=True)  # all of them or none
        return
    for name in names:
        pool.resume(name, zero=True)


def _call(name: str, *arguments: object) -> None:
    """Calls a function of vLLM's for the hooks of its tags, in versions that have it."""
    function = getattr(sys.modules.get(_PACKAGE), name, None)
    if function is not None:
        function(*arguments)


def _current_device() -> int:
    if not plugin.is_installed():
        raise _unsupported("vpmm.vllm needs PyTorch to allocate through VPMM: set VPMM_TORCH=1")
    import torch

    return int(torch.cuda.current_device())


allocator = Allocator()


def install() -> None:
    """Puts `allocator` in the place of vLLM's, and registers the sleep-mode backend "vpmm" where vLLM has backends.

    Call it before an engine is made, in the process of its worker; calling it again does nothing. VPMM_VLLM=1 does it
    in all processes of vLLM. Imports modules of vLLM, and makes no CUDA call. Raises vpmm.Error if vLLM is missing, if
    its allocator is in use already, and if it asks for methods that `allocator` lacks; nothing has changed then.
    """
    try:
        package = importlib.import_module(_PACKAGE)
        cumem: Any = importlib.import_module(f"{_PACKAGE}.cumem")
        theirs = cumem.CuMemAllocator
    except (ImportError, AttributeError) as error:
        raise _unsupported(f"vLLM with vllm.device_allocator.cumem.CuMemAllocator is needed ({error})") from error
    protocol = getattr(package, "MemAllocator", None)
    lacking = sorted({name for name in vars(protocol or object) if name[0] != "_"} - set(dir(allocator)))
    if lacking:
        raise _unsupported(f"this vLLM asks its allocator for {', '.join(lacking)}, which vpmm.vllm lacks")
    if getattr(theirs, "instance", None) not in (None, allocator):
        raise _unsupported("vLLM's allocator is in use: call vpmm.vllm.install() before an engine is made")
    theirs.instance = allocator
    # Every module of vLLM asks this class, directly or through get_mem_allocator_instance().
    theirs.get_instance = staticmethod(lambda: allocator)
    cumem.cumem_available = True  # also where vLLM was built without its extension, which is not needed
    try:
        backends = importlib.import_module(f"{_PACKAGE}.sleep_mode_backend").SleepModeBackendFactory
    except (ImportError, AttributeError):  # a version without backends
        return
    with contextlib.suppress(ValueError):  # registered already
        backends.register_backend(BACKEND, "vpmm.plugins.vllm_backend", "Backend")
