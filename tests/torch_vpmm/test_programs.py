# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch on VPMM as a program meets it: the switch, the end of the process, children, allocators of others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from vpmm_case import ABSENT, MIB, VpmmCase, sim_gpu

import vpmm
from vpmm.plugins import _prebuilt
from vpmm.plugins import torch as plugin

if not ABSENT:
    import probe
    import torch


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A child process that has what this one has, and `variables`."""
    command = [sys.executable, "-W", "default", "-c", code]
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)


class Switch(VpmmCase):
    def output_of(self, code: str, **variables: str) -> str:
        done = run(code, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def test_without_the_variable_pytorch_keeps_its_own(self) -> None:
        code = "import torch\ntorch.empty(1, device='cuda')\nprint(torch.cuda.get_allocator_backend())"
        self.assertEqual(self.output_of(code, VPMM_TORCH="0"), "native\n")

    def test_the_function_installs_it_and_may_be_called_again(self) -> None:
        code = (
            "import vpmm\nvpmm.use_for_torch()\nvpmm.use_for_torch()\nimport torch, vpmm.torch\n"
            "print(torch._C._accelerator_isAllocatorInitialized())\n"
            "torch.empty(1000, device='cuda')\nprint(vpmm.torch.is_installed(), vpmm.stats()['allocations'] > 0)\n"
            "print(torch._C._accelerator_isAllocatorInitialized(), vpmm.Pool.default(0).get_capacity())"
        )
        for devices in "12":
            printed = self.output_of(code, VPMM_TORCH="0", VPMM_SIM_GPU_DEVICES=devices)
            self.assertEqual(printed, "False\nTrue True\nTrue None\n")

    def test_after_the_first_tensor_it_is_too_late(self) -> None:
        code = (
            "import torch, vpmm\ntorch.empty(1, device='cuda')\n"
            "try:\n    vpmm.use_for_torch()\nexcept vpmm.Error as error:\n    print(error)"
        )
        self.assertIn("PyTorch has initialized CUDA already", self.output_of(code, VPMM_TORCH="0"))

    def test_a_free_before_the_first_use_of_cuda_is_an_error(self) -> None:
        code = (
            "import torch\ntry:\n    torch.cuda.caching_allocator_delete(256)\n"
            "except RuntimeError as error:\n    print('invalid device pointer: 0x100' in str(error))"
        )
        self.assertEqual(self.output_of(code), "True\n")

    def test_an_allocator_that_the_program_chose_is_not_replaced(self) -> None:
        code = (
            "import torch, vpmm\nfrom torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator\n"
            "change_current_allocator(CUDAPluggableAllocator('libc.so.6', 'malloc', 'free'))\n"
            "try:\n    vpmm.use_for_torch()\nexcept vpmm.Error as error:\n    print(error)\n"
            "print(torch.cuda.get_allocator_backend())"
        )
        self.assertRegex(
            self.output_of(code, VPMM_TORCH="0"), "another allocator already, 'pluggable': leave out.*\npluggable\n"
        )

    def test_registration_of_segments_is_switched_off_with_a_warning(self) -> None:
        name = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        done = run(f"import os, vpmm\nvpmm.use_for_torch()\nprint(os.environ['{name}'])", VPMM_TORCH="0", **{name: "1"})
        self.assertEqual((done.returncode, done.stdout), (0, "0\n"), done.stderr)
        self.assertIn(f"{name} is switched off: with VPMM register a torch.cuda.MemPool", done.stderr)

    def test_without_a_compiler_there_is_a_warning_and_the_native_allocator(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code = "import torch\nprint(torch.cuda.get_allocator_backend())"
            done = run(code, VPMM_CACHE_DIR=folder, CXX="/no/such/compiler")
        self.assertEqual((done.returncode, done.stdout), (0, "native\n"))
        self.assertIn("VPMM_TORCH is set, but PyTorch keeps its own CUDA allocator", done.stderr)
        self.assertIn("/no/such/compiler", done.stderr)

    def with_held(self, name: str) -> subprocess.CompletedProcess[str]:
        """A program without a compiler, whose package holds this process's allocator under that name."""
        code = (
            "import pathlib, sys\nfrom vpmm.plugins import _prebuilt\n_prebuilt.FOLDER = pathlib.Path(sys.argv[1])\n"
            "import torch, vpmm\n"
            "try:\n    vpmm.use_for_torch()\nexcept vpmm.Error as error:\n    print('no compiler')\n"
            "else:\n    torch.ones(1000, device='cuda')\n    print(torch.cuda.get_allocator_backend())"
        )
        include = Path(torch.__file__).parent / "include"
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder, "built")
            built.mkdir()
            library = Path(shutil.copy(plugin.build(), built / f"{name}.so"))
            _prebuilt.write_note(library, "2.0.0", [include / "c10/cuda/CUDACachingAllocator.h"], [include])
            variables = {"VPMM_TORCH": "0", "VPMM_CACHE_DIR": f"{folder}/cache", "CXX": "/no/such/compiler"}
            command = [sys.executable, "-c", code, str(built)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_what_the_package_holds_compiled_needs_no_compiler(self) -> None:
        minor = int(torch.__version__.split(".")[1])
        done = self.with_held(plugin.name_for(minor, bool(torch._C._GLIBCXX_USE_CXX11_ABI)))
        self.assertEqual((done.stdout, done.stderr), ("vpmm\n", ""))

    def test_a_version_that_the_package_lacks_is_named_in_one_line_and_compiled(self) -> None:
        done = self.with_held("torch-2.99-cxx11")
        self.assertEqual(done.stdout, "no compiler\n")
        said = f"vpmm: this package does not hold the allocator for PyTorch {torch.__version__} compiled"
        self.assertRegex(done.stderr, rf"^{re.escape(said)} \(it holds torch-2.99-cxx11\): compiling it once, .*\n$")

    def test_what_the_compiler_says_is_in_the_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            compiler = Path(folder, "g++")
            compiler.write_text("#!/bin/sh\necho 'the compiler says no' >&2\nexit 1\n")
            compiler.chmod(0o755)
            code = "import vpmm\ntry:\n    vpmm.use_for_torch()\nexcept vpmm.Error as error:\n    print(error)"
            self.assertIn(
                "the compiler says no",
                self.output_of(code, VPMM_TORCH="", VPMM_CACHE_DIR=folder, CXX=str(compiler), VPMM_LOG="error"),
            )
            self.assertEqual([path.name for path in Path(folder).glob("*.so*") if path.suffix != ".lock"], [])

    def test_tensors_may_live_when_the_interpreter_ends(self) -> None:
        code = (
            "import torch, threading\nkeep = [torch.empty(1 << i, device='cuda') for i in range(24)]\n"
            "class Late:\n    def __del__(self):\n        keep.clear()\nlate = Late()\nprint('over')"
        )
        self.assertEqual(self.output_of(code), "over\n")

    def test_a_recording_has_the_lines_of_the_program_that_made_the_tensors(self) -> None:
        from vpmm import recordings

        code = "import torch\ndef train():\n    return torch.empty(5 << 20, device='cuda')\nkept = train()"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.vpmm")
            self.output_of(code, VPMM_RECORD=str(path), VPMM_RECORD_STACKS="python")
            recording = recordings.read(path)
        is_of_it = [each.bytes == 20 * MIB and each.kind == recordings.Kind.ALLOCATE for each in recording.events]
        stack = recording.events[is_of_it.index(True)].stack
        self.assertEqual(
            [(each.function, each.line) for each in recording.stacks[stack][:2]], [("train", 3), ("<module>", 4)]
        )

    def test_every_process_of_torchrun_has_it(self) -> None:
        code = "import os, torch\ntorch.empty(1, device='cuda')\nbackend = torch.cuda.get_allocator_backend()\n"
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            # One write: both print into one pipe, and PYTHONUNBUFFERED takes the buffer away.
            program.write_text(code + "print(os.environ['RANK'] + f' {backend}\\n', end='', flush=True)")
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                str(program),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())), (0, ["0 vpmm", "1 vpmm"]), done.stderr)

    def test_a_library_for_another_version_is_refused(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, r"is for PyTorch 2\.\d+, and this is 2\.\d+: remove it"):
            plugin._load(plugin.build(), plugin._minor_of(torch) + 1)

    def test_the_verb_runs_a_program_with_it_and_records_it(self) -> None:
        from vpmm import recordings

        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(
                "import os, torch\nprint(torch.cuda.get_allocator_backend(), os.environ['VPMM_TORCH'])\n"
                "kept = torch.empty(5 << 20, device='cuda')\n"
            )
            trace = Path(folder, "trace.csv")
            command = [sys.executable, "-m", "vpmm", "run", "--torch", "--record", str(trace), str(program)]
            environment = {key: value for key, value in os.environ.items() if key != "VPMM_TORCH"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
            self.assertEqual((done.returncode, done.stdout), (0, "vpmm 1\n"), done.stderr)
            self.assertIn(20 * MIB, [event.bytes for event in recordings.read(trace).events])


class Settings(VpmmCase):
    """One program with seven GPUs, for a pool's settings hold for its life."""

    @unittest.skipUnless(sim_gpu.is_here(), "needs seven GPUs of the simulator")
    def test_figures_limits_and_errors_follow_the_settings_of_each_pool(self) -> None:
        program = str(Path(__file__).with_name("settings_program.py"))
        done = subprocess.run(
            [sys.executable, program],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ | {"VPMM_SIM_GPU_DEVICES": "7"},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        left, *agreeing, refusal, limits, divided, holed, looking = done.stdout.splitlines()
        self.assertEqual(left, "0")
        self.assertEqual([line.rpartition("} ")[2] for line in agreeing], ["{}"] * 4, done.stdout)
        self.assertIn("in a memory pool (MemPool or CUDA graph): arenas need the virtual memory pool, which ", refusal)
        self.assertIn("VPMM_PAGE_SIZE=max switches off", refusal)
        within, below, above, again = (True, False), (False, False), (True, False), (True, False)
        self.assertEqual(limits, str([*within, *below, *above, *again]))
        self.assertEqual(divided, "[(1, {}), (1, {}), (0, {})]")
        ends = [(0, 2, True), (8, 2, True)]
        self.assertEqual(holed, str([[(0, 10, True)], ends, [ends[0], (2, 6, False), ends[1]]]))
        self.assertEqual(looking, "(False, 0)")  # no context, and all zero


class Examples(VpmmCase):
    """Programs that run out of memory without VPMM, and not with it."""

    def check(self, name: str, end_of_success: str) -> None:
        example = str(Path(__file__).resolve().parents[2] / "examples" / name)
        for setting, ended in (("0", (1, "native: CUDA out of memory")), ("1", (0, end_of_success))):
            done = subprocess.run(
                [sys.executable, example],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
                env=os.environ | {"VPMM_TORCH": setting},
            )
            self.assertEqual((done.returncode, done.stdout[: len(ended[1])]), ended, done.stderr)

    def test_the_program_runs_out_of_memory_without_vpmm_and_not_with_it(self) -> None:
        self.check("pytorch_limit.py", "vpmm: all batches ran")

    def test_rollouts_and_training_share_memory_that_natively_does_not_suffice(self) -> None:
        self.check("pytorch_rollout.py", "vpmm: 3 rounds held at most ")


class Sharing(VpmmCase):
    def test_a_spawned_process_reads_and_changes_tensors_that_are_sent_to_it(self) -> None:
        program = str(Path(__file__).resolve().with_name("sharing_program.py"))
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        wanted = [
            "vpmm [0, 1] [4999999] changed [7, 1]",
            "vpmm [300, 301] [309] changed [7, 301]",
            "vpmm [100, 101] [5000099] changed [7, 101]",  # of a memory pool
            "vpmm [200, 201] [249] changed [7, 201]",
            "vpmm [1000, 1001] [4999999] changed [7, 1001]",  # a view
            "left 0 0 0",
        ]
        self.assertEqual(done.stdout.splitlines(), wanted)

    def test_a_handle_names_the_allocation_and_is_the_same_each_time(self) -> None:
        tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        first = tensor.untyped_storage()._share_cuda_()
        torch.empty(1000, device="cuda")  # the end of another allocation ends no export
        again = tensor.untyped_storage()._share_cuda_()
        self.assertTrue(first[1].startswith(b"VPMMIPC1"))
        self.assertEqual((first[1], first[3]), (again[1], 0))

    def test_a_process_opens_memory_once_however_often_it_asks(self) -> None:
        code = (
            "import sys, torch\nsys.path.insert(0, sys.argv[2])\nimport probe\ntorch.cuda.init()\n"
            "library, message = probe.load(), bytes.fromhex(sys.argv[1])\n"
            "found = [library.open(message) for _ in range(3)]\nprint(len(set(found)), flush=True)\nsys.stdin.read()"
        )
        with vpmm.tag("shared", suspendable=True):
            tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        message = probe.load().share(tensor.data_ptr())[1]
        command = [sys.executable, "-c", code, bytes(message).hex(), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            self.assertEqual(other.stdout.readline(), "1\n")
            with self.assertRaisesRegex(vpmm.Error, r"openings in other processes: 1,"):
                vpmm.suspend("shared")
            other.communicate()
        self.assertEqual(other.returncode, 0)

    def test_a_handle_of_a_process_without_vpmm_is_refused_by_name(self) -> None:
        tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        ours = probe.load().share(tensor.data_ptr())[1]
        for handle in (b"\x02c" + bytes(64), ours[:-1], ours + b"\0", b"X" + ours[1:]):
            with self.assertRaisesRegex(RuntimeError, "does not allocate through VPMM; both processes must"):
                torch.UntypedStorage._new_shared_cuda(0, handle, 1024, 0, b"", 0, b"", False)
        for handle in (ours[:8] + bytes(len(ours) - 8), ours[:8] + b"\xff" * (len(ours) - 8)):
            with self.assertRaisesRegex(RuntimeError, "VPMM: a tensor of another process: "):
                torch.UntypedStorage._new_shared_cuda(0, handle, 1024, 0, b"", 0, b"", False)


class Graphs(VpmmCase):
    def test_a_captured_graph_keeps_its_memory_until_it_is_gone(self) -> None:
        graph = torch.cuda.CUDAGraph()
        source = torch.arange(MIB, dtype=torch.int32).to("cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            copy = source.clone()
            temporary = copy.clone()
            del temporary
        held = sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0))
        self.assertGreaterEqual(held, 4 * MIB)
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph.replay()
        torch.cuda.synchronize()
        del copy, source
        graph.reset()
        del graph
        torch.cuda.empty_cache()
        self.assertEqual(self.reserved(), 0)


if __name__ == "__main__":
    unittest.main()
