# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch programs that print what they computed, run once with PyTorch's own allocator and once with VPMM.

    python3 cases.py NAME

prints one line of JSON: `results`, a list of [label, value] where a value is a loss or a digest of a tensor's bytes,
and `served`, whether VPMM was PyTorch's allocator in every process that took part. A case knows nothing of allocators.
TORCH_TEST_DEVICE=cpu runs most of them without a GPU, which shows that the cases themselves are sound.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as f
from torch import Tensor, nn

DEVICE = os.environ.get("TORCH_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
RANKS = 2

Results = list[tuple[str, object]]
Case = Callable[[], Results]
CASES: dict[str, Case] = {}
NEED_TWO_GPUS: set[str] = set()
NEED_GPU: set[str] = set()
NEED_MODULE: dict[str, str] = {}


def case(gpus: int = 0, module: str | None = None) -> Callable[[Case], Case]:
    """Enters a function into CASES with what it needs: so many GPUs and a module."""

    def enter(function: Case) -> Case:
        CASES[function.__name__] = function
        if gpus > 0:
            NEED_GPU.add(function.__name__)
        if gpus > 1:
            NEED_TWO_GPUS.add(function.__name__)
        if module is not None:
            NEED_MODULE[function.__name__] = module
        return function

    return enter


def be_deterministic() -> None:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def served(device: int = 0) -> bool:
    """Whether this process drew memory from VPMM."""
    if os.environ.get("VPMM_TORCH") != "1" or not ON_GPU:
        return False
    import vpmm

    return vpmm.stats(device)["allocations"] > 0


def digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]


def weights(model: nn.Module) -> Results:
    return [(name, digest(parameter)) for name, parameter in model.named_parameters()]


def train(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def random_tokens(words: int, *shape: int) -> Tensor:
    return torch.randint(2, words, shape, device=DEVICE)


# --- one process ---


def small_gpt2(**more: object) -> Any:  # noqa: ANN401  transformers is untyped
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1000, n_embd=256, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None, use_cache=False, **more
    )
    return GPT2LMHeadModel(config).to(DEVICE).train()


@case(module="transformers")
def transformers_training() -> Results:
    """Batches of many lengths, in mixed precision, with and without recomputed activations."""
    results: Results = []
    for recompute in (False, True):
        model = small_gpt2()
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for step, length in enumerate((64, 200, 33, 128, 512, 17, 300, 64)):
            text = random_tokens(1000, 8, length)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(input_ids=text, labels=text).loss
            results.append((f"loss {step}, recompute {recompute}", train(optimizer, loss)))
        results += weights(model)
    return results


@case(module="transformers")
def transformers_generation() -> Results:
    """Greedy, sampled and by beams, with a key-value cache that grows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"do_sample": False},
        "sampled": {"do_sample": True, "top_k": 50},
        "beams": {"num_beams": 4, "do_sample": False},
    }
    results: Results = []
    for batch, length in ((1, 7), (8, 100), (3, 333)):
        text = random_tokens(1000, batch, length)
        for kind, options in kinds.items():
            answer = model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=40, **options)
            results.append((f"{kind}, {batch} of {length}", digest(answer)))
        with torch.no_grad():
            results.append((f"logits, {batch} of {length}", digest(model(input_ids=text).logits.float())))
    return results


@case(module="torch_geometric")
def torch_geometric_training() -> Results:
    """GraphSAGE on subgraphs of a random graph, each of another size."""
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(32, 64, 3, 10).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    results: Results = []
    for step in range(10):
        nodes = 1000 * (1 + (7 * step) % 10)
        edges = torch.randint(0, nodes, (2, 8 * nodes), device=DEVICE)
        guessed = model(torch.randn(nodes, 32, device=DEVICE), edges)
        labels = torch.randint(0, 10, (nodes,), device=DEVICE)
        results.append((f"loss {step}", train(optimizer, f.cross_entropy(guessed, labels))))
    return results + weights(model)


@case(module="torchvision")
def torchvision_training() -> Results:
    """A ResNet on images of many resolutions."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=10).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    results: Results = []
    for step, side in enumerate((64, 96, 48, 128, 80, 64)):
        image, label = torch.randn(8, 3, side, side, device=DEVICE), torch.randint(0, 10, (8,), device=DEVICE)
        results.append((f"loss {step}", train(optimizer, f.cross_entropy(model(image), label))))
    return results + weights(model)


def perceptron(width: int = 128) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width), nn.Linear(4 * width, width))


def compiled(mode: str) -> Results:
    """Trains, then infers, in shapes that come again."""
    model = perceptron().to(DEVICE)
    fast = torch.compile(model, mode=mode, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    results: Results = []
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn((32, 64, 48)[step % 3], 128, device=DEVICE)
        results.append((f"loss {step}", train(optimizer, f.mse_loss(fast(x), x))))
    with torch.no_grad():
        for step in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            output = fast(torch.randn((32, 64)[step % 2], 128, device=DEVICE))
            results.append((f"output {step}", digest(output.clone())))
    return results + weights(model)


@case()
def compile_default() -> Results:
    return compiled("default")


@case(gpus=1)
def compile_reduce_overhead() -> Results:
    from torch._dynamo.utils import counters

    results = compiled("reduce-overhead")
    return [*results, ("graphs given up", counters["inductor"]["cudagraph_skips"])]


@case(gpus=1)
def cuda_graphs() -> Results:
    """A captured training step, replayed, beside tensors that come and go outside of the graph."""
    model = perceptron().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, capturable=True)
    x = torch.randn(64, 128, device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = f.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    results: Results = []
    for number in range(10):
        x.copy_(torch.randn(64 + number, 128, device="cuda")[:64])
        graph.replay()
        beside = torch.randn(1 << (14 + number % 4), device="cuda").sin()
        results += [(f"loss {number}", loss.item()), (f"beside {number}", digest(beside))]
    return results + weights(model)


@case(gpus=1)
def side_streams() -> Results:
    """Pinned batches of a data loader with workers, copied on one stream, used on another and freed early."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(256, 1000), torch.arange(256))
    loader = DataLoader(data, 16, num_workers=2, pin_memory=True, multiprocessing_context="spawn")
    copying = torch.cuda.Stream()
    total = torch.zeros(1000, device="cuda")
    results: Results = []
    for batch, numbers in loader:
        with torch.cuda.stream(copying):
            x = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(copying)
        x.record_stream(torch.cuda.current_stream())
        total += (x * numbers.to("cuda", non_blocking=True)[:, None]).sum(0)
        del x
        with torch.cuda.stream(copying):
            torch.full((16, 1000), float("nan"), device="cuda")  # would land where x is still being read
        results.append((f"after {int(numbers[-1])}", digest(total)))
    return results


# --- several processes ---


def receive(inbox: Any, outbox: Any, done: Any) -> None:  # noqa: ANN401  queues and an event of multiprocessing
    """Doubles what comes, in place, and sends a tensor of its own for it."""
    be_deterministic()
    kept = []
    for tensor in iter(inbox.get, None):
        tensor.mul_(2)
        kept.append(tensor + 1)
        if ON_GPU:
            torch.cuda.synchronize()
        outbox.put(kept[-1])
    outbox.put(served())
    done.wait()  # its tensors live until the other side has read them


@case()
def tensors_through_queues() -> Results:
    context = mp.get_context("spawn")
    inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=receive, args=(inbox, outbox, done))
    child.start()
    sent = [torch.randn(size, device=DEVICE) for size in (1, 1000, 70_000, 1 << 20, 5_000_001)]
    sent.append(torch.randn(1000, 1000, device=DEVICE)[100:300, ::2])  # a view into a larger one
    results: Results = []
    for number, tensor in enumerate(sent):
        inbox.put(tensor)
        answer = outbox.get(timeout=120)
        results += [(f"sent {number}", digest(tensor)), (f"answer {number}", digest(answer))]
        del answer
    inbox.put(None)
    results.append(("served", outbox.get(timeout=120)))
    done.set()
    child.join(60)
    return [*results, ("exit code", child.exitcode)]


def run_rank(rank: int, name: str, folder: str) -> None:
    """One process of a group: runs RANK_CASES[name], and leaves what it found in the folder."""
    be_deterministic()
    if ON_GPU:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo",
        f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        device_id=torch.device("cuda", rank) if ON_GPU else None,  # NCCL registers memory of communicators that exist
    )
    results = RANK_CASES[name](rank)
    results.append(("served", served(rank)))
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(name: str) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (name, folder), nprocs=RANKS)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    return [
        (label if label == "served" else f"rank {i}, {label}", value)
        for i, all_ in enumerate(found)
        for label, value in all_
    ]


def device_of(rank: int) -> torch.device:
    return torch.device("cuda", rank) if ON_GPU else torch.device("cpu")


def train_in_parallel(model: nn.Module, rank: int) -> Results:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(100 + rank)
    results: Results = []
    for step, batch in enumerate((32, 128, 64, 200, 16, 96)):
        x = torch.randn(batch, 128, device=device_of(rank))
        results.append((f"loss {step}", train(optimizer, f.mse_loss(model(x), x))))
    return results


def ddp_rank(rank: int) -> Results:
    model = perceptron().to(device_of(rank))
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[rank] if ON_GPU else None)
    return train_in_parallel(wrapped, rank) + weights(model)


def fsdp_rank(rank: int) -> Results:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        nn.Sequential(perceptron(), perceptron()).to(device_of(rank)), use_orig_params=True
    )
    return train_in_parallel(model, rank) + weights(model)


def fully_shard_rank(rank: int) -> Results:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(perceptron(), perceptron()).to(device_of(rank))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    results = train_in_parallel(model, rank)
    for name, weight in model.named_parameters():
        results.append((name, digest(weight.full_tensor())))  # type: ignore[attr-defined]  # a DTensor
    return results


def collectives_rank(rank: int) -> Results:
    """Of memory of many sizes, also while other work of this GPU goes on; twice, so that freed memory serves again."""
    results: Results = []
    torch.manual_seed(100 + rank)
    for turn in range(2):
        for size in (1, 1000, 1 << 20, (1 << 24) + 3):
            x = torch.randn(size, device=device_of(rank))
            work = dist.all_reduce(x, async_op=True)
            beside = torch.randn(100_000, device=device_of(rank)).square().sum()
            work.wait()
            gathered = torch.empty(RANKS * size, device=device_of(rank))
            dist.all_gather_into_tensor(gathered, x)
            results += [(f"sum of {size}, {turn}", digest(x)), (f"all of {size}, {turn}", digest(gathered))]
            results.append((f"beside {size}, {turn}", beside.item()))
    return results


def registered_pools_rank(rank: int) -> Results:
    """Of memory that NCCL registered: a pool of the allocator, which grows afterwards, and one of NCCL's own."""
    results: Results = []
    backend: Any = dist.group.WORLD._get_backend(device_of(rank))  # type: ignore[union-attr]
    for name, source in (("own", ()), ("nccl", (backend.mem_allocator,))):
        pool = torch.cuda.MemPool(*source)
        with torch.cuda.use_mem_pool(pool):
            large = torch.full((8 << 20,), float(rank + 1), device=device_of(rank))
            small = torch.full((1000,), float(rank), device=device_of(rank))
        backend.register_mem_pool(pool)
        for _ in range(3):
            dist.all_reduce(large)
            dist.all_reduce(small)
        with torch.cuda.use_mem_pool(pool):
            later = torch.full((3 << 20,), 2.0, device=device_of(rank))
        dist.all_reduce(later)
        results += [(f"{name}, {i}", digest(x)) for i, x in enumerate((large, small, later))]
        torch.cuda.synchronize()
        backend.deregister_mem_pool(pool)
        del large, small, later, pool
    return results


RANK_CASES: dict[str, Callable[[int], Results]] = {
    "registered_pools": registered_pools_rank,
    "ddp": ddp_rank,
    "fsdp": fsdp_rank,
    "fully_shard": fully_shard_rank,
    "collectives": collectives_rank,
}


@case(gpus=2)
def distributed_data_parallel() -> Results:
    return on_ranks("ddp")


@case(gpus=2)
def fully_sharded_data_parallel() -> Results:
    return on_ranks("fsdp")


@case(gpus=2)
def fully_shard_by_parameter() -> Results:
    return on_ranks("fully_shard")


@case(gpus=2)
def nccl_collectives() -> Results:
    return on_ranks("collectives")


@case(gpus=2)
def nccl_registered_pools() -> Results:
    return on_ranks("registered_pools")


@case(gpus=2)
def copies_between_gpus() -> Results:
    results: Results = []
    for size in (1, 1000, 1 << 20, 5_000_001):
        there = torch.randn(size, device="cuda:0").to("cuda:1")
        back = (there * 2).to("cuda:0", non_blocking=True)
        results += [(f"there, {size}", digest(there)), (f"back, {size}", digest(back + 1))]
    return results


def main(name: str) -> None:
    be_deterministic()
    results = CASES[name]()
    flags = [bool(value) for label, value in results if label == "served"]
    if name not in NEED_TWO_GPUS or name == "copies_between_gpus":  # where the work was done in this process
        flags.append(served())
    shown = [[label, value] for label, value in results if label != "served"]
    print(json.dumps({"results": shown, "served": all(flags)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
