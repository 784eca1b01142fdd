# SPDX-License-Identifier: Apache-2.0
"""tests: the functions of the package, over the process-wide pool, and what counts as a stream or as memory."""

from __future__ import annotations

import ctypes
import gzip
import json
import tempfile
import types
import unittest
from pathlib import Path

import vpmm
from vpmm import recordings
from vpmm._streams import address_of, stream_handle

from program import output_of, run

MIB = 1 << 20


class Functions(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool.default()
        self.ptr = self.pool.allocate_any_stream(3 * MIB)
        self.addCleanup(lambda: self.pool.deallocate_deferred(self.ptr))

    def test_they_speak_of_the_process_wide_pool(self) -> None:
        self.assertEqual(vpmm.stats(), self.pool.statistics())
        self.assertGreaterEqual(vpmm.stats(0)["live_bytes"], 3 * MIB)
        self.assertIn("live_bytes", vpmm.dump())
        self.assertIn("statistics", json.loads(vpmm.dump(0, json=True)))
        info = vpmm.memory_info()
        self.assertLess(info.free, info.total)
        self.assertEqual(info, self.pool.memory_info())
        for each in (info, self.pool.memory_info()):
            self.assertIsInstance(each, vpmm.MemoryInfo)

    def test_trim_gives_idle_memory_back(self) -> None:
        self.pool.preallocate(self.pool.statistics()["mapped_bytes"] + 64 * MIB)
        self.assertGreaterEqual(vpmm.trim(), 64 * MIB)
        self.assertEqual(self.pool.query(self.ptr).begin, self.ptr)

    def test_there_is_a_device(self) -> None:
        self.assertGreaterEqual(vpmm.device_count(), 1)

    def test_a_capture_is_announced_for_a_block(self) -> None:
        with self.assertRaises(ZeroDivisionError), vpmm.capture():
            with self.assertRaisesRegex(vpmm.Error, "captured") as caught:
                self.pool.synchronize()
            self.assertEqual(caught.exception.code, "VPMM_ERROR_CAPTURE_ACTIVE")
            _ = 1 / 0
        self.pool.synchronize()

    def test_configure_opens_with_settings_and_names_a_difference(self) -> None:
        code = """
import vpmm
assert vpmm.configure(capacity=1 << 30).statistics()["mapped_bytes"] == 0
vpmm.configure(capacity=1 << 30)
try:
    vpmm.configure(capacity=1 << 31)
except vpmm.Error as error:
    print(error.code, error)
try:
    vpmm.Pool.default().allocate(2 << 30, 0)
except MemoryError:
    print("full")
"""
        lines = output_of(code, VPMM_LOG="quiet").splitlines()
        self.assertRegex(lines[0], "VPMM_ERROR_BAD_CONFIGURATION.*device 0.*already open.*: capacity is 1GiB, not 2GiB")
        self.assertEqual(lines[1:], ["full"])

    def test_without_a_driver_the_first_call_says_so(self) -> None:
        done = run("-c", "import vpmm; vpmm.memory_info()", VPMM_DRIVER="nonsense")
        self.assertIn("vpmm.errors.InvalidArgumentError: VPMM_DRIVER=nonsense", done.stderr)


class Recording(unittest.TestCase):
    def lines(self, path: Path) -> list[str]:
        with gzip.open(path, "rt") as file:
            return file.read().splitlines()

    def test_what_happens_in_the_block_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.csv.gz")
            pool = vpmm.Pool.default()
            with vpmm.record(path):
                pool.deallocate(pool.allocate(12345, 0), 0)
            pool.deallocate(pool.allocate(54321, 0), 0)
            lines = self.lines(path)
        self.assertEqual([line.split(",")[0] for line in lines[1:]], ["a", "f"])
        self.assertIn("12345", lines[1])

    def test_events_have_marks_and_the_lines_of_the_program(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.vpmmrec")
            pool = vpmm.Pool.default()
            with vpmm.record(path, stacks="python"):
                vpmm.record_mark("step 12")
                for _ in range(2):
                    pool.deallocate(pool.allocate(12345, 0), 0)
            recording = recordings.read(path)
        marks = [recording.text_of(event) for event in recording.events if event.kind == recordings.Kind.MARK]
        self.assertEqual(marks, ["step 12"])
        allocations = [event for event in recording.events if event.kind == recordings.Kind.ALLOCATE]
        self.assertEqual([event.bytes for event in allocations], [12345, 12345])
        self.assertEqual(allocations[0].stack, allocations[1].stack, "the same line")
        frame = recording.stacks[allocations[0].stack][0]
        self.assertEqual(Path(frame.file).name, "test_functions.py")
        self.assertIn("test_events_have_marks", frame.function)
        self.assertEqual(recording.header["stacks"], "python")

    def test_a_report_knows_what_the_pool_takes_for_each_size(self) -> None:
        from vpmm.reporting import Story

        page = 2 << 20
        sizes = [page * part // 64 + more for part in range(64, 400, 3) for more in (-1, 0, 1)]
        for settings in ({}, {"chunk_max": "page"}, {"page_size": "4MiB"}):
            with self.subTest(settings), tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "trace.vpmmrec")
                pool = vpmm.Pool(log="quiet", **settings)  # type: ignore[arg-type]
                pool.record_start(path)
                for size in sizes:
                    pool.deallocate(pool.allocate(size, 0), 0)
                pool.record_stop()
                story = Story(recordings.read(path))
            taken = [life.event.value for life in story.lives if life.event.bytes >= story.page_size]
            asked = [life.event.bytes for life in story.lives if life.event.bytes >= story.page_size]
            self.assertGreater(len(taken), 100)
            self.assertEqual([story.taken_for(size) for size in asked], taken)

    def test_stacks_begin_where_the_library_was_called(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.vpmmrec")
            pool = vpmm.Pool.default()
            with vpmm.record(path, stacks="native"):
                pool.deallocate(pool.allocate(12345, 0), 0)
            recording = recordings.read(path)
        stack = next(event.stack for event in recording.events if event.kind == recordings.Kind.ALLOCATE)
        files = [Path(frame.file).name for frame in recording.stacks[stack]]
        self.assertTrue(files[0].startswith("_vpmm."), files)
        self.assertFalse([file for file in files if file.startswith("libvpmm")])

    def test_frames_are_found_below_a_library_that_let_go_of_the_interpreters_lock(self) -> None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
        library = ctypes.CDLL(next(part for part in maps if "/libvpmm.so" in part))  # which lets go of it in each call
        pool, address = ctypes.c_void_p(), ctypes.c_void_p()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.vpmmrec")
            with vpmm.record(path, stacks="python"):
                self.assertEqual(library.vpmm_default_pool(0, ctypes.byref(pool)), 0)
                size = ctypes.c_size_t(54321)
                self.assertEqual(library.vpmm_allocate(pool, size, None, ctypes.byref(address)), 0)
                self.assertEqual(library.vpmm_deallocate(pool, address, None), 0)
            recording = recordings.read(path)
        stack = next(event.stack for event in recording.events if event.bytes == 54321)
        self.assertIn("below_a_library", recording.stacks[stack][0].function)

    def test_options_that_are_wrong_are_errors(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for options, words in (
                ({"stacks": "java"}, "must be none, native, python or both"),
                ({"limit": 5}, "a limit of 5 bytes"),
                ({"sample": 0}, "sample is 0: must be at least 1"),
                ({"window": -1}, "window is -1: must be a number of seconds, 0 or more"),
                ({"window": float("nan")}, "window is nan: must be a number of seconds"),
            ):
                with self.assertRaisesRegex(vpmm.Error, words):
                    vpmm.record(f"{folder}/trace", **options)  # type: ignore[arg-type]
            for options, words in (
                ({"window": "1s"}, "window is '1s': must be a number of seconds, or None"),
                ({"window": True}, "window is True"),
                ({"stacks": None}, "stacks is None: must be True, False,"),
            ):
                with self.assertRaisesRegex(TypeError, words):
                    vpmm.record(f"{folder}/trace", **options)  # type: ignore[arg-type]
            with self.assertRaisesRegex(vpmm.Error, "not for .csv files"):
                vpmm.record(f"{folder}/trace.csv", stacks=True)

    def test_a_mark_without_a_recording_does_nothing(self) -> None:
        vpmm.record_mark("nobody hears this")

    def test_stop_ends_it_and_a_second_time_does_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            recording = vpmm.record(f"{folder}/trace.csv.gz")
            with self.assertRaisesRegex(vpmm.Error, "running already"):
                vpmm.record(f"{folder}/other.csv.gz")
            self.assertEqual(repr(recording), f"<vpmm.Recording of device 0 to {folder}/trace.csv.gz>")
            recording.stop()
            recording.stop()
            self.assertTrue(repr(recording).endswith("trace.csv.gz, stopped>"))
            with vpmm.record(f"{folder}/other.csv.gz"):
                pass


class FakeStream:
    def __init__(self, **attributes: object) -> None:
        self.__dict__ |= attributes


class WithProtocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 9)


class Index:
    """As one of NumPy's integers."""

    def __index__(self) -> int:
        return 3


class Convertible:
    def __int__(self) -> int:
        return 8


class Streams(unittest.TestCase):
    def test_a_stream_is_an_int_or_an_object_of_a_library(self) -> None:
        for stream, handle in (
            (None, 0),
            (5, 5),
            (WithProtocol(), 9),
            (FakeStream(handle=ctypes.c_void_p(7)), 7),
            (FakeStream(handle=ctypes.c_void_p(0)), 0),
            (FakeStream(handle=Convertible()), 8),
            (FakeStream(ptr=6), 6),
            (FakeStream(cuda_stream=4), 4),
            (Index(), 3),
        ):
            with self.subTest(stream=stream):
                self.assertEqual(stream_handle(stream), handle)
        for stream in ("nonsense", 1.5, []):
            with self.subTest(stream=stream), self.assertRaisesRegex(TypeError, "is no CUDA stream") as caught:
                stream_handle(stream)
            self.assertIn(repr(stream), str(caught.exception))
        for stream in (-1, 1 << 64, FakeStream(handle=-1)):
            with self.subTest(stream=stream), self.assertRaisesRegex(vpmm.Error, "is no CUDA stream"):
                stream_handle(stream)

    def test_memory_is_an_address_or_an_array(self) -> None:
        array = types.SimpleNamespace(__cuda_array_interface__={"data": (0x7000, False)})
        self.assertEqual(address_of(array), 0x7000)
        for memory, address in (
            (0x1234, 0x1234),
            (Index(), 3),
            (FakeStream(handle=Convertible(), size=16), 8),  # as cuda.core.Buffer
            (FakeStream(handle=None, size=16), 0),  # one that is closed
        ):
            with self.subTest(memory=memory):
                self.assertEqual(address_of(memory), address)
        for memory in ([], "0x1234", 1.5):
            with (
                self.subTest(memory=memory),
                self.assertRaisesRegex(TypeError, f"{type(memory).__name__} has no memory"),
            ):
                address_of(memory)
        for memory in (-5, 1 << 64):
            with self.subTest(memory=memory), self.assertRaisesRegex(vpmm.Error, f"{memory} is no address"):
                address_of(memory)

    def test_record_use_finds_the_allocation_around_a_part_of_it(self) -> None:
        pool = vpmm.Pool.default()
        pool.synchronize()
        ptr = pool.allocate(64 * MIB, 1)
        part = types.SimpleNamespace(__cuda_array_interface__={"data": (ptr + 4096, False)})
        for device in (None, 0):
            vpmm.record_use(part, FakeStream(ptr=2), device)
        pool.deallocate(ptr, 1)
        self.assertGreaterEqual(pool.statistics()["pending_bytes"], 64 * MIB)
        vpmm.record_use(0, None)
        with self.assertRaisesRegex(vpmm.Error, "0x4200 is not inside a live allocation"):
            vpmm.record_use(0x4200, None)


if __name__ == "__main__":
    unittest.main()
