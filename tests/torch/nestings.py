# SPDX-License-Identifier: Apache-2.0
"""tests: random nestings of memory pools, captures, streams, threads, exceptions and deletions, as programs.

`python tests/torch/nestings.py FIRST COUNT` runs the programs of these seeds on the allocator that PyTorch has, and
prints for each one line of JSON: the pool of every tensor, and what was raised. With --contents, tensors are filled,
graphs are replayed, and the line also has the number of values that something else overwrote. --show prints a program.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

MIB = 1 << 20
SIZES = (512, 300_000, MIB, 5 * MIB, 20 * MIB)
STREAMS = 3
MOST_DEPTH = 4


class Planned(Exception):  # noqa: N818  it is no error
    """What a program raises on purpose."""


class Writer:
    """Writes the program of a seed. Its words are the methods of Run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.tensors = 0
        self.graphs = 0
        self.bodies = 0
        self.alive: list[str] = []
        self.pools = [f"p{i}" for i in range(3)]
        self.open: list[str] = []  # pools whose blocks the program is in

    def text(self) -> str:
        for _ in range(self.random.randrange(2, 5)):
            self.block(0, 0, in_capture=False, in_thread=False)
            if self.random.random() < 0.4:
                self.put(0, f"drop('{self.random.choice(self.pools)}')")
            if self.graphs and self.random.random() < 0.2:
                self.put(0, f"forget('g{self.random.randrange(self.graphs)}')")
            if self.random.random() < 0.3:
                self.put(0, "empty_cache()")
            self.new(0)
        return "\n".join(self.lines) + "\n"

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def new(self, depth: int) -> None:
        name = f"t{self.tensors}"
        self.tensors += 1
        self.alive.append(name)
        self.put(depth, f"new('{name}', {self.random.choice(SIZES)})")

    def block(self, depth: int, indent: int, *, in_capture: bool, in_thread: bool) -> None:
        for _ in range(self.random.randrange(1, 4)):
            what = self.random.random()
            if depth >= MOST_DEPTH or what < 0.35:
                self.new(indent)
            elif what < 0.45 and self.alive:
                self.put(indent, f"free('{self.alive.pop(self.random.randrange(len(self.alive)))}')")
            elif what < 0.7:
                # PyTorch refuses a pool inside itself, which ends the program.
                idle = [name for name in self.pools if name not in self.open or self.random.random() < 0.02]
                if idle:
                    self.open.append(self.random.choice(idle))
                    self.within(f"use('{self.open[-1]}')", depth, indent, in_capture, in_thread)
                    self.open.pop()
            elif what < 0.85 and not in_capture and not in_thread:
                shared = (
                    f", 'g{self.random.randrange(self.graphs)}'" if self.graphs and self.random.random() < 0.3 else ""
                )
                name = f"g{self.graphs}"
                self.graphs += 1
                self.within(f"capture('{name}'{shared})", depth, indent, True, in_thread)
            elif what < 0.93 and not in_capture:
                self.within(f"stream({self.random.randrange(STREAMS)})", depth, indent, in_capture, in_thread)
            elif not in_thread:
                name = f"body{self.bodies}"
                self.bodies += 1
                self.put(indent, f"def {name}():")
                self.block(depth + 1, indent + 1, in_capture=in_capture, in_thread=True)
                self.put(indent, f"in_thread({name})")
        self.new(indent)

    def within(self, opening: str, depth: int, indent: int, in_capture: bool, in_thread: bool) -> None:
        raises = self.random.random() < 0.2
        if raises:
            self.put(indent, "with expected():")
            indent += 1
        self.put(indent, f"with {opening}:")
        self.block(depth + 1, indent + 1, in_capture=in_capture, in_thread=in_thread)
        if raises:
            self.put(indent + 1, "raise Planned")


@functools.cache
def streams() -> list[Any]:
    """Those of programs, and that of captures. PyTorch has 32 and hands them out in turn: made anew for each program,
    one would be the captures', and then memory that a capture freed may serve it, as natively."""
    import torch

    return [torch.cuda.Stream() for _ in range(STREAMS + 1)]


class Run:
    """Runs one program, and notes where each tensor is."""

    def __init__(self, has_contents: bool) -> None:
        import torch

        self.torch = torch
        self.has_contents = has_contents
        *self.streams, self.capture_stream = streams()
        self.tensors: dict[str, Any] = {}
        self.values: dict[str, int] = {}
        self.captured_in: dict[str, str] = {}
        self.pools: dict[str, Any] = {}
        self.graphs: dict[str, Any] = {}
        self.names: dict[tuple[int, int], str] = {(0, 0): "common"}
        self.log: list[list[str]] = []
        self.capturing: str | None = None

    def go(self, program: str) -> None:
        words = ("new", "free", "use", "capture", "stream", "in_thread", "drop", "forget", "empty_cache", "expected")
        scope = {word: getattr(self, word) for word in words} | {"Planned": Planned}
        try:
            exec(compile(program, "<nestings>", "exec"), scope)
        except Exception as error:
            self.log.append(["raised", type(error).__name__, str(error).partition("\n")[0][:60]])
        for name, tensor in self.tensors.items():
            self.log.append(["at the end", name, self.holder(tensor)])

    # --- the words of programs ---

    def new(self, name: str, size: int) -> None:
        tensor = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        self.tensors[name] = tensor
        if self.capturing is not None and self.torch.cuda.is_current_stream_capturing():
            self.captured_in[name] = self.capturing
        if self.has_contents:
            self.values[name] = 1 + len(self.values) % 250
            tensor.fill_(self.values[name])
        self.log.append(["new", name, self.holder(tensor)])

    def free(self, name: str) -> None:
        self.tensors.pop(name, None)

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[None]:
        if name not in self.pools:
            self.pools[name] = self.torch.cuda.MemPool()
            self.names[tuple(self.pools[name].id)] = f"{name}.{len(self.names)}"
        with self.torch.cuda.use_mem_pool(self.pools[name]):
            yield

    @contextlib.contextmanager
    def capture(self, name: str, shared: str | None = None) -> Iterator[None]:
        graph = self.torch.cuda.CUDAGraph()
        pool = self.graphs[shared].pool() if shared in self.graphs else self.torch.cuda.graph_pool_handle()
        self.names.setdefault(tuple(pool), name)
        with self.torch.cuda.graph(graph, pool=pool, stream=self.capture_stream, capture_error_mode="thread_local"):
            self.capturing = name
            try:
                yield
            finally:
                self.capturing = None
        self.graphs[name] = graph

    @contextlib.contextmanager
    def stream(self, number: int) -> Iterator[None]:
        with self.torch.cuda.stream(self.streams[number]):
            yield

    def in_thread(self, body: Callable[[], None]) -> None:
        raised: list[BaseException] = []

        def run() -> None:
            try:
                body()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def drop(self, name: str) -> None:
        self.pools.pop(name, None)

    def forget(self, name: str) -> None:
        graph = self.graphs.pop(name, None)
        if graph is not None:
            graph.reset()

    def empty_cache(self) -> None:
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()

    @contextlib.contextmanager
    def expected(self) -> Iterator[None]:
        try:
            yield
        except Planned:
            self.log.append(["planned", "", ""])

    # --- what is found ---

    def holder(self, tensor: Any) -> str:  # noqa: ANN401
        for segment in self.torch.cuda.memory_snapshot():
            if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
                return self.names.get(tuple(segment["segment_pool_id"]), "unknown")
        return "nowhere"

    def overwritten(self) -> int:
        """Replays every graph beside tensors that take all memory that is free, and counts values that changed."""
        torch = self.torch
        torch.cuda.synchronize()
        self.pools.clear()
        gc.collect()
        torch.cuda.empty_cache()
        for index in range(12):
            self.new(f"fresh{index}", SIZES[1 + index % (len(SIZES) - 1)])
        torch.cuda.synchronize()
        for graph in self.graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        changed = 0
        for name, tensor in self.tensors.items():
            if self.captured_in.get(name) in (None, *self.graphs):
                changed += int((tensor != self.values[name]).sum())
        return changed


def run(seed: int, has_contents: bool) -> dict[str, object]:
    """One program from its seed to the end of everything that it made."""
    import torch

    made = Run(has_contents)
    made.go(Writer(seed).text())
    line: dict[str, object] = {"seed": seed, "log": made.log}
    if has_contents:
        line["overwritten"] = made.overwritten()
    made.tensors.clear()
    made.graphs.clear()
    made.pools.clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--contents", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of graphs without work
    for seed in range(options.first, options.first + options.count):
        print(Writer(seed).text() if options.show else json.dumps(run(seed, options.contents)), flush=True)


if __name__ == "__main__":
    main()
