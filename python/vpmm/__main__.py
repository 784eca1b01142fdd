# vpmm: python -m vpmm: runs a program with its libraries on the pool, and says what is here.

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

import vpmm
from vpmm import _vpmm


def recording_path(path: Path, device: int) -> str:
    """`path` for device 0, and beside it one for each other device: trace.csv.gz, trace.device1.csv.gz."""
    if device == 0:
        return str(path)
    suffixes = "".join(path.suffixes)
    return str(path.with_name(f"{path.name.removesuffix(suffixes)}.device{device}{suffixes}"))


def run(script: str, arguments: list[str], recording: Path | None, stacks: str, torch: bool) -> None:
    """Runs the script as `python script` would, with NUMBA_CUDA_MEMORY_MANAGER=vpmm; `torch`: and VPMM_TORCH=1."""
    if torch:
        run_on_torch()
    os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "vpmm"
    if recording is not None:
        path = recording
        _vpmm.on_open(lambda device: _vpmm.Pool.default(device).record_start(recording_path(path, device), stacks))
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def run_on_torch() -> None:
    """PyTorch's memory from the pool, in this process and in those that it starts."""
    os.environ["VPMM_TORCH"] = "1"
    vpmm.use_for_torch()


def build_torch() -> None:
    """Compiles the allocator for the PyTorch that is here, and says where it is."""
    from vpmm.plugins.torch import build

    print(build())


def info() -> None:
    """Prints the version, where the library is and what each device has free."""
    print(f"vpmm {vpmm.__version__}, {_vpmm.__file__}")
    for variable in ("NUMBA_CUDA_MEMORY_MANAGER", "VPMM_TORCH"):
        print(f"{variable}={os.environ.get(variable, '')}")
    for device in range(_vpmm.device_count()):
        free, total = vpmm.memory_info(device)
        print(f"device {device}: {free} of {total} bytes are free for the pool")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m vpmm", description="One GPU memory pool for a whole process.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run_parser = verbs.add_parser("run", help="run a program with Numba's memory from the pool")
    run_parser.add_argument("--torch", action="store_true", help="PyTorch's memory, too")
    run_parser.add_argument("--record", type=Path, metavar="FILE", help="record allocations for `vpmm replay`")
    run_parser.add_argument(
        "--stacks", choices=("none", "native", "python", "both"), default="none", help="of what is recorded"
    )
    run_parser.add_argument("script")
    run_parser.add_argument("arguments", nargs=argparse.REMAINDER)
    verbs.add_parser("info", help="print version and devices")
    verbs.add_parser("build-torch", help="compile the allocator for the PyTorch that is installed here")
    options = parser.parse_args()
    try:
        if options.verb == "run":
            run(options.script, options.arguments, options.record, options.stacks, options.torch)
        elif options.verb == "build-torch":
            build_torch()
        else:
            info()
    except vpmm.Error as error:
        if options.verb == "run":
            raise
        print(f"vpmm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
