# SPDX-License-Identifier: Apache-2.0
"""tests: tags under PyTorch on VPMM: which memory they take, suspend and resume, graphs; torch_memory_saver's object.

On the simulated GPU copies are real and kernels compute nothing, so contents come from the host.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import Any

from vpmm_case import ABSENT, MIB, VpmmCase

import vpmm

if not ABSENT:
    import figures
    import probe
    import torch


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class TagCase(VpmmCase):
    def setUp(self) -> None:
        super().setUp()
        self.name = self.id()
        self.addCleanup(gc.collect)
        self.addCleanup(vpmm.resume)

    def tag(self, name: str = "", **options: Any) -> vpmm.Tag:  # noqa: ANN401
        return vpmm.tag(name or self.name, **({"suspendable": True} | options))

    def suspended(self, *tensors: torch.Tensor) -> list[bool]:
        return [vpmm.is_suspended(tensor, 0) for tensor in tensors]


class Tensors(TagCase):
    def test_contents_and_addresses_survive(self) -> None:
        expected = torch.arange(3 * MIB, dtype=torch.int64)
        with self.tag():
            tensor = expected.to("cuda")
            small = torch.arange(100, dtype=torch.int32).to("cuda")
        address = tensor.data_ptr()
        for _ in range(3):
            vpmm.suspend(self.name)
            self.assertEqual(self.suspended(tensor, small), [True, True])
            vpmm.resume(self.name)
            self.assertEqual(tensor.data_ptr(), address)
            self.assertTrue(torch.equal(tensor.cpu(), expected))
            self.assertTrue(torch.equal(small.cpu(), torch.arange(100, dtype=torch.int32)))

    def test_memory_that_was_freed_serves_its_side_only(self) -> None:
        for size in (1000, 3 * MIB):
            outside = empty(size)
            address = outside.data_ptr()
            del outside
            with self.tag():
                inside = empty(size)
                inner = inside.data_ptr()
                del inside
                again = empty(size)
                self.assertEqual(again.data_ptr(), inner)
                del again
            self.assertNotEqual(inner, address)
            outside = empty(size)
            self.assertNotEqual(outside.data_ptr(), inner)
            vpmm.suspend(self.name)
            self.assertEqual(self.suspended(outside), [False])
            vpmm.resume(self.name)
            del outside

    def test_tags_are_all_threads_autograds_too(self) -> None:
        found = []
        with self.tag():
            thread = threading.Thread(target=lambda: found.append(empty(MIB)))
            thread.start()
            thread.join()
            weight = torch.zeros(1000, device="cuda", requires_grad=True)
            (weight * 2).sum().backward()
        self.assertIsNotNone(weight.grad)
        vpmm.suspend(self.name)
        self.assertEqual(self.suspended(weight, weight.grad, found[0]), [True, True, True])
        self.assertEqual(len(vpmm.host_copy(weight)), 4000)
        vpmm.resume(self.name)

    def test_a_suspended_tag_serves_no_request(self) -> None:
        with self.tag():
            tensor = empty(MIB)
            vpmm.suspend(self.name)
            with self.assertRaisesRegex(RuntimeError, "suspended"):
                empty(MIB)
        del tensor
        self.assertEqual(vpmm.tag_info(self.name).live_bytes, 0)

    def test_figures_while_it_is_suspended(self) -> None:
        with self.tag():
            tensor = empty(64 * MIB)
        self.assertGreaterEqual(self.reserved(), 64 * MIB)
        vpmm.suspend(self.name, to_driver=True)
        self.assertLess(self.reserved(), 64 * MIB)
        self.assertEqual(self.allocated(), 64 * MIB)
        segments = [s["address"] for s in torch.cuda.memory_snapshot()]
        self.assertNotIn(tensor.data_ptr(), segments)
        vpmm.resume(self.name)
        self.assertGreaterEqual(self.reserved(), 64 * MIB)
        segments = [s["address"] for s in torch.cuda.memory_snapshot()]
        self.assertIn(tensor.data_ptr(), segments)
        self.assertEqual(torch.cuda.memory_stats()["inactive_split.all.current"], 0)
        del tensor
        self.assertEqual(self.allocated(), 0)

    def test_a_snapshot_skips_what_is_suspended_between_other_memory(self) -> None:
        code = """
import sys
sys.path.insert(0, FOLDER)
import figures, torch, vpmm
def empty():
    return torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
below = empty()
with vpmm.tag("asleep", suspendable=True):
    tensor = empty()
above = empty()
print(below.data_ptr() < tensor.data_ptr() < above.data_ptr())
vpmm.suspend("asleep")
segments = torch.cuda.memory_snapshot()
found = {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
print(figures.untiled(segments), found == {below.data_ptr(), above.data_ptr()})
"""
        code = code.replace("FOLDER", repr(str(Path(__file__).resolve().parent)))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual((done.stdout, done.stderr), ("True\n[] True\n", ""))

    def test_segments_of_a_tag_and_what_is_idle_in_them_are_counted(self) -> None:
        with self.tag():
            tensors = [empty(200_000) for _ in range(5)]
        self.assertEqual(figures.differences(), {})
        for place in (3, 1):
            del tensors[place]
            now = torch.cuda.memory_stats()
            self.assertGreater(now["inactive_split.all.current"], 0, place)
            self.assertEqual(figures.differences(), {}, place)


class Shared(TagCase):
    def test_memory_that_other_processes_may_open_is_suspended_once_it_is_freed(self) -> None:
        library = probe.load()
        with self.tag():
            kept, tensor = empty(3 * MIB), empty(3 * MIB)
        message = library.share(tensor.data_ptr())
        self.assertEqual(library.share(tensor.data_ptr()), message)
        held = rf"{3 * MIB} bytes at {tensor.data_ptr():#x} is held \(openings in other processes: 0, handles .*: 1\)"
        with self.assertRaisesRegex(vpmm.Error, held):
            vpmm.suspend(self.name)
        self.assertEqual(self.suspended(kept, tensor), [False, False])
        del tensor
        vpmm.suspend(self.name)
        self.assertEqual(self.suspended(kept), [True])
        self.assertIn("is suspended: resume it before it is shared", library.share(kept.data_ptr()))
        vpmm.resume(self.name)
        self.assertEqual(len(library.share(kept.data_ptr())[1]), len(message[1]))


class Nesting(TagCase):
    def test_of_a_pool_and_a_tag_the_innermost_serves(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            of_pool = empty(MIB)
            with self.tag():
                of_tag = empty(MIB)
                inner = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(inner):
                    of_inner = empty(MIB)
            of_pool_again = empty(MIB)
        ids = {
            block["address"]: tuple(segment["segment_pool_id"])
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
        }
        self.assertEqual(ids[of_pool.data_ptr()], pool.id)
        self.assertEqual(ids[of_pool_again.data_ptr()], pool.id)
        self.assertEqual(ids[of_inner.data_ptr()], inner.id)
        self.assertEqual(ids[of_tag.data_ptr()], (0, 0))
        vpmm.suspend(self.name)
        # The inner pool was made inside the tag, and sleeps with it.
        self.assertEqual(self.suspended(of_pool, of_tag, of_inner, of_pool_again), [False, True, True, False])
        vpmm.resume(self.name)

    def test_a_tag_of_a_thread_nests_too(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool), self.tag(thread=True):
            of_tag = empty(MIB)
        vpmm.suspend(self.name)
        self.assertEqual(self.suspended(of_tag), [True])
        vpmm.resume(self.name)

    def test_a_tag_without_a_name_nests_too(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool), vpmm.tag(1):
            of_tag = empty(MIB)
        self.assertEqual((vpmm.tag_info(1).live_bytes, pool.snapshot()), (MIB, []))
        del of_tag

    def test_a_pool_for_shortages_serves_requests_of_its_tag_only(self) -> None:
        for is_tagged in (False, True):
            pool = torch.cuda.MemPool(use_on_oom=True)
            block = self.tag() if is_tagged else contextlib.nullcontext()
            with block, torch.cuda.use_mem_pool(pool):
                address = empty(100 * MIB).data_ptr()
            torch._C._cuda_getCheckpointState(0, pool.id)  # its memory stays
            self.limit(150 * MIB)
            other = contextlib.nullcontext() if is_tagged else self.tag()
            with other, self.assertRaises(torch.OutOfMemoryError):
                empty(90 * MIB)
            with block:
                self.assertEqual(empty(90 * MIB).data_ptr(), address)
            del pool
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def test_a_graphs_own_memory_is_of_the_tag_around_its_capture(self) -> None:
        graph, plain = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self.tag(), torch.cuda.graph(graph):
            inside = empty(3 * MIB)
        with torch.cuda.graph(plain):
            outside = empty(3 * MIB)
        for _ in range(3):
            graph.replay()
            vpmm.suspend(self.name)
            self.assertEqual(self.suspended(inside, outside), [True, False])
            plain.replay()
            vpmm.resume(self.name)
        graph.replay()

    def test_a_tag_inside_a_capture_serves_it(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            own = empty(3 * MIB)
            with self.tag():
                inside = empty(3 * MIB)
            again = empty(3 * MIB)
        graph.replay()
        vpmm.suspend(self.name)
        self.assertEqual(self.suspended(own, inside, again), [False, True, False])
        vpmm.resume(self.name)
        graph.replay()

    def test_a_capture_refuses(self) -> None:
        with self.tag():
            tensor = empty(MIB)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            empty(MIB)
            with self.assertRaises(vpmm.Error) as caught:
                vpmm.suspend(self.name)
        self.assertEqual(caught.exception.code, "VPMM_ERROR_CAPTURE_ACTIVE")
        self.assertEqual(self.suspended(tensor), [False])


class Library(unittest.TestCase):
    @unittest.skipIf(ABSENT, ABSENT)
    def test_its_memory_has_its_name_as_a_tag_if_a_limit_names_it(self) -> None:
        code = """
import torch, vpmm
tensor = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    private = torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
with vpmm.tag("mine"):
    mine = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
print({tag.name: tag.live_bytes >> 20 for tag in vpmm.tags()})
try:
    torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print('the tag "torch" has 5 MiB of its limit of 8 MiB' in str(error))
del tensor, private
print(vpmm.tag_info("torch").live_bytes)
import sys
sys.path.insert(0, FOLDER)
import figures
kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 300_000, 3 << 20)]
del kept[1]
print(figures.differences())
"""
        code = code.replace("FOLDER", repr(str(Path(__file__).resolve().parent)))
        command, environment = [sys.executable, "-c", code], os.environ | {"VPMM_LIMITS": "torch=8MiB"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        self.assertEqual((done.stdout, done.stderr), ("{'torch': 5, 'mine': 5}\nTrue\n0\n{}\n", ""))

    @unittest.skipIf(ABSENT, ABSENT)
    def test_its_memory_pools_sleep_with_the_tag_of_its_name(self) -> None:
        code = """
import sys
sys.path.insert(0, FOLDER)
import figures, torch, vpmm
vpmm.Pool.default(0).make_suspendable("torch")
small = [torch.empty(200_000, dtype=torch.uint8, device="cuda") for _ in range(3)]
del small[1]
print(figures.differences())
small.clear()
def empty(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")
def tensors():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        private = empty(4)
    return pool, private, empty(6)
kept = tensors()
vpmm.suspend("torch")
print([vpmm.is_suspended(tensor, 0) for tensor in kept[1:]])
vpmm.resume("torch")
print(vpmm.tag_info("torch").live_bytes >> 20)
"""
        code = code.replace("FOLDER", repr(str(Path(__file__).resolve().parent)))
        command, environment = [sys.executable, "-c", code], os.environ | {"VPMM_TAG_LIBRARIES": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        self.assertEqual((done.stdout, done.stderr), ("{}\n[True, True]\n10\n", ""))

    @unittest.skipIf(ABSENT, ABSENT)
    def test_the_error_of_pytorch_says_who_holds_memory_by_library_and_by_tag(self) -> None:
        code = """
import torch, vpmm
pool = vpmm.Pool.default(0)
def empty(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")
plain = empty(4)
with vpmm.tag("kv-cache"):
    cached = empty(16)
    private = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(private):
        own = empty(8)
other = pool.allocate("2MiB", 0)
print(sorted(vpmm.stats()["by_library"].items()), sorted(vpmm.stats()["by_tag"].items()))
pool.set_capacity("64MiB")
try:
    empty(64)
except torch.OutOfMemoryError as error:
    for name in ("asked for", "by library", "by tag", "by stream"):
        print(next(line.strip() for line in str(error).splitlines() if line.startswith("  " + name)))
"""
        command, environment = [sys.executable, "-c", code], os.environ | {"VPMM_TAG_LIBRARIES": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        self.assertEqual(done.stderr, "")
        self.assertEqual(
            done.stdout.splitlines(),
            [
                f"[('torch', {28 * MIB})] [('kv-cache', {24 * MIB}), ('torch', {4 * MIB})]",
                f"asked for  64 MiB ({64 * MIB} bytes) on default stream (7), tag torch",
                "by library torch: 28 MiB, no library known: 2 MiB",
                "by tag     kv-cache: 24 MiB, torch: 4 MiB, no tag: 2 MiB",
                "by stream  default stream (7): 30 MiB",
            ],
        )


class MemorySaver(TagCase):
    def setUp(self) -> None:
        super().setUp()
        self.saver = vpmm.torch_memory_saver.TorchMemorySaver()

    def test_regions_are_paused_and_resumed(self) -> None:
        expected = torch.arange(MIB, dtype=torch.int64)
        with self.saver.region(self.name, enable_cpu_backup=True):
            weights = expected.to("cuda")
            with self.saver.region(self.name):
                cache = empty(MIB)
            with self.saver.disable():
                outside = empty(MIB)
        for _ in range(3):
            self.saver.pause(self.name)
            self.assertEqual(self.suspended(weights, cache, outside), [True, True, False])
            self.saver.resume(self.name)
            self.assertTrue(torch.equal(weights.cpu(), expected))

    def test_a_copy_in_host_memory_is_a_tensor(self) -> None:
        expected = torch.arange(1000, dtype=torch.float32).view(10, 100)
        with self.saver.region(self.name, enable_cpu_backup=True):
            weights = expected.to("cuda").requires_grad_()
            half = expected.bfloat16().to("cuda")
            nothing = torch.empty(0, device="cuda")
        with self.saver.region(self.name):
            cache = empty(MIB)
        self.assertIsNone(self.saver.get_cpu_backup(weights))
        self.saver.pause(self.name)
        copy = self.saver.get_cpu_backup(weights)
        self.assertTrue(torch.equal(copy, expected))
        self.assertEqual((copy.device.type, copy.stride()), ("cpu", weights.stride()))
        self.assertTrue(torch.equal(self.saver.get_cpu_backup(half), expected.bfloat16()))
        self.assertEqual(self.saver.get_cpu_backup(nothing).numel(), 0)
        self.assertIsNone(self.saver.get_cpu_backup(cache))
        self.saver.get_cpu_backup(weights, zero_copy=True)[0, 0] = 7
        self.saver.resume(self.name)
        self.assertEqual(weights[0, 0].item(), 7)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.saver.get_cpu_backup(weights.t())

    def test_a_retained_copy_is_read_after_a_resume(self) -> None:
        expected = torch.arange(1000)
        with self.saver.region(self.name, enable_cpu_backup=True):
            weights = expected.to("cuda")
        self.saver.pause(self.name)
        address = self.saver.get_cpu_backup(weights, zero_copy=True).data_ptr()
        self.saver.retain_cpu_backup = True
        self.saver.resume(self.name)
        copy = self.saver.get_cpu_backup(weights, zero_copy=True)
        self.assertEqual(copy.data_ptr(), address)
        self.assertTrue(torch.equal(copy, expected))
        self.saver.retain_cpu_backup = False
        self.assertEqual(self.saver.get_cpu_backup(weights, zero_copy=True).data_ptr(), address)
        self.saver.pause(self.name)
        self.assertEqual(self.saver.get_cpu_backup(weights, zero_copy=True).data_ptr(), address)
        self.saver.resume(self.name)
        self.assertIsNone(self.saver.get_cpu_backup(weights))

    def test_a_process_starts_in_a_region(self) -> None:
        code = """
import torch, vpmm
from torch_memory_saver import torch_memory_saver as saver
expected = torch.arange(1000)
first = expected.to("cuda")
with saver.region("cache"):
    cache = torch.empty(1000, device="cuda")
with saver.disable():
    outside = torch.empty(1000, device="cuda")
saver.pause()
print([vpmm.is_suspended(tensor) for tensor in (first, cache, outside)])
saver.resume()
print(torch.equal(first.cpu(), expected))
"""
        variables = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1", "VPMM_TORCH_MEMORY_SAVER": "1"}
        command, environment = [sys.executable, "-c", code], os.environ | variables
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        self.assertEqual((done.stdout, done.stderr), ("[True, True, False]\nTrue\n", ""))

    def test_a_graph_is_paused(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with self.saver.cuda_graph(graph, tag=self.name):
            tensor = empty(3 * MIB)
        self.saver.pause(self.name)
        self.assertEqual(self.suspended(tensor), [True])
        self.saver.resume(self.name)
        graph.replay()


if __name__ == "__main__":
    unittest.main()
