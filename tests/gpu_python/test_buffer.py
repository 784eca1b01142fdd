# SPDX-License-Identifier: Apache-2.0
"""tests: vpmm.Buffer on a real GPU: PyTorch's and CuPy's arrays of it hold what was written, on whichever stream."""

from __future__ import annotations

import importlib.util
import unittest

import vpmm

HAS = all(importlib.util.find_spec(name) for name in ("torch", "cupy"))

if HAS:
    import cupy
    import torch

MIB = 1 << 20


@unittest.skipUnless(HAS and vpmm.device_count(), "needs a GPU, PyTorch and CuPy")
class Buffer(unittest.TestCase):
    def test_arrays_of_both_libraries_are_the_same_memory(self) -> None:
        with vpmm.Buffer("16MiB") as buffer:
            tensor, array = torch.from_dlpack(buffer), cupy.asarray(buffer)
            self.assertEqual({tensor.data_ptr(), array.data.ptr}, {buffer.ptr})
            tensor.fill_(7)
            torch.cuda.synchronize()
            self.assertEqual(int(array.sum(dtype=cupy.int64)), 7 * 16 * MIB)
            array[::2] = 1
            cupy.cuda.Device().synchronize()
            self.assertEqual(int(tensor.sum(dtype=torch.int64)), 4 * 16 * MIB)
            del tensor, array
        self.assertTrue(buffer.is_closed)

    def test_what_its_stream_wrote_is_read_on_another(self) -> None:
        for _ in range(20):
            own, other = torch.cuda.Stream(), torch.cuda.Stream()
            buffer = vpmm.Buffer(64 * MIB, own)
            with torch.cuda.stream(own):
                written = torch.from_dlpack(buffer)
                for value in range(30):
                    written.fill_(value)
            with torch.cuda.stream(other):
                self.assertEqual(int(torch.from_dlpack(buffer).max()), 29)
                self.assertEqual(int(torch.from_dlpack(buffer).min()), 29)
            del written
            buffer.close()

    def test_memory_freed_with_its_object_serves_again(self) -> None:
        pool = vpmm.Pool.default()
        for _ in range(50):
            vpmm.Buffer("512MiB", pool=pool)
        self.assertLess(pool.statistics()["mapped_bytes"], 4 << 30)


if __name__ == "__main__":
    unittest.main()
