# SPDX-License-Identifier: Apache-2.0
"""tests: tags, suspend and resume, on the simulator, for the process-wide pool and for private ones."""

from __future__ import annotations

import ast
import ctypes
import tempfile
import threading
import unittest

import vpmm
from vpmm import recordings
from vpmm.recordings import Kind
from vpmm.reporting.picture import picture_at
from vpmm.reporting.plain import text_of
from vpmm.reporting.stacks import NO_LIBRARY
from vpmm.reporting.story import Story

from program import run
from tag_case import MIB, TEXT, TagCase


class Array:
    """What libraries call an array."""

    def __init__(self, ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": "|u1",
            "data": (ptr, False),
            "version": 3,
        }


class Entering(TagCase):
    def live(self, name: str = "") -> int:
        return vpmm.tag_info(name or self.name).live_bytes

    def test_memory_of_the_block_has_the_tag_and_no_other(self) -> None:
        before = self.allocate()
        with self.tag() as entered:
            inside = self.allocate(5 * MIB)
            self.assertEqual(self.pool.tag_entered(), self.name)
        after = self.allocate()
        self.assertIsNone(self.pool.tag_entered())
        self.assertEqual(self.live(), 5 * MIB)
        vpmm.suspend(self.name)
        self.assertEqual([vpmm.is_suspended(ptr) for ptr in (before, inside, after)], [False, True, False])
        self.assertEqual((entered.name, repr(entered)), (self.name, f"<vpmm.Tag {self.name!r} of device 0>"))

    def test_of_nested_blocks_the_innermost_serves(self) -> None:
        inner = self.name + " inner"
        with self.tag():
            self.allocate(1 * MIB)
            with self.tag(inner):
                self.allocate(2 * MIB)
                with self.tag():
                    self.allocate(4 * MIB)
            self.allocate(8 * MIB)
        self.assertEqual((self.live(), self.live(inner)), (13 * MIB, 2 * MIB))

    def test_a_block_may_be_entered_again_and_in_itself(self) -> None:
        block = self.tag()
        for _ in range(2):
            with block, block:
                self.allocate(MIB)
        self.assertIsNone(self.pool.tag_entered())
        self.assertEqual(self.live(), 2 * MIB)

    def test_an_exception_leaves_the_block(self) -> None:
        with self.assertRaises(ZeroDivisionError), self.tag():
            _ = 1 / 0
        self.assertIsNone(self.pool.tag_entered())

    def on_a_thread(self, size: int) -> None:
        thread = threading.Thread(target=self.allocate, args=(size,))
        thread.start()
        thread.join()

    def test_a_block_is_for_all_threads_and_with_thread_for_its_own(self) -> None:
        with self.tag():
            self.on_a_thread(MIB)
        self.assertEqual(self.live(), MIB)
        with self.tag(thread=True):
            self.on_a_thread(2 * MIB)
            self.allocate(4 * MIB)
        self.assertEqual(self.live(), 5 * MIB)

    def test_what_was_not_entered_cannot_be_left(self) -> None:
        self.pool.tag_enter(self.name, thread=True)
        with self.error("VPMM_ERROR_INVALID_ARGUMENT"):
            self.pool.tag_leave(self.name)
        self.pool.tag_leave(self.name, thread=True)
        with self.error("VPMM_ERROR_INVALID_ARGUMENT"):
            self.pool.tag_leave(self.name, thread=True)

    def test_a_tag_is_a_name_or_a_number(self) -> None:
        number = self.tag().number
        self.tagged()
        self.assertEqual(self.tag().number, number)
        self.assertEqual(vpmm.tag_info(number), vpmm.tag_info(self.name))
        self.assertEqual(vpmm.tag_info(number).number, number)
        vpmm.suspend(number)
        self.assertEqual(vpmm.suspended(), (self.name,))
        for wrong in (0, 1 << 32, -1, ""):
            with self.subTest(wrong=wrong), self.error("VPMM_ERROR_INVALID_ARGUMENT"):
                vpmm.tag(wrong)  # type: ignore[arg-type]
        for wrong in (True, 1.5, None, b"weights"):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(TypeError, "^tag is .*must be a name, or a number"):
                vpmm.tag(wrong)  # type: ignore[arg-type]

    def test_a_tag_without_a_name_is_its_number(self) -> None:
        with vpmm.tag(77001, suspendable=True):
            self.allocate()
            self.assertEqual(self.pool.tag_entered(), 77001)
        vpmm.suspend(77001)
        self.assertEqual(vpmm.suspended(), (77001,))
        self.assertIn(77001, self.pool.suspendable_tags())
        self.assertEqual(vpmm.tag_info(77001).name, 77001)

    def test_a_block_without_suspendable_only_labels(self) -> None:
        with vpmm.tag(self.name):
            ptr = self.allocate()
        self.assertNotIn(self.name, self.pool.suspendable_tags())
        self.assertFalse(vpmm.is_suspended(ptr))
        info = vpmm.tag_info(self.name)
        self.assertEqual((info.suspendable, info.live_bytes, info.mapped_bytes), (False, 3 * MIB, 0))
        self.assertIn(info, vpmm.tags())
        for call in (vpmm.suspend, vpmm.resume):
            with self.subTest(call=call), self.error("VPMM_ERROR_INVALID_ARGUMENT"):
                call(self.name)


class Names(TagCase):
    """Of programs in C."""

    def setUp(self) -> None:
        super().setUp()
        self.library = ctypes.CDLL("libvpmm.so.0")

    def allocated(self, tag: int, name: bytes, size: int) -> int:
        self.library.vpmm_set_tag_name(tag, name)
        self.addCleanup(self.library.vpmm_set_tag_name, tag, b"")
        with vpmm.tag(tag):
            ptr = self.pool.allocate(size, 0)
        self.addCleanup(self.pool.deallocate, ptr, 0)
        return ptr

    def test_the_bytes_of_tags_with_one_name_are_added(self) -> None:
        for tag, size in ((901, MIB), (902, 2 * MIB)):
            self.allocated(tag, self.name.encode(), size)
        self.assertEqual(vpmm.stats()["by_tag"][self.name], 3 * MIB)

    def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(self) -> None:
        self.allocated(903, b"cache \xff", MIB)
        shown = "cache \N{REPLACEMENT CHARACTER}"
        self.assertEqual(vpmm.stats()["by_tag"][shown], MIB)
        self.assertEqual(vpmm.tag_info(903).name, shown)
        self.assertIn(shown, self.pool.tags())


class Limits(TagCase):
    def test_a_request_beyond_the_limit_fails(self) -> None:
        with vpmm.tag(self.name, limit="4MiB"):
            ptr = self.pool.allocate("3MiB", 0)
            with self.assertRaisesRegex(
                vpmm.OutOfMemoryError, f'the tag "{self.name}" has 3 MiB of its limit of 4 MiB'
            ):
                self.pool.allocate("2MiB", 0)
            self.pool.deallocate(self.pool.allocate("1MiB", 0), 0)
        with vpmm.tag(self.name):  # leaves the limit
            self.assertRaises(vpmm.OutOfMemoryError, self.pool.allocate, "2MiB", 0)
        self.assertEqual(vpmm.tag_info(self.name).limit_bytes, 4 * MIB)
        self.pool.set_tag_limit(self.name, None)
        self.assertIsNone(vpmm.tag_info(self.name).limit_bytes)
        self.pool.deallocate(ptr, 0)
        self.assertNotIn(self.name, self.pool.tags())

    def test_a_share_is_one_of_the_capacity_or_else_of_the_gpus_memory(self) -> None:
        self.pool.set_tag_limit(self.name, "25%")
        whole = vpmm.memory_info().total
        self.assertEqual(vpmm.tag_info(self.name).limit_bytes, whole // 4)
        self.addCleanup(self.pool.set_capacity, None)
        self.pool.set_capacity(16 * MIB)
        self.assertEqual(vpmm.tag_info(self.name).limit_bytes, 4 * MIB)
        with vpmm.tag(self.name, limit="50%"):
            ptr = self.pool.allocate("8MiB", 0)
            self.assertRaises(vpmm.OutOfMemoryError, self.pool.allocate, 1, 0)
        self.pool.deallocate(ptr, 0)
        self.pool.set_tag_limit(self.name, None)

    def test_an_error_at_the_limit_names_the_holders(self) -> None:
        with vpmm.tag(self.name, limit="4MiB"):
            ptr = self.pool.allocate("3MiB", 0)
            with self.assertRaises(vpmm.OutOfMemoryError) as caught:
                self.pool.allocate("2MiB", 0)
        self.assertIn("\n  by stream  default stream (7): 3 MiB\nwhat to try:", caught.exception.report)
        self.pool.deallocate(ptr, 0)

    def test_a_limit_is_a_size(self) -> None:
        for limit in ("4M", -1, 1.5, "0%", "101%", "%"):
            with self.subTest(limit=limit), self.assertRaises((vpmm.Error, TypeError, ValueError)):
                self.pool.set_tag_limit(self.name, limit)


BY_LIBRARY = """
import sys, vpmm
from vpmm import _vpmm
pool = vpmm.Pool.default()
pool.record_start(sys.argv[1])
number = _vpmm.library_tag("cupy")
plain = pool.allocate(1 << 20, 0)
own = _vpmm.allocate_tagged(pool, 2 << 20, number, 0)
with vpmm.tag("kv-cache"):
    cached = _vpmm.allocate_tagged(pool, 4 << 20, number, 0)
    other = pool.allocate(8 << 20, 0)
print(vpmm.stats()["by_tag"], vpmm.stats()["by_library"])
print(vpmm.tag_info("cupy").library_bytes, pool.get_capacity())
pool.record_stop()
pool.set_capacity("32MiB")
try:
    pool.allocate("32MiB", 0)
except vpmm.OutOfMemoryError as error:
    print(*(line for line in error.report.splitlines() if " by " in line), sep="\\n")
for ptr in (plain, own, cached, other):
    pool.deallocate(ptr, 0)
print(vpmm.stats()["by_tag"], vpmm.stats()["by_library"])
"""


class ByLibrary(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = f"{folder.name}/run.vpmm"

    def said(self, **variables: str) -> list[str]:
        done = run("-c", BY_LIBRARY, self.path, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def test_memory_of_a_library_counts_for_it_also_under_another_tag(self) -> None:
        by_tag, by_library = {"kv-cache": 12 * MIB, "cupy": 2 * MIB}, {"cupy": 6 * MIB}
        for variables in ({"VPMM_TAG_LIBRARIES": "1"}, {"VPMM_LIMITS": "cupy=3MiB"}):
            sums, info, *report, after = self.said(**variables)
            first, second = (ast.literal_eval(each + "}") for each in sums.split("}") if each)
            self.assertEqual((first, second), (by_tag, by_library))
            self.assertEqual(info, f"{6 * MIB} None")
            self.assertIn("  by library no library known: 9 MiB, cupy: 6 MiB", report)
            self.assertIn("  by tag     kv-cache: 12 MiB, cupy: 2 MiB, no tag: 1 MiB", report)
            self.assertEqual(after, "{} {}")

    def test_a_recording_and_its_reports_have_it_too(self) -> None:
        self.said(VPMM_TAG_LIBRARIES="1")
        recording = recordings.read(self.path)
        self.assertEqual(list(recording.libraries.values()), ["cupy"])
        story = Story(recording)
        groups = picture_at(story, story.peak_index, "peak").groups
        self.assertEqual(
            [(each.label, each.bytes) for each in groups["library"]],
            [(NO_LIBRARY, 9 * MIB), ("cupy", 6 * MIB)],
        )
        text = text_of(story)
        self.assertRegex(text, r"(?m)^ by library\n +9.00 MiB .*no library known\n +6.00 MiB .*cupy$")
        self.assertRegex(text, r"(?m)^ by tag\n +12.00 MiB .*kv-cache$")
        self.assertEqual([each.label for each in groups["stream"]], ["default stream (7)"])
        recordings.write(recording, self.path)
        self.assertEqual(recordings.read(self.path).libraries, recording.libraries)

    def test_memory_that_lives_when_a_recording_begins_has_its_library(self) -> None:
        code = BY_LIBRARY.replace("pool.record_start(sys.argv[1])\n", "").replace(
            "pool.record_stop()", "pool.record_start(sys.argv[1])\npool.record_stop()"
        )
        done = run("-c", code, self.path, VPMM_TAG_LIBRARIES="1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        recording = recordings.read(self.path)
        named = [recording.libraries.get(each.flags, "") for each in recording.events if each.kind is Kind.LIVE]
        self.assertEqual(named, ["", "cupy", "cupy", ""])

    def test_without_the_variables_there_is_none(self) -> None:
        sums, *_ = self.said()
        self.assertEqual(sums, f"{{'kv-cache': {12 * MIB}}} {{}}")
        self.assertEqual(recordings.read(self.path).libraries, {})

    def test_a_shortage_names_the_variable_where_several_libraries_could_be_told_apart(self) -> None:
        code = """
import vpmm
from vpmm import _vpmm
pool = vpmm.Pool(capacity="8MiB")
def advice():
    try:
        pool.allocate("32MiB", 0)
    except vpmm.OutOfMemoryError as error:
        print(*(line for line in error.report.splitlines() if "TAG_LIBRARIES" in line), sep="|")
for library in ("torch", "torch", "cupy", "rmm"):
    _vpmm.library_tag(library)
    advice()
"""
        hint = "  - see how much of it each library holds ({}): VPMM_TAG_LIBRARIES=1 PROGRAM\n"
        done = run("-c", code)
        self.assertEqual(done.stdout, "\n\n" + hint.format("cupy, torch") + hint.format("cupy, rmm, torch"))
        self.assertEqual(run("-c", code, VPMM_TAG_LIBRARIES="1").stdout, "\n" * 4)
        self.assertEqual(run("-c", code, VPMM_LIMITS="cupy=1GiB,rmm=50%,torch=25%").stdout, "\n" * 4)
        limited = run("-c", code, VPMM_LIMITS="cupy=1GiB,rmm=50%")
        self.assertEqual(limited.stdout, "\n\n" + hint.format("torch") * 2, "one without a limit beside those with one")


class Suspending(TagCase):
    def test_the_contents_come_back_at_their_address(self) -> None:
        ptr = self.tagged()
        before = vpmm.stats()
        vpmm.suspend(self.name)
        self.assertEqual(vpmm.suspended(), (self.name,))
        self.assertTrue(vpmm.is_suspended(ptr))
        info = vpmm.tag_info(self.name)
        self.assertEqual((info.state, info.backup, info.live_bytes), ("suspended", True, 3 * MIB))
        self.assertEqual(info.mapped_bytes, 0)
        self.assertGreaterEqual(info.suspended_bytes, 3 * MIB)
        self.assertGreaterEqual(info.host_bytes, 3 * MIB)
        self.assertEqual(vpmm.stats()["suspended_bytes"] - before["suspended_bytes"], info.suspended_bytes)
        vpmm.resume(self.name)
        self.assert_text(ptr)
        self.assertEqual((vpmm.suspended(), vpmm.is_suspended(ptr)), ((), False))
        after = vpmm.tag_info(self.name)
        self.assertEqual((after.state, after.suspended_bytes, after.host_bytes), ("live", 0, 0))
        self.assertEqual(vpmm.stats()["suspended_bytes"], before["suspended_bytes"])

    def test_the_memory_goes_to_the_pool_or_to_the_driver(self) -> None:
        self.tagged(64 * MIB)
        vpmm.suspend(self.name)
        vpmm.resume(self.name)
        vpmm.trim()
        before = vpmm.stats()["mapped_bytes"]
        vpmm.suspend(self.name, to_driver=True)
        self.assertEqual(before - vpmm.stats()["mapped_bytes"], vpmm.tag_info(self.name).suspended_bytes)
        vpmm.resume(self.name)
        created = vpmm.stats()["chunks_created"]
        vpmm.suspend(self.name)
        self.allocate(48 * MIB)
        self.assertEqual(vpmm.stats()["chunks_created"], created, "what the tag gave up serves others")

    def test_what_is_not_copied_is_discarded(self) -> None:
        ptr = self.tagged(backup=False)
        vpmm.suspend(self.name)
        info = vpmm.tag_info(self.name)
        self.assertEqual((info.state, info.backup, info.host_bytes), ("discarded", False, 0))
        self.assertEqual(vpmm.suspended(), (self.name,))
        vpmm.resume(self.name, zero=True)
        self.assertEqual(ctypes.string_at(ptr, 3 * MIB), bytes(3 * MIB))

    def test_the_call_overrides_the_tag(self) -> None:
        ptr = self.tagged(backup=False)
        vpmm.suspend(self.name, backup=True)
        vpmm.resume(self.name)
        self.assert_text(ptr)
        self.tagged(name=self.name + " kept", backup=True)
        vpmm.suspend(self.name + " kept", backup=False)
        self.assertEqual(vpmm.tag_info(self.name + " kept").state, "discarded")

    def test_a_copy_can_be_kept_or_left_out(self) -> None:
        self.tagged(keep_host_copy=True)
        for _ in range(2):
            vpmm.suspend(self.name)
            vpmm.resume(self.name)
            info = vpmm.tag_info(self.name)
            self.assertTrue(info.keep_host_copy)
            self.assertGreaterEqual(info.host_bytes, 3 * MIB)
        other = self.name + " other"
        self.tagged(name=other)
        vpmm.suspend(other)
        vpmm.resume(other, copy=False)
        self.assertEqual((vpmm.tag_info(other).state, vpmm.tag_info(other).host_bytes), ("live", 0))

    def test_none_is_all_suspendable_tags(self) -> None:
        names = [f"{self.name} {i}" for i in range(3)]
        ptrs = [self.tagged(name=name) for name in names]
        plain = self.allocate()
        vpmm.suspend()
        self.assertLessEqual(set(names), set(vpmm.suspended()))
        self.assertFalse(vpmm.is_suspended(plain))
        vpmm.resume()
        self.assertEqual(vpmm.suspended(), ())
        for ptr in ptrs:
            self.assert_text(ptr)

    def test_a_second_suspend_and_resume_do_nothing(self) -> None:
        ptr = self.tagged()
        for call in (vpmm.suspend, vpmm.suspend, vpmm.resume, vpmm.resume):
            call(self.name)
        self.assert_text(ptr)

    def test_a_stream_stands_for_the_device(self) -> None:
        ptr = self.tagged()
        for stream in (0, None):
            vpmm.suspend(self.name, stream=stream)
            vpmm.resume(self.name)
        self.assert_text(ptr)
        with self.assertRaises(TypeError):
            vpmm.suspend(self.name, stream="side")  # type: ignore[arg-type]

    def test_a_request_of_a_suspended_tag_fails_and_a_free_does_not(self) -> None:
        with self.tag():
            ptr = self.pool.allocate(3 * MIB, 0)
            vpmm.suspend(self.name)
            with self.error("VPMM_ERROR_SUSPENDED"):
                self.pool.allocate(3 * MIB, 0)
        self.pool.deallocate(ptr, 0)
        self.assertEqual(vpmm.tag_info(self.name).live_bytes, 0)

    def test_a_capture_refuses(self) -> None:
        ptr = self.tagged()
        with vpmm.capture(), self.error("VPMM_ERROR_CAPTURE_ACTIVE"):
            vpmm.suspend(self.name)
        vpmm.suspend(self.name)
        with vpmm.capture(), self.error("VPMM_ERROR_CAPTURE_ACTIVE"):
            vpmm.resume(self.name)
        vpmm.resume(self.name)
        self.assert_text(ptr)

    def test_a_snapshot_has_a_word_for_it(self) -> None:
        self.tagged()
        vpmm.suspend(self.name)
        states = {region.state for region in self.pool.snapshot()}
        self.assertIn("suspended", states)
        self.assertNotIn("unknown", states)

    def test_switches_are_true_or_false(self) -> None:
        for options in ({"backup": 1}, {"keep_host_copy": None}, {"to_driver": "yes"}):
            with self.assertRaisesRegex(TypeError, "must be True or False"):
                vpmm.suspend(self.name, **options)  # type: ignore[arg-type]
        for options in ({"zero": 1}, {"copy": None}):
            with self.assertRaisesRegex(TypeError, "must be True or False"):
                vpmm.resume(self.name, **options)  # type: ignore[arg-type]

    def test_a_resume_that_does_not_fit_changes_nothing(self) -> None:
        with vpmm.Pool(capacity=64 * MIB) as pool:
            pool.make_suspendable(self.name)
            pool.tag_enter(self.name)
            sleeping = pool.allocate(40 * MIB, 0)
            pool.tag_leave(self.name)
            ctypes.memmove(sleeping, TEXT, len(TEXT))
            pool.suspend(self.name)
            awake = pool.allocate(40 * MIB, 0)
            with self.assertRaises(vpmm.OutOfMemoryError):
                pool.resume(self.name)
            self.assertEqual(pool.suspended(), (self.name,))
            pool.deallocate(awake, 0)
            pool.resume(self.name)
            self.assertEqual(ctypes.string_at(sleeping, len(TEXT)), TEXT)
            pool.deallocate(sleeping, 0)

    def test_pools_have_their_own_memory_of_a_tag(self) -> None:
        with vpmm.Pool() as pool:
            pool.make_suspendable(self.name, backup=False)
            self.tagged()
            pool.suspend(self.name)
            self.assertEqual(vpmm.tag_info(self.name).state, "live")
            self.assertFalse(pool.tag_info(self.name).backup)
        with self.error("VPMM_ERROR_INVALID_ARGUMENT", "closed"):
            pool.suspend(self.name)


class HostCopies(TagCase):
    def test_a_host_copy_is_read_and_written(self) -> None:
        ptr = self.tagged()
        vpmm.suspend(self.name)
        view = vpmm.host_copy(Array(ptr, (3 * MIB,)))
        self.assertEqual((view.nbytes, view.readonly, view.format), (3 * MIB, False, "B"))
        self.assertEqual(bytes(view[: len(TEXT)]), TEXT)
        view[0:4] = b"When"
        self.assertEqual(bytes(vpmm.host_copy(ptr, 4)), b"When")
        vpmm.resume(self.name)
        self.assertEqual(ctypes.string_at(ptr, len(TEXT)), b"When" + TEXT[4:])

    def test_a_part_of_an_allocation_has_its_part(self) -> None:
        ptr = self.tagged()
        vpmm.suspend(self.name)
        part = vpmm.host_copy(Array(ptr + 5, (2, 4)), device=0)
        self.assertEqual(bytes(part), TEXT[5:13])

    def test_there_is_none_of_live_or_discarded_or_foreign_memory(self) -> None:
        ptr = self.tagged(backup=False)
        for _ in range(2):
            with self.error("VPMM_ERROR_INVALID_POINTER"):
                vpmm.host_copy(ptr, MIB)
            vpmm.suspend(self.name)
        for ask in (lambda: vpmm.host_copy(4096, 8), lambda: vpmm.is_suspended(4096)):
            with self.error("VPMM_ERROR_INVALID_POINTER"):
                ask()

    def test_wrong_arrays_are_refused(self) -> None:
        ptr = self.tagged()
        vpmm.suspend(self.name)
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            vpmm.host_copy(Array(ptr, (2, 4), (8, 1)))
        with self.assertRaisesRegex(TypeError, "give `size`"):
            vpmm.host_copy(ptr)
        with self.assertRaisesRegex(TypeError, "no memory that CUDA knows"):
            vpmm.is_suspended("weights")
        with self.error("VPMM_ERROR_INVALID_POINTER"):
            vpmm.host_copy(ptr, 4 * MIB)

    def test_a_tensor_that_requires_grad_is_an_array_too(self) -> None:
        ptr = self.tagged()
        vpmm.suspend(self.name)

        class Parameter:
            is_cuda = requires_grad = True

            def data_ptr(self) -> int:
                return ptr

            def detach(self) -> Array:
                return Array(ptr, (8,))

        self.assertTrue(vpmm.is_suspended(Parameter()))
        self.assertEqual(bytes(vpmm.host_copy(Parameter())), TEXT[:8])


if __name__ == "__main__":
    unittest.main()
