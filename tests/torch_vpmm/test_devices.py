# SPDX-License-Identifier: Apache-2.0
"""tests: calls of PyTorch on VPMM that look for the device of memory, and copies between devices."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import unittest
from pathlib import Path

from vpmm_case import ABSENT, MIB, VpmmCase, sim_gpu

if not ABSENT:
    import probe
    import torch

DEVICES = range(2)


def empty(size: int, device: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


@unittest.skipUnless(not ABSENT and torch.cuda.device_count() > 1, "needs two GPUs")
class Devices(VpmmCase):
    def setUp(self) -> None:
        super().setUp()
        self.probe = probe.load()
        self.used_before = [torch.cuda.memory_allocated(device) for device in DEVICES]

    def used(self) -> list[int]:
        """Bytes on each device since the test began."""
        return [torch.cuda.memory_allocated(device) - self.used_before[device] for device in DEVICES]

    def test_memory_is_counted_and_freed_where_it_is(self) -> None:
        tensors = [empty(size, device) for size in (1000, 3 * MIB) for device in (0, 1, 1)]
        self.assertEqual(self.used(), [1024 + 3 * MIB, 2 * (1024 + 3 * MIB)])
        for each, left in (
            (1, [1024 + 3 * MIB, 1024 + 6 * MIB]),
            (0, [3 * MIB, 1024 + 6 * MIB]),
            (2, [3 * MIB, 1024 + 3 * MIB]),
            (1, [0, 1024 + 3 * MIB]),
        ):
            del tensors[each]
            self.assertEqual(self.used(), left)
        tensors.clear()
        self.assertEqual(self.used(), [0, 0])

    def test_the_allocation_around_an_address_is_found(self) -> None:
        for device in DEVICES:
            for size, usable in ((1000, 1024), (3 * MIB, 3 * MIB)):
                tensor = empty(size, device)
                begin = tensor.data_ptr()
                for at in (0, 1, size - 1):
                    self.assertEqual(self.probe.base(begin + at), (begin, usable), (device, at))
        error = "invalid device pointer: 0x100"
        self.assertEqual((self.probe.base(256), self.probe.share(256)), (error, error))

    def test_a_message_for_other_processes_names_the_allocation(self) -> None:
        messages = []
        for device in DEVICES:
            tensor = empty(3 * MIB, device)
            shared = [self.probe.share(tensor.data_ptr() + at) for at in (0, 4096)]
            self.assertEqual([offset for offset, _ in shared], [0, 4096])
            self.assertEqual(shared[0][1], shared[1][1])
            self.assertEqual(shared[0][1][:8], b"VPMMIPC1")
            messages.append(shared[0][1])
            address = tensor.data_ptr()
            del tensor
            self.assertEqual(self.probe.share(address), f"invalid device pointer: {address:#x}")
            tensor = empty(3 * MIB, device)
            messages.append(self.probe.share(tensor.data_ptr())[1])
        self.assertEqual(len(set(messages)), 4)

    def test_another_stream_is_recorded_where_the_memory_is(self) -> None:
        for device in DEVICES:
            with torch.cuda.device(device):
                side, tensor = torch.cuda.Stream(), empty(3 * MIB, device)
                address = tensor.data_ptr()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(10**9)
                tensor.record_stream(side)
                del tensor
                self.assertNotEqual(empty(3 * MIB, device).data_ptr(), address)
                torch.cuda.synchronize()
        self.assertEqual(self.used(), [0, 0])

    def test_copies_between_and_within_devices(self) -> None:
        source = torch.arange(3 * MIB, dtype=torch.int32)
        tensors = [source.to(f"cuda:{device}") for device in DEVICES]
        for tensor, device in zip(tensors, reversed(DEVICES), strict=True):
            tensor.to(f"cuda:{device}")  # gives access, where there is any to give
        for here, there, has_access in itertools.product(DEVICES, DEVICES, (False, True)):
            made = torch.zeros(3 * MIB, dtype=torch.int32).to(f"cuda:{there}")
            places = ((made.data_ptr(), there), (tensors[here].data_ptr(), here))
            with torch.cuda.device(here):
                torch.cuda.synchronize()
                before = sim_gpu.peer_copies() if sim_gpu.is_here() else 0
                copied = self.probe.copy(*places, 12 * MIB, has_access=has_access)
                self.assertEqual(copied, 0, (here, there, has_access))
                if sim_gpu.is_here():
                    self.assertEqual(sim_gpu.peer_copies() - before, here != there and not has_access)
                torch.cuda.synchronize()
            self.assertTrue(torch.equal(made.cpu(), source), (here, there, has_access))
        for device, tensor in enumerate(tensors):
            made = torch.zeros(3 * MIB, dtype=torch.int32).to(f"cuda:{device}")
            with torch.cuda.device(device):
                self.probe.copy_data(made.data_ptr(), tensor.data_ptr(), 12 * MIB)
                torch.cuda.synchronize()
            self.assertTrue(torch.equal(made.cpu(), source), device)

    def test_running_out_names_the_device_and_its_figures(self) -> None:
        heard: list[tuple[int, ...]] = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: heard.append(figures))
        for device in DEVICES:
            self.limit(64 * MIB, device)
            kept = empty(40 * MIB, device)
            free = torch.cuda.cudart().cudaMemGetInfo(device)[0]
            before = [torch.cuda.memory_stats(each)["num_ooms"] for each in DEVICES]
            with self.assertRaisesRegex(torch.OutOfMemoryError, f"GPU {device} has a total capacity of"):
                empty(30 * MIB, device)
            after = [torch.cuda.memory_stats(each)["num_ooms"] for each in DEVICES]
            self.assertEqual([now - then for now, then in zip(after, before, strict=True)], [1 - device, device])
            self.assertEqual(heard[-1][:2] + heard[-1][3:], (device, 30 * MIB, free))
            self.assertLessEqual(abs(heard[-1][2] - 64 * MIB), 1)
            del kept

    def test_the_fraction_of_one_device_leaves_the_others(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.25, 1)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0, 1)
        self.assertEqual([torch.cuda.get_per_process_memory_fraction(device) for device in DEVICES], [1.0, 0.25])

    def test_a_device_that_is_not_there_is_an_error(self) -> None:
        for device in (-1, torch.cuda.device_count()):
            self.assertEqual(
                self.probe.stats(device), f"Allocator not initialized for device {device}: did you call init?"
            )
        self.assertEqual(self.probe.stats(1), "")

    def test_what_another_library_had_before_is_seen(self) -> None:
        program = str(Path(__file__).with_name("early_program.py"))
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=240, check=False, env=os.environ
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            done.stdout.splitlines(),
            ["[(True, 64), (True, 6)]", "{True}", "True", "8", "0 0 True", "{}", "0 0", "0 True"],
        )


if __name__ == "__main__":
    unittest.main()
