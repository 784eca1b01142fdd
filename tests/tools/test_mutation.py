# SPDX-License-Identifier: Apache-2.0
"""tools/mutation: small faults are found in the syntax tree, stand beside the original and are chosen at run time."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import unittest
import unittest.mock
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests/torch")]

import sim_gpu  # noqa: E402
from mutation.rewrite import rewrite  # noqa: E402
from mutation.sites import Mutant, Source, find, in_one_line  # noqa: E402
from mutation.torch_plugin import SOURCES, SUITE, PluginTree  # noqa: E402
from mutation.trial import Case, Tree, Verdict, judge_all, measure, plant, run_cases  # noqa: E402

HAS_CLANG = importlib.util.find_spec("clang") is not None and importlib.util.find_spec("clang.cindex") is not None

PROGRAM = """\
#include <cstdio>
#define IS_LESS(a, b) ((a) < (b))
constexpr int kLimit = 3;
constexpr int twice(int a) { return a * 2; }
static_assert(twice(2) == 4);
int calls = 0;
void call() { ++calls; }
bool f(int a) {
  if (a < kLimit) return a > 1;  // a comment
  call();
  return IS_LESS(a, 9);
}
int main() {
  for (int a = 0; a < 12; ++a) std::printf("%d", f(a) ? 1 : 0);
  std::printf(" %d %d\\n", calls, twice(4));
}
"""


def at(text: str, code: str, after: str, is_statement: bool = False) -> Mutant:
    begin = PROGRAM.index(text) + text.index(code)
    return Mutant("a.cpp", begin, begin + len(code), PROGRAM[:begin].count("\n") + 1, code, after, is_statement)


class Copying(unittest.TestCase):
    def test_a_source_that_is_gone_leaves_the_copy_too(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root, copy = Path(folder, "root"), Path(folder, "copy")
            for name in ("src/pool/kept.cpp", "src/pool/gone.cpp"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("int x;\n")
            subprocess.run(["git", "init", "-q", str(root)], check=True)
            tree = Tree(root, copy, 1)
            tree.copy()
            self.assertTrue((copy / "src/pool/gone.cpp").exists())
            (root / "src/pool/gone.cpp").unlink()
            tree.copy()
            self.assertEqual([path.name for path in (copy / "src/pool").iterdir()], ["kept.cpp"])


class Running(unittest.TestCase):
    def test_another_user_may_enter_the_temporary_folder_of_a_case(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            suite = Path(folder, "suite")
            suite.write_text('#!/bin/sh\ntest "$(stat -c %a "$TMPDIR")" = 755\n')
            suite.chmod(0o755)
            self.assertIsNone(run_cases(suite, ["Any.case"], 30, {}))

    def test_the_case_in_which_a_process_ends_is_named(self) -> None:
        started = 'echo "[ RUN      ] A.a"\necho "[       OK ] A.a (1 ms)"\necho "[ RUN      ] A.b"\n'
        failed = 'echo "[  FAILED  ] A.a (1 ms)"\n'
        for said, end, found in (
            (started, "kill -SEGV $$", "A.b"),
            (started, "sleep 60", "A.b"),
            (started + failed, "exit 1", "A.a"),
            ("", "exit 3", "ended with 3"),
            ("", "sleep 60", "endless"),
        ):
            with self.subTest(end=end, found=found), tempfile.TemporaryDirectory() as folder:
                suite = Path(folder, "suite")
                suite.write_text(f"#!/bin/sh\n{said}{end}\n")
                suite.chmod(0o755)
                self.assertEqual(run_cases(suite, ["A.a", "A.b"], 2, {}), found)


class Planting(unittest.TestCase):
    def test_faults_have_the_numbers_from_1_on_for_which_a_file_of_what_was_seen_has_room(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "a.cpp")
            path.write_text(PROGRAM)
            drawn = [at("if (a < kLimit)", "a < kLimit", "true"), at("  call();", "call();", "", True)]
            tree = Tree(Path(name), Path(name), 1)
            with unittest.mock.patch.object(tree, "compile", return_value=set()):
                planted = plant(tree, "a", {"a.cpp": Source(path, "a.cpp")}, drawn, 9, [])
        self.assertEqual(planted, {1: drawn[0], 2: drawn[1]})


class Measuring(unittest.TestCase):
    def test_a_case_that_fails_after_others_without_a_fault_is_left_out(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            suite = Path(name) / "build/dev/tests/vpmm_test_one"
            suite.parent.mkdir(parents=True)
            suite.write_text(
                "#!/bin/sh\ncase $1 in *list*) printf 'A.\\n  a\\n  b\\n' ;;\n"
                '*A.*A.*) echo "[  FAILED  ] A.b"; exit 1 ;; esac\n'
            )
            suite.chmod(0o755)
            cases = measure(Tree(Path(name), Path(name), 1), ["one"], 3, 60)
        self.assertEqual([(case.name, case.seen) for case in cases], [("A.a", frozenset({0}))])


class Judging(unittest.TestCase):
    def test_tells_of_each_fault_that_no_case_finds(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            suite = Path(name) / "build/dev/tests/vpmm_test_one"
            suite.parent.mkdir(parents=True)
            suite.write_text('#!/bin/sh\ntest "$MUTANT" != 2 && exit 0\necho "[  FAILED  ] A.b"\nexit 1\n')
            suite.chmod(0o755)
            told: list[int] = []
            cases = [Case("one", "A.b", 0.1, frozenset({2, 3}))]
            verdicts = judge_all(Tree(Path(name), Path(name), 1), [2, 3, 4], cases, tell=told.append)
        self.assertEqual({number: each.found_by for number, each in verdicts.items()}, {2: "one/A.b", 3: None, 4: None})
        self.assertEqual(sorted(told), [3, 4])

    def test_faults_whose_turn_comes_too_late_have_no_verdict(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            suite = Path(name) / "build/dev/tests/vpmm_test_one"
            suite.parent.mkdir(parents=True)
            suite.write_text("#!/bin/sh\n")
            suite.chmod(0o755)
            tree = Tree(Path(name), Path(name), 1)
            with unittest.mock.patch("mutation.trial.time.monotonic", side_effect=[0, 2]):
                verdicts = judge_all(tree, [2, 3], [Case("one", "A.b", 0.1, frozenset({2, 3}))], 1)
        self.assertEqual(verdicts, {2: Verdict(None, 1)})


class Plugin(unittest.TestCase):
    """Beside a package that compiles one file, and a simulated GPU that only starts programs."""

    BUILDING = "def run_tool(command, what, folder=None):\n    raise AssertionError('it would hide the output')\n"
    COMPILING = """
import os
from pathlib import Path
from vpmm.plugins import _building
def build():
    source, library = Path(__file__).with_name("torch_allocator") / "library.cpp", Path(os.environ["VPMM_CACHE_DIR"])
    words = ["-std=c++20", "-DVALUE=1", "-isystem", "/usr", str(source), "-fsyntax-only"]
    if not library.exists():
        _building.run_tool([*os.environ["CXX"].split(), *words], "it")
        library.touch()
"""
    GPU = "import os, sys\nos.execv(sys.executable, [sys.executable, *sys.argv[sys.argv.index('--vpmm') + 1:]])\n"
    CASES = """
import os, time, unittest
class Any(unittest.TestCase):
    def test_a(self):
        self.assertNotEqual(os.environ.get("MUTANT"), "1")
    def test_b(self):
        if os.environ.get("MUTANT") == "2": time.sleep(600)
"""

    LATER = """
import os, sys, unittest
sys.path.insert(0, "../python")  # where there are suites of the same names
class Any(unittest.TestCase):
    def test_c(self):
        if os.environ.get("MUTANT") == "3": self.skipTest("nothing works")
"""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in {
            f"{SOURCES}/library.cpp": "int value() { return VALUE; }\n",
            f"{SUITE}/test_any.py": self.CASES,
            f"{SUITE}/test_later.py": self.LATER,
            "tests/python/test_any.py": "",
            "build/dev/python/vpmm/plugins/_building.py": self.BUILDING,
            "build/dev/python/vpmm/plugins/torch.py": self.COMPILING,
            "build/dev/sim_gpu/libcuda.so.1": "",
            "build/dev/bin/vpmm": "",
            "tests/torch/sim_gpu.py": self.GPU,
        }.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        changed = unittest.mock.patch.dict(os.environ, {"VPMM_TORCH_PYTHON": sys.executable})
        changed.start()
        self.addCleanup(changed.stop)
        os.environ.pop("VPMM_BUILD_FOLDER", None)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        (self.root / ".gitignore").write_text("build/\n")
        self.tree = PluginTree(self.root, self.root / "build/copy", 1)

    def test_a_build_without_the_package_is_named(self) -> None:
        (self.root / "build/dev/python").rename(self.root / "gone")
        with self.assertRaisesRegex(SystemExit, "build/dev/python is not there: ./dev test tests/torch_vpmm makes it"):
            self.tree.copy()

    def test_it_is_compiled_with_the_header_of_faults_and_tells_which_lines_are_refused(self) -> None:
        self.tree.copy()
        self.tree.configure()
        self.assertEqual(self.tree.arguments, ["-std=c++20", "-DVALUE=1", "-isystem", "/usr"])
        (self.tree.build / "torch").unlink()
        text = "int value() { return VPMM_MUTANT(1) ? 2 : VALUE; }\nint other() { return {1, 2}; }\n"
        self.tree.write(f"{SOURCES}/library.cpp", text.encode())
        self.assertEqual(self.tree.compile([]), {(f"{SOURCES}/library.cpp", 2)})
        self.tree.write(f"{SOURCES}/library.cpp", text.splitlines()[0].encode())
        self.assertEqual([self.tree.compile([]), self.tree.compile([])], [set(), set()])

    def test_cases_are_listed_and_run_until_one_fails_or_does_not_run(self) -> None:
        self.tree.copy()
        names = self.tree.names_of(SUITE)
        self.assertEqual(names, ["test_any.Any.test_a", "test_any.Any.test_b", "test_later.Any.test_c"])
        self.assertIsNone(self.tree.run_cases(SUITE, names[::-1], 60, {}))
        self.assertEqual(self.tree.run_cases(SUITE, names[::-1], 60, {"MUTANT": "1"}), names[0])
        self.assertEqual(self.tree.run_cases(SUITE, names, 2, {"MUTANT": "2"}), "endless")
        self.assertEqual(self.tree.run_cases(SUITE, names, 60, {"MUTANT": "3"}), names[2])

    def test_a_program_on_the_simulated_gpu_has_the_fault_that_is_chosen_and_no_other_setting(self) -> None:
        chosen = {"MUTANT": "7", "MUTANTS_SEEN": "file"}
        with unittest.mock.patch.dict(os.environ, {**chosen, "VPMM_PAGE_SIZE": "max"}):
            environment = sim_gpu.environment()
        self.assertEqual({name: environment[name] for name in chosen}, chosen)
        self.assertNotIn("VPMM_PAGE_SIZE", environment)


class Rewriting(unittest.TestCase):
    FAULTS = (
        (1, at("if (a < kLimit)", "a < kLimit", "a <= kLimit")),
        (2, at("if (a < kLimit)", "a < kLimit", "true")),
        (3, at("return a > 1;", "a > 1", "!(a > 1)")),
        (4, at("return a > 1;", "return a > 1;", "return {};", True)),
        (5, at("  call();", "call();", "", True)),
        (6, at("a * 2", "a * 2", "a / 2")),
    )

    def run_program(self, folder: Path, fault: int) -> str:
        environment = {**os.environ, "MUTANT": str(fault)}
        return subprocess.run(
            [folder / "a"], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def test_one_program_holds_all_faults_and_runs_the_one_that_is_named(self) -> None:
        text = rewrite(PROGRAM.encode(), self.FAULTS)
        self.assertEqual(text.count(b"\n"), PROGRAM.count("\n"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "a.cpp").write_bytes(text)
            compiler = ["g++", "-std=c++20", "-include", str(TOOLS / "mutation/mutant.hpp"), "-o", "a", "a.cpp"]
            subprocess.run(compiler, cwd=folder, check=True)
            self.assertEqual(self.run_program(folder, 0), "001111111000 9 8")
            self.assertEqual(self.run_program(folder, 1), "001111111000 8 8")
            self.assertEqual(self.run_program(folder, 2), "001111111111 0 8")
            self.assertEqual(self.run_program(folder, 3), "110111111000 9 8")
            self.assertEqual(self.run_program(folder, 4), "000111111000 9 8")
            self.assertEqual(self.run_program(folder, 5), "001111111000 0 8")
            self.assertEqual(self.run_program(folder, 6), "001111111000 9 2")
            seen = folder / "seen"
            seen.write_bytes(bytes(8))
            environment = {**os.environ, "MUTANTS_SEEN": str(seen)}
            subprocess.run([folder / "a"], env=environment, capture_output=True, check=True)
            self.assertEqual(seen.read_bytes(), bytes([0, 1, 1, 1, 1, 1, 1, 0]))

    def test_faults_that_overlap_are_refused(self) -> None:
        first, second = at("if (a < kLimit)", "a < kLimit", "true"), at("if (a < kLimit)", "(a < ", "b")
        with self.assertRaisesRegex(ValueError, "overlaps"):
            rewrite(PROGRAM.encode(), [(1, first), (2, second)])

    def test_a_copy_of_code_has_no_comments_and_no_lines(self) -> None:
        self.assertEqual(in_one_line("a +  // why\n  /* b */ c"), "a + c")


class Equivalents(unittest.TestCase):
    def test_each_is_of_a_line_that_is_there(self) -> None:
        root = TOOLS.parent
        listed = tomllib.loads((root / "tests/mutation/equivalent.toml").read_text())["equivalent"]
        self.assertTrue(listed)
        self.assertEqual(
            len({(each["file"], each["line"], each["code"], each["fault"]) for each in listed}), len(listed)
        )
        for each in listed:
            lines = [line.strip() for line in (root / each["file"]).read_text().splitlines()]
            self.assertIn(each["line"], lines, each["file"])
            self.assertIn(each["code"].split()[0], each["line"])
            self.assertTrue(each["why"])


@unittest.skipUnless(HAS_CLANG, "libclang is not installed; ./dev mutate installs it")
class Finding(unittest.TestCase):
    def faults(self, text: str) -> list[str]:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "src").mkdir()
            (root / "src/a.cpp").write_text(textwrap.dedent(text))
            found, _ = find(root, "src", [(root / "src/a.cpp", ["-std=c++20"])])
            return [f"{each.line}: {each.before} -> {each.after}" for each in found]

    def test_an_enumerator_that_is_zero_is_empty_already(self) -> None:
        text = "enum class Is { no, yes };\nIs f(int a) {\n  if (a) return Is::no;\n  return Is::yes;\n}\n"
        returns = [each for each in self.faults(text) if "return {};" in each]
        self.assertEqual(returns, ["4: return Is::yes; -> return {};"])

    def test_each_kind_of_fault(self) -> None:
        self.assertEqual(
            self.faults("""\
                int f(int a, bool b, int* p) {
                  if (a < 7 && !b) a += 2;
                  while (b) { ++a; break; }
                  return p ? *p : a;
                }
                """),
            [
                "2: a < 7 && !b -> a < 7 || !b",
                "2: a < 7 && !b -> false",
                "2: a < 7 && !b -> true",
                "2: a < 7 -> a <= 7",
                "2: a < 7 -> a >= 7",
                "2: 7 -> 0",
                "2: 7 -> 7 + 1",
                "2: !b -> static_cast<bool>(b)",
                "2: a += 2; -> ",
                "2: a += 2 -> a -= 2",
                "2: 2 -> 0",
                "2: 2 -> 2 + 1",
                "3: b -> false",
                "3: ++a; -> ",
                "3: ++a -> --a",
                "3: break; -> ",
                "4: return p ? *p : a; -> return {};",
                "4: p -> false",
                "4: p -> true",
            ],
        )

    def test_constants_and_macros_have_none(self) -> None:
        found = self.faults(PROGRAM)
        self.assertFalse([each for each in found if each.startswith(("2:", "3:", "5:"))], found)
        self.assertNotIn("IS_LESS(a, 9) -> !(IS_LESS(a, 9))", " ".join(found))
        self.assertIn("4: a * 2 -> a / 2", found)
        arguments = "template <int n> int g() { int a[4] = {}; return a[n]; }\nint h() { return g<2>(); }\n"
        self.assertEqual(self.faults(arguments), ["1: return a[n]; -> return {};", "2: return g<2>(); -> return {};"])

    def test_what_only_checks_has_none(self) -> None:
        self.assertEqual(self.faults("bool is_sound(int a) { return a < 3; }\n"), [])


if __name__ == "__main__":
    unittest.main()
