# SPDX-License-Identifier: Apache-2.0
"""tests: captures that CUDA invalidates, with PyTorch on VPMM, on the simulated GPU alone."""

from __future__ import annotations

import os
import unittest

from vpmm_case import VpmmCase, sim_gpu


def output_of(code: str) -> str:
    variables = {name: os.environ[name] for name in ("VPMM_TORCH", "VPMM_CACHE_DIR")}
    return sim_gpu.run("-W", "ignore", "-c", code, **variables).stdout


@unittest.skipUnless(sim_gpu.is_here(), "what an invalid capture leaves on a real GPU is CUDA's")
class InvalidCaptures(VpmmCase):
    def test_a_capture_that_cuda_invalidated_strands_no_memory_of_any_thread(self) -> None:
        code = """if True:
            import threading, torch
            side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            def run(work, is_elsewhere):
                if not is_elsewhere:
                    return work()
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            def use_memory():
                for _ in range(50):
                    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
                    with torch.cuda.stream(side):
                        tensor.fill_(1)
                    tensor.record_stream(side)
                    del tensor
            try:
                with torch.cuda.graph(graph):
                    run(lambda: torch.empty(1, device="cuda"), ELSEWHERE)
                    torch.cuda.synchronize()
            except RuntimeError:
                pass
            run(use_memory, ELSEWHERE)
            print(torch.cuda.memory_reserved() < 512 << 20)
        """
        for is_elsewhere in (False, True):
            self.assertIn("True\n", output_of(code.replace("ELSEWHERE", str(is_elsewhere))))

    def test_the_pool_of_a_capture_that_cuda_invalidated_may_be_used_again(self) -> None:
        code = """if True:
            import torch
            pool, other, graph = *(torch.cuda.graph_pool_handle() for _ in range(2)), torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool):
                    torch.cuda.synchronize()
            except RuntimeError:
                pass
            def of_pool(pool):
                torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
                made = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
                torch._C._cuda_endAllocateToPool(0, pool)
                return made
            outside = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            kept, inside = of_pool(other), of_pool(pool)
            ids = {b["address"]: s["segment_pool_id"] for s in torch.cuda.memory_snapshot() for b in s["blocks"]}
            print(ids[outside.data_ptr()] == (0, 0), ids[inside.data_ptr()] == pool)
        """
        self.assertEqual(output_of(code), "True True\n")


if __name__ == "__main__":
    unittest.main()
