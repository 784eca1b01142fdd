# SPDX-License-Identifier: Apache-2.0
"""tests: the interface of the package torch_memory_saver, over the pool, with a stand-in for PyTorch."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import threading
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import vpmm
import vpmm.torch_memory_saver as ours

from program import PACKAGE_PARENT, output_of, run

MIB = 1 << 20


class StandIn(types.ModuleType):
    """As much of PyTorch as the object needs."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.graphs: list[tuple[object, ...]] = []
        self.cuda = types.SimpleNamespace(
            current_device=lambda: 0,
            get_device_properties=lambda device: types.SimpleNamespace(total_memory=vpmm.memory_info(device).total),
            graph=self.graph,
        )

    @contextlib.contextmanager
    def graph(self, *arguments: object, **options: object) -> Iterator[None]:
        self.graphs.append((arguments, options, vpmm.Pool.default().tag_entered()))
        yield


class SaverCase(unittest.TestCase):
    def setUp(self) -> None:
        self.torch = StandIn()
        for patch in (
            mock.patch.dict(sys.modules, {"torch": self.torch}),
            mock.patch.object(ours.plugin, "is_installed", return_value=True),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.saver = ours.TorchMemorySaver()
        self.addCleanup(vpmm.resume)

    def allocate(self) -> int:
        pool = vpmm.Pool.default()
        ptr = pool.allocate(3 * MIB, 0)
        self.addCleanup(pool.deallocate, ptr, 0)
        return ptr

    def state(self, ptr: int) -> bool:
        return vpmm.is_suspended(ptr, 0)


class Regions(SaverCase):
    def test_a_region_can_be_paused_by_its_tag_or_with_all(self) -> None:
        with self.saver.region("weights", enable_cpu_backup=True):
            weights = self.allocate()
        with self.saver.region(tag="kv_cache"):
            cache = self.allocate()
        outside = self.allocate()
        self.saver.pause("kv_cache")
        self.assertEqual([self.state(ptr) for ptr in (weights, cache, outside)], [False, True, False])
        self.saver.pause()
        self.assertEqual([self.state(ptr) for ptr in (weights, cache, outside)], [True, True, False])
        self.saver.resume("weights")
        self.assertEqual([self.state(ptr) for ptr in (weights, cache)], [False, True])
        self.saver.resume()
        self.assertEqual([self.state(ptr) for ptr in (weights, cache)], [False, False])

    def test_a_copy_is_a_part_of_what_a_region_is(self) -> None:
        with self.saver.region("weights", enable_cpu_backup=True):
            kept = self.allocate()
            with self.saver.region("weights"):
                lost = self.allocate()
        self.saver.pause("weights")
        self.assertEqual(vpmm.tag_info("weights (backup)").state, "suspended")
        self.assertEqual(vpmm.tag_info("weights").state, "discarded")
        self.assertEqual([self.state(ptr) for ptr in (kept, lost)], [True, True])
        self.assertEqual(len(vpmm.host_copy(kept, 3 * MIB)), 3 * MIB)

    def test_a_region_is_its_threads(self) -> None:
        found: list[int] = []
        with self.saver.region("threads"):
            thread = threading.Thread(target=lambda: found.append(self.allocate()))
            thread.start()
            thread.join()
        self.saver.pause("threads")
        self.assertFalse(self.state(found[0]))

    def test_disable_takes_memory_out_of_a_region(self) -> None:
        with self.saver.region("weights"):
            with self.saver.disable():
                out = self.allocate()
            inside = self.allocate()
        self.saver.pause()
        self.assertEqual([self.state(ptr) for ptr in (out, inside)], [False, True])

    def test_what_is_free_after_disable_goes_back_to_the_driver(self) -> None:
        pool = vpmm.Pool.default()
        vpmm.trim()
        before = vpmm.stats()["mapped_bytes"]
        with self.saver.disable():
            pool.deallocate(pool.allocate(64 * MIB, 0), 0)
            self.assertGreaterEqual(vpmm.stats()["mapped_bytes"], before + 64 * MIB)
        self.assertLess(vpmm.stats()["mapped_bytes"], before + 64 * MIB)

    def test_memory_goes_back_to_the_driver(self) -> None:
        with self.saver.region("driver"):
            self.allocate()
        vpmm.trim()
        before = vpmm.stats()["mapped_bytes"]
        self.saver.pause("driver")
        self.assertLessEqual(vpmm.stats()["mapped_bytes"], before - 3 * MIB)

    def test_a_tag_without_a_region_is_none(self) -> None:
        self.saver.pause("nothing")
        self.saver.resume("nothing")
        self.saver.pause()

    def test_tags_of_others_are_left_alone(self) -> None:
        with vpmm.tag("of the program", suspendable=True):
            ptr = self.allocate()
        self.saver.pause()
        self.assertFalse(self.state(ptr))

    def test_a_graph_is_captured_inside_its_tag(self) -> None:
        with self.saver.cuda_graph("graph", pool="pool", stream="stream", tag="graphs", enable_cpu_backup=True):
            pass
        options = {"pool": "pool", "stream": "stream", "capture_error_mode": "global"}
        self.assertEqual(self.torch.graphs, [(("graph",), options, "graphs (backup)")])

    def test_copies_are_retained_if_asked(self) -> None:
        with self.saver.region("retained", enable_cpu_backup=True):
            self.allocate()
        self.assertFalse(self.saver.retain_cpu_backup)
        self.saver.retain_cpu_backup = True
        self.saver.pause("retained")
        self.saver.resume("retained")
        self.assertGreaterEqual(vpmm.tag_info("retained (backup)").host_bytes, 3 * MIB)
        self.saver.retain_cpu_backup = False
        self.assertGreaterEqual(vpmm.tag_info("retained (backup)").host_bytes, 3 * MIB)
        self.saver.pause("retained")
        self.saver.resume("retained")
        self.assertEqual(vpmm.tag_info("retained (backup)").host_bytes, 0)
        self.saver.pause("retained")
        self.saver.retain_cpu_backup = True
        self.saver.resume("retained")
        self.assertGreaterEqual(vpmm.tag_info("retained (backup)").host_bytes, 3 * MIB)
        with mock.patch.dict(os.environ, {"TMS_RETAIN_CPU_BACKUP": "1"}):
            self.assertTrue(ours.TorchMemorySaver().retain_cpu_backup)


class Refusing(SaverCase):
    def test_what_is_not_supported_says_so(self) -> None:
        for call in (
            lambda: self.saver.region(enable_disk_backup=True).__enter__(),
            lambda: self.saver.set_disk_backup_dir("/scratch"),
        ):
            with self.assertRaisesRegex(vpmm.Error, "host memory") as caught:
                call()
            self.assertEqual(caught.exception.code, "VPMM_ERROR_UNSUPPORTED")

    def test_without_vpmms_allocator_a_region_says_what_to_set(self) -> None:
        with mock.patch.object(ours.plugin, "is_installed", return_value=False):
            with self.assertRaisesRegex(vpmm.Error, "VPMM_TORCH=1"):
                self.saver.region().__enter__()
            self.saver.pause()

    def test_the_backend_of_copies_is_checked_and_has_no_effect(self) -> None:
        for backend in ("mmap", "pinned"):
            with self.saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
                pass
        with self.assertRaisesRegex(ValueError, "needs enable_cpu_backup"):
            self.saver.region(cpu_backup_backend="mmap").__enter__()
        with self.assertRaisesRegex(ValueError, '"mmap", "pinned" or None'):
            self.saver.region(enable_cpu_backup=True, cpu_backup_backend="disk").__enter__()  # type: ignore[arg-type]

    def test_properties_are_those_of_the_package(self) -> None:
        self.assertTrue(self.saver.enabled)
        self.saver.hook_mode = "preload"
        self.assertEqual(self.saver.hook_mode, "preload")
        with self.assertRaises(ValueError):
            self.saver.hook_mode = "other"  # type: ignore[assignment]
        with self.assertRaises(NotImplementedError):
            _ = self.saver.memory_margin_bytes

    def test_a_margin_limits_the_pool(self) -> None:
        pool = vpmm.Pool.default()
        before, total = pool.get_capacity(), vpmm.memory_info().total
        self.saver.memory_margin_bytes = 64 * MIB
        self.assertEqual(pool.get_capacity(), total - 64 * MIB)
        self.saver.memory_margin_bytes = 0
        self.assertEqual(pool.get_capacity(), before)


class Installing(unittest.TestCase):
    def test_it_takes_the_place_of_the_package(self) -> None:
        package = types.ModuleType("torch_memory_saver")
        package.torch_memory_saver = package.more = object()  # type: ignore[attr-defined]
        more = package.more
        with mock.patch.dict(sys.modules, {"torch_memory_saver": package}):
            vpmm.torch_memory_saver.install()
            self.assertIs(package.torch_memory_saver, ours.torch_memory_saver)
            self.assertIs(package.more, more)

    def test_it_is_a_module_where_there_is_no_package(self) -> None:
        code = """
import importlib.util, sys
import vpmm
vpmm.torch_memory_saver.install()
import torch_memory_saver
from torch_memory_saver import configure_subprocess, torch_memory_saver as saver
print(saver is vpmm.torch_memory_saver.torch_memory_saver, importlib.util.find_spec("torch_memory_saver").name)
print("torch" in sys.modules)
"""
        self.assertEqual(output_of(code), "True torch_memory_saver\nFalse\n")

    def test_children_are_told_by_their_environment(self) -> None:
        names = ("VPMM_TORCH", "VPMM_TORCH_MEMORY_SAVER")
        with mock.patch.dict(os.environ, {"VPMM_TORCH": "0"}), contextlib.suppress(ZeroDivisionError):
            os.environ.pop(names[1], None)
            with ours.configure_subprocess():
                self.assertEqual([os.environ.get(name) for name in names], ["1", "1"])
                _ = 1 / 0
        with mock.patch.dict(os.environ, {"VPMM_TORCH": "0"}):
            with ours.configure_subprocess():
                pass
            self.assertEqual([os.environ.get(name) for name in names], ["0", None])

    def test_the_variable_installs_when_pytorch_is_imported(self) -> None:
        code = "import sys, vpmm_autoload\nvpmm_autoload.autoload()\nprint('torch_memory_saver' in sys.modules)"
        self.assertEqual(output_of(code, VPMM_TORCH_MEMORY_SAVER="1"), "True\n")
        self.assertEqual(output_of(code), "False\n")

    def test_a_package_that_cannot_be_imported_does_not_end_the_import_of_pytorch(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "torch_memory_saver.py").write_text("raise RuntimeError('no GPU here')")
        code = "import vpmm_autoload\nvpmm_autoload.autoload()\nprint('on it goes')"
        variables = {"VPMM_TORCH_MEMORY_SAVER": "1", "PYTHONPATH": f"{folder.name}:{PACKAGE_PARENT}"}
        done = run("-c", code, **variables)
        self.assertEqual((done.returncode, done.stdout), (0, "on it goes\n"))
        self.assertIn("vpmm: VPMM_TORCH_MEMORY_SAVER is set, but", done.stderr)

    def test_the_package_has_it_as_a_module(self) -> None:
        self.assertIs(vpmm.torch_memory_saver, importlib.import_module("vpmm.torch_memory_saver"))


class Adapter:
    """What SGLang's adapter calls, in its order."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401
        self.module = module

    def run(self, allocate: Any) -> list[bool]:  # noqa: ANN401
        saver = self.module.torch_memory_saver
        with self.module.configure_subprocess(), saver.region(tag="weights", enable_cpu_backup=True):
            ptr = allocate()
        with saver.cuda_graph(cuda_graph="graph", pool=None, stream=None, tag="cuda_graph"), saver.disable():
            pass
        states = []
        for call in (saver.pause, saver.resume):
            call(tag="weights")
            states.append(vpmm.is_suspended(ptr, 0))
        return [saver.enabled, *states]


class AsSglang(SaverCase):
    def test_its_calls_work(self) -> None:
        with mock.patch.dict(sys.modules, {"torch_memory_saver": types.ModuleType("torch_memory_saver")}):
            ours.install()
            self.assertEqual(Adapter(sys.modules["torch_memory_saver"]).run(self.allocate), [True, True, False])


if __name__ == "__main__":
    unittest.main()
