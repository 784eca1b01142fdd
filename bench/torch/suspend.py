# SPDX-License-Identifier: Apache-2.0
# bench: seconds of a pause and a resume, memory stranded while loading, and memory for a second process.

"""Measures a memory saver under PyTorch, and prints one line of JSON for each figure.

python bench/torch/suspend.py --allocator native     # the package torch_memory_saver over PyTorch's own allocator
VPMM_TORCH=1 python bench/torch/suspend.py --allocator vpmm

`speed` pauses and resumes tensors of 64 to 128 MiB: with a copy in host memory, with a copy whose host memory stays,
and without a copy; three rounds each. `loading` fills weights as a loader does: each layer's pieces come in float32,
are converted, and are joined; it prints what the device gave beyond what lives. `sharing` pauses memory, and a second
process allocates as much as it can.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

MIB, GIB = 1 << 20, 1 << 30
SHAPES = [(4096, 4096), (4096, 11008), (11008, 4096), (32000, 4096), (4096, 1024)]


def saver_of(allocator: str) -> Any:  # noqa: ANN401  either package's object
    if allocator == "vpmm":
        from vpmm.torch_memory_saver import torch_memory_saver

        return torch_memory_saver
    from torch_memory_saver import torch_memory_saver  # type: ignore[import-not-found,no-redef]

    torch_memory_saver.hook_mode = "torch"
    return torch_memory_saver


def show(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def tensors_of(gib: float) -> list[torch.Tensor]:
    tensors, left, number = [], int(gib * GIB), 0
    while left > 0:
        size = min(left, (64 + number * 7 % 64) * MIB)
        tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda").fill_(number % 251))
        left, number = left - size, number + 1
    return tensors


def speed(saver: Any, sizes: list[float], prepares: bool) -> None:  # noqa: ANN401
    host = torch.empty(4 * GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    for direction, target, source in (("out", host, device), ("in", device, host)):
        target.copy_(source)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        show(figure="pinned copy", direction=direction, gb_s=4 * GIB / (time.perf_counter() - begin) / 1e9)
    del host, device
    torch.cuda.empty_cache()
    for gib in sizes:
        for backup, keeps in ((False, False), (True, False), (True, True)):
            name = f"{gib} {backup} {keeps}"
            try:
                saver.retain_cpu_backup = keeps
            except Exception as error:
                show(figure="speed", gib=gib, keeps=keeps, error=str(error))
                continue
            with saver.region(tag=name, enable_cpu_backup=backup):
                tensors = tensors_of(gib)
            if prepares and backup:
                import vpmm

                start = time.perf_counter()
                vpmm.prepare_suspend()  # all tags with a copy: this one
                show(figure="prepare", gib=gib, keeps=keeps, seconds=time.perf_counter() - start)
            for round_ in range(3):
                torch.cuda.synchronize()
                before = used()
                begin = time.perf_counter()
                saver.pause(name)
                paused = time.perf_counter()
                given = before - used()
                start = time.perf_counter()
                saver.resume(name)
                resumed = time.perf_counter()
                wrong = sum(int((t != i % 251).any()) for i, t in enumerate(tensors)) if backup else 0
                show(
                    figure="speed",
                    gib=gib,
                    backup=backup,
                    keeps=keeps,
                    round=round_,
                    pause_s=paused - begin,
                    resume_s=resumed - start,
                    given_gib=given / GIB,
                    wrong=wrong,
                )
            del tensors
            torch.cuda.empty_cache()


def loading(saver: Any, layers: int) -> None:  # noqa: ANN401
    torch.cuda.empty_cache()
    before = used()
    kept: list[torch.Tensor] = []
    with saver.region(tag="weights", enable_cpu_backup=False):
        for layer in range(layers):
            for rows, columns in SHAPES[: 3 if layer % 8 else 5]:
                parts = [torch.empty(rows // 2 + layer % 3, columns, device="cuda") for _ in range(2)]
                halves = [part.to(torch.bfloat16) for part in parts]
                kept.append(torch.cat(halves).t().contiguous())
        del parts, halves
        torch.cuda.synchronize()
        live = sum(t.numel() * t.element_size() for t in kept)
    torch.cuda.empty_cache()
    held = used() - before
    show(figure="loading", live_gib=live / GIB, held_gib=held / GIB, stranded=held / live - 1)
    saver.pause("weights")
    show(figure="loading paused", left_gib=(used() - before) / GIB)
    saver.resume("weights")


SECOND = """
import sys, torch
kept, most = [], int(sys.argv[1])
block = 256 << 20
try:
    while len(kept) * block < most:
        kept.append(torch.empty(block, dtype=torch.uint8, device="cuda").fill_(1))
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    pass
print(len(kept) * block)
"""


def sharing(saver: Any) -> None:  # noqa: ANN401
    free, _ = torch.cuda.mem_get_info()
    gib = int(free * 0.85 / GIB)
    with saver.region(tag="all", enable_cpu_backup=False):
        tensors = tensors_of(gib)
    torch.cuda.synchronize()
    saver.pause("all")
    begin = time.perf_counter()
    environment = {"PATH": "/usr/bin:/bin", "VPMM_TORCH": "0"}
    result = subprocess.run(
        [sys.executable, "-c", SECOND, str(gib * GIB)], capture_output=True, text=True, env=environment, check=False
    )
    taken = int(result.stdout or 0)
    saver.resume("all")
    for tensor in tensors:
        tensor.fill_(1)
    torch.cuda.synchronize()
    show(
        figure="sharing",
        paused_gib=gib,
        second_process_gib=taken / GIB,
        share=taken / (gib * GIB),
        seconds=time.perf_counter() - begin,
        errors=result.stderr[-300:],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", choices=("native", "vpmm"), required=True)
    parser.add_argument("--sizes", type=float, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prepare", action="store_true", help="vpmm: takes host memory before the first pause")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--parts", nargs="*", default=["speed", "loading", "sharing"])
    options = parser.parse_args()
    saver = saver_of(options.allocator)
    torch.zeros(1, device="cuda")
    show(figure="machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, allocator=options.allocator)
    for part in options.parts:
        begin = time.perf_counter()
        try:
            if part == "speed":
                speed(saver, options.sizes, options.prepare)
            elif part == "loading":
                loading(saver, options.layers)
            else:
                sharing(saver)
        except Exception as error:
            show(figure=part, error=f"{type(error).__name__}: {error}"[:500])
        show(figure="took", part=part, seconds=time.perf_counter() - begin)


if __name__ == "__main__":
    main()
