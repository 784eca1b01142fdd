"""tests: what importing the package does and does not do, and that its stub tells the truth."""

from __future__ import annotations

import ast
import inspect
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
        self.plugin.use_for_numba.assert_called_once_with(order="legacy", _stacklevel=3)

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


class Stub(unittest.TestCase):
    """_vpmm.pyi is written by hand, so it is compared with the module."""

    def setUp(self) -> None:
        source = Path(vpmm.__file__).with_name("_vpmm.pyi").read_text()
        body = ast.parse(source).body
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}

    @staticmethod
    def public(names: list[str]) -> set[str]:
        return {name for name in names if not name.startswith("_")}

    def test_it_has_the_names_of_the_module(self) -> None:
        self.assertEqual(self.public(dir(_vpmm)), self.functions.keys() | self.classes.keys())
        for name, node in self.classes.items():
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            self.assertEqual(self.public(dir(getattr(_vpmm, name))), members - {"__init__"}, name)

    def test_its_methods_have_the_parameters_of_the_module(self) -> None:
        for node in self.classes["Pool"].body:
            if not isinstance(node, ast.FunctionDef) or node.name == "__init__":
                continue
            method = getattr(_vpmm.Pool, node.name)
            if isinstance(method, property):
                continue
            line = inspect.getdoc(method) or ""
            said = {name.arg for name in node.args.args}
            found = {part.split(":")[0].strip() for part in line.partition("(")[2].partition(")")[0].split(",")}
            found = {name for name in found if name and name != "/" and not name.startswith("*")}
            self.assertEqual(said, found, line)


class Markers(unittest.TestCase):
    def test_the_package_is_marked_as_typed(self) -> None:
        self.assertTrue(Path(vpmm.__file__).with_name("py.typed").exists())


if __name__ == "__main__":
    unittest.main()
