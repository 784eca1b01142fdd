# SPDX-License-Identifier: Apache-2.0
"""tests: starts a program on the simulated GPU, which PyTorch and VPMM both take for a real one.

`python tests/torch/sim_gpu.py --devices 2 program.py` runs the program with this interpreter. Kernels take time on
their streams and compute nothing; copies and memory are real. What there is: docs/simulator.md.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", HERE.parents[1] / "build/dev")).resolve()
NAMES = ("libcuda.so.1", "libcudart.so.13", "libsim_gpu_blas.so.0")
LIBRARIES = [str(BUILD / "sim_gpu" / name) for name in NAMES]
SECONDS = 240


def missing() -> str:
    """Why nothing can run here, as a reason to skip; empty when it can."""
    absent = [name for name in LIBRARIES if not Path(name).exists()]
    return f"{', '.join(absent)} not built: VPMM_CUDA_INCLUDE names no CUDA headers" if absent else ""


def environment(devices: int = 1, **variables: str) -> dict[str, str]:
    """This process's environment, without settings of VPMM and PyTorch, for a program on the simulated GPU."""
    prefixes = ("VPMM_", "PYTORCH_", "TORCH_", "CUDA_", "LD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    path = os.pathsep.join([str(BUILD / "python"), str(HERE)])
    own = {
        "CUDA_VISIBLE_DEVICES": "MIG-0",  # of such a name PyTorch asks CUDA, not NVML, which has the machine's own GPUs
        "LD_PRELOAD": ":".join(LIBRARIES),
        "PYTHONPATH": path,
        "VPMM_BUILD_FOLDER": str(BUILD),
        "VPMM_DRIVER": "cuda",
        "VPMM_SIM_GPU_DEVICES": str(devices),
    }
    return clean | own | variables


def run(*arguments: str, devices: int = 1, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `arguments` on the simulated GPU; the caller looks at how it ended."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment(devices, **variables),
        timeout=SECONDS,
        check=False,
    )


def output_of(code: str, devices: int = 1, **variables: str) -> str:
    """What a program printed; it must have ended well and said nothing else."""
    done = run("-c", code, devices=devices, **variables)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def is_here() -> bool:
    """Whether this process runs on the simulated GPU."""
    return os.environ.get("LD_PRELOAD") == ":".join(LIBRARIES)


def hazards() -> tuple[int, str]:
    """How many accesses of this process's copies and fills nothing ordered so far, and a text about the first."""
    text = ctypes.create_string_buffer(1 << 16)
    count = ctypes.CDLL("libcuda.so.1").vpmm_sim_gpu_hazards
    count.restype = ctypes.c_ulonglong
    count.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return count(text, len(text)), text.value.decode()


def peer_copies() -> int:
    """How many of this process's copies named both devices, as those without peer access do."""
    count = ctypes.CDLL("libcuda.so.1").vpmm_sim_gpu_peer_copies
    count.restype = ctypes.c_ulonglong
    return int(count())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--vpmm", action="store_true", help="PyTorch allocates through VPMM")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what Python is given: a script and its arguments")
    options = parser.parse_args()
    if missing():
        parser.error(missing())
    variables = {"VPMM_TORCH": "1", "VPMM_CACHE_DIR": str(BUILD / "torch")} if options.vpmm else {}
    os.execve(sys.executable, [sys.executable, *options.program], environment(options.devices, **variables))


if __name__ == "__main__":
    main()
