# SPDX-License-Identifier: Apache-2.0
"""tests: the collector for Prometheus in docs/guides/looking-at-memory.md."""

from __future__ import annotations

import importlib.util
import os
import re
import unittest
from pathlib import Path

from program import PACKAGE_PARENT, output_of

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/looking-at-memory.md"
REGISTER = "REGISTRY.register(PoolCollector(0))\nstart_http_server(9400)\n"
COLLECT = """
REGISTRY.register(PoolCollector(0))
with vpmm.tag("weights"):
    vpmm.Pool.default().allocate(3 << 20, 0)
stats = vpmm.stats()
for name in (*GAUGES, *COUNTERS):
    sample = f"vpmm_{name}" + "_total" * (name in COUNTERS)
    assert REGISTRY.get_sample_value(sample, {"device": "0"}) == stats[name], name
print(int(REGISTRY.get_sample_value("vpmm_tag_live_bytes", {"device": "0", "tag": "weights"})))
"""


@unittest.skipIf(importlib.util.find_spec("prometheus_client") is None, "prometheus_client is not installed")
class Metrics(unittest.TestCase):
    def setUp(self) -> None:
        block = re.search(r"^```python\n(from prometheus_client.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        assert block is not None
        self.block = block[1]

    def output_of(self, code: str) -> str:
        return output_of(code, PYTHONPATH=os.pathsep.join([PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]))

    def test_the_collector_of_the_guide_exports_the_figures_of_pool_and_tags(self) -> None:
        self.assertIn(REGISTER, self.block)
        said = self.output_of(self.block.replace(REGISTER, COLLECT))
        self.assertEqual(said, "3145728\n")

    def test_registering_opens_no_pool(self) -> None:
        code = self.block.replace("start_http_server(9400)", "vpmm.configure(capacity='1GiB')")
        self.assertEqual(self.output_of(code), "")


if __name__ == "__main__":
    unittest.main()
