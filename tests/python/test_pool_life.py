# SPDX-License-Identifier: Apache-2.0
"""tests: pools as objects: closing, `with`, equality, and how they and what they say are printed."""

from __future__ import annotations

import re
import threading
import unittest

import vpmm

from program import output_of

MIB = 1 << 20


class Closing(unittest.TestCase):
    def test_a_private_pool_closes_once_and_refuses_everything_afterwards(self) -> None:
        pool = vpmm.Pool()
        pool.deallocate(pool.allocate(3 * MIB, 0), 0)
        pool.close()
        pool.close()
        self.assertTrue(pool.is_closed)
        calls = (
            lambda: pool.allocate(1, 0),
            lambda: pool.allocate_any_stream(1),
            lambda: pool.deallocate(0x1000, 0),
            pool.statistics,
            pool.dump,
            lambda: pool.set_out_of_memory_callback(None),
            pool.__enter__,
        )
        for call in calls:
            with self.assertRaisesRegex(vpmm.Error, "this pool is closed"):
                call()
        pool.deallocate_deferred(0x1000)

    def test_live_memory_keeps_it_open_unless_it_is_given_up(self) -> None:
        pool = vpmm.Pool()
        ptr = pool.allocate(3 * MIB, 0)
        with self.assertRaisesRegex(vpmm.Error, "cannot be closed: 1 allocation lives in it"):
            pool.close()
        self.assertEqual(pool.query(ptr).requested, 3 * MIB)
        free = vpmm.memory_info().free
        pool.close(discard=True)
        self.assertGreater(vpmm.memory_info().free, free)

    def test_memory_whose_free_was_deferred_does_not_keep_it_open(self) -> None:
        pool = vpmm.Pool()
        pool.deallocate_deferred(pool.allocate(3 * MIB, 0))
        pool.close()

    def test_a_process_wide_pool_is_never_closed(self) -> None:
        pool = vpmm.Pool.default()
        for call in (pool.close, pool.__enter__, lambda: pool.close(discard=True)):
            with self.assertRaisesRegex(vpmm.Error, "process-wide pool of device 0 is never closed.*trim"):
                call()
        pool.deallocate(pool.allocate(1, 0), 0)

    def test_it_is_not_taken_away_from_a_call_of_another_thread(self) -> None:
        pool = vpmm.Pool(capacity="16MiB", log="quiet")
        inside, go_on = threading.Event(), threading.Event()

        def wait(device: int, size: int) -> bool:
            inside.set()
            go_on.wait(60)
            return False

        pool.set_out_of_memory_callback(wait)
        raised: list[BaseException] = []

        def allocate() -> None:
            try:
                pool.allocate("64MiB", 0)
            except vpmm.OutOfMemoryError as error:
                raised.append(error)

        thread = threading.Thread(target=allocate)
        thread.start()
        self.assertTrue(inside.wait(60))
        with self.assertRaisesRegex(vpmm.Error, "while it is being called: 1 of its calls"):
            pool.close(discard=True)
        go_on.set()
        thread.join()
        self.assertEqual(len(raised), 1)
        pool.close()


class With(unittest.TestCase):
    def test_a_block_ends_its_pool(self) -> None:
        with vpmm.Pool() as pool:
            pool.deallocate(pool.allocate(3 * MIB, 0), 0)
        self.assertTrue(pool.is_closed)

    def test_memory_that_lives_at_its_end_is_an_error(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "2 allocations live in it"), vpmm.Pool() as pool:
            pool.allocate(3 * MIB, 0)
            pool.allocate(100, 0)

    def test_what_a_block_raises_goes_on(self) -> None:
        with self.assertRaises(ZeroDivisionError), vpmm.Pool() as pool:
            pool.allocate(3 * MIB, 0)
            _ = 1 / 0
        self.assertFalse(pool.is_closed, "something lives in it")
        with self.assertRaises(ZeroDivisionError), vpmm.Pool() as pool:
            _ = 1 / 0
        self.assertTrue(pool.is_closed)


class Values(unittest.TestCase):
    def test_the_process_wide_pool_of_a_device_equals_itself(self) -> None:
        self.assertEqual(vpmm.Pool.default(), vpmm.Pool.default(0))
        self.assertEqual(len({vpmm.Pool.default(), vpmm.Pool.default()}), 1)

    def test_private_pools_equal_nothing_else(self) -> None:
        pool = vpmm.Pool()
        self.assertEqual(pool, pool)
        self.assertNotEqual(pool, vpmm.Pool())
        self.assertNotEqual(pool, vpmm.Pool.default())
        self.assertNotEqual(pool, 0)
        pool.close()
        self.assertEqual(len({pool, pool}), 1)

    def test_they_print_themselves(self) -> None:
        pool = vpmm.Pool()
        self.assertRegex(repr(vpmm.Pool.default()), r"<vpmm\.Pool of device 0, process-wide: live_bytes=\d+, mapped.*>")
        ptr = pool.allocate(4 * MIB, 0)
        figures = f"live_bytes={4 * MIB}, mapped_bytes={pool.statistics()['mapped_bytes']}"
        self.assertEqual(repr(pool), f"<vpmm.Pool of device 0, private: {figures}>")
        allocation, region = pool.query(ptr), pool.snapshot()[0]
        self.assertEqual(repr(allocation), f"<vpmm.Allocation at {ptr:#x}: requested={4 * MIB}, usable={4 * MIB}>")
        pattern = r"<vpmm\.Region at 0x[0-9a-f]+: bytes=\d+, requested=\d+, \w+(, complete)?>"
        self.assertTrue(re.fullmatch(pattern, repr(region)), repr(region))
        pool.close(discard=True)
        self.assertEqual(repr(pool), "<vpmm.Pool of device 0, private, closed>")

    def test_a_pool_that_cannot_be_asked_prints_itself_all_the_same(self) -> None:
        code = (
            "import os, vpmm\npool = vpmm.Pool.default()\npool.allocate(1, 0)\nif os.fork() == 0:\n"
            "    print(pool, flush=True)\n    os._exit(0)\nos.wait()"
        )
        self.assertEqual(output_of(code), "<vpmm.Pool of device 0, process-wide>\n")

    def test_the_summary_is_a_few_lines_or_a_table(self) -> None:
        pool = vpmm.Pool(capacity="64MiB", log="quiet")
        weights = pool.allocate(20 * MIB, 0)
        batches = [pool.allocate(5 * MIB, 0) for _ in range(6)]
        for batch in batches[::2]:
            pool.deallocate(batch, 0)
        with self.assertRaises(MemoryError):
            pool.allocate(40 * MIB, 0)
        self.assertEqual(
            pool.summary(),
            """\
vpmm.Pool of device 0, private
  capacity   64.00 MiB
  mapped     50.00 MiB, peak 50.00 MiB
  live       35.00 MiB, 4 allocations, peak 50.00 MiB
  idle       15.00 MiB, largest range 5.00 MiB
  trapped    3.00 MiB, part of idle that cannot move
  failed     1 request""",
        )
        for cell in ("<th>live</th><td>35.00 MiB</td>", "<th>trapped</th><td>3.00 MiB</td>", "<caption>vpmm.Pool of"):
            self.assertIn(cell, pool._repr_html_())
        pool.deallocate(weights, 0)
        self.assertIn("capacity   what the GPU has", vpmm.Pool().summary())
        pool.close(discard=True)
        self.assertEqual(pool._repr_html_(), "vpmm.Pool of device 0, private, closed")

    def test_allocations_and_regions_are_values(self) -> None:
        with vpmm.Pool() as pool:
            ptr = pool.allocate(4 * MIB, 0)
            self.assertEqual(pool.query(ptr), pool.query(ptr + 1))
            self.assertEqual(hash(pool.query(ptr)), hash(pool.query(ptr + 1)))
            self.assertEqual(pool.snapshot(), pool.snapshot())
            self.assertNotEqual(pool.query(ptr), ptr)
            pool.deallocate(ptr, 0)


if __name__ == "__main__":
    unittest.main()
