# SPDX-License-Identifier: Apache-2.0
"""tests: messages of the library: on standard error, as records of logging, in children and while the process ends."""

from __future__ import annotations

import unittest

from program import output_of, run

RECORDS = """
import logging, threading, vpmm
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append((record.levelname, record.name, record.getMessage()))
logging.getLogger("vpmm").addHandler(Keep())
logging.getLogger("vpmm").setLevel(logging.DEBUG)
vpmm.log_to_logging()
vpmm.log_to_logging()
"""


class Messages(unittest.TestCase):
    def test_a_shortage_is_told_by_the_exception_alone(self) -> None:
        code = (
            "import vpmm\npool = vpmm.Pool(capacity=16 << 20)\n"
            "try:\n    pool.allocate(64 << 20, 0)\nexcept MemoryError as error:\n    print(error)\n"
        )
        text = output_of(code)  # nothing on standard error
        self.assertTrue(text.startswith("out of device memory: asked for 64 MiB; 48 MiB are missing; "), text)
        self.assertIn("\nwhat to try:\n  - raise VPMM_CAPACITY (vpmm_set_capacity) by 48 MiB or more", text)
        done = run("-c", code, VPMM_LOG="info")
        shortages = [line for line in done.stderr.splitlines() if "out of device memory" in line]
        self.assertEqual(len(shortages), 1)
        self.assertTrue(shortages[0].startswith("vpmm: info: out of device memory: asked for 64 MiB; "))

    def test_info_says_that_a_pool_was_opened_and_which_settings_are_not_the_defaults(self) -> None:
        done = run("-c", "import vpmm\nvpmm.Pool(prefer='latency', capacity=32 << 20)", VPMM_LOG="info")
        self.assertEqual(
            done.stderr,
            "vpmm: info: device 0 (Simulated GPU, 139 GiB): pool opened, limit 32 MiB; VPMM_DRIVER=sim; "
            "VPMM_CAPACITY=32MiB; VPMM_PREFER=latency; VPMM_LOG=info\n",
        )
        self.assertEqual(run("-c", "import vpmm\nvpmm.Pool()").stderr, "")

    def test_a_misspelt_variable_is_warned_of_once(self) -> None:
        done = run("-c", "import vpmm\nvpmm.Pool()\nvpmm.Pool()", VPMM_CAPACTY="1GiB")
        self.assertEqual(done.stderr, "vpmm: warning: VPMM_CAPACTY is not a setting; did you mean VPMM_CAPACITY?\n")

    def test_they_become_records_of_logging_when_asked_for(self) -> None:
        code = RECORDS + (
            "vpmm.Pool()\nimport time\n"
            "while not records:\n    time.sleep(0.001)\n"
            "print(records[0][:2], records[0][2].partition(':')[0])\n"
            "print(sum(thread.name == 'vpmm messages' for thread in threading.enumerate()))\n"
        )
        self.assertEqual(output_of(code, VPMM_LOG="info"), "('INFO', 'vpmm') device 0 (Simulated GPU, 139 GiB)\n1\n")

    def test_what_waits_at_exit_is_delivered(self) -> None:
        code = (
            "import logging, vpmm\nlogging.basicConfig(format='%(levelname)s %(message)s')\n"
            "vpmm.log_to_logging()\nvpmm.Pool()\n"
        )
        done = run("-c", code, VPMM_PAGE_SZE="4MiB")
        self.assertEqual(done.stderr, "WARNING VPMM_PAGE_SZE is not a setting; did you mean VPMM_PAGE_SIZE?\n")
        self.assertEqual(done.returncode, 0)

    def test_many_threads_that_allocate_and_log_do_not_wait_for_each_other(self) -> None:
        code = RECORDS + (
            "pool = vpmm.Pool(capacity=16 << 20)\n"
            "def work():\n"
            "    for _ in range(100):\n"
            "        pool.deallocate_any_stream(pool.allocate_any_stream(100))\n"
            "        try:\n"
            "            pool.allocate(64 << 20, 0)\n"
            "        except MemoryError:\n"
            "            pass\n"
            "threads = [threading.Thread(target=work) for _ in range(4)]\n"
            "for thread in threads:\n    thread.start()\n"
            "for thread in threads:\n    thread.join()\n"
            "from vpmm import _messages\n_messages._finish()\n"
            "print(sum('out of device memory' in text for _, _, text in records))\n"
        )
        self.assertEqual(output_of(code, VPMM_LOG="info"), "400\n")

    def test_a_forked_child_delivers_its_own(self) -> None:
        code = RECORDS + (
            "import os, sys, time\nchild = os.fork()\n"
            "if child == 0:\n"
            "    vpmm.Pool()\n"
            "    while not records:\n        time.sleep(0.001)\n"
            "    print(records[0][0], flush=True)\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)\nprint(len(records))\n"
        )
        self.assertEqual(output_of(code, VPMM_LOG="info"), "INFO\n0\n")


class Summary(unittest.TestCase):
    USE = "import vpmm\npool = vpmm.Pool.default()\npool.deallocate(pool.allocate(4 << 20, 0), 0)\n"

    def test_there_is_none_unless_it_is_asked_for(self) -> None:
        output_of(self.USE)
        output_of(self.USE, VPMM_STATS="0")

    def test_it_comes_at_exit_for_each_pool_that_was_used(self) -> None:
        done = run("-c", self.USE + "unused = vpmm.Pool()\n", VPMM_STATS="1")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("vpmm: summary of a pool on device 0\n"), 1, done.stderr)
        for line in (
            "  live      4 MiB at most, 0 bytes now in 0 allocations\n",
            "  mapped    8 MiB at most, 8 MiB now; the limit is none\n",
            "  requests  1 allocation, 0.0 % of them without a mapping call; 1 free\n",
            "  failed    0 allocations, 0 calls with wrong arguments\n",
            "  waits     0 of the host, 0 of streams, 0 pauses before the pool grew\n",
        ):
            self.assertIn(line, done.stderr)

    def test_it_comes_when_a_private_pool_is_destroyed(self) -> None:
        code = (
            "import sys, vpmm\npool = vpmm.Pool()\npool.allocate(100, 0)\ndel pool\nprint('after', file=sys.stderr)\n"
        )
        done = run("-c", code, VPMM_STATS="1")
        self.assertEqual(done.stderr.count("summary of a pool"), 1)
        self.assertTrue(done.stderr.endswith("after\n"), done.stderr)

    def test_a_forked_child_prints_none_of_its_parents(self) -> None:
        code = self.USE + "import os, sys\nchild = os.fork()\nif child == 0:\n    sys.exit(0)\nos.waitpid(child, 0)\n"
        self.assertEqual(run("-c", code, VPMM_STATS="1").stderr.count("summary of a pool"), 1)

    def test_a_thread_that_holds_the_pool_does_not_keep_it_from_exit(self) -> None:
        code = self.USE + (
            "import threading, time\n"
            "def work():\n"
            "    while True:\n"
            "        pool.deallocate(pool.allocate(8 << 20, 0), 0)\n"
            "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.05)\n"
        )
        self.assertEqual(run("-c", code, VPMM_STATS="1").returncode, 0)

    def test_a_value_that_is_not_allowed_is_an_error_of_the_first_pool(self) -> None:
        done = run("-c", "import vpmm\nvpmm.Pool()", VPMM_STATS="yes")
        self.assertIn("VPMM_STATS=yes: must be 0 or 1", done.stderr)


if __name__ == "__main__":
    unittest.main()
