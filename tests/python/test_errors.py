# SPDX-License-Identifier: Apache-2.0
"""tests: the exceptions of the package: their classes, attributes and pickles."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import vpmm
from vpmm import _vpmm
from vpmm.plugins import numba

from program import output_of, run

MIB = 1 << 20


class OutOfMemory(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = vpmm.Pool(capacity=16 * MIB, log="quiet")

    def error_of(self, call: Callable[[], object]) -> vpmm.OutOfMemoryError:
        with self.assertRaises(vpmm.OutOfMemoryError) as caught:
            call()
        self.assertEqual(caught.exception.report, str(caught.exception))
        return caught.exception

    def test_it_has_the_figures_of_the_request(self) -> None:
        self.pool.allocate(10 * MIB, 0)
        calls: list[Callable[[], object]] = [
            lambda: self.pool.allocate(20 * MIB, 0),
            lambda: self.pool.allocate_any_stream(20 * MIB),
            lambda: self.pool.allocate_many([1, 20 * MIB - 1], 0),
            lambda: _vpmm.allocate_tagged(self.pool, 20 * MIB, 0),
            lambda: self.pool.preallocate(20 * MIB),
        ]
        for call in calls:
            error = self.error_of(call)
            self.assertEqual((error.requested, error.capacity), (20 * MIB, 16 * MIB))
            self.assertEqual(error.code, "VPMM_ERROR_OUT_OF_MEMORY")
        self.assertEqual(self.error_of(calls[0]).missing, 14 * MIB)

    def test_its_first_line_makes_sense_alone(self) -> None:
        done = run(str(Path(__file__).resolve().parents[2] / "examples/out_of_memory.py"))
        self.assertRegex(
            done.stdout.splitlines()[0],
            r"^out of device memory: asked for 40 MiB; \S+ MiB are missing; live 35 MiB, free 15 MiB, limit 64 MiB$",
        )

    def test_so_much_more_capacity_is_enough(self) -> None:
        for size in (18 * MIB, 20 * MIB, 3 << 30):
            error = self.error_of(lambda size=size: self.pool.allocate(size, 0))  # type: ignore[misc]
            assert error.missing is not None
            assert error.capacity is not None
            self.pool.set_capacity(error.capacity + error.missing)
            self.pool.deallocate(self.pool.allocate(size, 0), 0)
            self.pool.synchronize()
            self.pool.trim()
            self.pool.set_capacity(16 * MIB)

    def test_without_a_limit_there_is_none(self) -> None:
        self.pool.set_capacity(None)
        error = self.error_of(lambda: self.pool.allocate(1 << 50, 0))
        self.assertEqual((error.requested, error.missing, error.capacity), (1 << 50, None, None))
        self.assertIn("more than the GPU has", error.report)

    def test_a_tag_at_its_limit_misses_no_memory(self) -> None:
        self.pool.set_tag_limit("small", MIB)
        self.pool.tag_enter("small")
        self.addCleanup(self.pool.tag_leave, "small")
        error = self.error_of(lambda: self.pool.allocate(2 * MIB, 0))
        self.assertEqual((error.requested, error.missing), (2 * MIB, None))

    def test_a_missing_package_can_be_pickled(self) -> None:
        error = vpmm.MissingPackageError("vpmm.dask", "distributed", ModuleNotFoundError("no", name="distributed"))
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            self.assertIsInstance(again, vpmm.MissingPackageError)
            self.assertEqual((str(again), again.code, again.name), (str(error), error.code, "distributed"))

    def test_it_can_be_pickled_with_its_attributes(self) -> None:
        error = self.error_of(lambda: self.pool.allocate(20 * MIB, 0))
        again = pickle.loads(pickle.dumps(error))
        self.assertIs(type(again), vpmm.OutOfMemoryError)
        self.assertEqual((str(again), vars(again)), (str(error), vars(error)))
        self.assertEqual(again.missing, 4 * MIB)

    def test_that_of_numba_has_them_too(self) -> None:
        class CudaAPIError(Exception):
            def __init__(self, code: int, message: str) -> None:
                self.code = code
                super().__init__(code, message)

        class Target:
            class binding:  # noqa: N801  Numba's name
                class CUresult:
                    CUDA_ERROR_OUT_OF_MEMORY = 2

        target: Any = Target
        target.CudaAPIError = CudaAPIError
        error = self.error_of(lambda: self.pool.allocate(20 * MIB, 0))
        numbas: Any = numba._out_of_memory_error(target)(error)
        self.assertEqual((numbas.code, numbas.requested, numbas.missing), (2, 20 * MIB, 4 * MIB))
        self.assertEqual(numbas.report, error.report)
        again = pickle.loads(pickle.dumps(numbas))
        self.assertIs(type(again), vpmm.OutOfMemoryError)
        self.assertEqual((again.requested, again.missing, again.report), (20 * MIB, 4 * MIB, error.report))


class InvalidArguments(unittest.TestCase):
    def test_wrong_values_are_value_errors_and_errors_of_the_package(self) -> None:
        pool = vpmm.Pool(log="quiet")
        closed = vpmm.Buffer(100, pool=pool)
        closed.close()
        own = vpmm.Pool.default()
        handle = vpmm.ipc_export(own.allocate_any_stream(2 * MIB), 2 * MIB)
        with tempfile.TemporaryDirectory() as folder:
            calls: list[Callable[[], object]] = [
                lambda: pool.allocate(-1, 0),
                lambda: pool.allocate("4Gib", 0),
                lambda: pool.allocate(100, -1),
                lambda: pool.allocate(100, 0, alignment=3),
                lambda: pool.deallocate(12345, 0),
                lambda: pool.query(12345),
                lambda: vpmm.Pool(prefer="fast"),  # type: ignore[arg-type]
                lambda: vpmm.Pool(77),
                lambda: vpmm.tag(0),
                lambda: vpmm.record(Path(folder, "run.vpmm"), window=-1),
                lambda: vpmm.record_use(-1, 0),
                lambda: closed.record_use(0),
                lambda: vpmm.ipc_export(1 << 40, 0),
                lambda: vpmm.IpcHandle.from_token(b"short"),
                handle.open,
                handle.close,
            ]
            for call in calls:
                with self.assertRaises(vpmm.InvalidArgumentError) as caught:
                    call()
                self.assertIsInstance(caught.exception, ValueError)
                self.assertIsInstance(caught.exception, vpmm.Error)

    def test_other_failures_are_no_value_errors(self) -> None:
        with self.assertRaisesRegex(vpmm.Error, "/no/such/folder") as caught:
            vpmm.Pool().record_start("/no/such/folder/file")
        self.assertNotIsInstance(caught.exception, ValueError)

    def test_a_message_that_is_no_text_is_told_all_the_same(self) -> None:
        code = "import vpmm\ntry: vpmm.Pool.default()\nexcept vpmm.Error as error: print(ascii(str(error)))"
        self.assertIn(r"VPMM_PAGE_SIZE=\ufffd: must be", output_of(code, VPMM_PAGE_SIZE=os.fsdecode(b"\xff")))
        code = "import logging, vpmm; logging.basicConfig(); vpmm.log_to_logging(); vpmm.Pool.default()"
        done = run("-c", code, VPMM_RECORD=os.fsdecode(b"/no/such/\xff"), PYTHONIOENCODING="utf-8")
        self.assertEqual(done.returncode, 0)
        self.assertIn("/no/such/\ufffd: cannot be created", done.stderr)


class Warnings(unittest.TestCase):
    CODE = "import vpmm; vpmm.use_for_numba(); print('goes on')"
    OTHER = "another.manager"

    def test_their_class_can_be_made_an_error(self) -> None:
        with mock.patch.dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER=self.OTHER), warnings.catch_warnings():
            warnings.filterwarnings("error", category=vpmm.VpmmWarning)
            with self.assertRaisesRegex(vpmm.VpmmWarning, "^vpmm: NUMBA_CUDA_MEMORY_MANAGER=another.manager") as caught:
                vpmm.use_for_numba()
            self.assertIsInstance(caught.exception, RuntimeWarning)

    def test_they_name_the_line_of_the_caller(self) -> None:
        with mock.patch.dict(os.environ, NUMBA_CUDA_MEMORY_MANAGER=self.OTHER), self.assertWarns(Warning) as caught:
            vpmm.use_for_numba()
        self.assertEqual(caught.filename, __file__)

    def test_options_of_python_select_them_by_their_first_word(self) -> None:
        done = run("-W", "ignore:vpmm", "-c", self.CODE, NUMBA_CUDA_MEMORY_MANAGER=self.OTHER)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "goes on\n", ""))
        done = run("-W", "ignore", "-W", "error:vpmm", "-c", self.CODE, NUMBA_CUDA_MEMORY_MANAGER=self.OTHER)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("VpmmWarning: vpmm: NUMBA_CUDA_MEMORY_MANAGER", done.stderr)

    def test_all_go_through_one_function(self) -> None:
        package = Path(vpmm.__file__).parent
        sources = {path.name for path in package.rglob("*.py") if "warnings.warn(" in path.read_text()}
        self.assertEqual(sources, {"errors.py"})


if __name__ == "__main__":
    unittest.main()
