#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs another process to open memory: a pool's by vpmm_ipc_open, cuMemAlloc's by CUDA's legacy IPC, in turns.

For each size and allocator a process exports one allocation, and a second one, which has a CUDA context already, opens,
checks and closes it again and again; once per round with a connection that is not there yet. A pool's memory lies in as
many chunks as VPMM_CHUNK_MAX makes of it: the figure is given per chunk, too. Needs nothing but libvpmm.so and a GPU;
with VPMM_DRIVER=sim it shows only that it runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402  from the folder above

MIB = 1 << 20
GIB = 1 << 30
LEGACY, POOL = 1, 2


class Handle(ctypes.Structure):
    """vpmm_ipc_handle"""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("token", ctypes.c_ubyte * 64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("device_uuid", ctypes.c_ubyte * 16),
    )


@dataclass(frozen=True)
class Case:
    """One allocation that is opened."""

    size: int
    chunk_max: str | None  # of the pool; None: cuMemAlloc
    opens: int

    @property
    def name(self) -> str:
        size = f"{self.size // GIB} GiB" if self.size >= GIB else f"{self.size // MIB} MiB"
        return f"{size}, " + ("cuMemAlloc" if self.chunk_max is None else f"pool, chunks <= {self.chunk_max}")


CASES = [
    Case(size, chunk_max, opens)
    for size, opens, chunk_maxima in (
        (MIB, 20, ("4GiB",)),
        (64 * MIB, 20, ("4GiB", "16MiB", "page")),
        (GIB, 10, ("4GiB", "256MiB", "64MiB")),
        (4 * GIB, 5, ("4GiB", "1GiB", "384MiB", "64MiB")),
        (32 * GIB, 5, ("4GiB", "256MiB")),
    )
    for chunk_max in (None, *chunk_maxima)
]


class Vpmm:
    """The functions of libvpmm.so that are needed here; an error ends the process."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.vpmm_last_error.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401  what ctypes takes
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise SystemExit(f"{name}: {self.library.vpmm_last_error().decode()}")


class Cuda:
    """The calls of libcuda that are made here, with device 0's context current."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401  what ctypes takes
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise SystemExit(f"{name} failed with {status}")

    def write(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


class Simulated:
    """The same where memory of the device is memory of the process."""

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)


def open_device() -> Cuda | Simulated:
    return Simulated() if os.environ.get("VPMM_DRIVER") == "sim" else Cuda()


def mark(case: Case) -> bytes:
    return case.name.encode().ljust(64, b".")


# --- the two processes ------------------------------------------------------------------------------------------------


def export(library: Path, case: Case) -> None:
    """Prints the handle and the number of chunks; holds the memory until its input ends."""
    vpmm, device = Vpmm(library), open_device()
    address = ctypes.c_void_p()
    chunks = 1
    if case.chunk_max is None:
        assert isinstance(device, Cuda)
        device.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(case.size))
    else:
        os.environ["VPMM_CHUNK_MAX"] = case.chunk_max
        pool = ctypes.c_void_p()
        vpmm.call("vpmm_pool_create", 0, None, ctypes.byref(pool))
        size = ctypes.c_size_t(case.size)
        vpmm.call("vpmm_allocate_any_stream", pool, size, ctypes.c_size_t(0), ctypes.byref(address))
        chunks = json.loads(dump(vpmm, pool))["statistics"]["chunks"]
    device.write(address.value or 0, mark(case))
    device.write((address.value or 0) + case.size - 64, mark(case))
    handle = Handle()
    vpmm.call("vpmm_ipc_export", address, ctypes.c_size_t(case.size), ctypes.byref(handle))
    assert handle.kind == (LEGACY if case.chunk_max is None else POOL)
    print(json.dumps({"handle": bytes(handle).hex(), "chunks": chunks}), flush=True)
    sys.stdin.read()


def dump(vpmm: Vpmm, pool: ctypes.c_void_p) -> str:
    text = ctypes.c_char_p()
    vpmm.call("vpmm_dump_json", pool, ctypes.byref(text))
    return (text.value or b"").decode()


def open_again_and_again(library: Path) -> None:
    """For each line of input, a case and its handle: the times of its openings and closings, in seconds."""
    vpmm, device = Vpmm(library), open_device()
    for line in sys.stdin:
        asked = json.loads(line)
        case = Case(**asked["case"])
        handle = Handle.from_buffer_copy(bytes.fromhex(asked["handle"]))
        times = []
        for _ in range(case.opens):
            address = ctypes.c_void_p()
            begin = time.perf_counter()
            vpmm.call("vpmm_ipc_open", ctypes.byref(handle), 0, ctypes.byref(address))
            opened = time.perf_counter()
            base = address.value or 0
            if device.read(base, 64) != mark(case) or device.read(base + case.size - 64, 64) != mark(case):
                raise SystemExit(f"{case.name}: other bytes arrived than were written")
            closing = time.perf_counter()
            vpmm.call("vpmm_ipc_close", address)
            times.append((opened - begin, time.perf_counter() - closing))
        print(json.dumps(times), flush=True)


# --- the one that starts them -----------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], what: str) -> Any:  # noqa: ANN401  JSON
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{what}: a process ended without an answer")
    return json.loads(line)


def measure(library: Path, cases: list[Case], rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"case": case.name, "bytes": case.size, "first": [], "open": [], "close": []} for case in cases
    ]
    for _ in range(rounds):
        importer = start("import", "--library", str(library))
        for case, row in zip(cases, rows, strict=True):
            exporter = start("export", "--library", str(library), "--case", json.dumps(vars(case)))
            exported = hear(exporter, case.name)
            row["chunks"] = exported["chunks"]
            say(importer, json.dumps({"case": vars(case), "handle": exported["handle"]}))
            times = hear(importer, case.name)
            row["first"].append(times[0][0])
            row["open"] += [opened for opened, _ in times[1:]]
            row["close"] += [closed for _, closed in times]
            exporter.communicate(timeout=60)
        importer.communicate(timeout=60)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    legacy = {row["bytes"]: median(row["open"]) for row in rows if row["case"].endswith("cuMemAlloc")}
    lines = [
        "| memory | chunks | first ms | again ms | worst | again, per chunk | over cuMemAlloc's | close ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        opened, closed, worst = median(row["open"]), median(row["close"]), max(row["open"])
        ratio = f"{opened / legacy[row['bytes']]:.1f}" if row["bytes"] in legacy else ""
        first = median(row["first"])
        times = f"{first * 1e3:.2f} | {opened * 1e3:.2f} | {worst * 1e3:.2f} | {opened * 1e3 / row['chunks']:.2f}"
        lines.append(f"| {row['case']} | {row['chunks']} | {times} | {ratio} | {closed * 1e3:.2f} |")
    return "\n".join(lines)


def page(rows: list[dict[str, Any]], command: str) -> str:
    head = "\n".join(f"- {key}: {value}" for key, value in machine.describe().items())
    what = (
        "A second process opens, checks and closes one allocation again and again: of a pool by `vpmm_ipc_open`, of\n"
        "cuMemAlloc by CUDA's legacy IPC, in one run. `first` is the first opening of that memory, `again` those\n"
        "after it. Medians over all rounds; `worst` is of those that are not first."
    )
    return f"# Opening memory of another process\n\n{head}\n\n{what}\n\n{table(rows)}\n\n```\n{command}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=["export", "import"], help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, required=True, help="libvpmm.so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for ipc-open.json and ipc-open.md")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "export":
        export(options.library, Case(**json.loads(options.case)))
        return 0
    if options.role == "import":
        open_again_and_again(options.library)
        return 0
    cases = CASES
    if os.environ.get("VPMM_DRIVER") == "sim":
        cases = [case for case in CASES if case.chunk_max is not None]
    with tempfile.TemporaryDirectory(prefix="vpmm-ipc-") as folder:
        os.environ.setdefault("VPMM_IPC_DIR", f"{folder}/sockets")
        rows = measure(options.library.resolve(), cases, options.rounds)
    print(table(rows))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        command = "python3 bench/ipc_open.py --library build/release/libvpmm.so --out RESULTS"
        raw = {"machine": machine.describe(), "command": command, "rows": rows}
        (options.out / "ipc-open.json").write_text(json.dumps(raw, indent=1) + "\n")
        (options.out / "ipc-open.md").write_text(page(rows, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
