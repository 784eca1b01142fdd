# SPDX-License-Identifier: Apache-2.0
"""tests: what the class Pool takes: sizes as text, streams of all libraries, settings; and how it words mistakes."""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import vpmm
from vpmm import _vpmm

MIB = 1 << 20
WRONG = vpmm.InvalidArgumentError


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 2)


class Numba:
    handle = 2


class Cupy:
    ptr = 2


class Torch:
    cuda_stream = 2


class Index:
    """As one of NumPy's integers."""

    def __index__(self) -> int:
        return 2


class ArgumentTest(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool(log="quiet")

    @contextlib.contextmanager
    def error(self, kind: type[Exception], words: str) -> Iterator[None]:
        with self.assertRaisesRegex(kind, re.escape(words)):
            yield


class Sizes(ArgumentTest):
    def test_a_size_may_be_a_text_wherever_one_is_taken(self) -> None:
        ptr = self.pool.allocate("3MiB", 0, alignment="4MiB")
        self.assertEqual(self.pool.query(ptr).requested, 3 * MIB)
        self.assertEqual(ptr % (4 * MIB), 0)
        self.assertEqual(self.pool.query(self.pool.allocate_any_stream("1KB")).requested, 1000)
        many = self.pool.allocate_many(["3MiB", 5], 0)
        self.assertEqual([self.pool.query(each).requested for each in many], [3 * MIB, 5])
        self.pool.preallocate("64MiB")
        self.assertGreaterEqual(self.pool.statistics()["mapped_bytes"], 64 * MIB)
        self.assertGreater(self.pool.trim("16MiB"), 0)
        self.pool.set_capacity("16 MiB")
        with self.assertRaisesRegex(MemoryError, "limit 16 MiB"):
            self.pool.allocate("1GiB", 0)

    def test_no_capacity_is_none_or_its_word_as_in_the_setting(self) -> None:
        for none in (None, "none"):
            with self.subTest(none=none):
                self.pool.set_capacity("1.5 GiB")
                self.assertEqual(self.pool.get_capacity(), 1536 * MIB)
                self.pool.set_capacity(none)
                self.assertIsNone(self.pool.get_capacity())
                self.assertIsNone(vpmm.Pool(capacity=none, log="quiet").get_capacity())

    def test_whole_numbers_of_other_libraries_are_sizes(self) -> None:
        self.assertEqual(self.pool.query(self.pool.allocate(Index(), 0)).requested, 2)  # type: ignore[arg-type]

    def test_there_is_one_grammar(self) -> None:
        self.assertEqual(_vpmm.parse_bytes("16GiB"), 16 << 30)
        self.assertEqual(_vpmm.parse_bytes(7), 7)
        self.assertEqual(_vpmm.parse_bytes("954 MiB"), 954 * MIB)
        self.assertEqual(_vpmm.parse_bytes("1.46 GiB"), int(1.46 * (1 << 30)))
        for text in ("64M", "", "-1", "1.5", "99999999TiB"):
            with self.subTest(text=text), self.error(WRONG, f"size: '{text}' is"):
                _vpmm.parse_bytes(text)

    def test_what_is_no_size_is_named(self) -> None:
        pool: Any = self.pool
        calls: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: pool.allocate(-1, 0), WRONG, "bytes is -1: must not be negative"),
            (lambda: pool.allocate(1 << 70, 0), MemoryError, "bytes is 1180591620717411303424: more than 64 bits hold"),
            (lambda: pool.allocate(1 << 62, 0), MemoryError, "4194304 TiB; that is more than the GPU has"),
            (lambda: pool.allocate_many([1, 1 << 62], 0), MemoryError, "more than the GPU has"),
            (lambda: pool.allocate_any_stream(1 << 60), MemoryError, "more than the GPU has"),
            (lambda: pool.allocate(1, 0, 1 << 62), WRONG, "alignment 4611686018427387904 is more than any"),
            (lambda: pool.allocate("4Gib", 0), WRONG, "bytes: '4Gib' is not a size"),
            (lambda: pool.allocate(4e9, 0), TypeError, "bytes is 4000000000.0: must be a whole number of bytes, or a"),
            (lambda: pool.allocate(True, 0), TypeError, "bytes is True"),
            (lambda: pool.allocate_any_stream(None), TypeError, "bytes is None"),
            (lambda: pool.allocate_many("12", 0), TypeError, "bytes is '12': must be a list, or anything else to"),
            (lambda: pool.allocate_many(3, 0), TypeError, "bytes is 3: must be a list, or anything else to"),
            (lambda: pool.deallocate_many(None, 0), TypeError, "ptrs is None: must be a list, or anything else to"),
            (lambda: pool.trim(-1), WRONG, "bytes_to_keep is -1"),
            (lambda: pool.set_capacity(0), WRONG, "bytes is 0: must be at least 1, or None for no limit"),
            (lambda: pool.deallocate(-5, 0), WRONG, "ptr is -5"),
            (lambda: pool.query("x"), TypeError, "ptr is 'x': must be a whole number"),
            (lambda: pool.dump(json=1), TypeError, "json is 1: must be True or False"),
            (lambda: pool.dump(json=None), TypeError, "json is None: must be True or False"),
            (lambda: pool.close(discard=None), TypeError, "discard is None: must be True or False"),
            (lambda: pool.set_capacity("nine"), WRONG, "bytes: 'nine' is not a size"),
            (lambda: pool.record_start(7), TypeError, "path is 7: must be a text or an os.PathLike"),
            (lambda: pool.record_mark(7), TypeError, "text is 7: must be a text"),
            (lambda: pool.set_out_of_memory_callback(7), TypeError, "callback is 7: must be callable, or None"),
            (lambda: vpmm.Pool("0"), TypeError, "device is '0': must be a whole number"),  # type: ignore[arg-type]
            (lambda: vpmm.Pool(None), TypeError, "device is None: must be a whole number"),  # type: ignore[arg-type]
            (lambda: vpmm.memory_info(None), TypeError, "device is None"),  # type: ignore[arg-type]
            (lambda: vpmm.Pool.default(-1), WRONG, "device is -1"),
            (lambda: vpmm.Pool(1 << 40), WRONG, "device 1099511627776 does not exist"),
        ]
        for call, kind, words in calls:
            with self.subTest(words=words), self.error(kind, words):
                call()


class LeftOut(ArgumentTest):
    def test_what_a_call_lacks_is_named(self) -> None:
        pool: Any = self.pool
        size, stream, address = "a whole number of bytes, or a text", "a CUstream as an int, None for", "a whole number"
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: pool.allocate(100), f"stream is missing: must be {stream}"),
            (lambda: pool.allocate(stream=0), f"bytes is missing: must be {size}"),
            (lambda: pool.allocate_any_stream(), f"bytes is missing: must be {size}"),
            (lambda: pool.allocate_many(), "bytes is missing: must be a list"),
            (lambda: pool.allocate_many([1]), f"stream is missing: must be {stream}"),
            (lambda: pool.deallocate(256), f"stream is missing: must be {stream}"),
            (lambda: pool.deallocate(0), f"stream is missing: must be {stream}"),
            (lambda: pool.deallocate_any_stream(), f"ptr is missing: must be {address}"),
            (lambda: pool.deallocate_deferred(), f"ptr is missing: must be {address}"),
            (lambda: pool.deallocate_many(stream=0), "ptrs is missing: must be a list"),
            (lambda: pool.record_use(256), f"stream is missing: must be {stream}"),
            (lambda: pool.stream_wait(0), f"first is missing: must be {stream}"),
            (lambda: pool.stream_wait(first=0), f"waiting is missing: must be {stream}"),
            (lambda: pool.query(), f"ptr is missing: must be {address}"),
            (lambda: pool.usable_size(), f"ptr is missing: must be {address}"),
            (lambda: pool.preallocate(), f"bytes is missing: must be {size}"),
            (lambda: pool.set_capacity(), f"bytes is missing: must be {size}"),
            (lambda: pool.set_peer_access(), f"device is missing: must be {address}"),
            (lambda: pool.set_out_of_memory_callback(), "callback is missing: must be callable, or None"),
            (lambda: pool.record_start(), "path is missing: must be a text or an os.PathLike"),
            (lambda: pool.record_mark(), "text is missing: must be a text"),
            (lambda: _vpmm.parse_bytes(), f"size is missing: must be {size}"),  # type: ignore[call-arg]
        ]
        for call, words in calls:
            with self.subTest(words=words), self.error(TypeError, words):
                call()

    def test_what_a_call_has_too_much_is_shown_beside_the_signature(self) -> None:
        pool: Any = self.pool
        for call, words in (
            (lambda: pool.trim(1, 2, 3), "trim(self, bytes_to_keep: int | str = 0) -> int"),
            (lambda: pool.allocate(bytes=1, strm=0), "kwargs = { bytes: int, strm: int }"),
        ):
            with self.error(TypeError, words):
                call()


class Streams(ArgumentTest):
    def test_every_library_s_streams_are_streams(self) -> None:
        for stream in (2, Protocol(), Numba(), Cupy(), Torch(), Index()):
            with self.subTest(stream=stream):
                ptr = self.pool.allocate(64 * MIB, stream)
                self.pool.record_use(ptr, stream)
                self.pool.deallocate(ptr, 2)
                self.assertEqual(self.pool.allocate(64 * MIB, stream), ptr, "the same stream has it at once")
                self.pool.deallocate_many([ptr], stream)

    def test_none_is_the_default_stream(self) -> None:
        ptr = self.pool.allocate(64 * MIB, None)
        self.pool.deallocate(ptr, 0)
        self.assertEqual(self.pool.allocate_many([64 * MIB], None), [ptr])

    def test_what_is_no_stream_is_named(self) -> None:
        pool: Any = self.pool
        with self.error(TypeError, "'nonsense' is no CUDA stream: must be an int, None or an object"):
            pool.allocate(100, "nonsense")
        with self.error(TypeError, "True is no CUDA stream: must be an int, None or an object"):
            pool.allocate(100, True)
        with self.error(WRONG, "-1 is no CUDA stream"):
            pool.deallocate(0, -1)
        with self.error(vpmm.Error, "0xbc614e is no stream"):
            pool.allocate(100, 12345678)

    def test_one_stream_waits_for_another(self) -> None:
        self.pool.stream_wait(Protocol(), first=1)
        self.pool.stream_wait(None, 2)
        for streams, words in (
            ((2, 0x4200), "`first` 0x4200 is no stream"),
            ((0x4200, 2), "`waiting` 0x4200 is no stream"),
        ):
            with self.error(vpmm.Error, words):
                self.pool.stream_wait(*streams)


class Settings(ArgumentTest):
    def test_sizes_and_words_are_those_of_the_environment(self) -> None:
        off = vpmm.Pool(page_size="max", capacity="none", release_threshold=None)
        self.assertIn("stream_ordered", off.dump())
        self.assertIn("policy page", vpmm.Pool(chunk_max="page").dump())
        pool = vpmm.Pool(capacity="16MiB", page_size="4MiB", log="quiet")
        with self.assertRaisesRegex(MemoryError, "limit 16 MiB"):
            pool.allocate("20MiB", 0)

    def test_switches_are_true_or_false_and_nothing_else(self) -> None:
        for value in ("no", "0", "false", 0, 1, 2, None):
            with self.subTest(value=value), self.error(TypeError, f"ipc_isolate is {value!r}: must be True or False"):
                vpmm.Pool(ipc_isolate=value)  # type: ignore[arg-type]  # wrong on purpose
        vpmm.Pool(ipc_isolate=True, unnamed_free_on_allocating_stream=False)

    def test_a_capacity_can_be_a_share_of_the_gpu(self) -> None:
        whole = vpmm.Pool().memory_info().total
        pool = vpmm.Pool(capacity="25%")
        page = 2 << 20
        self.assertEqual(pool.get_capacity(), whole // 4 // page * page)
        pool.set_capacity("50%")
        self.assertEqual(pool.get_capacity(), whole // 2 // page * page)

    def test_a_value_that_is_not_allowed_is_named_by_its_keyword(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"page_size": 3}, "page_size=3"),
            ({"page_size": "3MiB"}, "page_size=3MiB: must be a multiple of the device granularity"),
            ({"pages": -1}, "pages is -1: must not be negative"),
            ({"capacity": "lots"}, "capacity: 'lots' is not a size"),
            ({"capacity": 0}, "capacity=0: must be a size such as 16GiB"),
            ({"capacity": "101%"}, "capacity=101%: a share is 1% to 100%"),
            ({"capacity": "%"}, "capacity=%: a share is 1% to 100%"),
            ({"prefer": "fast"}, 'prefer=fast: must be "footprint", "balanced" or "latency"'),
            ({"max_mappings": 3}, "max_mappings=3: must be"),
        ]
        for settings, words in cases:
            with self.subTest(settings), self.error(WRONG, words) as _, self.assert_code():
                vpmm.Pool(**settings)

    @contextlib.contextmanager
    def assert_code(self) -> Iterator[None]:
        try:
            yield
        except vpmm.Error as error:
            self.assertEqual(error.code, "VPMM_ERROR_BAD_CONFIGURATION")
            self.assertNotIn("VPMM_", str(error))
            raise

    def test_a_wrong_type_or_keyword_is_a_type_error(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"small": 1}, "small is 1: must be a text"),
            ({"pages": "many"}, "pages is 'many': must be a whole number"),
            ({"va_size": None}, "va_size is None"),
            ({"page_sise": 1}, "there is no setting called page_sise; is it page_size?"),
            ({"xyz": 1}, "there is no setting called xyz"),
        ]
        for settings, words in cases:
            with self.subTest(settings), self.error(TypeError, words):
                vpmm.Pool(**settings)
            with self.subTest(settings), self.error(TypeError, words):
                vpmm.configure(**settings)

    def test_a_setting_without_its_name_is_an_error_that_says_so(self) -> None:
        for make in (vpmm.Pool, vpmm.configure):
            with self.error(TypeError, "'16GiB' has no name: settings are keywords, as in capacity=\"16GiB\""):
                make(0, "16GiB")  # type: ignore[misc, call-arg]  # wrong on purpose

    def test_text_that_is_no_unicode_is_an_error(self) -> None:
        cases: list[dict[str, Any]] = [{"page_size": "\ud800"}, {"small": "\ud800"}, {"\ud800": 1}]
        for settings in cases:
            with self.subTest(settings=ascii(settings)), self.assertRaises(UnicodeError):
                vpmm.Pool(**settings)

    def test_a_device_that_is_not_there_is_named(self) -> None:
        with self.error(vpmm.Error, "device 77"):
            vpmm.Pool(77)


if __name__ == "__main__":
    unittest.main()
