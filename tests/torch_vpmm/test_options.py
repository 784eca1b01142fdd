# SPDX-License-Identifier: Apache-2.0
"""tests: options of PYTORCH_ALLOC_CONF: those that VPMM uses, and the others, which it names once."""

from __future__ import annotations

import subprocess
import unittest
from pathlib import Path

from test_programs import run
from vpmm_case import ABSENT, MIB, VERSION, VpmmCase

from vpmm.plugins import _torch_options

if not ABSENT:
    import torch
BEGIN = """
import warnings
warnings.simplefilter("always")
import torch
MIB = 1 << 20
def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def fails(size):
    try:
        empty(size)
    except torch.OutOfMemoryError as error:
        return str(error)
def stats(name):
    return torch.cuda.memory_stats()[name]
total = torch.cuda.get_device_properties(0).total_memory
"""


class Options(VpmmCase):
    def program(
        self, code: str, settings: str, variable: str = "PYTORCH_ALLOC_CONF"
    ) -> subprocess.CompletedProcess[str]:
        done = run(BEGIN + code, **{variable: settings})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def output_of(self, code: str, settings: str) -> str:
        done = self.program(code, settings)
        self.assertEqual(done.stderr, "")
        return done.stdout


class Used(Options):
    def test_the_fraction_limits_the_pool_from_its_first_allocation(self) -> None:
        fraction = 256 * MIB / torch.cuda.get_device_properties(0).total_memory
        code = """
print(abs(torch.cuda.get_per_process_memory_fraction() * total / MIB - 256) < 1)
kept = empty(200 * MIB)
print("256.00 MiB allowed" in fails(100 * MIB))
print(torch.cuda.mem_get_info()[0] < 256 * MIB)
torch.cuda.set_per_process_memory_fraction(1.0)
print(fails(100 * MIB), torch.cuda.get_per_process_memory_fraction())
"""
        settings = f"per_process_memory_fraction:{fraction:.12f}"
        self.assertEqual(self.output_of(code, settings), "True\nTrue\nTrue\nNone 1.0\n")

    def test_a_fraction_of_1_that_the_program_sets_first_replaces_it(self) -> None:
        fraction = 256 * MIB / torch.cuda.get_device_properties(0).total_memory
        code = "torch.cuda.set_per_process_memory_fraction(1.0)\nprint(fails(300 * MIB))"
        self.assertEqual(self.output_of(code, f"per_process_memory_fraction:{fraction:.12f}"), "None\n")

    def test_expandable_segments_and_those_of_host_memory_are_as_asked(self) -> None:
        settings = "expandable_segments:True,pinned_use_background_threads:True,backend:native"
        self.assertEqual(self.output_of("empty(MIB)\nprint('served')", settings), "served\n")

    @unittest.skipIf(not ABSENT and VERSION < [2, 12], "PyTorch 2.11 has no such option")
    def test_a_request_beyond_the_fraction_is_rejected_without_a_retry(self) -> None:
        fraction = 256 * MIB / torch.cuda.get_device_properties(0).total_memory
        code = """
import sys
sys.path.insert(0, FOLDER)
import probe
observer = probe.load()
kept = empty(200 * MIB)
print(observer.rejected(), "256.00 MiB allowed" in fails(100 * MIB), observer.rejected() // MIB)
print(stats("num_oom_rejections"), stats("num_alloc_retries"), stats("num_ooms"))
idle = empty(40 * MIB)
del idle
print(fails(50 * MIB), stats("num_oom_rejections"))
torch.cuda.reset_accumulated_memory_stats()
print(stats("num_oom_rejections"))
"""
        code = code.replace("FOLDER", repr(str(Path(__file__).resolve().parent)))
        settings = f"per_process_memory_fraction:{fraction:.12f},throw_on_cudamalloc_oom:True"
        self.assertEqual(self.output_of(code, settings), "0 True 100\n1 0 1\nNone 1\n0\n")

    @unittest.skipIf(not ABSENT and VERSION < [2, 12], "PyTorch 2.11 has no such option")
    def test_without_the_option_or_without_a_fraction_it_is_retried(self) -> None:
        fraction = 256 * MIB / torch.cuda.get_device_properties(0).total_memory
        code = "print(fails(300 * MIB) is None, stats('num_oom_rejections'), stats('num_alloc_retries'))"
        self.assertEqual(self.output_of(code, f"per_process_memory_fraction:{fraction:.12f}"), "False 0 1\n")
        self.assertEqual(self.output_of(code, "throw_on_cudamalloc_oom:True"), "True 0 0\n")
        code = "print(fails(1 << 45) is None, stats('num_oom_rejections'), stats('num_alloc_retries'))"
        self.assertEqual(self.output_of(code, "throw_on_cudamalloc_oom:True"), "False 0 1\n")


class Unused(Options):
    SETTINGS = "max_split_size_mb:512,expandable_segments:True,graph_capture_record_stream_reuse:True"
    NAMES = "max_split_size_mb, graph_capture_record_stream_reuse"

    def test_they_are_named_once_and_change_nothing(self) -> None:
        for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            code = "import vpmm\nvpmm.use_for_torch()\nempty(MIB)\nprint(torch.cuda.get_allocator_backend())"
            done = self.program(code, self.SETTINGS, variable)
            self.assertEqual(done.stdout, "vpmm\n")
            said = f"VpmmWarning: vpmm: {variable}: VPMM does not use {self.NAMES} (docs/guides/pytorch.md)"
            self.assertEqual(done.stderr.count("VPMM does not use"), 1, done.stderr)
            self.assertIn(said, done.stderr)

    def test_where_warnings_are_errors_pytorch_keeps_its_allocator(self) -> None:
        code = (
            "import warnings\nwarnings.simplefilter('error')\nimport torch\nprint(torch.cuda.get_allocator_backend())"
        )
        done = run(code, PYTORCH_ALLOC_CONF="max_split_size_mb:512")
        self.assertEqual((done.returncode, done.stdout), (0, "native\n"), done.stderr)
        said = "PyTorch keeps its own CUDA allocator: vpmm: PYTORCH_ALLOC_CONF: VPMM does not use max_split_size_mb"
        self.assertIn(said, done.stderr)

    def test_settings_that_pytorch_cannot_read_are_the_reason_why_it_keeps_its_allocator(self) -> None:
        code = "import torch\nprint(torch.cuda.get_allocator_backend())"
        done = run(code, PYTORCH_ALLOC_CONF="per_process_memory_fraction:many")
        self.assertEqual((done.returncode, done.stdout), (0, "native\n"))
        said = "PyTorch keeps its own CUDA allocator: its settings (PYTORCH_ALLOC_CONF) cannot be read: "
        self.assertIn(said, done.stderr)

    def test_one_that_the_program_sets_later_is_named_then(self) -> None:
        code = """
set_them = torch._C._accelerator_setAllocatorSettings
set_them("max_split_size_mb:512")
for _ in range(2):
    with warnings.catch_warnings(record=True) as caught:
        set_them("max_split_size_mb:256,garbage_collection_threshold:0.5,expandable_segments:True")
        print([str(warning.message) for warning in caught])
try:
    set_them("no_such_option:1")
except ValueError as error:
    print("PyTorch's error")
"""
        done = self.program(code, "max_split_size_mb:512")
        said = "vpmm: the settings of PyTorch's allocator: VPMM does not use garbage_collection_threshold"
        self.assertEqual(done.stdout, f'["{said} (docs/guides/pytorch.md)"]\n[]\nPyTorch\'s error\n')

    def test_options_are_read_as_pytorch_reads_them(self) -> None:
        for settings, names in (
            ("", []),
            (" backend : native , expandable_segments:False", []),
            ("backend:cudaMallocAsync", ["backend"]),
            ("roundup_power2_divisions:[256:1,512:2,>:8],pinned_num_register_threads:4", ["roundup_power2_divisions"]),
            ("expandable_segments_reserve_by_class:[a:0.25],", ["expandable_segments_reserve_by_class"]),
            ("per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", []),
        ):
            self.assertEqual(_torch_options.unused_in(settings, 12), names, settings)
        self.assertEqual(_torch_options.unused_in("throw_on_cudamalloc_oom:True", 11), ["throw_on_cudamalloc_oom"])


if __name__ == "__main__":
    unittest.main()
