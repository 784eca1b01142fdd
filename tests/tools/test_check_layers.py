# SPDX-License-Identifier: Apache-2.0
"""tests: check_layers finds each kind of planted fault, and nothing in the tree itself."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_layers  # noqa: E402 - needs the path above

LAYERS = """
base:
settings: base
driver: base
driver/cuda: base driver
time: base driver
region: base time/stamp.hpp
context: base driver
context/open_driver.cpp: driver/cuda
cli: vpmm
"""


def findings(path: str, text: str) -> list[str]:
    layers, problems = check_layers.parse_layers(LAYERS)
    assert not problems, problems
    return list(check_layers.check_file(layers, path, text))


class Layers(unittest.TestCase):
    def test_a_room_may_include_itself_and_what_it_names(self) -> None:
        text = '// driver: x.\n#include "base/bytes.hpp"\n#include "driver/types.hpp"\n#include <vector>\n'
        self.assertEqual(findings("src/driver/driver.hpp", text), [])

    def test_a_room_above_is_refused_with_file_and_line(self) -> None:
        found = findings("src/base/bytes.hpp", '// base: x.\n\n#include "driver/driver.hpp"\n')
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("src/base/bytes.hpp:3: base may not include driver/driver.hpp"), found)

    def test_an_inner_room_is_not_its_outer_room(self) -> None:
        found = findings("src/time/timeline.cpp", '// time: x.\n#include "driver/cuda/cuda_driver.hpp"\n')
        self.assertEqual(len(found), 1)

    def test_only_a_header_for_cuda_programs_includes_cudas(self) -> None:
        text = "// vpmm: x.\n#include <cuda/memory_resource>\n"
        self.assertEqual(findings("include/vpmm/cuda_mr.hpp", text), [])
        self.assertIn("without a CUDA toolkit", "".join(findings("include/vpmm/vpmm.hpp", text)))

    def test_one_header_of_a_room_may_be_allowed_alone(self) -> None:
        stamp = '// region: x.\n#include "time/stamp.hpp"\n'
        clock = '// region: x.\n#include "time/timeline.hpp"\n'
        self.assertEqual(findings("src/region/region.hpp", stamp), [])
        self.assertEqual(len(findings("src/region/region.hpp", clock)), 1)

    def test_a_file_may_have_more_than_its_room(self) -> None:
        text = '// context: x.\n#include "driver/cuda/cuda_driver.hpp"\n'
        self.assertEqual(findings("src/context/open_driver.cpp", text), [])
        self.assertEqual(len(findings("src/context/context.cpp", text)), 1)

    def test_the_command_line_sees_the_public_headers_only(self) -> None:
        self.assertEqual(findings("cli/main.cpp", "// cli: x.\n#include <vpmm/vpmm.hpp>\n"), [])
        self.assertEqual(len(findings("cli/main.cpp", '// cli: x.\n#include "base/bytes.hpp"\n')), 1)

    def test_the_public_headers_are_closed_to_inner_rooms(self) -> None:
        self.assertEqual(len(findings("src/driver/x.hpp", "// driver: x.\n#include <vpmm/vpmm.h>\n")), 1)

    def test_an_include_names_its_room(self) -> None:
        found = findings("src/base/x.cpp", '// base: x.\n#include "bytes.hpp"\n')
        self.assertIn("name the room", found[0])

    def test_cuda_headers_are_refused(self) -> None:
        self.assertEqual(len(findings("src/driver/cuda/x.cpp", "// driver/cuda: x.\n#include <cuda.h>\n")), 1)

    def test_a_folder_without_a_room_is_refused(self) -> None:
        found = findings("src/utils/x.hpp", "// utils: x.\n")
        self.assertIn("not a room", found[0])

    def test_a_room_may_name_only_rooms_above_it_in_the_list(self) -> None:
        _, problems = check_layers.parse_layers("base: driver\ndriver: base\n")
        self.assertEqual(len(problems), 1)
        self.assertIn("src/layers.txt:1", problems[0])


class Habits(unittest.TestCase):
    def test_the_first_line_names_the_room(self) -> None:
        for first in ("#pragma once", "// bytes: sizes.", "// driver: x.", "// base sizes"):
            with self.subTest(first=first):
                self.assertEqual(len(findings("src/base/bytes.hpp", first + "\n")), 1)

    def test_code_says_its_licence(self) -> None:
        licence = "SPDX-License-Identifier: Apache-2.0\n"

        def found(path: str, text: str) -> list[str]:
            return list(check_layers.check_licence(path, text))

        for path in ("src/base/x.hpp", "include/vpmm/x.h", "cli/x.cpp", "tests/base/x_test.cpp", "bench/x.cu"):
            with self.subTest(path=path):
                self.assertEqual(len(found(path, "// base: x.\n")), 1)
                self.assertEqual(found(path, f"// {licence}// base: x.\n"), [])
        for path in ("python/vpmm/x.py", "tools/x.py", "examples/a/CMakeLists.txt", "cmake/x.cmake.in", "dev"):
            with self.subTest(path=path):
                self.assertEqual(len(found(path, "# x\n")), 1)
                self.assertEqual(len(found(path, "")), 1)
                self.assertEqual(found(path, f"# {licence}# x\n"), [])
        self.assertEqual(found("tests/sim_gpu/x.map", f"/* {licence.strip()} */\n{{}};\n"), [])
        self.assertEqual(found("dev", f"#!/bin/sh\n# {licence}"), [])
        self.assertIn("dev:2:", found("dev", "#!/bin/sh\n")[0])
        for path in ("tests/fuzz/corpus/token/x.py", "tests/python/fixtures/x.py", "bench/results/x.py", "docs/x.md"):
            self.assertEqual(found(path, "x\n"), [])
        self.assertEqual(findings("src/base/x.hpp", f"// {licence}// base: x.\n"), [])

    def test_tests_begin_with_a_sentence_too(self) -> None:
        self.assertEqual(findings("tests/base/x_test.cpp", "// tests: sizes.\n"), [])
        self.assertEqual(len(findings("tests/base/x_test.cpp", "#include <vector>\n")), 1)

    def test_getenv_is_read_in_one_file(self) -> None:
        text = '// base: x.\nconst char* s = std::getenv("VPMM_LOG");\n'
        self.assertIn("src/base/x.cpp:2", findings("src/base/x.cpp", text)[0])
        self.assertEqual(findings("src/settings/variables.cpp", text.replace("base", "settings")), [])

    def test_cuda_names_stay_behind_the_door(self) -> None:
        text = "// base: x.\nint r = cuMemMap(1, 2);\n"
        self.assertIn("cuMemMap", findings("src/base/x.cpp", text)[0])
        self.assertEqual(findings("src/driver/cuda/x.cpp", text.replace("base", "driver/cuda")), [])

    def test_comments_and_strings_may_say_anything(self) -> None:
        text = (
            "// base: x.\n// cuMemMap(x) fails when getenv() is called\n/* getenv(\n cuMemMap( */\n"
            'auto a = "cuMemMap(x) \\" getenv(";\nauto b = R"(getenv("x"))";\nint c = 10\'000;\n'
        )
        self.assertEqual(findings("src/base/x.cpp", text), [])

    def test_code_after_a_digit_separator_is_still_seen(self) -> None:
        text = "// base: x.\nint a = 10'000; int b = cuInit(0); int c = 20'000;\n"
        self.assertEqual(len(findings("src/base/x.cpp", text)), 1)

    def test_a_base_of_a_lower_room_is_found_but_for_observers(self) -> None:
        up = "// context: x.\nclass A final : public driver::Driver {\n};\n"
        self.assertIn("src/context/x.hpp:2: A lets room driver call up", findings("src/context/x.hpp", up)[0])
        told = up.replace("driver::Driver", "driver::CallObserver")
        self.assertEqual(findings("src/context/x.hpp", told), [])
        self.assertEqual(findings("src/context/x.hpp", up.replace("driver::Driver", "std::exception")), [])
        self.assertEqual(findings("src/driver/x.hpp", up.replace("// context", "// driver")), [])

    def test_a_condition_changes_nothing(self) -> None:
        begin = "// base: x.\nvoid f(int n) {\n"
        for condition in ("--n == 0", "n > 0 && !std::exchange(done, true)", "g(n++)", "const int m = g(); --n < m"):
            self.assertIn("src/base/x.cpp:3", findings("src/base/x.cpp", f"{begin}  if ({condition}) return;\n}}\n")[0])
        for statement in ("if (n == 0) --n;", "if (const int m = --n; m == 0) return;", "while (--n > 0) g();"):
            self.assertEqual(findings("src/base/x.cpp", f"{begin}  {statement}\n}}\n"), [])

    def test_a_comment_begins_with_no_question(self) -> None:
        begin = "// base: x.\n\n"
        for comment in ("// What is left.", "int a;  // whether it ends", "/* Who frees it.\n */", "// Whoever calls."):
            found = findings("src/base/x.cpp", f"{begin}{comment}\n")
            self.assertEqual(len(found), 1, comment)
            self.assertIn("src/base/x.cpp:3: a comment begins with", found[0])
        self.assertEqual(len(findings("src/base/x.def", f"{begin}X(a)\n// Whose it is.\n")), 1)
        self.assertEqual(findings("tests/base/x.cpp", f"{begin}// What must hold.\n"), [])
        for comment in (
            "// Takes a thread\n// who waits.",
            "int a;  // a thread\n        // who waits",
            'auto a = "// What";',
            "// Whatsoever: a name.",
        ):
            self.assertEqual(findings("src/base/x.cpp", f"{begin}{comment}\n"), [], comment)
        self.assertEqual(len(findings("src/base/x.cpp", f"{begin}int a;  // first\n// What is next.\n")), 1)

    def test_long_lines_and_long_files_are_found(self) -> None:
        for path in ("src/base/x.cpp", "include/vpmm/x.h", "tests/base/x.cpp", "bench/x.cu", "examples/x.c"):
            first = "// base: x.\n"
            self.assertEqual(len(findings(path, f"{first}//{'x' * 99}\n")), 1, path)
            self.assertEqual(findings(path, f"{first}//{'x' * 98}\n"), [], path)
        for path in ("src/base/x.def", "python/src/x.cpp", "tools/x.py"):
            first = "// base: x.\n"
            self.assertEqual(findings(path, f"{first}//{'x' * 118}\n"), [], path)
            self.assertEqual(len(findings(path, f"{first}//{'x' * 119}\n")), 1, path)
        self.assertEqual(len(findings("src/base/x.cpp", "// base: x.\n" + "\n" * 599)), 0)
        self.assertEqual(len(findings("src/base/x.cpp", "// base: x.\n" + "\n" * 700)), 1)

    def test_notes_to_self_are_found(self) -> None:
        for note in ("TO" + "DO", "FIX" + "ME"):
            with self.subTest(note=note):
                self.assertEqual(len(findings("src/base/x.cpp", f"// base: x.\n// {note}: later\n")), 1)


class Tree(unittest.TestCase):
    def test_the_tree_has_no_findings(self) -> None:
        problems = check_layers.check_tree(ROOT)
        if problems:
            self.fail("\n".join(problems))

    def test_every_room_of_the_list_is_named_as_in_cmake(self) -> None:
        layers, problems = check_layers.parse_layers((ROOT / "src/layers.txt").read_text())
        self.assertEqual(problems, [])
        cmake = (ROOT / "CMakeLists.txt").read_text()
        for room in layers.rooms:
            if room != "cli":
                self.assertIn(f"vpmm_room({room.replace('/', '_')} ", cmake)


if __name__ == "__main__":
    unittest.main()
