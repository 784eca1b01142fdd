# SPDX-License-Identifier: Apache-2.0
"""tests: how Numba is given our manager: by the variable, by a call, in any order of imports, and without Numba."""

from __future__ import annotations

import unittest

from numba_stand_ins import missing, run_python

ABSENT = missing("vpmm._vpmm", "numba", "numba_cuda", "numpy")
NO_PACKAGE = missing("vpmm._vpmm")
NO_MLIR = missing("vpmm._vpmm", "numba_cuda_mlir")

ENSURE = """
from numba.cuda.cudadrv import driver
driver._ensure_memory_manager()
import vpmm
assert driver._memory_manager is vpmm.NumbaMemoryManager, driver._memory_manager
print(driver._memory_manager.__module__)
"""
# Imports of these are refused, as if they were not installed.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in NAMES:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Refuse())
"""


class Selection(unittest.TestCase):
    def prints(self, expected: str, code: str, **variables: str) -> None:
        done = run_python(code, **variables)
        self.assertEqual((done.returncode, done.stdout.strip(), done.stderr), (0, expected, ""))


@unittest.skipIf(ABSENT, ABSENT)
class NumbaSelection(Selection):
    def test_the_variable_names_the_package_or_the_plugin(self) -> None:
        for name in ("vpmm", "vpmm.plugins.numba"):
            with self.subTest(name=name):
                self.prints("vpmm.plugins.numba", ENSURE, NUMBA_CUDA_MEMORY_MANAGER=name)

    def test_one_call_does_it_and_the_order_of_imports_is_free(self) -> None:
        for imports in ("from numba import cuda; import vpmm", "import vpmm; from numba import cuda"):
            with self.subTest(imports=imports):
                self.prints("vpmm.plugins.numba", f"{imports}; vpmm.use_for_numba()" + ENSURE)

    def test_numbas_own_setter_takes_the_class(self) -> None:
        code = "import vpmm; from numba import cuda; cuda.set_memory_manager(vpmm.NumbaMemoryManager)"
        self.prints("vpmm.plugins.numba", code + ENSURE)

    def test_numba_is_imported_when_it_is_asked_for_and_not_before(self) -> None:
        code = """
import sys, vpmm, vpmm.plugins.numba
others = ('numba.', 'numba_cuda.', 'numpy', 'cuda.core', 'cuda.bindings')
print([name for name in sys.modules if name.startswith(others)])
vpmm.use_for_numba()
print('numba.cuda' in sys.modules)
"""
        self.prints("[]\nTrue", code)

    def test_importing_and_registering_call_no_cuda(self) -> None:
        code = """
from numba.cuda.cudadrv import driver
def refuse(self, name): raise AssertionError(name)
driver.Driver.__getattr__ = refuse
import vpmm
vpmm.use_for_numba()
"""
        self.prints("", code)

    def test_a_context_that_exists_is_named_in_a_warning(self) -> None:
        code = """
import types, warnings, vpmm
from numba.cuda.cudadrv import driver
driver.driver.devices[0] = types.SimpleNamespace(primary_context=object())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    vpmm.use_for_numba()
    vpmm.plugins.numba.use_for_numba()
print({warning.filename for warning in caught}, [warning.lineno for warning in caught])
print({str(warning.message) for warning in caught})
"""
        message = "{'vpmm: a CUDA context exists already and keeps its memory manager; numba.cuda.close() ends it'}"
        self.prints("{'<string>'} [7, 8]\n" + message, code)

    def test_where_the_variable_names_another_manager_the_call_warns_and_does_nothing(self) -> None:
        code = """
import sys, warnings, vpmm
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    vpmm.use_for_numba()
print([str(warning.message) for warning in caught], 'numba' in sys.modules)
"""
        expected = "['vpmm: NUMBA_CUDA_MEMORY_MANAGER=rmm.allocators.numba is set: vpmm is not used'] False"
        self.prints(expected, code, NUMBA_CUDA_MEMORY_MANAGER="rmm.allocators.numba")

    def test_another_manager_afterwards_leaves_nothing_of_ours(self) -> None:
        code = """
from numba.cuda.cudadrv import driver
from numba import cuda
import vpmm
before = dict(vars(driver.driver)), driver.Context.__init__, driver.MemoryPointer.__init__
vpmm.use_for_numba()
cuda.set_memory_manager(driver.NumbaCUDAMemoryManager)
after = dict(vars(driver.driver)), driver.Context.__init__, driver.MemoryPointer.__init__
print(before == after, driver._memory_manager.__name__)
"""
        self.prints("True NumbaCUDAMemoryManager", code)

    def test_under_numbas_simulator_a_program_runs_on_with_a_warning(self) -> None:
        code = """
import warnings, vpmm
from numba import cuda
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    vpmm.use_for_numba()
print(len(caught), 'NUMBA_ENABLE_CUDASIM' in str(caught[0].message))
print(cuda.to_device([1, 2, 3]).copy_to_host().sum())
"""
        self.prints("1 True\n6", code, NUMBA_ENABLE_CUDASIM="1")

    def test_its_options_are_kept_for_the_contexts_to_come(self) -> None:
        code = """
import vpmm, vpmm.plugins.numba as plugin
vpmm.use_for_numba(order='legacy', kernel_arguments=False)
print(plugin._order, plugin._kernel_arguments)
vpmm.use_for_numba()
print(plugin._order, plugin._kernel_arguments)
"""
        self.prints("legacy False\nNone None", code)

    def test_an_order_that_does_not_exist_is_refused(self) -> None:
        import vpmm

        with self.assertRaisesRegex(ValueError, '"context" or "legacy"'):
            vpmm.use_for_numba(order="stream")


@unittest.skipIf(NO_PACKAGE, NO_PACKAGE)
class WithoutNumba(Selection):
    def test_the_package_imports_and_asking_for_numba_says_what_is_missing(self) -> None:
        code = (
            "NAMES = ('numba', 'numba_cuda', 'numba_cuda_mlir')"
            + REFUSE
            + """
import vpmm, vpmm.plugins.numba
for ask in (vpmm.use_for_numba, lambda: vpmm.NumbaMemoryManager, lambda: vpmm.plugins.numba._numba_memory_manager):
    try:
        ask()
    except vpmm.Error as error:
        print(error)
"""
        )
        line = (
            "vpmm's Numba plugin needs the package numba-cuda (0.25 or newer) or numba-cuda-mlir, "
            "and neither is installed"
        )
        self.prints("\n".join([line] * 3), code)

    def test_an_unknown_name_is_no_attribute(self) -> None:
        import vpmm.plugins.numba as plugin

        with self.assertRaisesRegex(AttributeError, "no_such_name"):
            plugin.no_such_name  # noqa: B018


@unittest.skipIf(NO_MLIR, NO_MLIR)
class MlirSelection(Selection):
    def test_the_class_is_made_for_it_when_it_asks(self) -> None:
        code = """
from numba_cuda_mlir import cuda
from numba_cuda_mlir.numba_cuda.cudadrv import driver
driver._ensure_memory_manager()
manager = driver._memory_manager
print(manager.__module__, issubclass(manager, driver.BaseCUDAMemoryManager), manager._target is driver)
"""
        self.prints("vpmm.plugins.numba True True", code, NUMBA_CUDA_MEMORY_MANAGER="vpmm")

    @unittest.skipIf(ABSENT, ABSENT)
    def test_beside_numba_cuda_each_gets_its_own(self) -> None:
        code = """
from numba_cuda_mlir.numba_cuda.cudadrv import driver as mlir
from numba.cuda.cudadrv import driver as numba
mlir._ensure_memory_manager()
numba._ensure_memory_manager()
print(mlir._memory_manager._target is mlir, numba._memory_manager._target is numba)
"""
        self.prints("True True", code, NUMBA_CUDA_MEMORY_MANAGER="vpmm")


if __name__ == "__main__":
    unittest.main()
