# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch, CuPy, Numba and RMM in one process, first with a pool each, then on one pool. Needs a GPU.

python examples/one_pool.py [--gib 4]

Each library in turn works on arrays of that many GiB and frees them, like the stages of a pipeline. Then the libraries
exchange arrays. Every result is checked. For both runs the program prints the most memory that the process held, and
the time. Libraries that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time

NAMES = {"torch": "torch", "cupy": "cupy", "numba": "numba.cuda", "rmm": "rmm"}
GIB = 1 << 30


def find(name: str) -> bool:
    try:
        return importlib.util.find_spec(NAMES[name]) is not None
    except ModuleNotFoundError:
        return False


# --- a stage of each library: makes arrays of `count` floats, computes, checks, frees them ----------------------------


def torch_stage(count: int) -> None:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        ones = torch.ones(count, device="cuda")
        twos = ones + ones
        assert float(twos[::1024].sum()) == 2 * len(range(0, count, 1024))


def cupy_stage(count: int) -> None:
    import cupy

    with cupy.cuda.Stream():
        ones = cupy.ones(count, dtype=cupy.float32)
        twos = ones + ones
        assert float(twos[::1024].sum()) == 2 * len(range(0, count, 1024))


def numba_stage(count: int) -> None:
    from numba import cuda

    @cuda.jit
    def fill(array):  # noqa: ANN001, ANN202  a kernel
        i = cuda.grid(1)
        if i < array.size:
            array[i] = 3

    stream = cuda.stream()
    arrays = [cuda.device_array(count, "float32", stream=stream) for _ in range(2)]
    for array in arrays:
        fill[(count + 255) // 256, 256, stream](array)
    stream.synchronize()
    assert float(arrays[1][count - 1]) == 3


def rmm_stage(count: int) -> None:
    import rmm

    buffers = [rmm.DeviceBuffer(size=4 * count) for _ in range(2)]
    part = rmm.DeviceBuffer.to_device(b"vpmm" * 64)
    assert part.tobytes() == b"vpmm" * 64
    del buffers


# --- exchange ---------------------------------------------------------------------------------------------------------


def hand_over(count: int) -> None:
    """DLPack and `__cuda_array_interface__` order the streams, without a copy and without a wait of the host."""
    import cupy
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.arange(count, device="cuda", dtype=torch.float32)
        with cupy.cuda.Stream():
            array = cupy.from_dlpack(tensor)
            doubled = array * 2
            back = torch.from_dlpack(doubled)
        assert array.data.ptr == tensor.data_ptr() and back.data_ptr() == doubled.data.ptr
        assert torch.equal(back, tensor * 2)
    if find("numba"):
        from numba import cuda

        assert float(cuda.as_cuda_array(tensor)[7]) == 7
    if find("rmm"):
        import rmm

        buffer = rmm.DeviceBuffer.to_device(b"vpmm" * 64)
        seen = cupy.asarray(buffer)
        assert seen.data.ptr == buffer.ptr and cupy.asnumpy(seen).tobytes() == b"vpmm" * 64


def reuse_without_a_wait(count: int) -> bool:
    """Whether memory that PyTorch frees on a stream serves CuPy on that stream at once, behind its queued work."""
    import cupy
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.ExternalStream(stream.cuda_stream):
        tensor = torch.zeros(count, device="cuda")
        for _ in range(50):
            tensor += 1  # still running when CuPy gets the memory
        address, kept = tensor.data_ptr(), tensor[:1000].clone()
        del tensor
        array = cupy.full(count, 7, dtype=cupy.float32)
        is_reused = address == array.data.ptr
        assert float(kept.sum()) == 50 * 1000 and float(array[::1024].sum()) == 7 * len(range(0, count, 1024))
    return is_reused


STAGES = {"torch": torch_stage, "cupy": cupy_stage, "numba": numba_stage, "rmm": rmm_stage}


def work(here: list[str], gib: float) -> dict[str, object]:
    import torch
    from cuda.bindings import runtime

    def used() -> int:
        """Bytes of the GPU in use, as the driver reports."""
        _, free, total = runtime.cudaMemGetInfo()
        return int(total) - int(free)

    count = int(gib * GIB / 2 / 4)
    for name in here:  # warm-up: contexts, kernels and libraries
        STAGES[name](1 << 16)
    torch.cuda.synchronize()
    before, start, held = used(), time.perf_counter(), 0
    for _ in range(3):
        for name in here:
            STAGES[name](count)
            held = max(held, used() - before)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    is_reused = None
    if "cupy" in here:
        hand_over(1 << 20)
        is_reused = reuse_without_a_wait(1 << 22)
    return {"held": held, "seconds": seconds, "reused": is_reused}


def child(here: list[str], gib: float, on_one_pool: bool) -> None:
    if on_one_pool:
        import vpmm

        for name in here:
            getattr(vpmm, f"use_for_{name}")()
    print(json.dumps(work(here, gib)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4, help="total size of the arrays of a stage (default: 4)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    here = [name for name in STAGES if find(name)]
    if options.only:
        child(here, options.gib, options.only == "one pool")
        return
    for name in STAGES:
        if name not in here:
            print(f"{name} is not installed: skipped")
    if "torch" not in here:
        sys.exit("this example measures with PyTorch, which is not installed")
    print(f"{', '.join(here)}: stages of {options.gib:g} GiB each, three times\n")
    print(f"{'':<20}{'held, GiB':>12}{'seconds':>10}   memory that PyTorch freed serves CuPy at once")
    for way in ("a pool each", "one pool"):
        command = [sys.executable, __file__, "--gib", str(options.gib), "--only", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        reused = {True: "yes", False: "no", None: "-"}[found["reused"]]
        print(f"{way:<20}{found['held'] / GIB:>12.2f}{found['seconds']:>10.2f}   {reused}")


if __name__ == "__main__":
    main()
