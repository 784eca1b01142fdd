# SPDX-License-Identifier: Apache-2.0
"""tests: vLLM's sleep mode over the pool, with stand-ins for vLLM in several versions and for PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import tempfile
import threading
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import vpmm
import vpmm.vllm
from vpmm.plugins import torch as plugin

from program import PACKAGE_PARENT, output_of, run
from vllm_case import STAND_IN, VllmCase

MIB = 1 << 20
PARTS = ("class", "function", "backends", "discard", "graphs", "hooks")


class GraphPool:
    """A torch.cuda.MemPool."""

    made = 0

    def __init__(self) -> None:
        GraphPool.made += 1
        self.id = (GraphPool.made, 0)


class SimulatedCase(VllmCase):
    """With as much of PyTorch as the allocator needs, and a pool of its own as the process's: tags last with it."""

    def setUp(self) -> None:
        self.pool = vpmm.Pool()
        self.addCleanup(self.pool.close, discard=True)
        pools = types.SimpleNamespace(default=lambda device=0: self.pool)
        for module in (vpmm, vpmm._tags):
            patch = mock.patch.object(module, "Pool", pools)
            patch.start()
            self.addCleanup(patch.stop)
        super().setUp()
        torch = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(current_device=lambda: 0, MemPool=GraphPool)  # type: ignore[attr-defined]
        torch.accelerator = types.SimpleNamespace(empty_cache=vpmm.trim)  # type: ignore[attr-defined]
        for patch in (
            mock.patch.dict(sys.modules, {"torch": torch}),
            mock.patch.object(plugin, "is_installed", return_value=True),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def end(self) -> None:
        """Nothing: the pool ends."""

    def allocate(self, size: int = 3 * MIB) -> int:
        return self.pool.allocate(size, 0)

    def of(self, tag: str | None, byte: int = 0, size: int = 3 * MIB) -> int:
        """Memory of a tag of vLLM, with `byte` in its first and last place."""
        with self.allocator.use_memory_pool(tag):
            ptr = self.allocate(size)
        for place in (ptr, ptr + size - 1):
            ctypes.memset(place, byte, 1)
        return ptr

    def bytes_at(self, ptr: int, size: int = 3 * MIB) -> tuple[int, int]:
        return ctypes.string_at(ptr, 1)[0], ctypes.string_at(ptr + size - 1, 1)[0]

    def asleep(self, *ptrs: int) -> list[bool]:
        return [vpmm.is_suspended(ptr, 0) for ptr in ptrs]


class Versions(unittest.TestCase):
    @contextlib.contextmanager
    def version(self, part: str) -> Iterator[SimulatedCase]:
        with self.subTest(part=part):
            case = SimulatedCase()
            case.part = part
            case.setUp()
            try:
                yield case
            finally:
                case.doCleanups()

    def test_a_worker_that_bound_vllms_names_before_gets_our_allocator(self) -> None:
        for part in PARTS:
            with self.version(part) as case:
                worker = case.worker()
                with worker.memory_of("weights"):
                    case.assertEqual(case.pool.tag_entered(), "vllm:weights")
                cumem = sys.modules["vllm.device_allocator.cumem"]
                case.assertIs(cumem.CuMemAllocator.get_instance(), case.allocator)
                case.assertTrue(cumem.cumem_available)

    def test_level_1_keeps_the_weights_and_level_2_nothing(self) -> None:
        for part in PARTS:
            with self.version(part) as case:
                worker = case.worker()
                weights, cache = case.of("weights", 5), case.of("kv_cache", 6)
                for level, left in ((1, 5), (2, 0)):
                    worker.sleep(level)
                    case.assertEqual(case.asleep(weights, cache), [True, True])
                    state = "suspended" if level == 1 else "discarded"
                    case.assertEqual(case.states("weights", "kv_cache"), {"weights": state, "kv_cache": "discarded"})
                    worker.wake_up(["weights"])
                    case.assertEqual(case.asleep(weights, cache), [False, True])
                    worker.wake_up(["kv_cache"])
                    case.assertEqual((case.bytes_at(weights), case.bytes_at(cache)), ((left, left), (0, 0)))
                worker.shutdown()

    def test_tags_of_vllms_own_wake_with_any_other_where_vllm_says_so(self) -> None:
        for part in ("discard", "graphs"):
            with self.version(part) as case:
                worker = case.worker()
                runtime, workspace, cache = case.of("runtime", 7), case.of("workspace", 8), case.of("kv_cache")
                worker.sleep(2)
                worker.wake_up(["weights"])
                wakes = case.part == "graphs"
                case.assertEqual(case.asleep(runtime, workspace, cache), [not wakes, not wakes, True])
                worker.wake_up()
                left = 7 if wakes else 0  # the same version copies them at both levels
                case.assertEqual((case.bytes_at(runtime), case.bytes_at(workspace)), ((left, left), (0, 0)))

    def test_the_backend_is_there_where_vllm_has_backends(self) -> None:
        for part in ("backends", "hooks"):
            with self.version(part) as case:
                worker = case.worker("vpmm")
                vpmm.vllm.install()
                weights = case.of("weights", 5)
                worker.sleep()
                case.assertEqual((worker.backend().state(), case.asleep(weights)), ("SUSPENDED", [True]))
                worker.wake_up()
                case.assertEqual((worker.backend().state(), case.bytes_at(weights)), ("RUNNING", (5, 5)))
                case.assertTrue(worker.backend().preserves_communicators())
                with case.allocator.cudagraph_pool() as pool:
                    pass
                worker.shutdown()
                with case.allocator.cudagraph_pool() as id:
                    case.assertNotEqual(id, pool)
                with (
                    mock.patch.object(plugin, "is_installed", return_value=False),
                    self.assertRaisesRegex(ValueError, "vpmm is not supported"),
                ):
                    importlib.import_module("vllm.worker").Worker("vpmm").sleep()


class Sleeping(SimulatedCase):
    def test_memory_goes_back_to_the_driver(self) -> None:
        self.of("weights")
        self.of("kv_cache")
        self.assertGreaterEqual(vpmm.stats()["mapped_bytes"], 6 * MIB)
        self.allocator.sleep("weights")
        self.assertEqual(vpmm.stats()["mapped_bytes"], 0)

    def test_the_default_tag_is_copied_if_no_other_is_named(self) -> None:
        plain, other = self.of(None, 1), self.of("other", 2)
        self.allocator.sleep()
        self.allocator.wake_up()
        self.assertEqual((self.bytes_at(plain), self.bytes_at(other)), ((1, 1), (0, 0)))

    def test_memory_without_a_copy_is_zero_after_a_wake_up(self) -> None:
        cache, other = self.of("kv_cache", 6), self.of("other", 7)
        with mock.patch.object(sys.modules["torch"].accelerator, "empty_cache"):  # no new memory, which were zero
            for tags in (["kv_cache"], ["other"]):
                self.allocator.sleep("weights")
                self.allocator.wake_up(tags)
                self.allocator.wake_up()
                self.assertEqual((self.bytes_at(cache), self.bytes_at(other)), ((0, 0), (0, 0)))
                for ptr in (cache, other):
                    ctypes.memset(ptr, 8, 3 * MIB)

    def test_memory_of_a_tag_serves_no_other_tag(self) -> None:
        cache = [self.of("kv_cache") for _ in range(8)]
        for ptr in cache[::2]:
            self.pool.deallocate(ptr, 0)
        weights = [self.of("weights", 9) for _ in range(4)]
        outside = self.allocate()
        self.allocator.discard("kv_cache")
        self.assertEqual(self.asleep(*weights, outside, *cache[1::2]), [False] * 5 + [True] * 4)

    def test_a_tag_of_the_program_with_the_same_name_is_another(self) -> None:
        with vpmm.tag("weights", suspendable=True):
            own = self.allocate()
        weights = self.of("weights")
        self.allocator.sleep("weights")
        self.assertEqual(self.asleep(own, weights), [False, True])

    def test_a_tag_is_its_threads(self) -> None:
        found: list[int] = []
        with self.allocator.use_memory_pool("weights"):
            thread = threading.Thread(target=lambda: found.append(self.allocate()))
            thread.start()
            thread.join()
        self.allocator.sleep("weights")
        self.assertEqual(self.asleep(found[0]), [False])

    def test_a_tag_that_sleeps_keeps_its_copy(self) -> None:
        weights, cache = self.of("weights", 5), self.of("kv_cache", 6)
        self.allocator.sleep("weights")
        self.allocator.wake_up(["kv_cache"])
        self.allocator.sleep(())
        self.allocator.discard("weights")
        self.assertEqual(self.asleep(weights, cache), [True, True])
        self.allocator.wake_up()
        self.assertEqual(self.bytes_at(weights), (5, 5))

    def test_usage_is_live_memory_asleep_or_not(self) -> None:
        self.assertEqual(self.allocator.get_current_usage(), 0)
        weights, _ = self.of("weights"), self.of("kv_cache", 0, MIB)
        self.assertEqual(self.allocator.get_current_usage(), 4 * MIB)
        self.allocator.sleep("weights")
        self.assertEqual(self.allocator.get_current_usage(), 4 * MIB)
        self.allocator.wake_up()
        self.pool.deallocate(weights, 0)
        self.assertEqual(self.allocator.get_current_usage(), MIB)

    def test_graphs_have_one_pool_that_is_made_inside_their_tag(self) -> None:
        ids = []
        for _ in range(2):
            with self.allocator.cudagraph_pool() as id:
                ids.append((id, self.pool.tag_entered()))
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0][1], "vllm:cudagraph")
        self.allocator.close()
        with self.allocator.cudagraph_pool() as id:
            self.assertNotEqual(id, ids[0][0])

    def test_without_vpmms_allocator_memory_is_refused(self) -> None:
        with (
            mock.patch.object(plugin, "is_installed", return_value=False),
            self.assertRaisesRegex(vpmm.Error, "VPMM_TORCH=1") as caught,
            self.allocator.use_memory_pool("weights"),
        ):
            pass
        self.assertEqual(caught.exception.code, "VPMM_ERROR_UNSUPPORTED")
        self.assertEqual(self.allocator.get_current_usage(), 0)
        self.allocator.sleep("weights")
        self.allocator.wake_up()


class Failing(SimulatedCase):
    def refuse(self, tag: str) -> vpmm.SuspendHooks:
        """Lets each suspend of the tag fail, after idle memory of the pool was taken and written, as threads may."""

        def no(device: int, name: str | int) -> None:
            for _ in range(4):
                ctypes.memset(self.allocate(), 0xEE, 3 * MIB)
            raise LookupError(name)

        return vpmm.add_suspend_hooks(f"vllm:{tag}", no)

    def test_a_sleep_that_fails_loses_nothing(self) -> None:
        memory = {tag: self.of(tag, byte) for byte, tag in enumerate(("kv_cache", "weights", "runtime"), 1)}
        self.refuse("weights")
        for kept in ((), ("weights", "runtime"), ("kv_cache",)):
            with self.assertRaisesRegex(LookupError, "vllm:weights"):
                self.allocator.sleep(kept)
            self.assertEqual(self.asleep(*memory.values()), [False] * 3)
            self.assertEqual([self.bytes_at(ptr) for ptr in memory.values()], [(1, 1), (2, 2), (3, 3)])

    def test_a_sleep_that_fails_wakes_nothing(self) -> None:
        weights, cache = self.of("weights", 5), self.of("kv_cache", 6)
        self.allocator.sleep("weights")
        self.allocator.wake_up(["kv_cache"])
        self.refuse("kv_cache")
        with self.assertRaises(LookupError):
            self.allocator.sleep("weights")
        self.assertEqual(self.asleep(weights, cache), [True, False])

    def test_beside_tags_of_the_program_copies_come_back(self) -> None:
        with vpmm.tag("of the program", suspendable=True):
            own = self.allocate()
        cache, weights, runtime = self.of("kv_cache", 1), self.of("weights", 2), self.of("runtime", 3)
        for tag in ("kv_cache", "runtime"):
            refusal = self.refuse(tag)
            with self.assertRaises(LookupError):
                self.allocator.sleep(("weights", "runtime"))
            self.assertEqual(self.asleep(own, cache, weights, runtime), [False] * 4)
            for ptr, byte in ((cache, 1), (weights, 2), (runtime, 3)):
                self.assertEqual(self.bytes_at(ptr), (byte, byte))
            refusal.remove()

    def test_the_program_may_make_its_tags_sleep_beside(self) -> None:
        with vpmm.tag("of the program", suspendable=True):
            own = self.allocate()
        weights = self.of("weights", 2)
        vpmm.suspend("of the program")
        self.allocator.sleep("weights")
        self.allocator.wake_up()
        self.assertEqual(self.asleep(own, weights), [True, False])
        self.assertEqual(self.bytes_at(weights), (2, 2))

    def test_a_wake_up_that_does_not_fit_can_be_repeated(self) -> None:
        weights, runtime = self.of("weights", 5, 64 * MIB), self.of("runtime", 6, 64 * MIB)
        self.allocator.sleep(("weights", "runtime"))
        self.pool.set_capacity(vpmm.stats()["mapped_bytes"] + 80 * MIB)
        with self.assertRaises(vpmm.OutOfMemoryError):
            self.allocator.wake_up()
        self.assertEqual(self.asleep(weights, runtime), [True, True])
        self.pool.set_capacity(None)
        self.allocator.wake_up()
        self.assertEqual(self.bytes_at(weights, 64 * MIB), (5, 5))
        self.assertEqual(self.bytes_at(runtime, 64 * MIB), (6, 6))

    def test_a_backend_is_as_before_after_an_error(self) -> None:
        worker = self.worker("vpmm")
        self.of("weights", 0, 64 * MIB)
        refusal = self.refuse("weights")
        with self.assertRaises(LookupError):
            worker.sleep()
        self.assertEqual(worker.backend().state(), "RUNNING")
        refusal.remove()
        worker.sleep()
        self.pool.set_capacity(2 * MIB)
        with self.assertRaises(vpmm.OutOfMemoryError):
            worker.wake_up()
        self.assertEqual(worker.backend().state(), "SUSPENDED")


class TagHooks(SimulatedCase):
    def setUp(self) -> None:
        super().setUp()
        self.worker()
        self.calls: list[str] = []
        self.hooks = sys.modules["vllm.device_allocator"].hooks
        for tag in ("weights", "kv_cache"):
            self.of(tag)
            self.hooks[tag] = (lambda tag=tag: self.call("unmap", tag), lambda tag=tag: self.call("map", tag))

    def call(self, what: str, tag: str) -> None:
        slept = vpmm.tag_info(f"vllm:{tag}").state != "live"
        self.calls.append(f"{what} {tag}{' asleep' if slept else ''}")

    def test_vllms_hooks_run_before_a_sleep_and_after_a_wake(self) -> None:
        self.allocator.sleep("weights")
        self.assertEqual(self.calls, ["unmap kv_cache", "unmap weights"])
        self.allocator.wake_up(["kv_cache"])
        self.assertEqual(self.calls[2:], ["map kv_cache"])
        self.allocator.wake_up(["weights"])
        self.assertEqual(self.calls[3:], ["map kv_cache", "map weights"])
        self.allocator.discard("kv_cache")
        self.assertEqual(self.calls[5:], ["unmap kv_cache"])

    def test_a_hook_that_fails_refuses_the_sleep(self) -> None:
        def fail() -> None:
            raise LookupError("still in use")

        self.hooks["weights"] = (fail, self.hooks["weights"][1])
        with self.assertRaises(LookupError):
            self.allocator.sleep("weights")
        self.assertEqual(self.states("weights", "kv_cache"), {"weights": "live", "kv_cache": "live"})
        self.assertEqual(self.calls, ["unmap kv_cache", "map kv_cache", "map weights"])


class Installing(VllmCase):
    def test_an_allocator_that_is_in_use_stays(self) -> None:
        cumem = importlib.import_module("vllm.device_allocator.cumem")
        cumem.cumem_available = True
        theirs = cumem.CuMemAllocator.get_instance()
        with self.assertRaisesRegex(vpmm.Error, "before an engine is made"):
            vpmm.vllm.install()
        self.assertIs(cumem.CuMemAllocator.get_instance(), theirs)

    def test_a_version_that_asks_for_more_is_named(self) -> None:
        package = importlib.import_module("vllm.device_allocator")
        package.MemAllocator.hibernate = lambda self: None
        with self.assertRaisesRegex(vpmm.Error, "asks its allocator for hibernate, which") as caught:
            vpmm.vllm.install()
        self.assertEqual(caught.exception.code, "VPMM_ERROR_UNSUPPORTED")
        self.assertIsNone(importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator.instance)

    def test_without_vllm_it_says_so(self) -> None:
        with mock.patch.dict(sys.modules, {"vllm": None}), self.assertRaisesRegex(vpmm.Error, "CuMemAllocator"):
            vpmm.vllm.install()

    def test_the_package_has_it_as_a_module(self) -> None:
        self.assertIs(vpmm.vllm, importlib.import_module("vpmm.vllm"))


class Variable(unittest.TestCase):
    CODE = """
import sys, vpmm_autoload
for _ in range(2):
    vpmm_autoload.register_vllm()
print("vpmm" in sys.modules, "torch" in sys.modules)
if "vpmm" in sys.modules:
    import vllm.worker, vpmm.vllm
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory as factory
    print(vllm.worker.get_mem_allocator_instance() is vpmm.vllm.allocator, sorted(factory._known))
"""

    def test_it_installs_and_without_it_nothing_is_imported(self) -> None:
        path = os.pathsep.join((PACKAGE_PARENT, STAND_IN))
        self.assertEqual(output_of(self.CODE, PYTHONPATH=path), "False False\n")
        self.assertEqual(output_of(self.CODE, PYTHONPATH=path, VPMM_VLLM="0"), "False False\n")
        found = "True False\nTrue ['cumem', 'vpmm']\n"
        self.assertEqual(output_of(self.CODE, PYTHONPATH=path, VPMM_VLLM="1"), found)

    def test_a_vllm_that_cannot_be_used_goes_on_without(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "vllm").mkdir()
        Path(folder.name, "vllm/__init__.py").touch()
        code = "import vpmm_autoload\nvpmm_autoload.register_vllm()\nprint('on it goes')"
        done = run("-c", code, VPMM_VLLM="1", PYTHONPATH=f"{folder.name}:{PACKAGE_PARENT}")
        self.assertEqual((done.returncode, done.stdout), (0, "on it goes\n"))
        self.assertIn("vpmm: VPMM_VLLM is set, but vLLM keeps its own allocator: vLLM with", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_entry_point_names_the_function(self) -> None:
        code = (
            "from importlib.metadata import entry_points\n"
            "print([point.value for point in entry_points(group='vllm.general_plugins') if point.name == 'vpmm'])"
        )
        self.assertEqual(output_of(code), "['vpmm_autoload:register_vllm']\n")


if __name__ == "__main__":
    unittest.main()
