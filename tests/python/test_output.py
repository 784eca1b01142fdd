# SPDX-License-Identifier: Apache-2.0
"""tests: files that the package writes: regular ones are replaced whole, everything else is written to."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import IO

from vpmm._output import save

from convert_case import ConvertCase

TRACE = "op,id,bytes,stream,time_us\na,0,100,0,0\nf,0,0,0,1\n"


def put(content: bytes) -> Callable[[IO[bytes]], object]:
    return lambda file: file.write(content)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Output(ConvertCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(os.umask, os.umask(0o022))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def test_a_new_file_has_the_mode_that_the_umask_leaves(self) -> None:
        os.umask(0o027)
        self.assertEqual(save(self.folder / "new", put(b"content")), 7)
        self.assertEqual((mode_of(self.folder / "new"), self.names()), (0o640, ["new"]))

    def test_a_private_file_stays_private(self) -> None:
        path = self.file(b"old", "secret")
        path.chmod(0o600)
        save(path, put(b"new"))
        self.assertEqual((path.read_bytes(), mode_of(path)), (b"new", 0o600))

    def test_links_are_written_through(self) -> None:
        target = self.file(b"old", "target")
        (self.folder / "link").symlink_to("target")
        (self.folder / "second").symlink_to(self.folder / "link")
        for name in ("link", "second"):
            save(self.folder / name, put(name.encode()))
            self.assertTrue((self.folder / name).is_symlink())
            self.assertEqual(target.read_bytes(), name.encode())

    def test_a_link_to_nothing_makes_what_it_names(self) -> None:
        (self.folder / "link").symlink_to("target")
        save(self.folder / "link", put(b"new"))
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertEqual((self.folder / "target").read_bytes(), b"new")

    def test_a_file_with_two_names_keeps_both(self) -> None:
        path = self.file(b"older and longer", "one")
        os.link(path, self.folder / "two")
        save(path, put(b"new"))
        self.assertEqual((self.folder / "two").read_bytes(), b"new")
        self.assertEqual(self.names(), ["one", "two"])

    def test_a_pipe_gets_the_content_and_stays(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.start()
        self.assertIsNone(save(pipe, put(b"content")))
        reader.join(60)
        self.assertEqual(read, [b"content"])
        self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))

    def test_a_device_stays_a_device(self) -> None:
        device = self.folder / "null"
        try:
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            device.write_bytes(b"")
        except OSError:
            self.skipTest("this user may make no device")
        self.assertIsNone(save(device, put(b"content")))
        self.assertTrue(stat.S_ISCHR(device.stat().st_mode))

    def test_what_cannot_be_written_is_an_error_that_names_it(self) -> None:
        (self.folder / "loop").symlink_to("loop")
        for path, number in (
            (self.folder, errno.EISDIR),
            (self.folder / "loop", errno.ELOOP),
            (self.folder / "no" / "file", errno.ENOENT),
        ):
            with self.assertRaises(OSError) as raised:
                save(path, put(b"new"))
            self.assertEqual((raised.exception.errno, raised.exception.filename), (number, str(path)))

    def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(self) -> None:
        path = self.file(b"old", "one")
        os.link(path, self.folder / "two")

        def fail(file: IO[bytes]) -> None:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        for name in ("one", "three"):
            with self.assertRaises(OSError):
                save(self.folder / name, fail)
        self.assertEqual((path.read_bytes(), self.names()), (b"old", ["one", "two"]))

    def run_verb(self, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "vpmm", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, check=False, timeout=120)

    def test_every_verb_that_writes_keeps_links_and_modes_and_knows_standard_output(self) -> None:
        trace = self.file(TRACE, "in.csv")
        for verb in (["convert", "--to", "csv", trace], ["report", trace, "-o"]):
            target = self.file(b"old", "target")
            target.chmod(0o600)
            link = self.folder / "link"
            link.unlink(missing_ok=True)
            link.symlink_to("target")
            done = self.run_verb(*verb, link)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(link.is_symlink())
            self.assertGreater(target.stat().st_size, 3)
            self.assertEqual(mode_of(target), 0o600)
            piped = self.run_verb(*verb, "-")
            self.assertEqual(piped.returncode, 0, piped.stderr)
            self.assertEqual(piped.stdout, target.read_bytes())
            folder = self.run_verb(*verb, self.folder)
            self.assertEqual((folder.returncode, folder.stderr.count(b"\n")), (2, 1))
        self.assertEqual(self.names(), ["in.csv", "link", "target"])


if __name__ == "__main__":
    unittest.main()
