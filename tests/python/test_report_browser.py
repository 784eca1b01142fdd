# SPDX-License-Identifier: Apache-2.0
"""tests: the page of a report in a browser: it draws, it answers to pointer and slider, and nothing goes wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
import unittest
import unittest.mock
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from vpmm import convert
from vpmm.recordings import Event, Kind, Recording
from vpmm.reporting import Story, page_of, page_of_gpus, page_of_two, stories_of, timeline, write_page
from vpmm.units import bytes_text

from report_case import PAGE, Maker, leaking, recording_of, serving, training, two_gpus

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
TRACE = Path(__file__).resolve().parents[2] / "bench" / "traces" / "serve_streams.csv.gz"
WIDTH, HEIGHT = 1280, 1500
PATIENCE = 20  # seconds, on a busy machine


def grains() -> Recording:
    """Two allocations that end within a page, and a small one."""
    grain = PAGE // 32
    return recording_of(
        Event(Kind.MAP, 0, 0, 8 * PAGE, 1),
        Event(Kind.ALLOCATE, 0, 0, PAGE + 1, PAGE + grain),
        Event(Kind.ALLOCATE, 0, PAGE + grain, 3 * PAGE - 1, 3 * PAGE + grain),
        Event(Kind.ALLOCATE, 0, 7 * PAGE + 4096, 512, 512),
        grain=grain,
    )


def chunks() -> Recording:
    """Two chunks, one of which is used in part."""
    return recording_of(
        Event(Kind.MAP, 0, 0, 4 * PAGE, 1),
        Event(Kind.MAP, 0, 4 * PAGE, 4 * PAGE, 1),
        Event(Kind.ALLOCATE, 0, 0, PAGE, PAGE),
    )


def axe() -> str:
    """The path of axe-core's script, from AXE_SCRIPT or a package that has it; empty: there is none."""
    named = os.environ.get("AXE_SCRIPT", "")
    package = importlib.util.find_spec("axe_playwright_python")
    if not named and package is not None and package.origin is not None:
        named = str(Path(package.origin).with_name("axe.min.js"))
    return named if named and Path(named).exists() else ""


AXE = axe()
FIND = """
const done = arguments[0];
const isSerious = (each) => ["serious", "critical"].includes(each.impact);
axe.run().then((found) => done(found.violations.filter(isSerious)
  .map((each) => [each.id, each.nodes[0].html.slice(0, 200)])));
"""
# The words that are on more than one line.
TORN_WORDS = """
const torn = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  if (node.parentElement.closest("script, svg, pre, [hidden], thead, option")) continue;
  for (const word of node.data.matchAll(/[^\\s\\-\\/]{2,30}/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((each) => each.top)).size > 1) torn.push(word[0]);
  }
}
return torn;
"""


def why_not() -> str:
    """Empty: there is a browser that can be driven."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    if CHROMIUM is None or DRIVER is None:
        return "chromium or chromedriver is not installed"
    return ""


def opened(*arguments: str) -> Any:  # noqa: ANN401  selenium's driver
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for each in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        *arguments,
    ):
        options.add_argument(each)
    options.add_argument(f"--window-size={WIDTH},{HEIGHT}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(str(DRIVER)))


@unittest.skipIf(why_not(), why_not())
class Browser(unittest.TestCase):
    browser: ClassVar[Any]
    folder: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        cls.browser = opened()
        cls.addClassCleanup(cls.browser.quit)
        for name, recording in (
            ("training", training()),
            ("serving", serving()),
            ("grains", grains()),
            ("chunks", chunks()),
        ):
            write_page(page_of(Story(recording)), cls.folder / f"{name}.html")
        write_page(page_of(Story(leaking())), cls.folder / "leaking.html")
        write_page(page_of(Story(convert.load(TRACE))), cls.folder / "csv.html")
        write_page(page_of_two(Story(training(2)), Story(training())), cls.folder / "two.html")
        write_page(page_of_gpus(stories_of(two_gpus())), cls.folder / "gpus.html")
        write_page(page_of(Story(Maker(PAGE).recording)), cls.folder / "empty.html")
        named = training(2)
        named.header["command"] = ["python", "/*SCRIPT*/", "/*COLUMNS*/", "</script>", "/*DATA*/"]
        write_page(page_of(Story(named)), cls.folder / "named.html")
        with unittest.mock.patch.multiple(timeline, MOST_EVENTS=1000, PARTS=50):
            write_page(page_of(Story(training())), cls.folder / "reduced.html")

    def key(self, selector: str, *keys: str) -> None:
        self.script(f"document.querySelector({selector!r}).focus()")
        self.key_here(*keys)

    def key_here(self, *keys: str) -> None:
        for each in keys:
            event = f"new KeyboardEvent('keydown', {{key: {each!r}, bubbles: true, cancelable: true}})"
            self.script(f"document.activeElement.dispatchEvent({event})")

    def show(self, name: str) -> None:
        self.browser.get((self.folder / f"{name}.html").as_uri())
        self.until(lambda: self.count("body[data-ready] #timeline path.curve") > 0)
        self.addCleanup(self.nothing_went_wrong)

    def test_a_recording_without_an_allocation_has_a_whole_page(self) -> None:
        self.browser.get((self.folder / "empty.html").as_uri())
        self.until(lambda: self.count("body[data-ready]") > 0)
        self.nothing_went_wrong()

    def test_a_text_that_looks_like_a_place_of_the_page_is_a_text(self) -> None:
        self.show("named")
        self.assertIn(
            "/*SCRIPT*/ /*COLUMNS*/ '</script>' /*DATA*/".replace("'", ""),
            self.script("return document.querySelector('h1').textContent.replaceAll(\"'\", '')"),
        )

    def test_the_curve_is_drawn_before_the_page_has_come_to_its_end(self) -> None:
        page = page_of(Story(training(2)))
        cut = self.folder / "cut.html"
        cut.write_text(page[: page.index('<script type="text/plain" id="columns">')])
        self.addCleanup(self.browser.get_log, "browser")  # the rest is missed
        self.browser.get(cut.as_uri())
        self.until(lambda: self.count("#timeline path.curve") == 4)

    def nothing_went_wrong(self) -> None:
        self.assertEqual(self.browser.get_log("browser"), [])

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_so():
            self.assertLess(time.monotonic(), end, "it did not come to be")
            time.sleep(0.05)

    def script(self, code: str) -> Any:  # noqa: ANN401  JSON
        return self.browser.execute_script(code)

    def count(self, selector: str) -> int:
        return int(self.script(f"return document.querySelectorAll({selector!r}).length"))

    def text(self, selector: str) -> str:
        return str(self.script(f"return document.querySelector({selector!r}).textContent"))

    def texts(self, selector: str) -> list[str]:
        return list(self.script(f"return [...document.querySelectorAll({selector!r})].map((each) => each.textContent)"))

    def pointer(self, selector: str, *places: float, press: bool = False) -> None:
        """Moves to each place, as a part of the element's width; `press`: from the first to the last."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.by import By

        target = self.browser.find_element(By.CSS_SELECTOR, selector)
        self.script(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        width = target.rect["width"]
        actions = ActionChains(self.browser, duration=10)
        for number, place in enumerate(places):
            actions.move_to_element_with_offset(target, round((place - 0.5) * width), 0)
            if press and number == 0:
                actions.click_and_hold()
        if press:
            actions.release()
        actions.perform()

    def test_the_axes_have_values_and_every_curve_is_drawn(self) -> None:
        self.show("training")
        self.assertIn("1 GiB", self.texts("#timeline text.y"))
        self.assertIn("500 ms", self.texts("#timeline text.x"))
        self.assertEqual(self.count("#timeline path.curve"), 4)
        self.assertEqual(self.count("#timeline line.failure"), 1)
        self.assertIn("step 0", self.texts("#timeline text.mark"))

    def test_the_pointer_shows_values(self) -> None:
        self.show("training")
        self.pointer("#timeline", 0.5)
        shown = self.text("#tip")
        for name in ("live", "mapped", "pending", "free"):
            self.assertRegex(shown, rf"{name}  \d")

    def test_a_drag_zooms_and_a_double_click_goes_back(self) -> None:
        self.show("training")
        before = self.texts("#timeline text.x")
        self.pointer("#timeline", 0.4, 0.45, 0.5, press=True)
        self.assertNotEqual(self.texts("#timeline text.x"), before)
        self.script("document.querySelector('#timeline').dispatchEvent(new MouseEvent('dblclick'))")
        self.assertEqual(self.texts("#timeline text.x"), before)

    def test_the_slider_changes_the_notation(self) -> None:
        self.show("training")
        move = "const s = document.querySelector('#moment'); s.value = {}; s.dispatchEvent(new Event('input'))"
        seen = []
        for event in (3, 200, 1500):
            self.script(move.format(event))
            seen.append(self.text("#notation"))
        self.assertEqual(len(set(seen)), 3)
        self.assertRegex(seen[0], r"^\[\d+\]$")
        self.assertRegex(seen[2], r"\[\*16\].*\[-\d+\]")

    def test_the_notation_has_bytes_where_there_are_no_whole_pages(self) -> None:
        self.show("grains")
        self.script("const s = document.querySelector('#moment'); s.value = 3; s.dispatchEvent(new Event('input'))")
        self.assertEqual(self.text("#notation"), "[2.06MiB][6.06MiB][-5.88MiB][1]")
        told = (
            "After event 4 of 4: requested 8.00 MiB; taken 10.13 MiB; free 5.88 MiB in 1 pieces, the largest 5.88 MiB"
        )
        self.assertIn(f"{told}, trapped 5.88 MiB; old", self.text("#map-told"))

    def test_memory_is_trapped_only_in_chunks_that_are_used(self) -> None:
        self.show("chunks")
        self.script("const s = document.querySelector('#moment'); s.value = 2; s.dispatchEvent(new Event('input'))")
        self.assertEqual(self.text("#notation"), "[1][-7]")
        self.assertIn("free 14.00 MiB in 1 pieces, the largest 14.00 MiB, trapped 6.00 MiB", self.text("#map-told"))

    def test_the_address_map_names_what_is_under_the_pointer(self) -> None:
        self.show("training")
        self.script("document.querySelector('#map').scrollIntoView()")
        self.pointer("#map", 0.02)
        self.assertRegex(self.text("#tip"), r"at 0x7f\w+")

    def test_the_failure_is_told_with_its_report(self) -> None:
        self.show("training")
        self.assertIn("out of device memory", self.text("#failures pre.report"))
        self.assertIn("Out of memory: 1 request did not fit", self.texts(".advice b"))

    def test_a_band_names_its_allocation_under_the_pointer_and_for_the_keyboard(self) -> None:
        self.show("training")
        self.assertIn("373 allocations of this window are bands", self.text("#bands-told"))
        self.pointer("#bands-over", 0.5)
        shown = self.text("#tip")
        for part in (
            r"^\d+\.\d\d MiB requested",
            r"allocated at .*, event \d",
            "never freed",
            "tag optimizer",
            "train.py:20",
        ):
            self.assertRegex(shown, part)
        self.key("#bands-over", "End", "ArrowUp", "ArrowUp")
        told = self.script("return document.querySelector('#bands-over').getAttribute('aria-valuetext')")
        self.assertRegex(told, r"live in \d+ bands; \d+\.\d\d MiB requested, .*train\.py")
        self.assertIn("tag weights", self.text("#band"))

    def test_the_smaller_allocations_are_one_band_that_counts_them(self) -> None:
        page = (self.folder / "training.html").read_text().replace("MOST_BANDS = 2000", "MOST_BANDS = 20")
        (self.folder / "few.html").write_text(page)
        self.show("few")
        self.assertIn("353 smaller or shorter ones are the grey band", self.text("#bands-told"))

    def test_a_window_says_whether_all_of_its_events_are_drawn(self) -> None:
        self.show("training")
        self.assertIn("Every event of this window is drawn: 2,4", self.text("#timeline-told"))
        self.show("reduced")
        self.assertRegex(self.text("#timeline-told"), r"Simplified: 1 of [\d.]+ events is drawn")
        self.assertIn("Simplified", self.text("#bands-told"))

    def test_what_lived_at_any_moment_and_by_a_text(self) -> None:
        self.show("training")
        move = "const s = document.querySelector('#alive-moment'); s.value = {}; s.dispatchEvent(new Event('input'))"
        story = Story(training())
        for index in (60, 700, 2000):
            self.script(move.format(index))
            lives = story.alive(index)
            live = sum(each.event.bytes for each in lives)
            self.assertIn(
                f"{bytes_text(live)} requested in {len(lives)} allocations, after event", self.text("#alive-told")
            )
            self.assertEqual(self.script("return document.querySelector('#moment').value"), str(index))
        for text in ("WEIGHTS", "build_model"):
            self.script(
                f"const f = document.querySelector('#filter'); f.value = '{text}'; f.dispatchEvent(new Event('input'))"
            )
            self.assertIn("in 12 allocations of ", self.text("#alive-told"))

    def test_the_axis_has_round_numbers_that_are_true(self) -> None:
        self.show("training")
        self.assertEqual(
            self.script("return [1342177280, 2 ** 31, 0, 3 * 2 ** 19].map(roundText)"),
            ["1.25 GiB", "2 GiB", "0 B", "1.5 MiB"],
        )

    def test_two_recordings_have_two_curves_and_their_differences(self) -> None:
        self.show("two")
        self.assertEqual(
            self.texts("#time .legend"), ["python train.py --batch 24 (first)", "python train.py --batch 24 (second)"]
        )
        self.assertEqual(self.count("#timeline path.curve"), 2)
        self.pointer("#timeline", 0.5)
        self.assertRegex(self.text("#tip"), r"\(second\)  \d")
        self.assertEqual(self.texts("#differences td.label")[0], "requested, at the peak")
        self.script("document.querySelectorAll('#alive button')[2].click()")
        self.assertIn("activations", self.texts("#alive td.label"))

    def chosen(self, gpu: int) -> None:
        self.script(f"document.querySelectorAll('#gpus .row:last-child button')[{gpu}].click()")
        self.until(lambda: self.count("body[data-ready] #timeline path.curve") > 0)

    def test_several_gpus_have_a_curve_each_and_the_sections_follow_the_chosen_one(self) -> None:
        self.show("gpus")
        self.assertEqual(self.texts("#gpus .legend"), ["GPU 0", "GPU 1"])
        self.assertEqual(self.count("#gpus-timeline path.curve"), 2)
        sections = self.texts("h2")
        ends = [self.texts("#time text.x")[-1]]
        self.chosen(1)
        ends.append(self.texts("#time text.x")[-1])
        self.assertNotEqual(*ends)
        self.assertEqual((self.texts("h2"), self.texts("#nav a")), (sections, sections))
        self.assertIn("GPU 1", self.text("h1"))
        self.chosen(0)
        self.chosen(1)
        self.assertEqual(self.texts("h2"), sections)

    def test_the_gpus_share_the_moment(self) -> None:
        self.show("gpus")
        self.pointer("#gpus-timeline", 0.4, 0.4, press=True)
        told = [self.text("#alive-told")]
        at = "return document.querySelector('#gpus-timeline').getAttribute('aria-valuetext').split(',')[0]"
        before = self.script(at)
        self.assertRegex(before, r"^at \d+\.\d ms$")
        self.chosen(1)
        told.append(self.text("#alive-told"))
        self.assertNotEqual(*told)
        self.assertEqual(self.script(at), before)
        for text in told:  # the last event until then
            self.assertAlmostEqual(float(text.split()[-2]), float(before.split()[1]), delta=10)
        self.key("#gpus-timeline", "ArrowRight", "ArrowRight", "ArrowRight")
        self.assertNotEqual(self.script(at), before)
        self.key("#timeline", "End")
        self.assertIn("after event", self.text("#alive-told"))

    def test_a_gpu_that_is_chosen_while_another_is_drawn_is_the_one_that_is_shown(self) -> None:
        self.show("gpus")
        self.script("[0, 1, 0, 1].forEach((i) => document.querySelectorAll('#gpus .row:last-child button')[i].click())")
        self.until(lambda: self.count("body[data-ready] #timeline path.curve") > 0)
        self.assertEqual(self.count("#time"), 1)
        self.assertIn("GPU 1", self.text("h1"))

    def test_the_curve_answers_to_the_keyboard(self) -> None:
        self.show("training")
        before = self.texts("#timeline text.x")
        self.key("#timeline", "Home", "ArrowRight")
        self.assertIn(
            "event 2, live", self.script("return document.querySelector('#timeline').getAttribute('aria-valuetext')")
        )
        self.key("#timeline", "+", "+")
        self.assertNotEqual(self.texts("#timeline text.x"), before)
        self.key("#timeline", "0")
        self.assertEqual(self.texts("#timeline text.x"), before)

    def test_each_way_to_look_at_what_lives_draws_something(self) -> None:
        self.show("serving")
        names = self.texts("#alive .row .row:last-child button")
        self.assertEqual(names, ["by size", "by stack", "by stream", "by tag", "by thread", "flame graph"])
        for number in range(len(names)):
            self.script(f"document.querySelectorAll('#alive .row .row:last-child button')[{number}].click()")
            self.assertGreater(self.count("#treemap rect.cell"), 1, names[number])

    def test_light_and_dark_are_readable(self) -> None:
        self.show("serving")
        seen = set()
        for _ in range(2):
            self.script("document.querySelector('#theme').click()")
            back, ink = self.script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
            brightness = [sum(map(int, each[4:-1].split(", "))) for each in (back, ink)]
            self.assertGreater(abs(brightness[0] - brightness[1]), 400)
            seen.add(back)
        self.assertEqual(len(seen), 2)

    def narrow(self) -> None:
        size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.addCleanup(self.browser.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})

    def test_a_narrow_window_needs_no_scrolling_sideways(self) -> None:
        self.narrow()
        for name in ("gpus", "training"):
            self.show(name)
            self.assertLessEqual(*self.script("return [document.body.scrollWidth, innerWidth]"))
        self.assertLess(self.script("return document.querySelector('#title').getBoundingClientRect().top"), 100)

    def test_a_narrow_window_tears_no_word(self) -> None:
        self.narrow()
        for name in ("training", "serving", "leaking", "csv", "gpus"):
            self.show(name)
            for way in self.texts("#alive .row .row:last-child button"):
                self.script(
                    f"[...document.querySelectorAll('#alive button')].find((b) => b.textContent === '{way}').click()"
                )
                self.assertEqual(self.script(TORN_WORDS), [], (name, way))

    def is_theme(self, name: str) -> bool:
        return bool(self.script("return document.documentElement.dataset.theme") == name)

    def test_the_theme_follows_the_system_also_while_the_page_is_open(self) -> None:
        self.show("training")
        for theme in ("dark", "light"):
            features = [{"name": "prefers-color-scheme", "value": theme}]
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            self.until(partial(self.is_theme, theme))
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_what_scrolls_takes_the_focus_and_what_is_pressed_says_so(self) -> None:
        self.show("training")
        scrolling = (
            "[...document.querySelectorAll('.scroll, pre')].filter((each) => each.tabIndex < 0 || !each.ariaLabel)"
        )
        self.assertEqual(self.script(f"return {scrolling}.length"), 0)
        self.assertNotIn("", self.texts("th"))
        pressed = "return [...document.querySelectorAll('#time button[aria-pressed]')].map((each) => each.ariaPressed)"
        self.assertEqual(self.script(pressed), ["true"] * 4 + ["true", "false"])
        self.script("document.querySelector('#time button').click()")
        self.assertEqual(self.script(pressed)[0], "false")
        told = self.script("return document.querySelector('#moment').getAttribute('aria-valuetext')")
        self.assertRegex(told, r"^after event 2,4\d\d of 2,444, at 1\.\d+ s, 2\.18 GiB live$")

    def test_a_call_of_the_flame_graph_is_a_button_for_the_keyboard(self) -> None:
        self.show("training")
        before = self.count("#treemap rect")
        self.script("document.querySelectorAll('#treemap rect')[2].focus()")
        self.key_here("Enter")
        self.assertLess(self.count("#treemap rect"), before)

    @unittest.skipUnless(AXE, "no axe.min.js: AXE_SCRIPT names none, and axe-playwright-python is not installed")
    def test_axe_has_no_serious_finding(self) -> None:
        for name in ("training", "serving", "csv", "two", "gpus"):
            self.show(name)
            self.script(Path(AXE).read_text(encoding="utf-8"))
            for theme in ("light", "dark"):
                if self.script("return document.documentElement.dataset.theme") != theme:
                    self.script("document.querySelector('#theme').click()")
                self.assertEqual(self.browser.execute_async_script(FIND), [], (name, theme))


if __name__ == "__main__":
    unittest.main()
