# SPDX-License-Identifier: Apache-2.0
"""tests: VPMM and PyTorch in one process on one simulated GPU: the same memory, the same streams."""

from __future__ import annotations

from sim_gpu_case import ABSENT, LONG, MIB, SimGpuCase

if not ABSENT:
    import torch

    import vpmm


class Borrowed:
    """Memory of VPMM's as PyTorch takes it."""

    def __init__(self, ptr: int, count: int, stream: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<i8",
            "data": (ptr, False),
            "version": 3,
            "stream": stream,
        }


class OneGpu(SimGpuCase):
    COUNT = 100_000

    def test_the_pool_takes_its_memory_from_the_gpu_that_pytorch_sees(self) -> None:
        before = torch.cuda.mem_get_info()[0]
        pool = vpmm.Pool()
        stream = torch.cuda.Stream().cuda_stream
        ptr = pool.allocate(64 * MIB, stream)
        self.assertLessEqual(torch.cuda.mem_get_info()[0], before - 64 * MIB)
        pool.deallocate(ptr, stream)
        pool.synchronize()
        pool.trim()
        self.assertEqual(torch.cuda.mem_get_info()[0], before)

    def test_pytorch_copies_into_the_pools_memory_and_out_of_it(self) -> None:
        pool = vpmm.Pool()
        stream = torch.cuda.Stream()
        values = torch.arange(self.COUNT)
        with torch.cuda.stream(stream):
            ptr = pool.allocate(values.nbytes, stream.cuda_stream)
            tensor = torch.as_tensor(Borrowed(ptr, self.COUNT, stream.cuda_stream), device="cuda")
            self.assertEqual(tensor.data_ptr(), ptr)
            tensor.copy_(values.pin_memory(), non_blocking=True)
            copied = tensor.clone()
            self.assertTrue(torch.equal(tensor.cpu(), values))
            self.assertTrue(torch.equal(copied.cpu(), values))
        pool.deallocate(ptr, stream.cuda_stream)

    def test_the_pool_waits_for_work_of_pytorchs_streams(self) -> None:
        pool = vpmm.Pool()
        busy, other = torch.cuda.Stream(), torch.cuda.Stream()
        first = pool.allocate(64 * MIB, busy.cuda_stream)
        with torch.cuda.stream(busy):
            torch.cuda._sleep(LONG)
        pool.deallocate(first, busy.cuda_stream)
        self.assertEqual(pool.allocate(64 * MIB, busy.cuda_stream), first)
        pool.deallocate(first, busy.cuda_stream)
        second = pool.allocate(64 * MIB, other.cuda_stream)
        self.assertNotEqual(second, first)
        busy.synchronize()
        pool.deallocate(second, other.cuda_stream)
        pool.synchronize()
        self.assertIn(pool.allocate(64 * MIB, other.cuda_stream), (first, second))

    def test_each_gpu_has_its_own_pool(self) -> None:
        pools = [vpmm.Pool(device) for device in range(2)]
        for device, pool in enumerate(pools):
            with torch.cuda.device(device):
                stream = torch.cuda.Stream().cuda_stream
            ptr = pool.allocate(8 * self.COUNT, stream)
            tensor = torch.as_tensor(Borrowed(ptr, self.COUNT, stream), device=f"cuda:{device}")
            self.assertEqual(tensor.device.index, device)
            torch.cuda.synchronize(device)
            pool.deallocate(ptr, stream)
