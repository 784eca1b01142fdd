# SPDX-License-Identifier: Apache-2.0
"""tests: streams, threads and devices of PyTorch on VPMM; the hazard checker of the simulated GPU looks on."""

from __future__ import annotations

import random
import threading
import unittest
from collections.abc import Callable

from vpmm_case import ABSENT, MIB, VpmmCase

if not ABSENT:
    import torch

GPUS = 0 if ABSENT else torch.cuda.device_count()


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def run_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Streams(VpmmCase):
    def test_record_stream_takes_any_stream_and_foreign_memory(self) -> None:
        tensor = empty(3 * MIB)
        tensor.record_stream(torch.cuda.Stream())
        tensor.record_stream(torch.cuda.current_stream())
        view = tensor[MIB:]
        view.record_stream(torch.cuda.Stream())
        del tensor, view
        self.assertEqual(self.allocated(), 0)

    def test_what_another_stream_uses_is_not_used_again_before_that_is_over(self) -> None:
        source = torch.ones(3 * MIB, dtype=torch.uint8).pin_memory()
        side = torch.cuda.Stream()
        for _ in range(4):
            tensor = empty(3 * MIB)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                tensor.copy_(source, non_blocking=True)
            tensor.record_stream(side)
            del tensor
            again = empty(3 * MIB)
            again.copy_(source, non_blocking=True)  # the hazard checker sees both
            del again
        torch.cuda.synchronize()

    def test_memory_of_destroyed_streams_is_used_again_in_order(self) -> None:
        chance = random.Random(3)
        source = empty(4 * MIB)  # PyTorch's own allocator of pinned memory calls streams that used it, dead ones too
        source.copy_(torch.ones(4 * MIB, dtype=torch.uint8))
        live: list[torch.Tensor] = []

        def fill(size: int) -> torch.Tensor:
            tensor = empty(size)
            tensor.copy_(source[:size], non_blocking=True)
            return tensor

        for step in range(150):
            with self.foreign_stream() as foreign:
                shared = fill(MIB)
                foreign.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(foreign):
                    live += [fill(chance.randrange(1, 4 * MIB)), fill(100)]
                    shared.copy_(source[:MIB], non_blocking=True)
                shared.record_stream(foreign)
                del shared
                if step % 2:
                    live.pop(chance.randrange(len(live)))  # before its stream ends, or after
            while len(live) > 10:
                live.pop(chance.randrange(len(live)))
            fill(chance.randrange(1, 4 * MIB))
        live.clear()
        torch.cuda.synchronize()  # nobody recorded that those streams use `source`
        self.assertEqual(self.allocated(), source.numel())

    def test_threads_share_one_stream(self) -> None:
        source = torch.ones(4 * MIB, dtype=torch.uint8).pin_memory()
        stream = torch.cuda.Stream()
        live: list[torch.Tensor] = []
        lock = threading.Lock()

        def work(seed: int) -> None:
            chance = random.Random(seed)
            with torch.cuda.stream(stream):
                for _ in range(60):
                    tensor = empty(chance.randrange(1, 4 * MIB))
                    tensor.copy_(source[: tensor.numel()], non_blocking=True)
                    with lock:
                        live.append(tensor)
                        if len(live) > 20:
                            live.pop(chance.randrange(len(live)))
                    del tensor

        run_threads(work)
        self.assertEqual(len(live), 20)
        live.clear()
        self.assertEqual(self.allocated(), 0)

    def test_many_streams_strand_no_memory(self) -> None:
        for _ in range(40):
            with torch.cuda.stream(torch.cuda.Stream()):
                tensor = empty(32 * MIB)
                del tensor
            torch.cuda.synchronize()
        self.assertLess(torch.cuda.max_memory_reserved(), 128 * MIB)


class Devices(VpmmCase):
    @unittest.skipIf(GPUS < 2, "needs two GPUs")
    def test_tensors_go_from_one_gpu_to_another(self) -> None:
        source = torch.arange(1 << 20, dtype=torch.int32)
        first = source.to("cuda:0")
        second = first.to("cuda:1")
        self.assertTrue(torch.equal(second.cpu(), source))
        self.assertEqual(torch.cuda.memory_allocated(1), second.numel() * 4)
        with torch.cuda.device(0):
            del second  # while another device is current
        self.assertEqual(torch.cuda.memory_allocated(1), 0)


if __name__ == "__main__":
    unittest.main()
