# SPDX-License-Identifier: Apache-2.0
"""tests: on a GPU, memory of tags survives a hundred cycles to the bit, graphs replay, and nothing grows.

Each program runs in a process of its own with VPMM_TORCH=1, and prints one line of JSON. VPMM_TEST_CYCLES is their
number.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

CYCLES = int(os.environ.get("VPMM_TEST_CYCLES", "100"))
SECONDS = 300
ROOT = Path(__file__).resolve().parents[2]

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed")

# Eight tags of odd sizes, filled and checked on the GPU; in two cycles of three, two threads put half of them to sleep
# each, on streams of their own. A graph that adds 1 to memory of a tag, with memory of its own in another, is replayed
# in each cycle. Figures after a tenth of the cycles and at the end, after cycles that did the same and without idle
# memory: two threads leave more of it in one cycle than in the next.
CONTENTS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import torch, vpmm
cycles = int(sys.argv[1])
names = [f"tag {i}" for i in range(8)]
generator = torch.Generator("cuda").manual_seed(1)
kept = {}
for number, name in enumerate(names):
    with vpmm.tag(name, suspendable=True):
        sizes = [1, 999, 70_001, 3_000_001, (20 + number) << 20]
        kept[name] = [torch.randint(256, (n,), dtype=torch.uint8, device="cuda", generator=generator) for n in sizes]
expected = {name: [t.clone() for t in tensors] for name, tensors in kept.items()}
addresses = [t.data_ptr() for tensors in kept.values() for t in tensors]
with vpmm.tag("counters", suspendable=True):
    counter = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
graph = torch.cuda.CUDAGraph()
with vpmm.tag("graph", suspendable=True, backup=False), torch.cuda.graph(graph):
    counter += torch.ones(1 << 20, dtype=torch.int64, device="cuda") * 1
torch.cuda.synchronize()
def figures():
    free, total = torch.cuda.mem_get_info()
    stats = vpmm.stats()
    resident = int(open("/proc/self/statm").read().split()[1])
    return [resident, total - free, stats["mappings"], stats["mapped_bytes"]]
def half(names, stream, to_driver):
    with torch.cuda.stream(stream):
        for name in names:
            vpmm.suspend(name, to_driver=to_driver, stream=stream)
            between = torch.full((10 << 20,), 7, dtype=torch.uint8, device="cuda")
            del between
        for name in names:
            vpmm.resume(name)
        wrong = sum(int((a != b).any()) for name in names for a, b in zip(kept[name], expected[name]))
    stream.synchronize()
    return wrong
threads, streams = ThreadPoolExecutor(2), [torch.cuda.Stream(), torch.cuda.Stream()]
wrong, seen = 0, []
for cycle in range(cycles):
    graph.replay()
    to_driver = cycle % 2 == 0
    if cycle % 3 == 0:
        vpmm.suspend(to_driver=to_driver)
        between = torch.full((100 << 20,), cycle % 256, dtype=torch.uint8, device="cuda")
        del between
        vpmm.resume()
    else:
        torch.cuda.synchronize()
        order = names[:: -1 if cycle % 3 == 1 else 1]
        wrong += sum(threads.map(half, (order[:4], order[4:]), streams, (to_driver, not to_driver)))
    wrong += sum(int((a != b).any()) for name in names for a, b in zip(kept[name], expected[name]))
    if cycle >= cycles // 10 and cycle % 6 == cycles // 10 % 6:
        vpmm.trim()
        seen.append(figures())
same = addresses == [t.data_ptr() for tensors in kept.values() for t in tensors]
print(json.dumps({"wrong": wrong, "same": same, "early": seen[0], "late": seen[-1],
                  "counted": bool((counter == cycles).all())}))
"""

# The same training, once with a sleep after each step; the losses and weights must be equal to the bit.
TRAINING = """
import hashlib, json, sys
import torch, vpmm
sleeps = sys.argv[1] == "sleep"
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
losses = []
with vpmm.tag("training", suspendable=True):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
generator = torch.Generator("cuda").manual_seed(2)
for step in range(20):
    with vpmm.tag("training", suspendable=True):
        loss = model(torch.randn(256, 1024, device="cuda", generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        del loss
    if sleeps:
        vpmm.suspend("training")
        torch.full((200 << 20,), 255, dtype=torch.uint8, device="cuda")
        vpmm.resume("training")
weights = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
print(json.dumps({"losses": losses, "weights": weights}))
"""

# What one process gives up another takes.
SHARING = """
import json, subprocess, sys
import torch, vpmm
with vpmm.tag("large", suspendable=True):
    tensor = torch.ones(4 << 30, dtype=torch.uint8, device="cuda")
before = torch.cuda.mem_get_info()[0]
vpmm.suspend("large", to_driver=True)
freed = torch.cuda.mem_get_info()[0] - before
vpmm.resume("large")
print(json.dumps({"freed": freed, "equal": bool((tensor == 1).all())}))
"""


def run(program: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("VPMM_TORCH", "PYTORCH_ALLOC_CONF")}
    more = {"VPMM_TORCH": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | variables
    done = subprocess.run(
        [sys.executable, *program], capture_output=True, text=True, env=kept | more, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def found(program: str, *arguments: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(run(["-c", program, *arguments]).stdout.splitlines()[-1])
    return line


# Two processes, a GPU each, reduce memory of a tag by NCCL; between the rounds it sleeps, and others reduce theirs.
REDUCING = """
import os, torch, torch.distributed as dist, vpmm
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
with vpmm.tag("weights", suspendable=True, device=rank):
    weights = torch.full((64 << 20,), float(rank + 1), device="cuda")
with vpmm.tag("cache", suspendable=True, backup=False, device=rank):
    cache = torch.zeros(32 << 20, device="cuda")
address = weights.data_ptr()
for i in range(20):
    dist.all_reduce(weights)
    expected = 3.0 * 2**i
    assert bool((weights == expected).all()), (rank, i)
    dist.barrier()
    torch.cuda.synchronize()
    vpmm.suspend(device=rank, to_driver=i % 2 == 0)
    other = torch.full((128 << 20,), i % 100, dtype=torch.uint8, device="cuda")
    dist.all_reduce(other)
    assert bool((other == i % 100 * 2).all()), (rank, i)
    del other
    torch.cuda.synchronize()
    vpmm.resume(device=rank, zero=True)
    assert weights.data_ptr() == address and bool((weights == expected).all() and (cache == 0).all()), (rank, i)
    dist.all_reduce(cache.fill_(1.0))
    assert bool((cache == 2).all()), (rank, i)
dist.barrier()
dist.destroy_process_group()
print("rank", rank, "is done")
"""


class Tags(unittest.TestCase):
    def setUp(self) -> None:
        import torch

        if not torch.cuda.is_available():
            self.skipTest("PyTorch sees no GPU")

    def test_contents_addresses_and_graphs_survive_and_nothing_grows(self) -> None:
        after = found(CONTENTS, str(CYCLES))
        self.assertEqual((after["wrong"], after["same"], after["counted"]), (0, True, True))
        for name, early, late in zip(
            ("host", "device", "mappings", "mapped"), after["early"], after["late"], strict=True
        ):
            with self.subTest(name, **after):
                self.assertLessEqual(late, early * 1.01)

    def test_training_that_sleeps_is_training(self) -> None:
        self.assertEqual(found(TRAINING, "sleep"), found(TRAINING, "awake"))

    def test_the_device_has_the_memory_back_and_gives_it_again(self) -> None:
        after = found(SHARING)
        self.assertGreaterEqual(after["freed"], 0.99 * (4 << 30))
        self.assertTrue(after["equal"])

    def test_two_processes_reduce_memory_that_sleeps_between(self) -> None:
        import torch

        if torch.cuda.device_count() < 2:
            self.skipTest("needs two GPUs")
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "reducing.py")
            program.write_text(REDUCING)
            done = run(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)])
        self.assertEqual([f"rank {rank} is done" in done.stdout for rank in (0, 1)], [True, True])

    def test_the_program_of_the_guide_runs(self) -> None:
        program = str(ROOT / "examples/rollout.py")
        done = run([program, "--rounds", "5"])
        self.assertIn("5 rounds: training state and handed over weights were the same after each sleep", done.stdout)


if __name__ == "__main__":
    unittest.main()
