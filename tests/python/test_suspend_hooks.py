# SPDX-License-Identifier: Apache-2.0
"""tests: hooks of a suspend, on the simulator."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import traceback
import unittest
import weakref
from unittest import mock

import vpmm

from tag_case import MIB, TagCase


class Hooks(TagCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls: list[tuple[str, int, str | int]] = []

    def add(self, word: str) -> vpmm.SuspendHooks:
        hooks = vpmm.add_suspend_hooks(
            self.name,
            lambda device, tag: self.calls.append((f"before {word}", device, tag)),
            lambda device, tag: self.calls.append((f"after {word}", device, tag)),
        )
        self.addCleanup(hooks.remove)
        return hooks

    def words(self) -> list[str]:
        words = [word for word, _, _ in self.calls]
        self.calls.clear()
        return words

    def test_they_are_called_in_order_and_back(self) -> None:
        self.tagged()
        first, _ = self.add("1"), self.add("2")
        vpmm.suspend(self.name)
        self.assertEqual(self.calls, [("before 1", 0, self.name), ("before 2", 0, self.name)])
        self.calls.clear()
        vpmm.resume(self.name)
        self.assertEqual(self.words(), ["after 2", "after 1"])
        first.remove()
        first.remove()
        self.assertEqual(repr(first), f"<vpmm.SuspendHooks of {self.name!r} on device 0, removed>")
        vpmm.suspend(self.name)
        self.assertEqual(self.words(), ["before 2"])

    def test_an_exception_refuses_and_is_raised(self) -> None:
        ptr = self.tagged()
        self.add("1")

        def refuse(device: int, tag: str | int) -> None:
            raise LookupError(f"{tag} is registered on {device}")

        refusing = vpmm.add_suspend_hooks(self.name, refuse)
        self.addCleanup(refusing.remove)
        with self.assertRaisesRegex(LookupError, "is registered on 0"):
            vpmm.suspend(self.name)
        try:
            vpmm.suspend(self.name)
        except LookupError as error:
            self.assertIn("in refuse", "".join(traceback.format_tb(error.__traceback__)))
        self.assertEqual(self.words(), 2 * ["before 1", "after 1"])
        self.assertEqual(vpmm.suspended(), ())
        self.assert_text(ptr)
        refusing.remove()
        vpmm.suspend(self.name)
        self.assertEqual(vpmm.suspended(), (self.name,))

    def test_an_exception_after_a_resume_is_raised_and_the_memory_is_there(self) -> None:
        ptr = self.tagged()

        def fail(device: int, tag: str | int) -> None:
            raise KeyboardInterrupt

        hooks = vpmm.add_suspend_hooks(self.name, None, fail)
        self.addCleanup(hooks.remove)
        vpmm.suspend(self.name)
        with self.assertRaises(KeyboardInterrupt):
            vpmm.resume(self.name)
        self.assertEqual(vpmm.suspended(), ())
        self.assert_text(ptr)

    def test_the_text_of_an_exception_arrives_at_a_caller_in_c(self) -> None:
        self.tagged()

        def fail(device: int, tag: str | int) -> None:
            raise LookupError(f"{tag} is registered")

        library = ctypes.CDLL("libvpmm.so.0")
        library.vpmm_last_error.restype = ctypes.c_char_p
        pool, tag = ctypes.c_void_p(), ctypes.c_uint32()
        self.assertEqual(library.vpmm_default_pool(0, ctypes.byref(pool)), 0)
        self.assertEqual(library.vpmm_tag_with_name(self.name.encode(), ctypes.byref(tag)), 0)
        text = f"LookupError: {self.name} is registered"
        with mock.patch.object(sys, "unraisablehook"):
            refusing = vpmm.add_suspend_hooks(self.name, fail)
            self.assertNotEqual(library.vpmm_suspend(pool, tag, 0, None), 0)
            self.assertIn(text, library.vpmm_last_error().decode())
            refusing.remove()
            self.addCleanup(vpmm.add_suspend_hooks(self.name, None, fail).remove)
            self.assertEqual(library.vpmm_suspend(pool, tag, 0, None), 0)
            self.assertNotEqual(library.vpmm_resume(pool, tag, 0), 0)
            self.assertIn(text, library.vpmm_last_error().decode())
        self.assertEqual(vpmm.suspended(), ())

    def test_further_exceptions_are_reported(self) -> None:
        self.tagged()

        def fail(device: int, tag: str | int) -> None:
            raise LookupError

        for _ in range(2):
            self.addCleanup(vpmm.add_suspend_hooks(self.name, None, fail).remove)
        vpmm.suspend(self.name)
        with mock.patch.object(sys, "unraisablehook") as reported, self.assertRaises(LookupError):
            vpmm.resume(self.name)
        reported.assert_called_once()
        vpmm.suspend(self.name)
        with mock.patch.object(sys, "unraisablehook"), self.assertRaises(LookupError):
            vpmm.resume(self.name)

    def test_a_hook_calls_the_pool_and_removes_itself(self) -> None:
        self.tagged()
        seen: list[int] = []

        def look(device: int, tag: str | int) -> None:
            seen.append(vpmm.tag_info(tag, device).live_bytes)
            hooks.remove()

        hooks = vpmm.add_suspend_hooks(self.name, look)
        for _ in range(2):
            vpmm.suspend(self.name)
            vpmm.resume(self.name)
        self.assertEqual(seen, [3 * MIB])

    def test_other_threads_run_while_a_hook_waits_for_them(self) -> None:
        self.tagged()
        done = threading.Event()
        hooks = vpmm.add_suspend_hooks(self.name, lambda device, tag: self.assertTrue(done.wait(60)))
        self.addCleanup(hooks.remove)
        thread = threading.Thread(target=vpmm.suspend, args=(self.name,))
        thread.start()
        vpmm.stats()
        self.allocate()
        done.set()
        thread.join()
        self.assertEqual(vpmm.suspended(), (self.name,))

    def test_hooks_are_callable_or_none(self) -> None:
        with self.assertRaisesRegex(TypeError, "before_unmap is 7: must be callable, or None"):
            vpmm.add_suspend_hooks(self.name, 7)  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "after_map is 7: must be callable, or None"):
            vpmm.add_suspend_hooks(self.name, None, 7)  # type: ignore[arg-type]
        with self.error("VPMM_ERROR_INVALID_ARGUMENT"):
            self.pool.remove_suspend_hooks(1 << 60)

    def test_hooks_that_refer_to_their_private_pool_die_with_it(self) -> None:
        pool = vpmm.Pool()

        class Hook:
            def __init__(self, pool: vpmm.Pool) -> None:
                self.pool = pool

            def __call__(self, device: int, tag: str | int) -> None: ...

        hook = Hook(pool)
        seen = weakref.ref(hook)
        pool.add_suspend_hooks(self.name, hook, hook)
        del pool, hook
        gc.collect()
        self.assertIsNone(seen())

    def test_hooks_of_a_closed_pool_are_dropped(self) -> None:
        class Hook:
            def __call__(self, device: int, tag: str | int) -> None: ...

        hook = Hook()
        seen = weakref.ref(hook)
        with vpmm.Pool() as pool:
            pool.add_suspend_hooks(self.name, hook)
            del hook
            gc.collect()
            self.assertIsNotNone(seen())
        self.assertIsNone(seen())


if __name__ == "__main__":
    unittest.main()
