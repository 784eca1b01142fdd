# SPDX-License-Identifier: Apache-2.0
"""tests: a program for seven GPUs, whose pools have other settings than the defaults; it prints what it found."""

from __future__ import annotations

import ctypes
import random

import figures
import probe
import torch

import vpmm

MIB = 1 << 20
SETTINGS = (
    {"page_size": "8MiB"},
    {"page_size": "max"},
    {"small": "stream_ordered"},
    {"ipc_isolate": True},
    {"capacity": 64 * MIB},
    {"chunk_max": "2MiB"},
)
UNUSED = len(SETTINGS)  # the last GPU


def empty(size: int, device: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


def disagreements(device: int) -> dict[str, tuple[int, int]]:
    chance = random.Random(7)
    live: list[torch.Tensor] = []
    for step in range(40):
        if live and chance.random() < 0.45:
            live.pop(chance.randrange(len(live)))
        else:
            live.append(empty(int(2 ** chance.uniform(0, 24)), device))
        if step % 10 == 0:
            torch.cuda.empty_cache()
        if found := figures.differences(device):
            return found
    return {}


def words_of_a_refusal(device: int) -> str:
    with torch.cuda.device(device):
        pool = torch.cuda.MemPool()
        try:
            with torch.cuda.use_mem_pool(pool):
                empty(1000, device)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return "served"


def is_served(size: int, device: int) -> bool:
    try:
        empty(size, device)
    except torch.OutOfMemoryError:
        return False
    return True


def under_fractions(device: int) -> list[bool]:
    """Whether 32 and 100 MiB are served: with a capacity of 64 MiB, below it, above it, and without a fraction."""
    total = torch.cuda.mem_get_info(device)[1]
    found = []
    for fraction in (1.0, 16 * MIB / total, 0.5, 1.0):
        torch.cuda.set_per_process_memory_fraction(fraction, device)
        torch.cuda.empty_cache()
        found += [is_served(32 * MIB, device), is_served(100 * MIB, device)]
    return found


def of_a_divided_stretch(device: int) -> list[tuple[int, dict[str, tuple[int, int]]]]:
    """Segments, and figures that disagree: five pages of a tag, of which four, one, and none are left in use."""
    found = []

    def look() -> None:
        vpmm.trim(device=device)
        segments = torch.cuda.memory_stats(device)["segment.all.current"]
        found.append((segments, figures.differences(device)))

    with vpmm.tag("divided", suspendable=True, device=device):
        tensors = [empty(9 * MIB, device), empty(200_000, device)]
    look()
    tensors.pop(0)
    look()
    tensors.pop()
    look()
    return found


def grow(size: int, device: int) -> torch.Tensor:
    return empty(size, device)


def of_a_stretch_without_its_middle(device: int) -> list[list[tuple[int, int, bool]]]:
    """Segments of a tag as place and size in MiB, and whether the stack is of `grow`: a stretch, its two ends, and the
    same when the middle is mapped again without a stack."""
    found = []

    def look() -> None:
        segments = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == device]
        first = min(segment["address"] for segment in segments)
        for segment in segments:
            segment["is_of_it"] = any(frame["name"] == "grow" for frame in segment["frames"])
        assert figures.differences(device) == {}
        found.append([((s["address"] - first) // MIB, s["total_size"] // MIB, s["is_of_it"]) for s in segments])

    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    with vpmm.tag("holed", suspendable=True, device=device):
        tensors = [grow(9 * MIB, device), grow(MIB, device)]
        look()
        tensors[0] = empty(0, device)
        tensors[0] = empty(2 * MIB, device)
        vpmm.trim(device=device)
        look()
        torch.cuda.memory._record_memory_history(None)
        tensors.append(empty(6 * MIB, device))
        look()
    return found


def has_context(device: int) -> bool:
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
    return bool(is_active.value)


def contexts_of_looking(device: int) -> tuple[bool, int]:
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    figures_there = torch.cuda.memory_stats(device)
    torch.cuda.memory_summary(device)
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.reset_accumulated_memory_stats(device)
    torch.cuda.memory_snapshot()
    torch.cuda.empty_cache()
    library = probe.load()
    assert (library.expandable(device), library.largest(1, device)) == ({"small": 0, "large": 0}, 1)
    return has_context(device), sum(figures_there[name] for name in figures_there if name.endswith("current"))


def left_after_frees_in_any_order() -> int:
    tensors = [empty(1000, device) for device in range(UNUSED)]
    for each in (4, 1, 3, 0, 5, 2):
        tensors[each] = empty(0, 0)
    return sum(torch.cuda.memory_allocated(device) for device in range(UNUSED))


def main() -> None:
    for device, settings in enumerate(SETTINGS):
        vpmm.configure(device, **settings)
    print(left_after_frees_in_any_order())
    for device, settings in enumerate(SETTINGS[:4]):
        print(settings, disagreements(device))
    print(words_of_a_refusal(1))
    print(under_fractions(4))
    print(of_a_divided_stretch(5))
    print(of_a_stretch_without_its_middle(5))
    print(contexts_of_looking(UNUSED))


if __name__ == "__main__":
    main()
