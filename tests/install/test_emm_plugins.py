# SPDX-License-Identifier: Apache-2.0
"""tests: memory managers in libraries, each built alone against the installed package, some by another compiler than
the program that loads them. On the simulator.

VPMM_BUILD_FOLDER names the build to install; the default is that of the dev preset.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VPMM_BUILD_FOLDER", ROOT / "build/dev"))
SOURCES = ROOT / "tests/emm_plugins"
SIMULATED = {name: value for name, value in os.environ.items() if not name.startswith("VPMM_")} | {"VPMM_DRIVER": "sim"}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
C = ["-std=c99"]
CPP = ["-std=c++17"]
# Of vpmm_status.
INVALID_ARGUMENT, OUT_OF_MEMORY, HOST_OUT_OF_MEMORY, BAD_CONFIGURATION, UNSUPPORTED, DRIVER_FAILED = 1, 3, 4, 5, 6, 8
BAD_FILE = 12


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that ended, well or not, with these variables in its environment."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=SIMULATED | variables, timeout=300, check=False)


def output_of(*command: object, **variables: str) -> str:
    """The output of a command that must succeed."""
    done = run(*command, **variables)
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise AssertionError(f"{words}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Plugins(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-plugins-")
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name)
        cls.prefix = cls.scratch / "prefix"
        output_of("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.host = cls.build_program("host.cpp", "g++", *CPP)
        cls.plain = cls.build_plugin("plain.c", "gcc", *C)
        cls.throwing = cls.build_plugin("throwing.cpp", "g++", *CPP)

    @classmethod
    def build_program(cls, source: str, compiler: str, *options: str) -> Path:
        library = next(iter(sorted(cls.prefix.rglob("libvpmm.so")))).parent
        program = cls.scratch / f"program-{source}"
        link = [f"-L{library}", "-lvpmm", f"-Wl,-rpath,{library}"]
        output_of(compiler, *options, *WARNINGS, f"-I{cls.prefix}/include", SOURCES / source, "-o", program, *link)
        return program

    # A plugin gets no library to link.
    @classmethod
    def build_plugin(cls, source: str | Path, compiler: str, *options: str) -> Path:
        plugin = cls.scratch / f"plugin-{len(list(cls.scratch.glob('plugin-*')))}.so"
        fixed = ["-fPIC", "-shared", "-Wl,-z,defs", f"-I{cls.prefix}/include"]
        output_of(compiler, *options, *WARNINGS, *fixed, SOURCES / source, "-o", plugin)
        return plugin

    def build_text(self, text: str) -> Path:
        source = self.scratch / "source.c"
        source.write_text(text)
        return self.build_plugin(source, "gcc", *C)

    def refusal(self, plugin: Path, status: int) -> str:
        done = run(self.host, "use", plugin)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        found = re.fullmatch(rf"refused with {status}: (.*)\n", done.stdout)
        self.assertIsNotNone(found, done.stdout)
        return found.group(1) if found else ""

    # --- the pool behind a plugin ---

    def test_a_plugin_that_is_linked_with_the_library_shares_its_pool_with_the_program(self) -> None:
        library = next(iter(sorted(self.prefix.rglob("libvpmm.so")))).parent
        plugin = self.scratch / "linked.so"
        include = f"-I{self.prefix}/include"
        link = [f"-L{library}", "-lvpmm", f"-Wl,-rpath,{library}"]
        output_of("g++", *CPP, *WARNINGS, "-fPIC", "-shared", include, SOURCES / "linked.cpp", "-o", plugin, *link)
        self.assertIn("the data is right", output_of(self.host, "use", plugin))
        # The command line has no libvpmm.so of its own.
        self.assertRegex(output_of(self.prefix / "bin/vpmm", "emm-check", plugin), r"passed, 0 failed, \d+ skipped")

    # --- other compilers, other languages ---

    def check_exceptions(self, plugin: Path) -> None:
        said = output_of(self.host, "throw", plugin)
        self.assertEqual(
            said.splitlines(),
            [
                f"1: failure {UNSUPPORTED}: throwing does not do 1 byte",
                f"2: out_of_memory {OUT_OF_MEMORY}: throwing has no 2 bytes left",
                f"3: failure {DRIVER_FAILED}: 3 bytes are an odd size",
                f"4: out_of_memory {HOST_OUT_OF_MEMORY}: the process itself is out of memory",
                f"5: failure {DRIVER_FAILED}: the memory manager threw something that is no std::exception",
                f"6: failure {DRIVER_FAILED}: the memory manager gave neither memory nor an error",
                "throwing: host 1, managed 0, stream 0, ipc 0, info 0",
                "the data is right",
            ],
        )

    def test_what_a_plugin_of_the_same_compiler_throws_arrives_with_its_text(self) -> None:
        self.check_exceptions(self.throwing)

    @unittest.skipUnless(shutil.which("clang++"), "clang++ is not installed")
    def test_a_plugin_of_clang_works_and_what_it_throws_arrives_with_its_text(self) -> None:
        for options in ([], ["-fvisibility=hidden", "-O2"]):
            with self.subTest(options=options):
                self.check_exceptions(self.build_plugin("throwing.cpp", "clang++", *CPP, *options))

    def test_a_plugin_in_c_works(self) -> None:
        said = output_of(self.host, "use", self.plain)
        self.assertEqual(said, "plain: host 1, managed 0, stream 0, ipc 0, info 1\nthe data is right\n")

    def test_a_program_in_c_gets_statuses_and_whole_blocks(self) -> None:
        said = output_of(self.build_program("host.c", "gcc", *C), self.throwing)
        self.assertEqual(
            said.splitlines(),
            [
                f"1: status {UNSUPPORTED}: throwing does not do 1 byte",
                f"2: status {OUT_OF_MEMORY}: throwing has no 2 bytes left",
                f"3: status {DRIVER_FAILED}: 3 bytes are an odd size",
                f"4: status {HOST_OUT_OF_MEMORY}: the process itself is out of memory",
                f"5: status {DRIVER_FAILED}: the memory manager threw something that is no std::exception",
                f"6: status {DRIVER_FAILED}: the memory manager gave neither memory nor an error",
                "blocks are whole",
            ],
        )

    def test_two_plugins_that_name_their_class_alike_keep_apart(self) -> None:
        other = self.build_plugin("throwing.cpp", "g++", *CPP, '-DNAME="another"')
        names = re.findall(r"^(\w+): host", output_of(self.host, "use", self.throwing, other), re.MULTILINE)
        self.assertEqual(names, ["throwing", "another"])

    # --- other versions ---

    def test_a_plugin_of_another_interface_version_is_refused(self) -> None:
        plugin = self.build_plugin("plain.c", "gcc", *C, "-DINTERFACE_VERSION=2")
        said = self.refusal(plugin, BAD_CONFIGURATION)
        self.assertIn(str(plugin), said)
        self.assertIn("implements version 2 of the interface, this library has version 1", said)

    def test_an_older_table_is_accepted_and_lacks_what_it_is_too_short_for(self) -> None:
        for end, capabilities in {
            "VPMM_EMM_PLUGIN_LEAST_SIZE": "host 0, managed 0, stream 0, ipc 0, info 0",
            # In the middle of a slot: that one is not there.
            "(offsetof(vpmm_emm_plugin, get_memory_info) + 4)": "host 0, managed 0, stream 0, ipc 0, info 0",
            "offsetof(vpmm_emm_plugin, defer_cleanup_begin)": "host 0, managed 0, stream 0, ipc 0, info 1",
            "offsetof(vpmm_emm_plugin, allocate_host)": "host 0, managed 0, stream 0, ipc 0, info 1",
            "offsetof(vpmm_emm_plugin, get_ipc_handle)": "host 1, managed 0, stream 0, ipc 0, info 1",
        }.items():
            with self.subTest(end=end):
                said = output_of(self.host, "use", self.build_plugin("plain.c", "gcc", *C, f"-DTABLE_SIZE={end}"))
                self.assertEqual(said, f"plain: {capabilities}\nthe data is right\n")

    def test_a_newer_longer_table_is_accepted(self) -> None:
        plugin = self.build_plugin("plain.c", "gcc", *C, "-DTABLE_SIZE=(sizeof(vpmm_emm_plugin)+64)")
        self.assertIn("the data is right", output_of(self.host, "use", plugin))

    def test_a_table_that_is_too_short_is_refused(self) -> None:
        plugin = self.build_plugin("plain.c", "gcc", *C, "-DTABLE_SIZE=(VPMM_EMM_PLUGIN_LEAST_SIZE-1)")
        self.assertRegex(
            self.refusal(plugin, BAD_CONFIGURATION), r"table is \d+ bytes long, the shortest that there is has"
        )

    # --- mistakes ---

    def test_half_a_pair_of_slots_is_refused_by_the_names_of_both(self) -> None:
        for option, there, missing in (
            ("DEFERS=defer_cleanup_begin", "defer_cleanup_begin", "defer_cleanup_end"),
            ("DEFERS=defer_cleanup_end", "defer_cleanup_end", "defer_cleanup_begin"),
            ("LACKS=register_host", "allocate_host", "register_host"),
            ("LACKS=allocate_host", "register_host", "allocate_host"),
        ):
            with self.subTest(missing=missing):
                said = self.refusal(self.build_plugin("plain.c", "gcc", *C, f"-D{option}"), BAD_CONFIGURATION)
                self.assertIn(f"`plain` has `{there}` without `{missing}`", said)

    def test_a_table_that_ends_within_a_pair_of_slots_is_refused(self) -> None:
        end = "-DTABLE_SIZE=offsetof(vpmm_emm_plugin,register_host)"
        said = self.refusal(self.build_plugin("plain.c", "gcc", *C, end), BAD_CONFIGURATION)
        self.assertIn("has `allocate_host` without `register_host`", said)

    def test_a_slot_that_must_be_there_is_named_when_it_is_not(self) -> None:
        for slot in ("create", "destroy", "last_error", "initialize", "reset", "allocate", "release"):
            with self.subTest(slot=slot):
                said = self.refusal(self.build_plugin("plain.c", "gcc", *C, f"-DLACKS={slot}"), BAD_CONFIGURATION)
                self.assertIn(f"`plain` lacks `{slot}`", said)

    def test_a_missing_file_is_named(self) -> None:
        path = self.scratch / "no_such_file.so"
        said = self.refusal(path, BAD_FILE)
        self.assertIn(str(path), said)
        self.assertIn("No such file", said)

    def test_a_file_that_is_no_library_is_named(self) -> None:
        path = self.scratch / "text.so"
        path.write_text("no library")
        self.assertIn(str(path), self.refusal(path, BAD_FILE))

    def test_a_library_without_the_symbol_is_refused(self) -> None:
        plugin = self.build_text("int nothing_to_see = 1;\n")
        said = self.refusal(plugin, BAD_CONFIGURATION)
        self.assertIn(f"{plugin} is no memory manager: it has no symbol vpmm_emm_plugin_v1", said)

    def test_a_library_whose_symbol_gives_null_is_refused(self) -> None:
        plugin = self.build_text(
            "#include <vpmm/emm.h>\nconst VPMM_API vpmm_emm_plugin* vpmm_emm_plugin_v1(void) { return NULL; }\n"
        )
        self.assertIn(f"{plugin} gave no plugin", self.refusal(plugin, BAD_CONFIGURATION))

    # --- which one a process uses ---

    def test_the_variable_names_the_plugin_of_new_contexts(self) -> None:
        self.assertIn("plain: host 1", output_of(self.host, "use-default", VPMM_MEMORY_MANAGER=str(self.plain)))

    def test_a_bare_file_name_in_the_variable_is_one_in_the_working_folder(self) -> None:
        command = f"cd {self.plain.parent} && {self.host} use-default"
        self.assertIn("plain: host 1", output_of("sh", "-c", command, VPMM_MEMORY_MANAGER=self.plain.name))

    def test_the_variable_takes_the_names_of_those_that_are_built_in(self) -> None:
        for name in ("vpmm", "stream_ordered", "default"):
            with self.subTest(name=name):
                said = output_of(self.host, "use-default", VPMM_MEMORY_MANAGER=name)
                self.assertIn(f"{name}: host 1, managed 1", said)
                self.assertIn("the data is right", said)

    def test_a_wrong_path_in_the_variable_is_an_error_that_names_both(self) -> None:
        done = run(self.host, "use-default", VPMM_MEMORY_MANAGER="/no/such/plugin.so")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"refused with {BAD_FILE}: VPMM_MEMORY_MANAGER=/no/such/plugin.so: ", done.stdout)

    def test_without_the_variable_the_setter_counts_for_new_contexts_only(self) -> None:
        done = run(self.host, "exchange")
        self.assertEqual((done.stdout, done.stderr), ("before: vpmm, after: own\n", ""))

    def test_with_the_variable_the_setter_warns_and_does_nothing(self) -> None:
        done = run(self.host, "exchange", VPMM_MEMORY_MANAGER=str(self.plain))
        self.assertEqual(done.stdout, "before: plain, after: plain\n")
        warning = f"vpmm: warning: set_memory_manager does nothing: VPMM_MEMORY_MANAGER={self.plain} is set\n"
        self.assertEqual(done.stderr, warning)


if __name__ == "__main__":
    unittest.main()
