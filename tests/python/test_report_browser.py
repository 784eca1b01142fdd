"""tests: the page of `vpmm report` as a browser shows it: training, out of memory, several streams."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from vpmm.recordings import Recording
from vpmm.reporting import Story, page

from report_case import leaking, serving, training

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_LACK = (
    ("" if BROWSER else "there is no Chromium")
    or ("" if DRIVER else "there is no chromedriver")
    or ("" if importlib.util.find_spec("selenium") else "selenium is not installed")
)


def _started() -> Any:  # noqa: ANN401 - selenium may not be here
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    # Root has no sandbox, and containers have a small /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1240,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


@unittest.skipIf(_LACK, _LACK)
class Browser(unittest.TestCase):
    browser: Any
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.browser = _started()
        cls.addClassCleanup(cls.browser.quit)

    def open(self, recording: Recording, scheme: str = "light") -> None:
        path = self.folder / "report.html"
        page.write_page(Story(recording), path)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.browser.get(path.as_uri())
        self.wait_for("return document.querySelectorAll('#timeline path.curve').length > 0")

    def wait_for(self, script: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 10).until(lambda browser: browser.execute_script(script))

    def errors(self) -> list[str]:
        return [each["message"] for each in self.browser.get_log("browser") if each["level"] == "SEVERE"]

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.browser.execute_script(script, selector))

    def hover(self, selector: str) -> str:
        """Moves the pointer over the middle of an element; the text that appears beside it."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.by import By

        found = self.browser.find_element(By.CSS_SELECTOR, selector)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        ActionChains(self.browser).move_to_element(found).perform()
        self.wait_for("return !document.getElementById('tip').hidden")
        return str(self.browser.execute_script("return document.getElementById('tip').textContent"))

    def test_each_report_draws_its_curves_with_values_on_the_axes_and_no_error(self) -> None:
        for recording in (training(), serving(), leaking()):
            self.open(recording)
            self.assertEqual(self.errors(), [])
            self.assertGreaterEqual(len(self.texts("#timeline path.curve")), 2)
            sizes, times = self.texts("#timeline text.y"), self.texts("#timeline text.x")
            self.assertGreaterEqual(min(len(sizes), len(times)), 3)
            self.assertRegex(sizes[1], r"^[\d.]+ [KMG]iB$")
            self.assertRegex(times[1], r"^[\d.]+ (us|ms|s)$")
            self.assertGreater(len(self.texts("#treemap rect")), 1)

    def test_the_slider_changes_the_address_map_and_its_text(self) -> None:
        self.open(training())
        script = "return [document.getElementById('notation').textContent, document.getElementById('map').toDataURL()]"
        before = self.browser.execute_script(script)
        self.browser.execute_script(
            "const slider = document.getElementById('moment'); slider.value = 60;"
            "slider.dispatchEvent(new Event('input'))"
        )
        after = self.browser.execute_script(script)
        self.assertIn("After event 61 of", self.texts("#map-told")[0])
        self.assertNotEqual(before[0], after[0])
        self.assertNotEqual(before[1], after[1])

    def test_the_pointer_shows_values(self) -> None:
        self.open(training())
        self.assertRegex(self.hover("#timeline"), r"at [\d.]+ .*\nlive  [\d.]+ [KMG]iB\n")
        self.assertRegex(self.hover("#treemap rect.cell"), r"[\d.]+ [KMG]iB \(")
        self.assertRegex(self.hover("#map"), r" at 0x[0-9a-f]+")

    def test_a_failed_request_is_marked_and_told(self) -> None:
        self.open(training())
        self.assertGreater(len(self.texts("#timeline line.failure")), 0)
        self.assertIn("out of device memory", self.texts("#failures pre")[0])

    def test_the_dark_scheme_is_the_systems_until_the_button_changes_it(self) -> None:
        background = "return getComputedStyle(document.body).backgroundColor"
        self.open(serving())
        light = self.browser.execute_script(background)
        self.open(serving(), "dark")
        dark = self.browser.execute_script(background)
        self.assertNotEqual(light, dark)
        self.browser.execute_script("document.getElementById('theme').click()")
        self.assertEqual(self.browser.execute_script(background), light)
        self.assertEqual(self.errors(), [])

    def test_what_the_screen_shows_is_not_blank(self) -> None:
        self.open(serving())
        self.assertGreater(len(self.browser.get_screenshot_as_png()), 20_000)  # an empty page has less than 10,000


if __name__ == "__main__":
    unittest.main()
