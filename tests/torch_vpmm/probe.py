# SPDX-License-Identifier: Apache-2.0
"""tests: builds and loads probe.cpp: what libraries add to PyTorch's allocator in C++."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from vpmm.plugins._building import cached, cuda_includes, fingerprint, run_compiler

SOURCE = Path(__file__).resolve().with_name("probe.cpp")
WHAT = "the probe of the tests"
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
)
MOST_EVENTS = 10_000


class Event(ctypes.Structure):
    """As probe.cpp has it."""

    _fields_ = (
        ("action", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("pool", ctypes.c_uint64 * 2),
    )


class Probe:
    """Its tracker is attached for the rest of the process, and hears everything from `listen` to `events`."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.library = library
        self.path = path
        library.probe_events.restype = library.probe_rejected.restype = ctypes.c_size_t
        library.probe_largest.restype = library.probe_expandable.restype = ctypes.c_size_t
        library.probe_hold.argtypes = [ctypes.c_size_t]
        for name in ("warning", "peer", "record_stacks_without_a_way", "base", "share", "open", "stats", "share_pool"):
            getattr(library, f"probe_{name}").restype = ctypes.c_char_p
        library.probe_attach()

    def listen(self) -> None:
        self.library.probe_listen(1)

    def events(self) -> list[tuple[str, int, int, tuple[int, int]]]:
        """What was heard: action, address, bytes, memory pool. Ends the listening."""
        room = (Event * MOST_EVENTS)()
        count = self.library.probe_events(room, ctypes.c_size_t(MOST_EVENTS))
        assert count <= MOST_EVENTS
        self.library.probe_listen(0)
        names = dict(enumerate(ACTIONS)) | {-1: "given_back"}
        return [(names[e.action], e.address, e.bytes, tuple(e.pool)) for e in room[:count]]

    def refuse(self, action: str, after: int = 0, times: int = 1) -> None:
        """The tracker throws so often, from the next event of this kind after so many on. The error ends with a `!` for
        each refusal that is still to come."""
        self.library.probe_refuse(ACTIONS.index(action), after, times)

    def refuse_nothing(self) -> None:
        self.library.probe_refuse(-1, 0, 0)

    def refusals(self) -> int:
        """How often the tracker has still to throw."""
        return int(self.library.probe_refusals())

    def warning(self) -> str:
        """What PyTorch's C++ warned of last, on this thread and outside of its calls from Python."""
        return bytes(self.library.probe_warning()).decode()

    def hold(self, size: int) -> None:
        """Allocates `size` bytes, which its callback frees in the next shortage."""
        self.library.probe_hold(size)

    def shortages(self) -> int:
        """How often its callback freed something."""
        return int(self.library.probe_shortages())

    def rejected(self) -> int:
        """The bytes of the last request that throw_on_cudamalloc_oom refused, since the first call; 0: none."""
        return int(self.library.probe_rejected())

    def peer(self, device: int, owner: int) -> str:
        """Lets a device use another's memory. Returns PyTorch's error, or an empty text."""
        return bytes(self.library.probe_peer(device, owner)).decode()

    def users(self, pool: tuple[int, int]) -> int:
        """Graphs and MemPools that use this memory pool of device 0."""
        return int(self.library.probe_users(*map(ctypes.c_uint64, pool)))

    def expandable(self, device: int = 0) -> dict[str, int]:
        """The bytes of a device's expandable segments, as snapshots name their kinds."""
        return {kind: int(self.library.probe_expandable(device, kind == "small")) for kind in ("small", "large")}

    def order(self, address: int) -> int:
        """The place of the segment that begins there in the order of making, by which NCCL registers; 0: in none, -1:
        none begins there."""
        return int(self.library.probe_order(ctypes.c_size_t(address)))

    def empty_cache(self, pool: tuple[int, int]) -> None:
        """Gives back idle memory of one memory pool."""
        self.library.probe_empty_cache(*map(ctypes.c_uint64, pool))

    def begin_capture_route(self, pool: tuple[int, int]) -> None:
        """Routes requests of streams that are captured by then to a memory pool, as a capture does."""
        self.library.probe_begin_capture_route(*map(ctypes.c_uint64, pool))

    def allocate_at_once(self, threads: int, size: int) -> list[int]:
        """So many threads allocate at the same moment, on the default stream of device 0. Returns the addresses."""
        made = (ctypes.c_void_p * threads)()
        self.library.probe_allocate_at_once(made, ctypes.c_size_t(threads), ctypes.c_size_t(size))
        return [int(each or 0) for each in made]

    def churn(self, threads: int, rounds: int) -> None:
        """So many threads allocate and free at the same time, so often each, on device 0."""
        self.library.probe_churn(ctypes.c_size_t(threads), ctypes.c_size_t(rounds))

    def largest(self, least: int, device: int = 0) -> int:
        """The bytes of the largest request that needs no new memory of a device, and at least `least`; 0: any."""
        return int(self.library.probe_largest(device, ctypes.c_size_t(least)))

    def is_enabled(self) -> bool:
        """Whether tensors get memory of the pool."""
        return bool(self.library.probe_is_enabled())

    def watch(self, stream: int) -> bool:
        """Looks at this stream, 0: none, when memory comes back to the probe's allocators. Returns whether the stream
        before it worked then."""
        return bool(self.library.probe_watch(ctypes.c_void_p(stream)))

    def push_compile_context(self, name: str) -> None:
        self.library.probe_push_compile_context(name.encode())

    def pop_compile_context(self) -> None:
        self.library.probe_pop_compile_context()

    def annotate(self, name: str, value: str) -> None:
        """Adds an annotation to the history, if one is recorded."""
        self.library.probe_annotate(name.encode(), value.encode())

    def record_stacks_without_a_way(self) -> str:
        """The error of a history with stacks, and without a function that takes them."""
        return bytes(self.library.probe_record_stacks_without_a_way()).decode()

    def base(self, pointer: int) -> tuple[int, int] | str:
        """Begin and size of the allocation around an address, or the error."""
        begin, size = ctypes.c_void_p(), ctypes.c_size_t()
        error = self.library.probe_base(ctypes.c_void_p(pointer), ctypes.byref(begin), ctypes.byref(size))
        return bytes(error).decode() or (begin.value or 0, size.value)

    def share(self, pointer: int) -> tuple[int, bytes] | str:
        """The place in its allocation and the message for other processes, or the error."""
        offset, message, size = ctypes.c_ssize_t(), ctypes.c_void_p(), ctypes.c_size_t()
        places = map(ctypes.byref, (offset, message, size))
        error = bytes(self.library.probe_share(ctypes.c_void_p(pointer), *places)).decode()
        return error or (offset.value, ctypes.string_at(message.value or 0, size.value))

    def open(self, message: bytes) -> int | str:
        """The address of another process's memory, which stays open in this one, or the error."""
        begin = ctypes.c_void_p()
        error = self.library.probe_open(message, ctypes.c_size_t(len(message)), ctypes.byref(begin))
        return bytes(error).decode() or begin.value or 0

    def stats(self, device: int) -> str:
        """The error of asking for a device's figures, or an empty text."""
        return bytes(self.library.probe_stats(device)).decode()

    def copy(self, to: tuple[int, int], source: tuple[int, int], size: int, *, has_access: bool) -> int:
        """Copies between pairs of address and device, on the default stream. Returns CUDA's error."""
        places = [word for pointer, device in (to, source) for word in (ctypes.c_void_p(pointer), device)]
        return int(self.library.probe_copy(*places, ctypes.c_size_t(size), has_access))

    def copy_data(self, to: int, source: int, size: int) -> None:
        self.library.probe_copy_data(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def share_pool(self, pool: tuple[int, int]) -> str:
        """The error of giving a memory pool of device 0 another allocator, or an empty text."""
        return bytes(self.library.probe_share_pool(*map(ctypes.c_uint64, pool))).decode()

    def foreign_counts(self) -> tuple[int, int]:
        """Pieces of memory that the probe's allocators made, and that came back to them."""
        made, given_back = (int(self.library.probe_foreign_count(is_given_back)) for is_given_back in (0, 1))
        return made, given_back

    def foreign_asked(self) -> int:
        """How often the probe's allocators were asked for memory."""
        return int(self.library.probe_foreign_asked())

    @contextlib.contextmanager
    def paused_allocation(self, allocate: Callable[[], None]) -> Iterator[None]:
        """`allocate` runs in a thread, and its allocation ends with the block: it waits in `waiting_malloc`, or when it
        has its memory, which PyTorch does not know before. There it waits with the lock of the history, so that nothing
        in the block may cause an event of the plugin, on no thread."""
        self.library.probe_pause()
        thread = threading.Thread(target=allocate)
        thread.start()
        try:
            assert self.library.probe_await_pause()
            yield
        finally:
            self.library.probe_go_on()
            thread.join()


@functools.cache
def load() -> Probe:
    import torch

    root = Path(torch.__file__).resolve().parent
    facts = (torch.version.git_version, torch._C._GLIBCXX_USE_CXX11_ABI)
    arguments = [
        f"-DVPMM_TORCH_MINOR={torch.__version__.split('.')[1]}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-O0",
        *(word for path in (root / "include", *cuda_includes(WHAT)) for word in ("-isystem", str(path))),
        str(SOURCE),
        *(f"-L{root / 'lib'}", "-lc10", "-lc10_cuda"),
    ]
    name = f"probe_{fingerprint((SOURCE, Path(__file__)), facts)}.so"
    with contextlib.redirect_stderr(io.StringIO()):  # programs must say nothing there
        path = cached(name, lambda library: run_compiler(arguments, library, WHAT, ""), WHAT)
    return Probe(ctypes.CDLL(str(path)), path)
