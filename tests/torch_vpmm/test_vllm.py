# SPDX-License-Identifier: Apache-2.0
"""tests: vLLM's sleep mode under PyTorch on VPMM, with a stand-in for vLLM and its worker.

On the simulated GPU copies and fills of memory are real and kernels compute nothing, so contents come from the host.
"""

from __future__ import annotations

import gc
import sys
import threading
import unittest
from pathlib import Path

from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from vllm_case import VllmCase

if not ABSENT:
    import torch


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def numbers(count: int = MIB) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64)


class WorkerCase(VllmCase, VpmmCase):
    def setUp(self) -> None:
        super().setUp()
        self.made = self.worker()

    def end(self) -> None:
        super().end()
        gc.collect()

    def asleep(self, *tensors: torch.Tensor) -> list[bool]:
        return [vpmm.is_suspended(tensor, 0) for tensor in tensors]

    def free(self) -> int:
        """Bytes of the device that nobody has, as vLLM asks for them."""
        torch.cuda.empty_cache()
        return torch.accelerator.get_memory_info()[0]


class Levels(WorkerCase):
    def test_weights_are_kept_at_level_1_and_lost_at_level_2(self) -> None:
        with self.made.memory_of("weights"):
            weights, bias = numbers().to("cuda"), numbers(100).to("cuda")
        with self.made.memory_of("kv_cache"):
            cache = numbers().to("cuda")
        addresses = [tensor.data_ptr() for tensor in (weights, bias, cache)]
        for level in (1, 1, 2):
            self.made.sleep(level)
            self.assertEqual(self.asleep(weights, bias, cache), [True, True, True])
            self.made.wake_up(["weights"])
            self.assertEqual(self.asleep(weights, bias, cache), [False, False, True])
            self.made.wake_up(["kv_cache"])
            self.assertEqual([tensor.data_ptr() for tensor in (weights, bias, cache)], addresses)
            self.assertEqual(torch.equal(weights.cpu(), numbers()), level == 1)
            self.assertEqual(torch.equal(bias.cpu(), numbers(100)), level == 1)
            self.assertEqual(cache.cpu().count_nonzero(), 0)
        self.assertEqual(weights.cpu().count_nonzero(), 0)

    def test_the_device_has_the_memory_while_it_sleeps(self) -> None:
        before = self.free()
        with self.made.memory_of("weights"):
            weights = empty(64 * MIB)
        with self.made.memory_of("kv_cache"):
            cache = empty(100 * MIB)
        self.assertLessEqual(self.free(), before - 164 * MIB)
        self.made.sleep()
        self.assertGreaterEqual(torch.accelerator.get_memory_info()[0], before)
        self.assertEqual(self.asleep(weights, cache), [True, True])

    def test_loading_reuses_what_it_freed(self) -> None:
        """At most 145 MiB live at a time; a pool that reuses nothing for larger tensors would hold 225."""
        before = self.free()
        self.limit(190 * MIB)
        limited = self.free()
        with self.made.memory_of("weights"):
            loaded = []
            for size in (30, 50, 70):
                high = empty(size * MIB)  # in a higher precision, then quantized
                loaded.append(empty(size * MIB // 2))
                del high
        self.assertLessEqual(limited - self.free(), 85 * MIB)  # 75 are live
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.made.sleep()
        self.assertGreaterEqual(self.free(), before - 16 * MIB)  # pages for small requests, and modules of kernels

    def test_memory_of_runtime_state_and_of_the_cache_nest(self) -> None:
        with self.made.memory_of("runtime"):
            state = numbers().to("cuda")
            with self.made.memory_of("kv_cache"):
                cache = numbers().to("cuda")
            more = numbers().to("cuda")
        for level in (1, 2):
            self.made.sleep(level)
            self.assertEqual(self.asleep(state, cache, more), [True, True, True])
            self.made.wake_up(["weights"])
            self.assertEqual(self.asleep(state, cache, more), [False, True, False])
            self.made.wake_up(["kv_cache"])
            self.assertTrue(torch.equal(state.cpu(), numbers()) and torch.equal(more.cpu(), numbers()))

    def test_another_threads_memory_does_not_sleep(self) -> None:
        found = []
        with self.made.memory_of("weights"):
            thread = threading.Thread(target=lambda: found.append(empty(MIB)))
            thread.start()
            thread.join()
            weights = empty(MIB)
        self.made.sleep()
        self.assertEqual(self.asleep(found[0], weights), [False, True])


class Graphs(WorkerCase):
    def test_a_graph_on_weights_that_slept_is_launched(self) -> None:
        with self.made.memory_of("weights"):
            weights = numbers().to("cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = weights + 1
        self.made.sleep()
        self.assertEqual(self.asleep(weights, result), [True, False])
        self.made.wake_up()
        graph.replay()

    def test_graphs_own_memory_sleeps_with_a_copy(self) -> None:
        graphs, results = [], []
        for _ in range(2):
            graphs.append(torch.cuda.CUDAGraph())
            with self.allocator.cudagraph_pool() as pool, torch.cuda.graph(graphs[-1], pool=pool):
                results.append(torch.empty(MIB, dtype=torch.int64, device="cuda"))
            results[-1].copy_(numbers())
        outside = empty(MIB)
        self.made.sleep(2)
        self.assertEqual(self.asleep(*results, outside), [True, True, False])
        self.made.wake_up(["kv_cache"])
        for graph, result in zip(graphs, results, strict=True):
            self.assertTrue(torch.equal(result.cpu(), numbers()))
            graph.replay()
        self.allocator.release_pools()


class Shortages(WorkerCase):
    def test_a_wake_up_that_does_not_fit_can_be_repeated(self) -> None:
        with self.made.memory_of("weights"):
            weights = numbers().to("cuda")
        with self.made.memory_of("kv_cache"):
            cache = empty(200 * MIB)
        self.made.sleep()
        self.limit(300 * MIB)
        other = empty(150 * MIB)
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.made.wake_up()
        self.made.wake_up(["weights"])
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.made.wake_up(["kv_cache"])
        self.assertTrue(torch.equal(weights.cpu(), numbers()))
        self.assertEqual(self.asleep(cache), [True])
        del other
        self.made.wake_up(["kv_cache"])
        self.assertEqual(cache.cpu().count_nonzero(), 0)


if __name__ == "__main__":
    unittest.main()
