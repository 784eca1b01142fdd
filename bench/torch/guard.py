#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench: milliseconds a step of two small PyTorch programs with VPMM_GUARD unset, 1/100 and 1.

"""Measures the cost of guard mode, and prints one line of JSON for each program and setting.

    python3 bench/torch/guard.py [--steps N]

Needs a GPU, PyTorch and the package. Each measurement runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

SETTINGS = ("", "1/100", "1")
PROGRAMS = ("mlp", "transformer")


def measure(program: str, steps: int) -> None:
    """Prints the median of the steps after a fifth of them, and what was guarded."""
    import torch

    import vpmm

    torch.manual_seed(1)
    if program == "mlp":
        layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
        model, shape = torch.nn.Sequential(*layers).cuda(), (512, 1024)
    else:
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model, shape = torch.nn.TransformerEncoder(layer, 4).cuda(), (16, 128, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        loss = model(torch.randn(*shape, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    kept = sorted(times[steps // 5 :])
    now = vpmm.stats()
    figures = {
        "program": program,
        "guard": os.environ.get("VPMM_GUARD", ""),
        "ms_a_step": round(kept[len(kept) // 2] * 1e3, 3),
        "allocations": now["allocations"],
        "guarded": now["guarded_allocations"],
        "unguarded": now["unguarded_allocations"],
        "peak_mapped_bytes": now["peak_mapped_bytes"],
    }
    print(json.dumps(figures), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of guard mode under PyTorch.")
    parser.add_argument("--steps", type=int, default=50, help="steps of each program (default: 50)")
    parser.add_argument("--program", choices=PROGRAMS, help="measure this one here, with VPMM_GUARD as it is")
    options = parser.parse_args()
    if options.program:
        measure(options.program, options.steps)
        return 0
    for program in PROGRAMS:
        for setting in SETTINGS:
            kept = {name: value for name, value in os.environ.items() if name != "VPMM_GUARD"}
            settings = kept | {"VPMM_TORCH": "1"} | ({"VPMM_GUARD": setting} if setting else {})
            command = [sys.executable, __file__, "--program", program, "--steps", str(options.steps)]
            if subprocess.run(command, env=settings, check=False).returncode != 0:
                print(json.dumps({"program": program, "guard": setting, "failed": True}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
