# SPDX-License-Identifier: Apache-2.0
"""tests: memory of a pool in other processes, on the simulator: real processes, and bytes that arrive."""

from __future__ import annotations

import ctypes
import gc
import pickle
import tempfile
import threading
import unittest
import weakref
from _thread import start_new_thread
from pathlib import Path
from typing import Any
from unittest import mock

import vpmm

from ipc_case import (
    MIB,
    Array,
    Sharing,
    add_one,
    code_of,
    do_any_call,
    drop,
    eventually,
    exchange,
    fill,
    hold,
    interface_of,
    let_go,
    misuse,
    open_files,
    open_twice,
    read,
    read_all,
    staged,
)
from program import output_of, run


class Data(Sharing):
    def test_bytes_go_both_ways_in_memory_of_any_size_and_in_parts_of_it(self) -> None:
        for size, offset in ((80, 0), (80, 8), (MIB, 0), (64 * MIB, 3 * MIB + 5)):
            with self.subTest(size=size, offset=offset):
                ptr = self.memory(size)
                fill(ptr + offset, b"before")
                handle = vpmm.ipc_export(ptr + offset, size - offset)
                self.assertEqual((handle.size, handle.offset, handle.kind), (size - offset, offset, "pool"))
                self.assertEqual(self.ask(exchange, handle, b"after!"), b"before")
                self.assertEqual(read(ptr + offset, 6), b"after!")

    def test_several_processes_share_one_array(self) -> None:
        ptr = self.memory(80, bytes(80))
        handle = vpmm.ipc_export(Array(ptr, (10,)))
        children = [self.process() for _ in range(4)]
        asked = [child.submit(add_one, handle, i % 2) for i, child in enumerate(children)]
        self.assertEqual(len({one.result(60) for one in asked}), 4)
        # Each cell was written by two processes, perhaps at once.
        for i in range(2):
            self.assertIn(ctypes.c_int64.from_address(ptr + 8 * i).value, (1, 2))

    def test_one_process_opens_the_same_memory_twice_at_one_address(self) -> None:
        handle = vpmm.ipc_export(self.memory(80, b"text"), 80)
        self.assertEqual(self.ask(open_twice, handle), (True, b"text"))

    def test_shape_strides_and_type_arrive(self) -> None:
        ptr = self.memory()
        cases: list[tuple[object, tuple[Any, ...]]] = [
            (Array(ptr, (2, 5)), ((2, 5), None, "<i8")),
            (Array(ptr, (2, 5), (8, 16)), ((2, 5), (8, 16), "<i8")),
            (Array(ptr, (5, 1, 2), (16, 7, 8)), ((5, 1, 2), (16, 7, 8), "<i8")),
            (Array(ptr, (), typestr="<f4"), ((), None, "<f4")),
        ]
        for array, (shape, strides, typestr) in cases:
            with self.subTest(shape=shape, strides=strides):
                handle = vpmm.ipc_export(array)
                expected = {"shape": shape, "strides": strides, "typestr": typestr, "version": 3, "stream": None}
                self.assertEqual(self.ask(interface_of, handle), expected)
        as_bytes = {"shape": (80,), "strides": None, "typestr": "|u1", "version": 3, "stream": None}
        self.assertEqual(self.ask(interface_of, vpmm.ipc_export(ptr, 80)), as_bytes)

    def test_a_copy_is_the_callers_own(self) -> None:
        ptr = self.memory(MIB, b"source")
        handle = vpmm.ipc_export(ptr, MIB)
        self.assertEqual(self.ask(staged, handle, b"copied"), (b"source", 1, 0))
        self.assertEqual(read(ptr, 6), b"source")

    def test_the_example_runs(self) -> None:
        example = Path(__file__).resolve().parents[2] / "examples/multi_process.py"
        done = run(str(example))
        expected = "the copy is valid after closing: 1\nafter the other process added 1: 1 to 1000\n"
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))


class Handles(Sharing):
    def test_an_unpickled_handle_is_equal_and_opens_nothing(self) -> None:
        handle = vpmm.ipc_export(Array(self.memory(), (2, 5)))
        before = self.pool.statistics()
        copy = pickle.loads(pickle.dumps(handle))
        self.assertEqual((copy, hash(copy), {handle: 1}[copy]), (handle, hash(handle), 1))
        self.assertEqual((copy.token, copy.size, copy.offset), (handle.token, 80, 0))
        self.assertEqual(copy.device_uuid, handle.device_uuid)
        self.assertEqual((len(copy.token), len(copy.device_uuid)), (64, 16))
        self.assertNotEqual(handle, vpmm.ipc_export(Array(self.memory(), (2, 5))))
        self.assertNotEqual(handle, "something else")
        copy.end_export()  # of a copy: does nothing
        self.assertEqual(self.pool.statistics()["mapped_bytes"], before["mapped_bytes"])
        self.assertEqual(self.ask(read_all, handle), read_all_here(handle, self.pool))

    def test_what_numba_says_about_misuse_is_said_here(self) -> None:
        handle = vpmm.ipc_export(self.memory(), MIB)
        expected = ["IpcHandle not opened", *2 * ["IpcHandle is already opened"], "IpcHandle not opened"]
        self.assertEqual(self.ask(misuse, handle), [*expected, "this OpenedMemory is closed"])

    def test_the_exporting_process_uses_its_own_memory(self) -> None:
        handle = vpmm.ipc_export(self.memory(), MIB)
        for own in (handle, pickle.loads(pickle.dumps(handle)), vpmm.IpcHandle.from_token(handle.token)):
            with self.assertRaisesRegex(ValueError, "use the memory itself"):
                own.open()

    def test_damaged_handles_are_refused(self) -> None:
        handle = vpmm.ipc_export(self.memory(), MIB)
        for i in range(64):
            damaged = bytearray(handle.token)
            damaged[i] ^= 1
            with self.assertRaises(ValueError):
                vpmm.IpcHandle.from_token(damaged)
        for token in (b"", bytes(63), bytes(64), bytes(65)):
            with self.assertRaises(ValueError):
                vpmm.IpcHandle.from_token(token)
        with self.assertRaises(ValueError):
            vpmm.IpcHandle((2, bytes(64), 80, 0, bytes(16))).open()
        with self.assertRaisesRegex(ValueError, "kind 9"):
            vpmm.IpcHandle((9, handle.token, 80, 0, bytes(16))).open()

    def test_what_is_no_handle_is_an_error_that_names_it(self) -> None:
        with self.assertRaisesRegex(TypeError, "handle is 3: must be an IpcHandle, as vpmm.ipc_export"):
            vpmm.ipc_open(3)  # type: ignore[arg-type]  # wrong on purpose

    def test_a_handle_of_a_process_that_is_gone_is_refused(self) -> None:
        code = """
import pickle, vpmm
handle = vpmm.ipc_export(vpmm.Pool.default().allocate_any_stream(80), 80)
print(pickle.dumps(handle).hex())
"""
        handle = pickle.loads(bytes.fromhex(output_of(code)))
        self.assertEqual(code_of(handle), "VPMM_ERROR_NOT_SHARED")


def read_all_here(handle: vpmm.IpcHandle, pool: vpmm.Pool) -> bytes:
    begin = next(region.begin for region in pool.snapshot() if region.state == "allocated")
    return read(begin, handle.size)


class Leases(Sharing):
    def test_freed_memory_can_be_opened_until_its_export_ends(self) -> None:
        ptr = self.memory(MIB, b"text")
        handle = vpmm.ipc_export(ptr, MIB)
        self.pool.deallocate_any_stream(ptr)
        self.assertEqual(self.live(), 1)
        self.assertEqual(self.ask(read_all, handle)[:4], b"text")
        handle.end_export()
        handle.end_export()
        self.assertTrue(eventually(lambda: self.live() == 0))
        self.assertEqual(self.ask(code_of, handle), "VPMM_ERROR_NOT_SHARED")

    def test_each_export_of_the_same_memory_counts(self) -> None:
        ptr = self.memory(80)
        first, second = vpmm.ipc_export(ptr, 80), vpmm.ipc_export(ptr, 80)
        self.pool.deallocate_any_stream(ptr)
        first.end_export()
        self.assertEqual(self.live(), 1)
        second.end_export()
        self.assertEqual(self.live(), 0)

    def test_collecting_the_handle_ends_its_export(self) -> None:
        ptr = self.memory()
        handle = vpmm.ipc_export(ptr, MIB)
        self.pool.deallocate_any_stream(ptr)
        copy = pickle.loads(pickle.dumps(handle))
        self.assertEqual(self.live(), 1)
        del handle
        gc.collect()
        self.assertEqual(self.live(), 0)
        self.assertEqual(self.ask(code_of, copy), "VPMM_ERROR_NOT_SHARED")

    def test_what_is_open_elsewhere_is_not_used_again_before_it_is_closed(self) -> None:
        ptr = self.memory(MIB, b"text")
        handle = vpmm.ipc_export(ptr, MIB)
        self.assertEqual(self.ask(hold, handle)[:4], b"text")
        self.pool.deallocate_any_stream(ptr)
        handle.end_export()
        self.assertEqual(self.live(), 1)
        self.assertNotEqual(self.memory(), ptr)
        self.ask(let_go)
        self.assertTrue(eventually(lambda: self.live() == 1))

    def test_opened_memory_that_is_collected_is_closed_by_the_next_call(self) -> None:
        ptr = self.memory()
        handle = vpmm.ipc_export(ptr, MIB)
        self.ask(hold, handle)
        self.pool.deallocate_any_stream(ptr)
        handle.end_export()
        self.ask(drop)
        self.assertEqual(self.live(), 1)
        self.ask(do_any_call)
        self.assertTrue(eventually(lambda: self.live() == 0))

    def test_a_process_that_dies_lets_go(self) -> None:
        ptr = self.memory()
        handle = vpmm.ipc_export(ptr, MIB)
        self.ask(hold, handle)
        self.pool.deallocate_any_stream(ptr)
        handle.end_export()
        self.assertEqual(self.live(), 1)
        self.child.shutdown()
        self.assertTrue(eventually(lambda: self.live() == 0))

    def test_a_pool_may_go_before_its_handles(self) -> None:
        handle = vpmm.ipc_export(self.memory(), MIB)
        del self.pool
        gc.collect()
        self.assertEqual(self.ask(code_of, handle), "VPMM_ERROR_NOT_SHARED")
        handle.end_export()

    def test_handles_come_and_go_and_leave_nothing(self) -> None:
        ptr = self.memory(80, b"text")
        self.ask(read_all, vpmm.ipc_export(ptr, 80))
        before = self.ask(open_files)
        for _ in range(200):
            self.assertEqual(self.ask(read_all, vpmm.ipc_export(ptr, 80))[:4], b"text")
        self.assertEqual(self.ask(open_files), before)
        self.pool.deallocate_any_stream(ptr)
        self.assertTrue(eventually(lambda: self.live() == 0))

    def test_memory_of_a_pool_is_held_by_its_lease_and_not_by_its_array(self) -> None:
        ptr = self.memory()
        array = Array(ptr, (8,))
        handle = vpmm.ipc_export(array)
        alive = weakref.ref(array)
        del array
        gc.collect()
        self.assertIsNone(alive())
        self.assertEqual(handle.kind, "pool")

    def test_plain_driver_memory_is_kept_alive_by_its_handle(self) -> None:
        legacy = (1, bytes(64), 64, 0, bytes(16))
        for end in (vpmm.IpcHandle.end_export, lambda handle: None):
            array = Array(self.memory(), (8,))
            alive = weakref.ref(array)
            with mock.patch("vpmm._vpmm.ipc_export", return_value=legacy):
                handle = vpmm.ipc_export(array)
            del array
            gc.collect()
            self.assertIsNotNone(alive())
            self.assertEqual(handle.kind, "legacy")
            end(handle)
            del handle
            gc.collect()
            self.assertIsNone(alive())


class Finalizers(Sharing):
    def test_a_handle_may_be_collected_inside_an_allocation(self) -> None:
        pool = vpmm.Pool(capacity=64 * MIB, log="quiet")
        cycles: list[int] = []

        def collect(device: int, size: int) -> bool:
            cycles.append(gc.collect())
            return cycles[-1] > 0

        pool.set_out_of_memory_callback(collect)
        for _ in range(20):
            ptr = pool.allocate_any_stream(24 * MIB)
            holder: list[Any] = [vpmm.ipc_export(ptr, 24 * MIB)]
            holder.append(holder)  # only the collector ends it
            pool.deallocate_any_stream(ptr)
            del holder
        pool.set_out_of_memory_callback(None)
        self.assertGreater(sum(cycles), 0)
        gc.collect()
        self.assertEqual(pool.statistics()["live_allocations"], 0)

    def test_on_a_thread_of_others_the_end_is_put_off_to_the_next_call(self) -> None:
        ptr = self.memory()
        handles = [vpmm.ipc_export(ptr, MIB)]
        self.pool.deallocate_any_stream(ptr)
        done = threading.Event()

        def drop_here() -> None:  # such threads call CUDA's callbacks
            handles.clear()
            done.set()

        start_new_thread(drop_here, ())
        self.assertTrue(done.wait(60))
        self.assertEqual(self.live(), 1)
        do_any_call()
        self.assertEqual(self.live(), 0)

    def test_exit_with_everything_alive_is_quiet(self) -> None:
        code = """
import pickle, subprocess, sys, vpmm
pool = vpmm.Pool.default()
ptr = pool.allocate_any_stream(80)
handle = vpmm.ipc_export(ptr, 80)
pool.deallocate_any_stream(ptr)
child = '''
import pickle, vpmm
handle = pickle.loads(bytes.fromhex("TEXT"))
memory, copy = handle.open(), handle.open_staged()
print(memory.size, copy.size)
'''.replace('TEXT', pickle.dumps(handle).hex())
print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True))
"""
        self.assertIn("returncode=0, stdout='80 80\\n', stderr=''", output_of(code))

    def test_a_folder_that_something_emptied_or_removed_is_made_anew_by_the_next_export(self) -> None:
        code = """
import os, pickle, shutil, subprocess, sys, vpmm
folder = os.environ['VPMM_IPC_DIR']
child = '''
import pickle, sys
for text in sys.argv[1:]:
    with pickle.loads(bytes.fromhex(text)) as memory:
        print(memory.size, end=' ')
'''
buffers = [vpmm.Buffer(size) for size in (10, 20, 30, 40)]
handles = []
for buffer in buffers:
    handles.append(vpmm.ipc_export(buffer))
    texts = [pickle.dumps(handle).hex() for handle in handles]
    done = subprocess.run([sys.executable, '-c', child, *texts], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    if len(handles) % 2:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
    else:
        shutil.rmtree(folder)
os.mkdir(folder)
os.chmod(folder, 0o755)
try:
    vpmm.ipc_export(buffers[0])
except vpmm.Error as error:
    print(error.code, 'use 0700' in str(error))
"""
        with tempfile.TemporaryDirectory() as parent:
            said = output_of(code, VPMM_IPC_DIR=str(Path(parent) / "folder"))
        expected = ["10", "10 20", "10 20 30", "10 20 30 40", "VPMM_ERROR_BAD_CONFIGURATION True"]
        self.assertEqual([line.strip() for line in said.splitlines()], expected)

    def test_a_forked_child_drops_and_closes_what_its_parent_has_and_nothing_happens(self) -> None:
        code = """
import gc, os, vpmm
pool = vpmm.Pool.default()
ptr = pool.allocate_any_stream(80)
handle = vpmm.ipc_export(ptr, 80)
pool.deallocate_any_stream(ptr)
child = os.fork()
if child == 0:
    handle.end_export()
    del handle
    gc.collect()
    try:
        vpmm.ipc_export(ptr, 80)
    except vpmm.Error as error:
        os._exit(0 if error.code == 'VPMM_ERROR_PROCESS_ENDING' else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), vpmm.stats()['live_allocations'])
handle.end_export()
print(vpmm.stats()['live_allocations'])
"""
        self.assertEqual(output_of(code), "0 1\n0\n")


if __name__ == "__main__":
    unittest.main()
