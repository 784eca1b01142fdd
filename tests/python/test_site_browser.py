# SPDX-License-Identifier: Apache-2.0
"""tests: pages of the site of ./dev docs in a browser, narrow and wide, light and dark, with axe."""

from __future__ import annotations

import functools
import http.server
import threading
import unittest
from pathlib import Path
from typing import Any, ClassVar

from test_report_browser import AXE, FIND, opened, why_not

SITE = Path(__file__).resolve().parents[2] / "build/site"
# One of each kind: commands, prose and tables, a notebook, a generated reference, a picture, a page that is not there.
PAGES = ["", "guides/pytorch/", "tutorials/arrays/", "reference/api/emm_hpp/", "bench/results/torch-programs/"]
PAGES += ["404.html"]
# As on a desk: the theme gives code that scrolls the focus where there is a pointer.
POINTER = "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@unittest.skipIf(why_not(), why_not())
@unittest.skipUnless(AXE, "no axe.min.js: AXE_SCRIPT names none, and axe-playwright-python is not installed")
@unittest.skipUnless(SITE.exists(), "no build/site: ./dev docs makes it")
class Site(unittest.TestCase):
    browser: ClassVar[Any]
    address: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.address = f"http://127.0.0.1:{server.server_port}"
        cls.browser = opened(POINTER)
        cls.addClassCleanup(cls.browser.quit)
        cls.browser.set_script_timeout(120)

    def looks_well(self, width: int, theme: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for page in PAGES:
            with self.subTest(page=page):
                self.browser.get(f"{self.address}/{page}")
                scheme = self.browser.execute_script("return document.body.dataset.mdColorScheme")
                self.assertEqual(scheme, {"light": "default", "dark": "slate"}[theme])
                wide = self.browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
                self.assertLessEqual(*wide)
                self.browser.execute_script(Path(AXE).read_text(encoding="utf-8"))
                self.assertEqual(self.browser.execute_async_script(FIND), [])

    def test_a_wide_light_page_has_no_serious_finding(self) -> None:
        self.looks_well(1280, "light")

    def test_a_wide_dark_page_has_no_serious_finding(self) -> None:
        self.looks_well(1280, "dark")

    def test_a_narrow_light_page_has_no_serious_finding(self) -> None:
        self.looks_well(400, "light")

    def test_a_narrow_dark_page_has_no_serious_finding(self) -> None:
        self.looks_well(400, "dark")


if __name__ == "__main__":
    unittest.main()
