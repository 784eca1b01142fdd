# SPDX-License-Identifier: Apache-2.0
"""tests: what importing the package does and does not do, and that documentation and stub tell the truth."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import sys
import types
import unittest
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

import vpmm
from vpmm import _vpmm

from program import output_of

FORBIDDEN = ["numba", "numba_cuda", "numpy", "cupy", "torch", "cuda", "rmm", "zstandard"]
STRICT_IMPORT = f"""
import sys
from pathlib import Path

class Strict:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise AssertionError(f"{{name}} was imported")

sys.meta_path.insert(0, Strict())
before = set(sys.modules)  # an interpreter's .pth files may import some of them
import vpmm
import vpmm.__main__
assert not (set(sys.modules) - before) & set({FORBIDDEN!r})
assert "libcuda" not in Path("/proc/self/maps").read_text()
print(vpmm.__version__)
"""


class Importing(unittest.TestCase):
    def test_it_imports_no_other_library_and_opens_no_driver(self) -> None:
        for driver in ("cuda", "sim", "nonsense"):
            with self.subTest(driver):
                self.assertRegex(output_of(STRICT_IMPORT, VPMM_DRIVER=driver), r"^\d+\.\d+\.\d+\n$")

    def test_every_public_name_exists(self) -> None:
        for name in vpmm.__all__:
            self.assertTrue(hasattr(vpmm, name), name)

    def test_dir_lists_public_names_and_lazy_modules_only(self) -> None:
        self.assertLessEqual(set(dir(vpmm)), set(vpmm.__all__) | set(vpmm._LAZY))
        self.assertLessEqual(set(vpmm.__all__), set(dir(vpmm)))
        self.assertLessEqual({"Pool", "cupy", "rmm", "torch"}, set(dir(vpmm)))
        self.assertTrue({"Any", "contextlib", "os", "_vpmm"}.isdisjoint(dir(vpmm)))

    def test_dir_lists_nothing_that_fails_for_want_of_a_library(self) -> None:
        with mock.patch.dict(sys.modules, {"cuda": None, "cuda.core": None, "distributed": None}):
            self.assertEqual(set(vpmm._LAZY) - set(dir(vpmm)), {"cuda_core", "dask"})
            inspect.getmembers(vpmm)

    def test_an_unknown_attribute_is_an_attribute_error(self) -> None:
        with self.assertRaisesRegex(AttributeError, "'vpmm' has no attribute 'nonsense'"):
            _ = vpmm.nonsense

    def test_the_library_lies_beside_the_module(self) -> None:
        maps = "import vpmm, pathlib; print(pathlib.Path('/proc/self/maps').read_text())"
        libraries = {line.split()[-1] for line in output_of(maps).splitlines() if "libvpmm.so" in line}
        self.assertEqual({str(Path(library).parent) for library in libraries}, {str(Path(_vpmm.__file__).parent)})
        self.assertEqual(len(libraries), 1)


class LazyNumba(unittest.TestCase):
    """Against a plugin of its own: the real one has its own tests."""

    def setUp(self) -> None:
        self.plugin = types.ModuleType("vpmm.plugins.numba")

    def test_its_names_are_looked_up_when_they_are_asked_for(self) -> None:
        self.plugin.NumbaMemoryManager = self.plugin._numba_memory_manager = object()  # type: ignore[attr-defined]
        with mock.patch.dict(sys.modules, {"vpmm.plugins.numba": self.plugin}):
            self.assertIs(vpmm.NumbaMemoryManager, self.plugin.NumbaMemoryManager)
            self.assertIs(vpmm._numba_memory_manager, self.plugin._numba_memory_manager)

    def test_use_for_numba_hands_its_options_on(self) -> None:
        self.plugin.use_for_numba = mock.Mock()  # type: ignore[attr-defined]
        with mock.patch.dict(sys.modules, {"vpmm.plugins.numba": self.plugin}):
            vpmm.use_for_numba(order="legacy")
        self.plugin.use_for_numba.assert_called_once_with(order="legacy", kernel_arguments=None, _stacklevel=3)

    def test_without_numba_it_says_what_is_missing(self) -> None:
        class WithoutNumba:
            @staticmethod
            def find_spec(name: str, *_: object) -> ModuleSpec | None:
                if name == "vpmm.plugins.numba":
                    raise ModuleNotFoundError("No module named 'numba'", name="numba")
                return None

        with mock.patch.object(sys, "meta_path", [WithoutNumba(), *sys.meta_path]), mock.patch.dict(sys.modules):
            sys.modules.pop("vpmm.plugins.numba", None)
            for use in (vpmm.use_for_numba, lambda: vpmm.NumbaMemoryManager):
                with self.assertRaisesRegex(vpmm.Error, "numba is not installed.*pip install numba-cuda") as caught:
                    use()
                self.assertEqual(caught.exception.code, "VPMM_ERROR_UNSUPPORTED")


class WithoutTheLibrary(unittest.TestCase):
    def test_the_plugin_for_dask_says_what_to_install(self) -> None:
        sys.modules.pop("vpmm.dask", None)
        with (
            mock.patch.dict(sys.modules, {"distributed": None}),
            self.assertRaisesRegex(vpmm.Error, "vpmm.dask needs distributed.*pip install distributed"),
        ):
            importlib.import_module("vpmm.dask")

    def test_the_resource_for_cuda_core_says_what_to_install(self) -> None:
        with mock.patch.dict(sys.modules, {"cuda": None, "cuda.core": None}):
            for name in ("vpmm.cuda_core", "vpmm.plugins.cuda_core"):
                sys.modules.pop(name, None)
            with self.assertRaisesRegex(vpmm.Error, "vpmm.cuda_core needs cuda-core.*pip install cuda-core") as caught:
                importlib.import_module("vpmm.cuda_core")
        self.assertIsInstance(caught.exception, ImportError)
        self.assertEqual(caught.exception.code, "VPMM_ERROR_UNSUPPORTED")


class Documented(unittest.TestCase):
    def test_every_member_of_a_compiled_class_says_what_it_does(self) -> None:
        for kind in (_vpmm.Pool, _vpmm.Allocation, _vpmm.Region):
            self.assertTrue(inspect.getdoc(kind), kind)
            for name in dir(kind):
                if name.startswith("_"):
                    continue
                member = getattr(kind, name)
                lines = (inspect.getdoc(member) or "").splitlines()
                without_signature = lines if isinstance(member, property) else lines[1:]
                self.assertTrue("".join(without_signature), f"{kind.__name__}.{name}")

    def test_every_public_name_has_a_text_on_the_page_of_the_reference(self) -> None:
        """Which has that of a value from the string behind it."""
        body = ast.parse(Path(vpmm.__file__).read_text(encoding="utf-8")).body
        texts = {
            value.targets[0].id
            for value, text in itertools.pairwise(body)
            if isinstance(value, ast.Assign) and isinstance(value.targets[0], ast.Name) and isinstance(text, ast.Expr)
        }
        self.assertLessEqual({"__version__", "configure", "Stacks"}, texts)
        for name in set(vpmm.__all__) - texts:
            self.assertTrue(getattr(vpmm, name).__doc__, name)

    def test_settings_are_keywords_that_help_shows(self) -> None:
        for function in (vpmm.Pool.__init__, vpmm.Pool.configure, vpmm.configure):
            self.assertIn("capacity: int | str | None = ...", inspect.getdoc(function) or "")


@unittest.skipIf(importlib.util.find_spec("nanobind") is None, "nanobind, which makes the stub, is not installed")
class Stub(unittest.TestCase):
    def setUp(self) -> None:
        self.stub = Path(__file__).resolve().parents[2] / "python/vpmm/_vpmm.pyi"

    def test_it_is_the_one_that_nanobind_makes(self) -> None:
        from nanobind.stubgen import StubGen

        generator = StubGen(module=_vpmm)
        generator.put(_vpmm)
        made, there = (ast.dump(ast.parse(text)) for text in (generator.get(), self.stub.read_text()))
        self.assertTrue(made == there, f"make it anew: python -m nanobind.stubgen -m vpmm._vpmm -o {self.stub}")

    def test_no_settings_hide_behind_stars(self) -> None:
        for node in ast.walk(ast.parse(self.stub.read_text())):
            if isinstance(node, ast.FunctionDef):
                self.assertIsNone(node.args.kwarg, node.name)
                self.assertIsNone(node.args.vararg, node.name)


class Markers(unittest.TestCase):
    def test_the_package_is_marked_as_typed(self) -> None:
        self.assertTrue(Path(vpmm.__file__).with_name("py.typed").exists())


if __name__ == "__main__":
    unittest.main()
