# SPDX-License-Identifier: Apache-2.0
"""tests: libraries that are compiled at their first use: who may read them, and what becomes of damaged ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pwd
import shutil
import stat
import threading
import unittest
from pathlib import Path
from unittest import mock

from vpmm.errors import Error
from vpmm.plugins import _building

from convert_case import ConvertCase

WHAT = "the library of a test"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _building_files(library: Path, content: bytes) -> list[tuple[Path, bytes]]:
    """What the cache holds of a library."""
    return [
        (library, content),
        (library.with_name(f"{library.name}.sha256"), hashlib.sha256(content).hexdigest().encode()),
    ]


class Cached(ConvertCase):
    def setUp(self) -> None:
        super().setUp()
        self.cache = self.folder / "image" / "cache"
        self.addCleanup(os.umask, os.umask(0o022))
        variables = mock.patch.dict(os.environ, VPMM_CACHE_DIR=str(self.cache), VPMM_LOG="error")
        variables.start()
        self.addCleanup(variables.stop)
        self.made = 0

    def make(self, library: Path) -> None:
        self.made += 1
        library.write_bytes(b"a library")

    def cached(self) -> Path:
        return _building.cached("plugin.so", self.make, WHAT)

    def test_is_made_once(self) -> None:
        self.assertEqual(self.cached(), self.cached())
        self.assertEqual(self.made, 1)

    def test_one_line_says_so_before_it_waits_unless_the_log_is_quiet(self) -> None:
        line = f"vpmm: {WHAT}: compiling it once, into {self.cache}\n"
        for level, said in (("", line), ("warning", line), ("error", ""), ("quiet", "")):
            shutil.rmtree(self.cache, ignore_errors=True)
            with contextlib.redirect_stderr(io.StringIO()) as error, mock.patch.dict(os.environ, VPMM_LOG=level):
                self.cached()
                self.cached()
            self.assertEqual(error.getvalue(), said)

    def test_is_made_anew_where_it_is_cut_empty_or_changed(self) -> None:
        library = self.cached()
        for damage in (b"", b"a lib", b"a librarY", b"a library and more"):
            library.write_bytes(damage)
            self.assertEqual(self.cached().read_bytes(), b"a library")
        library.with_name("plugin.so.sha256").write_bytes(b"\xff")
        self.assertEqual(self.cached().read_bytes(), b"a library")
        self.assertEqual(self.made, 6)

    def test_can_be_read_by_others_as_the_umask_allows(self) -> None:
        self.cached()
        self.assertEqual([mode_of(self.cache), mode_of(self.cache.parent)], [0o755, 0o755])
        self.assertEqual(mode_of(self.cache / "plugin.so.sha256"), 0o644)

    def test_in_the_home_is_private(self) -> None:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "home")):
            del os.environ["VPMM_CACHE_DIR"]
            self.assertEqual(mode_of(self.cached().parent), 0o700)

    def test_in_the_home_is_kept_whatever_the_umask_and_the_group_of_the_user(self) -> None:
        home = self.folder / "new" / "home"
        home.parent.mkdir()
        os.umask(0o002)
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(home)), self.of_group("users", []):
            del os.environ["VPMM_CACHE_DIR"]
            self.assertEqual(self.cached(), home / "vpmm" / "plugin.so")
        self.assertEqual([mode_of(folder) for folder in (home / "vpmm", home)], [0o700] * 2)

    def test_in_a_home_that_is_not_there_leaves_that_to_the_umask(self) -> None:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "data" / "new" / "cache")):
            del os.environ["VPMM_CACHE_DIR"]
            self.cached()
        modes = [mode_of(self.folder / name) for name in ("data", "data/new", "data/new/cache")]
        self.assertEqual(modes, [0o755, 0o755, 0o700])

    def test_of_one_process_alone_says_so(self) -> None:
        cache = self.home_with_a_library_of_a_stranger()
        cache.chmod(0o777)
        with contextlib.redirect_stderr(io.StringIO()) as error, mock.patch.dict(os.environ, VPMM_LOG=""):
            folder = self.cached().parent
        self.assertEqual(
            error.getvalue(),
            f"vpmm: {WHAT}: compiling it for this process alone, into {folder}: others may write to the cache, or none "
            "can; VPMM_CACHE_DIR names one\n",
        )

    def of_group(self, name: str, members: list[str]) -> contextlib.AbstractContextManager[object]:
        """All folders are of a group of this name."""
        return mock.patch.object(
            _building.grp, "getgrgid", lambda gid: mock.Mock(gr_name=name, gr_mem=members, gr_gid=gid)
        )

    def home_with_a_library_of_a_stranger(self) -> Path:
        """Its cache."""
        del os.environ["VPMM_CACHE_DIR"]
        home = self.folder / "home"
        os.environ["XDG_CACHE_HOME"] = str(home)
        (home / "vpmm").mkdir(parents=True, mode=0o700)
        for path, content in _building_files(home / "vpmm" / "plugin.so", b"a trap"):
            path.write_bytes(content)
        self.assertEqual(self.cached().read_bytes(), b"a trap")
        return home / "vpmm"

    def test_in_a_home_that_others_may_write_to_is_not_used(self) -> None:
        cache = self.home_with_a_library_of_a_stranger()
        for folder in (cache, cache.parent, self.folder):
            mode = mode_of(folder)
            folder.chmod(0o777)
            self.assertEqual(self.cached().read_bytes(), b"a library")
            folder.chmod(mode)
        for bits in (0o770, 0o2775, 0o720, 0o1770):  # also by the user's own group
            cache.chmod(bits)
            self.assertEqual(self.cached().read_bytes(), b"a library", f"{bits:o}")
            cache.chmod(0o700)
        self.folder.chmod(0o1777)  # as /tmp: what is in it stays its owner's
        self.assertEqual(self.cached().read_bytes(), b"a trap")

    def test_in_a_home_that_a_group_may_write_to_is_not_used_unless_it_is_the_users_own(self) -> None:
        cache = self.home_with_a_library_of_a_stranger()
        user = pwd.getpwuid(os.geteuid()).pw_name
        for folder in (cache.parent, self.folder):
            mode = mode_of(folder)
            for bits in (0o770, 0o2775):
                folder.chmod(bits)
                for name, members in (("users", []), (user, [user, "another"])):
                    with self.subTest(f"{folder} {bits:o} {name} {members}"), self.of_group(name, members):
                        self.assertEqual(self.cached().read_bytes(), b"a library")
                with mock.patch.object(_building.grp, "getgrgid", side_effect=KeyError):  # it has no name
                    self.assertEqual(self.cached().read_bytes(), b"a library")
                for members in ([], [user]):
                    with self.of_group(user, members):
                        self.assertEqual(self.cached().read_bytes(), b"a trap")
            folder.chmod(mode)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a folder to a group")
    def test_in_a_home_of_another_group_is_not_used_though_its_name_is_the_users(self) -> None:
        cache = self.home_with_a_library_of_a_stranger()
        os.chown(cache.parent, -1, 65534)
        with self.of_group(pwd.getpwuid(0).pw_name, []):
            self.assertEqual(self.cached().read_bytes(), b"a trap")
            cache.parent.chmod(0o770)
            self.assertEqual(self.cached().read_bytes(), b"a library")

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a folder away")
    def test_in_a_home_of_another_user_is_not_used(self) -> None:
        cache = self.home_with_a_library_of_a_stranger()
        for folder in (cache, cache.parent, self.folder):
            os.chown(folder, 65534, -1)
            self.assertEqual(self.cached().read_bytes(), b"a library")
            os.chown(folder, 0, -1)

    def test_is_made_by_one_of_several_threads(self) -> None:
        threads = [threading.Thread(target=self.cached) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(self.made, 1)

    @unittest.skipUnless(shutil.which("g++"), "there is no g++")
    def test_that_is_compiled_can_be_read_and_run_by_others(self) -> None:
        source = self.file("int main() {}\n", "source.cpp")
        for umask, mode in ((0o022, 0o755), (0o027, 0o750)):
            os.umask(umask)
            library = self.folder / f"made-{umask:o}.so"
            with mock.patch.object(_building, "LINK_VPMM", ()):
                _building.run_compiler([str(source)], library, WHAT, "build-test")
            self.assertEqual(mode_of(library), mode)
        self.file("int main( {}\n", "source.cpp")
        with self.assertRaisesRegex(Error, f"{WHAT} could not be built"):
            _building.run_compiler([str(source)], self.folder / "no.so", WHAT, "build-test")
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])


class Headers(ConvertCase):
    """Of the CUDA runtime, in a toolkit or in Python's packages."""

    def with_headers(self, folder: str, *names: str) -> Path:
        for name in names:
            (self.folder / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / folder / name).touch()
        return self.folder / folder

    def found(self, **variables: str) -> list[Path]:
        """With packages in the folder, and no toolkit beside that of the variables."""

        def find(package: str) -> mock.Mock:
            return mock.Mock(submodule_search_locations=[str(self.folder / package)])

        with (
            mock.patch.dict(os.environ, variables, clear=True),
            mock.patch.object(_building.importlib.util, "find_spec", find),
            mock.patch.object(_building.shutil, "which", return_value=None),
            mock.patch.object(_building, "TOOLKIT", self.folder / "none"),
        ):
            return _building.cuda_includes(WHAT)

    def test_of_two_packages_are_both_folders(self) -> None:
        runtime = self.with_headers("nvidia/cu13/include", "cuda_runtime_api.h")
        rest = self.with_headers("triton/backends/nvidia/include", "crt/host_defines.h")
        self.assertEqual(self.found(), [runtime, rest])

    def test_one_folder_with_both_is_enough(self) -> None:
        self.with_headers("triton/backends/nvidia/include", "cuda_runtime_api.h", "crt/host_defines.h")
        runtime = self.with_headers("nvidia/cu13/include", "cuda_runtime_api.h", "crt/host_defines.h")
        self.assertEqual(self.found(), [runtime])
        toolkit = self.with_headers("toolkit/include", "cuda_runtime_api.h", "crt/host_defines.h")
        self.assertEqual(self.found(CUDA_HOME=str(toolkit.parent)), [toolkit])

    def test_the_package_that_lacks_is_named(self) -> None:
        with self.assertRaisesRegex(Error, "cuda_runtime_api.h was not found.*pip install nvidia-cuda-runtime"):
            self.found()
        self.with_headers("nvidia/cu13/include", "cuda_runtime_api.h")
        with self.assertRaisesRegex(Error, "crt/host_defines.h was not found.*pip install nvidia-cuda-crt"):
            self.found()


if __name__ == "__main__":
    unittest.main()
