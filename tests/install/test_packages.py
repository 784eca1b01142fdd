# SPDX-License-Identifier: Apache-2.0
"""tests: the tarball and the Debian package that cpack makes of a build are enough for a program.

VPMM_BUILD_FOLDER names the build; the default is that of the dev preset.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
import unittest
from pathlib import Path

from test_install import BUILD, NO_GPU, ROOT, run

CLIENT = ROOT / "tests/install/c_client"


class Packages(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="vpmm-packages-")
        self.addCleanup(folder.cleanup)
        self.scratch = Path(folder.name)

    def package(self, generator: str, pattern: str) -> Path:
        fast = ["-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none"]
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", generator, "-B", self.scratch, *fast)
        (made,) = self.scratch.glob(pattern)
        return made

    def check(self, prefix: Path) -> None:
        """A program is built against it and runs, the command line runs, and debug information was left out."""
        build = self.scratch / "client"
        run("cmake", "-S", CLIENT, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", build)
        version = run(build / "c_client", environment=NO_GPU).split()[1]
        self.assertIn(version, run(prefix / "bin/vpmm", "--version", environment=NO_GPU))
        self.assertNotIn(".symtab", run("readelf", "-S", "--wide", prefix / "lib/libvpmm.so"))
        self.assertTrue((prefix / "share/doc/vpmm/LICENSE").is_file())
        self.assertTrue((prefix / "share/doc/vpmm/THIRD-PARTY-NOTICES").is_file())

    def test_a_program_is_built_against_the_unpacked_tarball(self) -> None:
        with tarfile.open(self.package("TGZ", "vpmm-*-Linux-*.tar.gz")) as file:
            file.extractall(self.scratch, filter="tar")
        (prefix,) = [path for path in self.scratch.glob("vpmm-*-Linux-*") if path.is_dir()]
        self.check(prefix)

    @unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is not here")
    def test_a_program_is_built_against_the_debian_package_which_names_what_it_needs(self) -> None:
        package = self.package("DEB", "vpmm_*.deb")
        run("dpkg-deb", "-x", package, self.scratch / "root")
        self.check(self.scratch / "root/usr")
        fields = dict(re.findall(r"^ ?([\w-]+): (.*)$", run("dpkg-deb", "-f", package), re.MULTILINE))
        self.assertEqual(fields["Package"], "vpmm")
        if shutil.which("dpkg-shlibdeps"):
            needed = {each.split()[0] for each in fields["Depends"].split(", ")}
            self.assertEqual(needed, {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"})


if __name__ == "__main__":
    unittest.main()
