# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch with its own allocator on the simulated GPU: what the tests of ours stand on."""

from __future__ import annotations

import unittest

import sim_gpu
from sim_gpu_case import ABSENT, LONG, MIB, SimGpuCase

if not ABSENT:
    import torch


class Devices(SimGpuCase):
    def test_pytorch_sees_the_simulated_gpus(self) -> None:
        self.assertTrue(torch.cuda.is_available())
        self.assertEqual(torch.cuda.device_count(), 2)
        properties = torch.cuda.get_device_properties(1)
        self.assertEqual(
            (properties.name, properties.major, properties.multi_processor_count), ("Simulated GPU", 9, 132)
        )
        self.assertEqual(torch.cuda.mem_get_info()[1], properties.total_memory)

    def test_tensors_go_from_one_gpu_to_the_other_and_back_with_their_values(self) -> None:
        values = torch.arange(100_000)
        first = values.to("cuda:0")
        second = first.to("cuda:1")
        third = second.to("cuda:0")
        self.assertEqual([tensor.device.index for tensor in (first, second, third)], [0, 1, 0])
        self.assertTrue(torch.equal(second.cpu(), values))
        self.assertTrue(torch.equal(third.cpu(), values))

    def test_a_copy_between_gpus_takes_its_place_in_the_order_of_the_stream(self) -> None:
        old, new = torch.zeros(1000, dtype=torch.int64), torch.arange(1000)
        source, target = old.to("cuda:0"), old.to("cuda:1")
        pinned = new.pin_memory()
        torch.cuda._sleep(LONG)
        source.copy_(pinned, non_blocking=True)
        target.copy_(source, non_blocking=True)
        self.assertFalse(torch.cuda.current_stream().query())
        self.assertTrue(torch.equal(target.cpu(), new))

    def test_each_gpu_counts_its_own_memory(self) -> None:
        before = [torch.cuda.memory_allocated(device) for device in range(2)]
        tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
        after = [torch.cuda.memory_allocated(device) for device in range(2)]
        self.assertEqual([late - early for late, early in zip(after, before, strict=True)], [0, tensor.nbytes])


class Copies(SimGpuCase):
    def test_every_type_comes_back_as_it_went(self) -> None:
        for dtype in (torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool):
            values = (torch.arange(10_007) % 199).to(dtype)
            self.assertTrue(torch.equal(values.cuda().cpu(), values), dtype)
            self.assertTrue(torch.equal(values.cuda().clone().cpu(), values), dtype)

    def test_pageable_memory_may_change_when_the_copy_from_it_was_called(self) -> None:
        values, target = torch.arange(1000), torch.empty(1000, dtype=torch.int64, device="cuda")
        torch.cuda._sleep(LONG)
        target.copy_(values, non_blocking=True)
        values.fill_(7)
        self.assertTrue(torch.equal(target.cpu(), torch.arange(1000)))

    def test_pinned_memory_is_read_and_written_when_the_stream_gets_there(self) -> None:
        source, target = torch.zeros(1000).pin_memory(), torch.zeros(1000).pin_memory()
        self.assertTrue(source.is_pinned())
        on_gpu = torch.empty(1000, device="cuda")
        torch.cuda._sleep(LONG)
        on_gpu.copy_(source, non_blocking=True)
        target.copy_(on_gpu, non_blocking=True)
        source.fill_(5)
        self.assertEqual(target.unique().tolist(), [0])
        torch.cuda.synchronize()
        self.assertEqual(target.unique().tolist(), [5])


class Streams(SimGpuCase):
    def test_a_stream_is_busy_until_somebody_waits_for_it(self) -> None:
        stream = torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
        self.assertFalse(stream.query())
        self.assertTrue(torch.cuda.current_stream().query())
        stream.synchronize()
        self.assertTrue(stream.query())

    def test_events_order_one_stream_after_the_other(self) -> None:
        producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
        values = torch.arange(1000).pin_memory()
        first = torch.empty(1000, dtype=torch.int64, device="cuda")
        second = torch.empty_like(first)
        with torch.cuda.stream(producer):
            torch.cuda._sleep(LONG)
            first.copy_(values, non_blocking=True)
            event = producer.record_event()
        with torch.cuda.stream(consumer):
            consumer.wait_event(event)
            second.copy_(first)
        self.assertFalse(event.query())
        consumer.synchronize()
        self.assertTrue(event.query())
        self.assertTrue(torch.equal(second.cpu(), values))

    def test_elapsed_time_is_that_of_the_virtual_clock(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(5_000_000)
        torch.cuda.synchronize()
        end.record()
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 5)

    def test_memory_freed_on_its_stream_is_used_again_at_once(self) -> None:
        torch.cuda._sleep(LONG)
        first = torch.empty(MIB, dtype=torch.uint8, device="cuda").data_ptr()
        self.assertEqual(torch.empty(MIB, dtype=torch.uint8, device="cuda").data_ptr(), first)

    def test_memory_that_another_stream_uses_is_not_used_again_before_it_is_done(self) -> None:
        side = torch.cuda.Stream()
        tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        address = tensor.data_ptr()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
        tensor.record_stream(side)
        del tensor
        meanwhile = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        self.assertNotEqual(meanwhile.data_ptr(), address)
        side.synchronize()
        later = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(later.data_ptr(), address)


class Races(SimGpuCase):
    expected_hazards = 1

    def test_two_copies_that_nothing_orders_are_a_hazard(self) -> None:
        values, target = torch.arange(1000).pin_memory(), torch.empty(1000, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                target.copy_(values, non_blocking=True)
        self.assertIn("copy to the device", sim_gpu.hazards()[1])


class Statistics(SimGpuCase):
    def test_they_follow_what_is_allocated_and_what_is_kept(self) -> None:
        before, free_before = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
        tensor = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        during, free_during = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
        del tensor
        after = torch.cuda.memory_stats()

        def grown(name: str, stats: dict[str, int]) -> int:
            return stats[f"{name}_bytes.all.current"] - before[f"{name}_bytes.all.current"]

        self.assertEqual((grown("allocated", during), grown("reserved", during)), (40 * MIB, 40 * MIB))
        self.assertEqual((grown("allocated", after), grown("reserved", after)), (0, 40 * MIB))
        self.assertEqual(free_before - free_during, 40 * MIB)
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.mem_get_info()[0], free_before)

    def test_more_than_there_is_is_pytorchs_own_error(self) -> None:
        with self.assertRaisesRegex(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 1024.00 GiB"):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.ones(3).cuda().cpu().tolist(), [1, 1, 1])


class Graphs(SimGpuCase):
    def test_a_graph_copies_anew_each_time_it_is_launched(self) -> None:
        source, target = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(source)
        for value in (3, 4):
            source.copy_(torch.full((1000,), value))
            graph.replay()
            self.assertEqual(target.cpu().unique().tolist(), [value])


class Training(SimGpuCase):
    def test_a_model_is_trained_without_numbers_and_its_memory_comes_back(self) -> None:
        before = torch.cuda.memory_allocated()
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
        parameters = sum(parameter.nbytes for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        held = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(32, 64).cuda()).sum().backward()
            optimizer.step()
            held.append(torch.cuda.memory_allocated() - before)
        self.assertGreaterEqual(held[0], 4 * parameters)  # weights, gradients, two moments
        self.assertEqual(held[1], held[2])
        del model, optimizer
        # The handle of cuBLAS keeps a workspace of its own.
        self.assertLess(torch.cuda.memory_allocated() - before, held[2] - 3 * parameters)


COPIES = """
import torch
values = torch.arange(1_000_000)
tensors = [values.cuda().clone() for _ in range(5)]
assert all(torch.equal(tensor.cpu(), values) for tensor in tensors)
side = torch.cuda.Stream()
pinned = torch.empty(1_000_000, dtype=torch.int64).pin_memory()
with torch.cuda.stream(side):
    side.wait_stream(torch.cuda.default_stream())
    pinned.copy_(tensors[2], non_blocking=True)
side.synchronize()
assert torch.equal(pinned, values)
import sim_gpu
print(torch.cuda.memory_allocated() // 8_000_000, sim_gpu.hazards())
"""


@unittest.skipIf(ABSENT, ABSENT)
class Programs(unittest.TestCase):
    def test_the_driver_allocator_and_expandable_segments_run_on_it(self) -> None:
        for setting in ("backend:cudaMallocAsync", "expandable_segments:True"):
            with self.subTest(setting=setting):
                self.assertEqual(sim_gpu.output_of(COPIES, PYTORCH_ALLOC_CONF=setting), "5 (0, '')\n")

    def test_a_random_order_of_execution_changes_no_value(self) -> None:
        self.assertEqual(sim_gpu.output_of(COPIES, VPMM_SIM_GPU_SEED="3"), "5 (0, '')\n")

    def test_tensors_go_to_another_process_through_a_queue(self) -> None:
        done = sim_gpu.run(str(sim_gpu.HERE / "sharing_program.py"))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "received 499500\nsees 7\n", ""))

    def test_what_cannot_be_simulated_is_refused_and_named(self) -> None:
        code = "import ctypes; print(ctypes.CDLL('libcudart.so.13').cudaGetSymbolAddress(None, None))"
        self.assertEqual(sim_gpu.output_of(code), "801\n")
        done = sim_gpu.run("-c", code, VPMM_SIM_GPU_VERBOSE="1")
        self.assertEqual(done.stderr, "sim_gpu: cudaGetSymbolAddress is not supported\n")
