# SPDX-License-Identifier: Apache-2.0
"""tests: CuPy on the pool on a real GPU: streams, graphs, work areas, threads, running out of memory."""

from __future__ import annotations

import gc
import importlib.util
import threading
import unittest

HAS_CUPY = importlib.util.find_spec("cupy") is not None

if HAS_CUPY:
    import cupy

    import vpmm
    import vpmm.cupy

MIB = 1 << 20


def _devices() -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount()) if HAS_CUPY else 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


@unittest.skipUnless(HAS_CUPY, "CuPy is not installed")
class Cupy(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        vpmm.use_for_cupy()

    def setUp(self) -> None:
        gc.collect()
        self.before = vpmm.stats()

    def grown(self, name: str) -> int:
        return vpmm.stats()[name] - self.before[name]

    def test_arrays_are_of_the_pool_and_their_memory_goes_back(self) -> None:
        self.assertTrue(vpmm.cupy.is_installed())
        array = cupy.ones(3 * MIB, dtype=cupy.uint8)
        pool = vpmm.Pool.default()
        self.assertEqual(pool.query(array.data.ptr).requested, 3 * MIB)
        self.assertEqual(int(array.sum()), 3 * MIB)
        address = array.data.ptr
        del array
        with self.assertRaises(vpmm.Error):
            pool.query(address)

    def test_memory_is_freed_in_the_order_of_its_stream_whichever_is_current(self) -> None:
        first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with first:
            array = cupy.zeros(16 * MIB, dtype=cupy.uint8)
            for _ in range(200):
                array += 1
        with second:
            del array  # while the first stream still works on it
            other = cupy.full(16 * MIB, 7, dtype=cupy.uint8)
            self.assertEqual(int(other.sum()), 7 * 16 * MIB)
        mapped = vpmm.stats()["mapped_bytes"]
        with first:
            again = cupy.full(16 * MIB, 9, dtype=cupy.uint8)
            grown = vpmm.stats()["mapped_bytes"] - mapped
            self.assertLess(grown, 16 * MIB, "what the stream freed serves it, less a page that the sum has taken")
            self.assertEqual(int(again.sum()), 9 * 16 * MIB)
        self.assertEqual(int(other.sum()), 7 * 16 * MIB, "nobody wrote into it")

    def test_the_stream_may_be_gone_when_the_array_dies(self) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            arrays = [cupy.zeros(MIB * (1 + i), dtype=cupy.uint8) for i in range(4)]
        del stream
        gc.collect()
        del arrays
        self.assertEqual(self.grown("live_bytes"), 0)
        cupy.cuda.Device().synchronize()
        self.assertEqual(int(cupy.ones(MIB, dtype=cupy.uint8).sum()), MIB)

    def test_too_much_is_cupys_error_with_the_report_as_its_cause(self) -> None:
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError) as caught:
            cupy.empty(1 << 42, dtype=cupy.uint8)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIsInstance(caught.exception.__cause__, vpmm.OutOfMemoryError)
        self.assertIn("out of device memory", str(caught.exception.__cause__))
        self.assertEqual(int(cupy.ones(10).sum()), 10, "and on it goes")

    def test_a_graph_keeps_what_was_allocated_while_it_was_captured(self) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            values = cupy.arange(1 << 16, dtype=cupy.float32)
            result = cupy.zeros_like(values)
            cupy.multiply(values, 2, out=result)  # compiled before
            result += values
            stream.synchronize()
            stream.begin_capture()
            temporary = values * 2
            cupy.add(temporary, values, out=result)
            del temporary
            graph = stream.end_capture()
            for turn in range(3):
                values.fill(turn)
                noise = [cupy.full(1 << 16, 99, dtype=cupy.float32) for _ in range(4)]
                graph.launch(stream)
                self.assertEqual(float(result.sum()), 3 * turn * (1 << 16))
                del noise

    def test_work_areas_of_ffts_are_of_the_pool(self) -> None:
        x = cupy.random.random((256, 1 << 12)).astype(cupy.complex64)
        back = cupy.fft.ifft(cupy.fft.fft(x))
        self.assertTrue(bool(cupy.allclose(x, back, atol=1e-4)))
        self.assertGreater(self.grown("allocations"), 4)

    def test_threads_each_with_a_stream_get_memory_of_their_own(self) -> None:
        wrong: list[str] = []

        def work(number: int) -> None:
            with cupy.cuda.Stream(non_blocking=True):
                for turn in range(100):
                    value = number * 1000 + turn
                    arrays = [cupy.full(1000 * (1 + i * 37), value, dtype=cupy.int64) for i in range(5)]
                    for array in arrays:
                        if int(array.max()) != value or int(array.min()) != value:
                            wrong.append(f"thread {number}, turn {turn}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        gc.collect()
        self.assertEqual(self.grown("live_bytes"), 0)

    def test_per_thread_default_streams_are_streams_too(self) -> None:
        with cupy.cuda.Stream.ptds:
            array = cupy.full(MIB, 3, dtype=cupy.uint8)
            self.assertEqual(int(array.sum()), 3 * MIB)
            del array
        self.assertEqual(self.grown("live_bytes"), 0)

    @unittest.skipUnless(_devices() > 1, "needs two GPUs")
    def test_arrays_are_copied_between_gpus(self) -> None:
        here = cupy.arange(1 << 20)
        with cupy.cuda.Device(1):
            there = cupy.asarray(here)
            self.assertEqual(there.device.id, 1)
            self.assertEqual(int((there + cupy.ones_like(there)).sum()), int(cupy.asnumpy(here).sum()) + (1 << 20))


if __name__ == "__main__":
    unittest.main()
