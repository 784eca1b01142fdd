# SPDX-License-Identifier: Apache-2.0
"""tests: the chunk policy's picture and the README's words about its code, with default settings on the simulator."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from program import output_of

POLICY = (Path(__file__).resolve().parents[2] / "docs/design/chunk-policy.md").read_text()
PICTURE = re.compile(r"^  (\[[-~*\d\[\]]+\])", re.MULTILINE)
DRAWN = """
import vpmm
PAGE = 2 << 20
SIGNS = {"allocated": "", "free": "-", "zombie": "~", "hole": "*"}
pool = vpmm.Pool(0)
def draw():
    regions = pool.snapshot()[:-1]  # behind them is the rest of the reservation
    print("".join(f"[{SIGNS[region.state]}{region.bytes // PAGE}]" for region in regions))
    assert pool.statistics()["mapped_bytes"] == 16 * PAGE
    assert pool.statistics()["host_waits"] == pool.statistics()["gpu_waits"] == pool.statistics()["pauses"] == 0
buffers = [pool.allocate(4 * PAGE, 0) for _ in range(4)]
pool.deallocate(buffers[0], 0)
pool.deallocate(buffers[2], 0)
draw()
pool.allocate(8 * PAGE, 0)
draw()
pool.synchronize()
draw()
"""
REUSED = """
import vpmm
pool = vpmm.Pool.default()
assert pool == vpmm.Pool.default(0)
pool.deallocate(pool.allocate(3 << 30, 0), 0)
pool.allocate(4 << 30, 0)
statistics = vpmm.stats()
print(statistics["mapped_bytes"] >> 30, statistics["bytes_moved"], statistics["host_waits"])
"""


class Readme(unittest.TestCase):
    def test_its_picture_is_what_the_default_does(self) -> None:
        self.assertEqual(output_of(DRAWN).splitlines(), PICTURE.findall(POLICY))

    def test_a_larger_request_takes_what_was_freed_and_only_the_rest_anew(self) -> None:
        self.assertEqual(output_of(REUSED), "4 0 0\n")


if __name__ == "__main__":
    unittest.main()
