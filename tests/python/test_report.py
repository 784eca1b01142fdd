# SPDX-License-Identifier: Apache-2.0
"""tests: what a report of a recording says: figures, the curve, who holds the memory, the page and the text."""

from __future__ import annotations

import json
import random
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from vpmm import recordings
from vpmm.recordings import Event, Frame, Kind
from vpmm.reporting import Story, compare, facts, gpus, page, stories_of, text_of
from vpmm.reporting.address_map import free_ranges
from vpmm.reporting.columns import Columns
from vpmm.reporting.compare import Difference
from vpmm.reporting.picture import picture_at, size_class
from vpmm.reporting.stacks import NO_LIBRARY, frame_text, library_of
from vpmm.reporting.story import NEVER
from vpmm.reporting.timeline import PARTS, timeline_of

from program import output_of, run
from report_case import MIB, PAGE, Maker, PageColumns, leaking, recording_of, serving, training, two_gpus

TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces"
# A tag sleeps in the pool, then one without a name gives its memory to the driver.
SLEEPER = """import os
import vpmm
pool = vpmm.Pool.default()
with vpmm.record(os.environ["RECORDED"]):
    for tag in ("weights", 7):
        with vpmm.tag(tag, suspendable=True):
            pool.allocate(3 << 20, 0)
        vpmm.suspend(tag, to_driver=tag == 7)
        vpmm.resume(tag)
"""


def json_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    made: dict[str, object] = json.loads(found.group(1))
    return made


class Walk(unittest.TestCase):
    def test_live_memory_is_that_of_a_plain_count(self) -> None:
        recording = serving()
        live: dict[int, int] = {}
        counted = []
        for event in recording.events:
            if event.kind is Kind.ALLOCATE:
                live[event.address] = event.bytes
            elif event.kind is Kind.FREE:
                del live[event.address]
            counted.append(sum(live.values()))
        story = Story(recording)
        self.assertEqual(list(story.series.live), counted)
        self.assertEqual((story.peak, story.peak_index), (max(counted), counted.index(max(counted))))
        self.assertEqual(sum(each.event.bytes for each in story.alive(story.peak_index)), max(counted))

    def test_mapped_follows_maps_and_is_what_samples_say(self) -> None:
        pool = Maker(64 * PAGE)
        for _ in range(4):
            pool.allocate(4 * PAGE)
        story = Story(pool.done())
        self.assertEqual((story.series.mapped[-1], story.peak_mapped, story.created), (16 * PAGE,) * 3)
        pool.sample()
        pool.recording.events[-1].address = 20 * PAGE
        self.assertEqual(Story(pool.done()).peak_mapped, 20 * PAGE)

    def test_free_memory_between_samples_follows_what_comes_and_goes(self) -> None:
        story = Story(
            recording_of(
                Event(Kind.SAMPLE, 0),
                Event(Kind.MAP, 1, 0x1000 * PAGE, 3 * PAGE, 1),
                Event(Kind.ALLOCATE, 2, 0x1000 * PAGE, 5 * MIB, 3 * PAGE),
                Event(Kind.FREE, 3, 0x1000 * PAGE, 5 * MIB),
                Event(Kind.SAMPLE, 4, 3 * PAGE, 0, 2 * PAGE),
                Event(Kind.UNMAP, 5, 0x1000 * PAGE, 3 * PAGE, 1),
            )
        )
        self.assertEqual([each // PAGE for each in story.series.free], [0, 0, 0, 3, 2, 0])

    def test_an_address_that_is_allocated_twice_ends_the_first(self) -> None:
        story = Story(recording_of(Event(Kind.ALLOCATE, 0, 1, 10), Event(Kind.ALLOCATE, 0, 1, 20)))
        self.assertEqual((story.live_at_end, story.peak, len(story.alive(1))), (20, 20, 1))

    def test_a_free_of_what_is_not_known_changes_nothing(self) -> None:
        story = Story(recording_of(Event(Kind.FREE, 0, 1, 10), Event(Kind.ALLOCATE, 0, 2, 5)))
        self.assertEqual((story.live_at_end, story.frees), (5, 0))

    def test_what_lived_when_the_recording_began_counts_and_is_no_allocation(self) -> None:
        story = Story(recording_of(Event(Kind.LIVE, 0, 1, 10), Event(Kind.ALLOCATE, 0, 2, 5)))
        self.assertEqual((story.live_at_end, story.allocations), (15, 1))

    def test_a_move_leaves_an_old_address_until_it_is_unmapped(self) -> None:
        story = Story(
            recording_of(
                Event(Kind.MAP, 0, 0, PAGE, 1),
                Event(Kind.MAP, 0, PAGE, PAGE, 1),
                Event(Kind.MAP, 0, 8 * PAGE, 2 * PAGE),
                Event(Kind.MOVE, 0, 8 * PAGE, 2 * PAGE, 0),
                Event(Kind.UNMAP, 0, 0, 2 * PAGE),
            )
        )
        old = story.mappings[:2]
        self.assertEqual([(each.moved, each.end) for each in old], [(3, 4), (3, 4)])
        self.assertEqual([free_ranges(story, index) for index in (1, 3, 4)], [[2 * PAGE], [2 * PAGE], [2 * PAGE]])
        self.assertEqual(story.series.mapped[-1], 2 * PAGE)

    def test_of_several_devices_the_busiest_is_looked_at_or_the_one_that_is_named(self) -> None:
        events = [Event(Kind.ALLOCATE, 0, number, 100 + number, device=number % 3 // 2) for number in range(6)]
        recording = recording_of(*events)
        self.assertEqual((Story(recording).device, len(Story(recording).events)), (0, 4))
        self.assertEqual([each.bytes for each in Story(recording, 1).events], [102, 105])
        self.assertIn("devices 1, too", " ".join(facts.notes(Story(recording))))

    def test_what_was_free_at_a_failure_is_what_no_allocation_had_then(self) -> None:
        maps = [Event(Kind.MAP, 0, 0, 4 * PAGE, 1), Event(Kind.SAMPLE, 0, 4 * PAGE, 0, 4 * PAGE)]
        events = [*maps, Event(Kind.ALLOCATE, 0, PAGE, PAGE), Event(Kind.ALLOCATE_FAILED, 0, 0, 9 * PAGE)]
        story = Story(recording_of(*events))
        figures = dict(page.failure_figures(story, story.failures[0]))
        self.assertEqual((figures["free"], figures["largest free range"]), (3 * PAGE, 2 * PAGE))

    def test_a_report_and_the_failure_after_it_are_one(self) -> None:
        story = Story(training())
        (failure,) = story.failures
        self.assertEqual(story.events[failure.index].kind, Kind.ALLOCATE_FAILED)
        self.assertIn("out of device memory", failure.report)


class Pictures(unittest.TestCase):
    def test_free_ranges_are_what_is_mapped_and_nobodys(self) -> None:
        maps = [Event(Kind.MAP, 0, 0, 8 * PAGE, 1), Event(Kind.MAP, 0, 20 * PAGE, PAGE, 1)]
        events = [
            *maps,
            Event(Kind.ALLOCATE, 0, 2 * PAGE, PAGE + 1),
            Event(Kind.ALLOCATE, 0, 7 * PAGE + 512, 512),
            Event(Kind.ALLOCATE, 0, 7 * PAGE + 4096, 512),
        ]
        self.assertEqual(free_ranges(Story(recording_of(*events)), 4), [2 * PAGE, 3 * PAGE, PAGE])

    def test_an_allocation_over_two_chunks_leaves_the_rest(self) -> None:
        maps = [Event(Kind.MAP, 0, 0, 2 * PAGE, 1), Event(Kind.MAP, 0, 2 * PAGE, 2 * PAGE, 1)]
        story = Story(recording_of(*maps, Event(Kind.ALLOCATE, 0, PAGE, 2 * PAGE)))
        self.assertEqual(free_ranges(story, 2), [PAGE, PAGE])

    def test_free_ranges_begin_where_an_allocation_ends_within_a_page(self) -> None:
        grain = PAGE // 32
        events = [
            Event(Kind.MAP, 0, 0, 8 * PAGE, 1),
            Event(Kind.ALLOCATE, 0, 0, PAGE + 1, PAGE + grain),
            Event(Kind.ALLOCATE, 0, PAGE + grain, 3 * PAGE - 1, 3 * PAGE + grain),  # takes more than a grain can say
            Event(Kind.ALLOCATE, 0, 7 * PAGE + 4096, 512, 512),
        ]
        story = Story(recording_of(*events, grain=grain))
        self.assertEqual(free_ranges(story, 3), [3 * PAGE - 2 * grain])
        self.assertEqual(story.extent(events[2]), (PAGE + grain, 4 * PAGE + 2 * grain))
        self.assertEqual(PageColumns(page.page_of(story)).numbers("lives.rounding"), [grain - 1, grain + 1, 0])

    def test_groups_add_up_in_every_way(self) -> None:
        story = Story(training())
        picture = picture_at(story, story.peak_index, "peak")
        for way, groups in picture.groups.items():
            self.assertEqual(sum(each.bytes for each in groups), story.peak, way)
            self.assertEqual(sum(each.count for each in groups), picture.count, way)
        self.assertEqual({each.label for each in picture.groups["tag"]}, {"weights", "optimizer", "activations"})

    def test_a_recorded_library_comes_before_that_of_the_stack(self) -> None:
        recording = recording_of(
            Event(Kind.ALLOCATE, 0, 0, MIB, stack=1, flags=1),
            Event(Kind.ALLOCATE, 0, MIB, MIB, stack=1),
            Event(Kind.ALLOCATE, 0, 2 * MIB, MIB),
        )
        recording.stacks = {1: (Frame("/x/site-packages/torch/nn.py", 1, "f"),)}
        recording.libraries = {1: "cupy"}
        story = Story(recording)
        found = picture_at(story, 2, "end").groups["library"]
        self.assertEqual([each.label for each in found], ["cupy", NO_LIBRARY, "torch"])
        columns = PageColumns(page.page_of(story))
        texts = columns.texts("libraries")
        self.assertEqual([texts[each] for each in columns.numbers("lives.library")], ["cupy", "torch", NO_LIBRARY])

    def test_many_groups_end_in_one_line(self) -> None:
        recording = recording_of(
            *(Event(Kind.ALLOCATE, 0, number, number + 1, stack=number + 1) for number in range(90))
        )
        recording.stacks = {number: (Frame("a.py", number, "f"),) for number in range(1, 91)}
        groups = picture_at(Story(recording), 89, "end").groups["stack"]
        self.assertEqual((len(groups), groups[-1].label, groups[-1].count), (41, "50 others", 50))

    def test_size_classes_have_the_units_that_fit(self) -> None:
        for size, label in [(3 * MIB, "2 to 4 MiB"), (600 * MIB, "512 MiB to 1 GiB"), (10, "below 1 KiB")]:
            self.assertEqual(size_class(size.bit_length()), label)

    def test_requested_and_taken_bytes_have_different_words(self) -> None:
        story = Story(recording_of(Event(Kind.ALLOCATE, 0, 0, PAGE + 1, 2 * PAGE), Event(Kind.FREE, 0, 0)))
        told = {label: value for label, value, _ in facts.facts(story)}
        self.assertEqual((told["requested, at the peak"], told["taken, at most"]), ("2.00 MiB", "4.00 MiB"))
        self.assertIn("At most 2.00 MiB of requested memory lived", facts.summary(story))
        self.assertNotIn("taken, at most", {each[0] for each in facts.facts(Story(leaking()))})

    def test_leaks_are_named_oldest_first(self) -> None:
        found = facts.leaks(Story(leaking()))
        self.assertEqual([(each.count, each.bytes) for each in found], [(200, 400 * MIB)])
        self.assertIn("log_loss", found[0].label)


class Curves(unittest.TestCase):
    def test_a_long_curve_keeps_its_peaks_and_lows(self) -> None:
        rng = random.Random(2)
        live: list[int] = []
        events = []
        for number in range(60_000):
            if live and rng.random() < 0.5:
                events.append(Event(Kind.FREE, number * 1000, live.pop()))
            else:
                live.append(number + 1)
                events.append(Event(Kind.ALLOCATE, number * 1000, number + 1, rng.randrange(1, 1 << 24)))
        story = Story(recording_of(*events))
        line = timeline_of(story)
        self.assertLess(len(line.time_ns), 8 * PARTS)
        self.assertEqual((max(line.live), line.time_ns), (story.peak, sorted(line.time_ns)))
        part = len(events) // PARTS
        for begin in range(0, len(events), part):
            values = story.series.live[begin : begin + part]
            kept = [value for index, value in zip(line.index, line.live, strict=True) if begin <= index < begin + part]
            self.assertEqual((max(kept), min(kept)), (max(values), min(values)))
        self.assertIsNone(line.mapped)

    def test_a_recording_without_events_is_no_error(self) -> None:
        story = Story(recording_of())
        self.assertIn("Nothing happened", text_of(story))
        self.assertIn("Nothing happened", page.page_of(story))

    def test_everything_at_one_moment_is_no_error(self) -> None:
        events = [Event(Kind.ALLOCATE, 5, number, 10) for number in range(200)]
        story = Story(recording_of(*events))
        self.assertIn("2.00", text_of(story).replace("1.95", "2.00"))
        json_of(page.page_of(story))


class Pages(unittest.TestCase):
    def test_nothing_of_a_recording_is_read_as_html(self) -> None:
        recording = training(2)
        recording.header["command"] = ["</script><script>alert(1)</script>"]
        recording.strings = dict.fromkeys(recording.strings, "</script><b>")
        text = page.page_of(Story(recording))
        self.assertEqual(text.count("</script>"), 4)
        self.assertEqual(json_of(text)["title"], "script>")

    def test_the_page_asks_for_nothing_else(self) -> None:
        text = page.page_of(Story(training(2)))
        for word in (r"\bsrc=", r"<link[^>]*https?:", r"@import", r"\bfetch\(", r"XMLHttpRequest", r"url\("):
            self.assertIsNone(re.search(word, text), word)

    def test_a_long_recording_makes_a_page_of_bounded_size(self) -> None:
        events = []
        for number in range(150_000):
            events.append(
                Event(Kind.ALLOCATE, number * 2000, 512 * number, 512 + number % 4096, number, stack=number % 50_000)
            )
            if number % 3:
                events.append(Event(Kind.FREE, number * 2000 + 1, 512 * number))
        recording = recording_of(*events)
        recording.stacks = {number: (Frame(f"{number}.py", 1, "function"),) for number in range(50_000)}
        self.assertLess(len(page.page_of(Story(recording))), (15 << 20) * len(events) // 1_000_000)

    def test_what_the_page_draws_is_what_was_recorded(self) -> None:
        story = Story(training())
        text = page.page_of(story)
        base, grain = json_of(text)["map"]["lives"]  # type: ignore[index]
        columns = PageColumns(text)
        begins, ends = columns.sums("lives.begin"), columns.numbers("lives.end")
        shown = [
            (begin, begin + end - 1 if end else NEVER, base + grain * address, size)
            for begin, end, address, size in zip(
                begins, ends, columns.numbers("lives.address"), columns.numbers("lives.bytes"), strict=True
            )
        ]
        self.assertEqual(shown, [(each.begin, each.end, each.event.address, each.event.bytes) for each in story.lives])

    def test_the_page_has_the_figures_after_every_event(self) -> None:
        story = Story(serving())
        columns = PageColumns(page.page_of(story))
        for name, values in (("t", story.series.time_ns), ("live", story.series.live), ("mapped", story.series.mapped)):
            self.assertEqual(columns.sums(f"time.{name}"), list(values), name)
        free = [both - live for both, live in zip(columns.sums("time.free"), story.series.live, strict=True)]
        self.assertEqual(free, list(story.series.free))

    def test_a_recording_that_is_too_long_for_that_has_a_reduced_curve(self) -> None:
        story = Story(serving())
        line = timeline_of(story)
        with unittest.mock.patch("vpmm.reporting.timeline.MOST_EVENTS", len(story.events) - 1):
            columns = PageColumns(page.page_of(story))
        self.assertEqual((columns.sums("time.index"), columns.sums("time.live")), (line.index, line.live))

    def test_a_stack_of_the_page_is_a_node_under_its_callers(self) -> None:
        story = Story(training(2))
        columns = PageColumns(page.page_of(story))
        frames, parents, own = columns.texts("frames"), columns.numbers("nodes.parent"), columns.numbers("nodes.frame")
        for stack, node in zip(sorted({0, *story.recording.stacks}), columns.numbers("stacks.node"), strict=True):
            calls = []
            while node:
                calls.append(frames[own[node]])
                node = parents[node]
            self.assertEqual(calls, [frame_text(each) for each in story.recording.stacks.get(stack, ())])

    def test_columns_hold_numbers_of_any_size_and_texts_of_one_line(self) -> None:
        columns = Columns()
        columns.add("numbers", [0, 255, 256, (1 << 53) - 1])
        columns.add("none", [])
        columns.add("zeros", [0, 0])
        columns.add_differences("signed", [5, 5, -7, 1 << 40])
        columns.add_texts("texts", ["a\nb", "</script>\u00e9"])
        data = json.dumps({"columns": columns.shape})
        made = PageColumns(
            f'<script type="application/json" id="data">{data}</script>'
            f'<script type="text/plain" id="columns">{columns.text()}</script>'
        )
        self.assertEqual(made.numbers("numbers"), [0, 255, 256, (1 << 53) - 1])
        self.assertEqual((made.numbers("none"), made.numbers("zeros")), ([], [0, 0]))
        self.assertEqual(made.sums("signed"), [5, 5, -7, 1 << 40])
        self.assertEqual(made.texts("texts"), ["a b", "</script>\u00e9"])
        self.assertRaises(OverflowError, columns.add, "negative", [-1])

    def test_a_library_is_that_of_the_innermost_frame_that_is_not_vpmm_s(self) -> None:
        vpmm = Frame("/usr/lib/libvpmm.so.0", 0, "vpmm_allocate")
        for frame, library in (
            (Frame("/usr/lib/libcudf.so.25", 0, "join"), "libcudf"),
            (Frame("/x/site-packages/torch/nn/modules.py", 5, "forward"), "torch"),
            (Frame("/x/site-packages/six.py", 5, "f"), "six"),
            (Frame("/opt/pytorch/aten/src/ATen/a.cpp", 5, "empty"), "torch"),
            (Frame("/home/me/train.py", 5, "step"), "the program"),
        ):
            self.assertEqual(library_of((vpmm, frame)), library)
        self.assertEqual(library_of((vpmm,)), NO_LIBRARY)


class Nonsense(unittest.TestCase):
    def test_events_without_sense_make_a_report(self) -> None:
        for seed in range(40):
            rng = random.Random(seed)
            places = [rng.randrange(1 << 47) // 512 * 512 for _ in range(6)]
            events = [
                Event(
                    rng.choice(list(Kind)),
                    number * rng.randrange(2),
                    rng.choice(places),
                    rng.choice([0, 1, 512, PAGE, 1 << 40]),
                    rng.choice([0, 1, 7, rng.choice(places)]),
                    rng.choice([None, 0, 3]),
                    rng.randrange(3),
                    flags=rng.randrange(9),
                )
                for number in range(120)
            ]
            story = Story(
                recording_of(*sorted(events, key=lambda each: each.time_ns), page_size=rng.choice([0, -1, PAGE]))
            )
            with self.subTest(seed=seed):
                self.assertTrue(text_of(story))
                json_of(page.page_of(story))


class Comparisons(unittest.TestCase):
    def test_figures_and_groups_of_both_and_their_differences(self) -> None:
        def recording(size: int, *more: Event) -> Story:
            made = recording_of(
                Event(Kind.ALLOCATE, 0, 0, MIB, stack=1), Event(Kind.ALLOCATE, 0, PAGE, size, stack=2), *more
            )
            made.stacks = {1: (Frame("a.py", 1, "same"),), 2: (Frame("a.py", 2, "other"),)}
            return Story(made)

        first, second = recording(MIB), recording(3 * MIB, Event(Kind.ALLOCATE_FAILED, 0, 0, MIB))
        told = {each.label: each for each in compare.differences(first, second)}
        self.assertEqual(
            told["requested, at the peak"],
            Difference("requested, at the peak", "2.00 MiB", "4.00 MiB", "+2.00 MiB (+100 %)"),
        )
        self.assertEqual(told["allocations"].difference, "none")
        self.assertEqual(told["failed requests"].difference, "+1")
        self.assertNotIn("driver calls", told)
        self.assertEqual(
            compare.group_differences(first, second, "stack"),
            [Difference("other (a.py:2)", "1.00 MiB", "3.00 MiB", "+2.00 MiB (+200 %)")],
        )
        self.assertEqual(compare.group_differences(first, second, "tag")[0].label, "no tag")

    def test_the_curves_have_the_values_of_both_at_every_time(self) -> None:
        first, second = Story(training(3)), Story(leaking(20))
        columns = PageColumns(page.page_of_two(first, second))
        times = columns.sums("time.t")
        for name, story in (("first", first), ("second", second)):
            at = dict(zip([each - story.begin_ns for each in story.series.time_ns], story.series.live, strict=True))
            curve = dict(zip(times, columns.sums(f"time.{name}"), strict=True))
            self.assertEqual({time: curve[time] for time in at}, at)

    def test_the_curves_have_a_peak_within_one_time(self) -> None:
        events = [Event(Kind.ALLOCATE, 10, PAGE, MIB), Event(Kind.ALLOCATE, 20, 1 << 40, 1 << 30)]
        story = Story(recording_of(*events, Event(Kind.FREE, 20, 1 << 40, 1 << 30)))
        columns = PageColumns(page.page_of_two(story, story))
        for name in ("first", "second"):
            self.assertEqual(columns.sums(f"time.{name}"), [MIB, MIB + (1 << 30), MIB])

    def test_no_line_of_the_text_is_longer_than_a_terminal(self) -> None:
        first, second = Story(training()), Story(serving())
        for width in (40, 50, 80, 100):
            for line in compare.comparison_text(first, second, width).splitlines():
                self.assertLessEqual(len(line), width, line)

    def test_two_files_make_one_page(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for number in (1, 2):
                (Path(folder) / f"{number}.csv").write_text(
                    f"op,id,bytes,stream,time_us\na,1,{number}000000,0,0\nf,1,0,0,9\n"
                )
            out = Path(folder) / "two.html"
            done = run("-m", "vpmm", "report", f"{folder}/1.csv", f"{folder}/2.csv", "--text", "-o", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"requested, at the peak +976\.56 KiB +1\.91 MiB  \+976\.56 KiB \(\+100 %\)")
            self.assertEqual(json_of(out.read_text())["names"], ["1.csv (first)", "2.csv (second)"])


class Texts(unittest.TestCase):
    def test_no_line_is_longer_than_a_terminal(self) -> None:
        for recording in (training(), serving(), leaking()):
            for width in (40, 50, 80, 100):
                for line in text_of(Story(recording), width).splitlines():
                    self.assertLessEqual(len(line), width, line)

    def test_a_narrow_text_has_the_words_of_a_wide_one(self) -> None:
        for recording in (training(), serving(), leaking()):
            narrow, wide = (self.words(text_of(Story(recording), width)) for width in (50, 10_000))
            self.assertEqual(narrow, wide)

    def words(self, text: str) -> list[str]:
        """Without the curve and the signs at the beginning of lines."""
        lines = text[: text.index("|")].splitlines()[:-1] + text[text.index("What to change") :].splitlines()
        return " ".join(line.strip().removeprefix("| ") for line in lines).split()

    def test_no_text_of_a_recording_reaches_the_terminal_as_a_command(self) -> None:
        recording = recording_of(
            Event(Kind.ALLOCATE, 10, PAGE, MIB, stack=1), device_name="\x1b[2Jdevice", file="\x1b[0m"
        )
        recording.stacks = {1: (Frame("a\n.py", 1, "f\x1b[31m\nsplit\x85"),)}
        story, other = Story(recording), Story(recording_of(Event(Kind.ALLOCATE, 10, PAGE, MIB)))
        for width in (40, 100):
            for text in (text_of(story, width), compare.comparison_text(story, other, width)):
                self.assertTrue(all(line.isprintable() for line in text.split("\n")), text)
                self.assertFalse([line for line in text.split("\n") if line.startswith("split")])

    def test_a_failure_has_one_time_and_figures_with_a_sign_between_them(self) -> None:
        first = Event(Kind.ALLOCATE, 700_000, PAGE, 3 * MIB, 3 * MIB)
        failed = Event(Kind.ALLOCATE_FAILED, 1_500_000, 0, 5 * MIB, 1)
        text = text_of(Story(recording_of(first, failed, capacity=7 * MIB)))
        self.assertIn("A request failed, for 5.00 MiB after 800.0 us.", text)
        self.assertIn("\nFailed: 5.00 MiB after 800.0 us\n", text)
        self.assertIn("  asked for: 5.00 MiB; live, as requested: 3.00 MiB; capacity: 7.00 MiB\n", text)

    def test_the_text_says_what_failed_and_who_held_the_memory(self) -> None:
        text = text_of(Story(training()))
        for part in (
            "A request failed",
            "Out of memory: 1 request did not fit",
            "zeros_like (train.py:10)",
            "optimizer",
            "create",
        ):
            self.assertIn(part, text)


class SeveralGpus(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def written(self, name: str, size: int, device: int, **header: object) -> str:
        path = self.folder / name
        event = Event(Kind.ALLOCATE, 5, PAGE, size, device=device)
        recordings.write(recording_of(event, device=device, **header), path)
        return str(path)

    def reported(self, *words: str) -> dict[str, object]:
        out = self.folder / "out.html"
        done = run("-m", "vpmm", "report", "-o", str(out), *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json_of(out.read_text())

    def gpus_of(self, *words: str) -> list[tuple[str, str]]:
        made = self.reported(*words)["gpus"]
        assert isinstance(made, list)
        return [(each["gpu"], each["facts"][0][1]) for each in made]

    def test_each_device_of_a_recording_has_its_part_of_the_page_and_a_curve(self) -> None:
        stories = stories_of(two_gpus())
        text = page.page_of_gpus(stories)
        curves = PageColumns(text)
        times = curves.sums("time.t")
        for gpu, story in enumerate(stories):
            self.assertEqual({each.device for each in story.events}, {gpu})
            own = PageColumns(text, gpu)
            self.assertEqual(own.sums("time.live"), list(story.series.live))
            at = dict(zip(story.series.time_ns, story.series.live, strict=True))
            curve = dict(zip(times, curves.sums(f"time.gpu{gpu}"), strict=True))
            self.assertEqual({time: curve[time] for time in at}, at)
        told = json_of(text)["gpus"]
        assert isinstance(told, list)
        self.assertEqual([each["title"] for each in told], [f"python train.py --batch 24, GPU {n}" for n in (0, 1)])
        self.assertNotIn("--device", json.dumps(told))

    def test_one_device_has_the_page_that_it_had(self) -> None:
        self.assertEqual(page.page_of_gpus(stories_of(training(2))), page.page_of(Story(training(2))))
        self.assertEqual(len(stories_of(Maker(PAGE).recording)), 1)

    def test_recordings_of_one_process_are_its_gpus_and_those_of_two_are_compared(self) -> None:
        first = self.written("0.vpmm", MIB, 0, pid=7, started_unix_ns=2000)
        second = self.written("1.vpmm", 2 * MIB, 1, pid=7, started_unix_ns=1000)
        later = self.written("2.vpmm", 3 * MIB, 1, pid=8)
        self.assertEqual(self.gpus_of(first, second), [("GPU 0", "1.00 MiB"), ("GPU 1", "2.00 MiB")])
        self.assertIn("differences", self.reported(first, later))
        self.assertIn("differences", self.reported(first, first))
        self.assertEqual([each for each, _ in self.gpus_of(first, later, "--together")], ["GPU 0", "GPU 1"])
        three = ["0.vpmm, GPU 0", "1.vpmm, GPU 1", "2.vpmm, GPU 1"]
        self.assertEqual([each for each, _ in self.gpus_of(first, second, later)], three)

    def test_device_takes_one_of_a_recording(self) -> None:
        path = self.folder / "two.vpmm"
        recordings.write(two_gpus(), path)
        self.assertEqual(len(self.gpus_of(str(path))), 2)
        self.assertNotIn("gpus", self.reported(str(path), "--device", "1"))

    def test_the_text_has_each(self) -> None:
        path = self.folder / "two.vpmm"
        recordings.write(two_gpus(), path)
        done = run("-m", "vpmm", "report", "--text", str(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(re.findall(r"^GPU \d$", done.stdout, re.MULTILINE), ["GPU 0", "GPU 1"])

    def test_the_common_time_is_that_of_the_clock_where_it_is_known(self) -> None:
        def story(**header: object) -> Story:
            return Story(recording_of(Event(Kind.ALLOCATE, 50, PAGE, MIB), **header))

        clocked = [story(started_unix_ns=started) for started in (3000, 1000)]
        self.assertEqual(gpus.later_by(clocked), [2000, 0])
        self.assertEqual(gpus.later_by([clocked[0], story()]), [-50, -50])

    def test_each_gpu_has_a_name_of_its_own(self) -> None:
        def story(device: int, file: str) -> Story:
            event = Event(Kind.ALLOCATE, 1, PAGE, MIB, device=device)
            return Story(recording_of(event, file=file))

        self.assertEqual(gpus.names_of([story(0, "a"), story(3, "a")]), ["GPU 0", "GPU 3"])
        self.assertEqual(gpus.names_of([story(0, "a"), story(0, "b")]), ["a, GPU 0", "b, GPU 0"])
        self.assertEqual(gpus.names_of([story(0, "a"), story(0, "a")]), ["a, GPU 0 (1)", "a, GPU 0 (2)"])


class Command(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_trace_becomes_a_page(self) -> None:
        path = self.folder / "gnn.html"
        done = run("-m", "vpmm", "report", str(TRACES / "gnn.csv.gz"), "-o", str(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"gnn\.html: \d+\.\d\d KiB\n")
        self.assertIn("17.19 GiB", str(json_of(path.read_text())["facts"]))

    def test_the_size_of_a_small_page_has_a_smaller_unit(self) -> None:
        trace, path = self.folder / "small.csv", self.folder / "small.html"
        trace.write_text("op,id,bytes,stream,time_us\na,1,3000000,0,0\nf,1,0,0,9\n")
        done = run("-m", "vpmm", "report", str(trace), "-o", str(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"{path}: {path.stat().st_size / 1024:.2f} KiB\n")

    def test_a_text_and_a_page_are_not_written_into_one_stream(self) -> None:
        done = run("-m", "vpmm", "report", "--text", "-o", "-", str(TRACES / "gnn.csv.gz"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("error: argument --text: not with `-o -`", done.stderr)

    def test_a_binary_recording_is_told_as_text(self) -> None:
        path = self.folder / "run.vpmm"
        recordings.write(training(), path)
        done = run("-m", "vpmm", "report", "--text", str(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("What to change", done.stdout)

    def test_what_is_wrong_is_said_in_a_line(self) -> None:
        bad = self.folder / "bad.csv"
        bad.write_text("hello\n")
        page_name = str(self.folder / "no" / "page.html")
        for arguments, text in [
            ([str(bad)], r"bad\.csv:1: this is text that begins with `hello`, not a recording.*"),
            ([str(self.folder / "none")], r".*No such file.*"),
            ([str(TRACES / "gnn.csv.gz"), "-o", page_name], r".*page\.html: No such file.*"),
        ]:
            done = run("-m", "vpmm", "report", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, rf"^vpmm: {text}\n$" if text.startswith(".") else rf"^vpmm: .*{text}\n$")

    def test_figures_beyond_any_memory_are_no_crash(self) -> None:
        path = self.folder / "run.vpmm"
        most = (1 << 64) - 1
        recordings.write(recording_of(*(Event(Kind.ALLOCATE, 0, most - n, most, most) for n in range(3))), path)
        done = run("-m", "vpmm", "report", "--text", str(path))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^vpmm: .*run\.vpmm: its figures are beyond what any memory has\n$")

    def test_memory_that_sleeps_is_marked_and_not_mapped_when_the_driver_has_it(self) -> None:
        path = self.folder / "run.vpmm"
        output_of(SLEEPER, RECORDED=str(path))
        story = Story(recordings.read(path))
        self.assertEqual(
            [mark[1] for mark in story.marks],
            [
                "suspend weights: 4.00 MiB",
                "resume weights: 4.00 MiB",
                "suspend arena 2: 4.00 MiB",
                "resume arena 2: 4.00 MiB",
            ],
        )
        times = [mark[0] for mark in story.marks]
        self.assertEqual(times, sorted(times))
        asleep = [
            (mapped, live)
            for time, mapped, live in zip(story.series.time_ns, story.series.mapped, story.series.live, strict=True)
            if times[2] < time < times[3]
        ]
        self.assertEqual(asleep[0], (4 * MIB, 6 * MIB), "4 MiB with 3 MiB of live memory are not mapped")
        page_path = self.folder / "run.html"
        done = run("-m", "vpmm", "report", str(path), "-o", str(page_path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        marks = json_of(page_path.read_text())["marks"]
        self.assertEqual(marks, [list(mark) for mark in story.marks])


if __name__ == "__main__":
    unittest.main()
