# SPDX-License-Identifier: Apache-2.0
"""tests: tensors of vpmm.Buffer: the same memory, and streams in order, as the hazard checker sees it."""

from __future__ import annotations

import gc

from sim_gpu_case import ABSENT, LONG, MIB, SimGpuCase

if not ABSENT:
    import torch

    import vpmm


class Buffer(SimGpuCase):
    def setUp(self) -> None:
        super().setUp()
        self.pool = vpmm.Pool()
        self.own, self.other = torch.cuda.Stream(), torch.cuda.Stream()
        self.values = torch.arange(100_000).view(torch.uint8).pin_memory()

    def buffer(self) -> vpmm.Buffer:
        return vpmm.Buffer(self.values.nbytes, self.own, pool=self.pool)

    def write(self, buffer: vpmm.Buffer) -> None:
        """Queues a copy into the buffer on its stream, behind work that takes long."""
        with torch.cuda.stream(self.own):
            tensor = torch.from_dlpack(buffer)
            torch.cuda._sleep(LONG)
            tensor.copy_(self.values, non_blocking=True)

    def test_a_tensor_is_the_memory_of_the_buffer(self) -> None:
        buffer = self.buffer()
        self.assertEqual(buffer.stream, self.own.cuda_stream)
        for tensor in (torch.from_dlpack(buffer), torch.as_tensor(buffer, device="cuda")):
            self.assertEqual((tensor.data_ptr(), tensor.nbytes), (buffer.ptr, buffer.nbytes))
            self.assertEqual(tensor.device, torch.device("cuda", 0))

    def test_a_stream_that_makes_a_tensor_reads_what_the_buffers_stream_wrote(self) -> None:
        buffer = self.buffer()
        self.write(buffer)
        with torch.cuda.stream(self.other):
            self.assertTrue(torch.equal(torch.from_dlpack(buffer).cpu(), self.values))

    def test_the_default_stream_does_so_too(self) -> None:
        buffer = self.buffer()
        self.write(buffer)
        self.assertTrue(torch.equal(torch.from_dlpack(buffer).cpu(), self.values))

    def test_memory_that_a_tensor_was_read_from_waits_for_the_reader(self) -> None:
        buffer, copy = self.buffer(), torch.empty_like(self.values).pin_memory()
        self.write(buffer)
        with torch.cuda.stream(self.other):
            tensor = torch.from_dlpack(buffer)
            torch.cuda._sleep(LONG)
            copy.copy_(tensor, non_blocking=True)
        buffer.close()
        again = self.buffer()
        with torch.cuda.stream(self.own):
            torch.from_dlpack(again).copy_(self.values.flip(0).pin_memory(), non_blocking=True)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(copy, self.values))

    def test_a_tensor_keeps_the_memory(self) -> None:
        tensor = torch.from_dlpack(vpmm.Buffer(MIB, self.own, pool=self.pool))
        gc.collect()
        self.pool.synchronize()
        self.assertEqual(self.pool.statistics()["live_bytes"], MIB)
        del tensor
        gc.collect()
        self.pool.synchronize()
        self.assertEqual(self.pool.statistics()["live_bytes"], 0)
