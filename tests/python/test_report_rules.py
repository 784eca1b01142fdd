# SPDX-License-Identifier: Apache-2.0
"""tests: each rule of a report speaks where it should and is silent where it should be."""

from __future__ import annotations

import unittest
from collections.abc import Callable

from vpmm.recordings import DriverCall, Event, Frame, Kind, Recording
from vpmm.reporting import Story, rules
from vpmm.reporting.rules import Advice

from report_case import MIB, MS, PAGE, leaking, recording_of, serving, training

GIB = 1 << 30


def allocate(address: int, size: int, value: int = 0, stream: int | None = 0, time_ns: int = 0) -> Event:
    return Event(Kind.ALLOCATE, time_ns, address, size, value, stream)


def free(address: int, stream: int | None = 0, time_ns: int = 0) -> Event:
    return Event(Kind.FREE, time_ns, address, 0, 0, stream)


def sample(mapped: int, pending: int, idle: int) -> Event:
    return Event(Kind.SAMPLE, 0, mapped, pending, idle)


def failed(size: int) -> Event:
    return Event(Kind.ALLOCATE_FAILED, 0, 0, size, 1, 0)


class Case(unittest.TestCase):
    def said(self, rule: Callable[[Story], Advice | None], recording: Recording) -> Advice:
        advice = rule(Story(recording))
        assert advice is not None, rule.__name__
        return advice

    def silent(self, rule: Callable[[Story], Advice | None], recording: Recording) -> None:
        self.assertIsNone(rule(Story(recording)))


class Failures(Case):
    def test_live_and_the_request_beyond_the_capacity_are_out_of_memory(self) -> None:
        said = self.said(rules.out_of_memory, recording_of(allocate(1, GIB), failed(GIB), capacity=GIB + MIB))
        self.assertEqual(said.title, "Out of memory: 1 request did not fit")
        self.assertIn("together that is 1023.00 MiB more than the 1.00 GiB there are", said.reason)
        self.assertIn("Most of it, 1.00 GiB, is of 1 to 2 GiB", said.reason)
        self.assertIn("VPMM_CAPACITY is 1.00 GiB", said.action)

    def test_a_limit_that_the_program_set_later_is_named(self) -> None:
        text = (
            "out of device memory: asked for 1 GiB; 12 MiB are missing; live 1 GiB, free 0 bytes, limit 1.99 GiB\n"
            "  mapped     1 GiB; the limit is 1.99 GiB; 0.99 GiB more may be mapped"
        )
        later = "1.99 GiB were the limit, which the program set (vpmm_set_capacity, or PyTorch's memory fraction)"
        for capacity, of_settings, told in (
            (2040 * MIB, "2040MiB", "make room: VPMM_CAPACITY is 1.99 GiB."),
            (2040 * MIB, "none", f"make room: {later}."),
            (2040 * MIB, "64GiB", f"make room: {later}; VPMM_CAPACITY is 64GiB."),  # set before it was recorded
            (2040 * MIB, "80%", "make room: VPMM_CAPACITY is 1.99 GiB."),
            (64 * GIB, "64GiB", f"make room: {later}; VPMM_CAPACITY is 64GiB."),
            (0, "none", f"make room: {later}."),
        ):
            recording = recording_of(
                allocate(1, GIB),
                failed(GIB),
                capacity=capacity,
                device_bytes=139 * GIB,
                settings={"VPMM_CAPACITY": of_settings},
            )
            recording.strings = {1: text}
            said = self.said(rules.out_of_memory, recording)
            self.assertIn("together that is 12 MiB more than the 1.99 GiB there are", said.reason)
            self.assertIn(told, said.action)
        for capacity in (0, 64 * MIB):  # with it, a limit that the program took away
            gpu = recording_of(allocate(1, GIB), failed(GIB), device_bytes=GIB + MIB, capacity=capacity)
            gpu.strings = {1: text.replace("1.99 GiB", "none")}
            self.assertIn("make room: the GPU has 1.00 GiB.", self.said(rules.out_of_memory, gpu).action)

    def test_the_stack_that_holds_most_is_named(self) -> None:
        recording = recording_of(allocate(1, GIB), allocate(1 << 40, MIB), failed(GIB), capacity=GIB + 2 * MIB)
        recording.events[0].stack = 1
        recording.stacks = {1: (Frame("/a/b/net.py", 7, "forward"),)}
        self.assertIn("is of forward (net.py:7)", self.said(rules.out_of_memory, recording).reason)

    def test_rounding_to_pages_counts(self) -> None:
        events = [allocate(1, MIB, PAGE), failed(MIB)]
        said = self.said(rules.out_of_memory, recording_of(*events, capacity=3 * MIB))
        self.assertIn("1.00 MiB were asked for and take 2.00 MiB while 2.00 MiB were taken", said.reason)
        self.assertIn("together that is 1.00 MiB more than the 3.00 MiB there are", said.reason)
        self.silent(rules.out_of_memory, recording_of(*events, capacity=4 * MIB))

    def test_a_request_counts_as_the_grains_that_the_pool_takes(self) -> None:
        grain = PAGE // 32
        events = [allocate(0, PAGE + 1, PAGE + grain), failed(PAGE + 1)]
        said = self.said(rules.out_of_memory, recording_of(*events, capacity=2 * PAGE + grain, grain=grain))
        self.assertIn("2.00 MiB were asked for and take 2.06 MiB while 2.06 MiB were taken", said.reason)
        self.assertIn("together that is 64.00 KiB more than the 4.06 MiB there are", said.reason)
        self.silent(rules.out_of_memory, recording_of(*events, capacity=2 * PAGE + 2 * grain, grain=grain))

    def test_without_a_capacity_nobody_knows(self) -> None:
        recording = recording_of(allocate(1, GIB), failed(GIB))
        self.silent(rules.out_of_memory, recording)
        (said,) = rules.advice(Story(recording))
        self.assertEqual((said.level, said.title), ("bad", "A request failed"))
        self.assertIn("the recording does not say", said.reason)

    def test_memory_that_the_gpu_still_used(self) -> None:
        def recording(pending: int) -> Recording:
            return recording_of(sample(GIB, pending, 600 * MIB), allocate(1, 9), failed(500 * MIB), capacity=4 * GIB)

        said = self.said(rules.pending_failure, recording(300 * MIB))
        self.assertIn("600.00 MiB were free when 500.00 MiB were asked for, but 300.00 MiB", said.reason)
        self.silent(rules.pending_failure, recording(50 * MIB))

    def test_memory_in_pieces(self) -> None:
        def recording(second: int, source: str = "vpmm") -> Recording:
            maps = [Event(Kind.MAP, 0, at, 4 * PAGE, 1) for at in (0, second)]
            return recording_of(*maps, failed(6 * PAGE), capacity=64 * PAGE, source=source)

        said = self.said(rules.fragmentation, recording(100 * PAGE))
        self.assertIn("16.00 MiB were free when 12.00 MiB were asked for, in 2 ranges", said.reason)
        self.assertIn("VPMM_MAX_MAPPINGS", said.action)
        native = self.said(rules.fragmentation, recording(100 * PAGE, "pytorch"))
        self.assertIn("vpmm try", native.action)
        self.assertNotIn("VPMM_", native.action, "settings of a pool that the program does not have")
        self.silent(rules.fragmentation, recording(4 * PAGE))  # side by side, they are one

    def test_a_request_at_the_limit_of_its_tag(self) -> None:
        recording = recording_of(allocate(1, GIB), failed(GIB), capacity=GIB + MIB)
        recording.strings = {
            1: 'out of device memory: asked for 1 GiB; the tag "cache" has 3 MiB of its limit of 4 MiB'
        }
        said = self.said(rules.tag_limit, recording)
        self.assertEqual(said.reason, '1.00 GiB were asked for, and the tag "cache" had 3 MiB of its limit of 4 MiB.')
        self.silent(rules.out_of_memory, recording)
        self.silent(rules.tag_limit, recording_of(failed(GIB)))

    def test_free_memory_that_could_not_move(self) -> None:
        text = (
            "out of device memory: asked for 4 GiB; 1 GiB are missing; live 68 GiB, free 68 GiB, limit none\n"
            "  trapped    68 GiB of what is free cannot move: live memory shares its chunks"
        )
        recording = recording_of(allocate(1, GIB), failed(4 * GIB), capacity=139 * GIB)
        recording.strings = {1: text}
        said = self.said(rules.trapped_memory, recording)
        self.assertIn("1 GiB were missing: 68 GiB of what was free could not move", said.reason)
        self.assertIn("VPMM_CHUNK_MAX", said.action)
        full = recording_of(allocate(1, GIB), failed(GIB), capacity=GIB + MIB)
        full.strings = {1: text}
        self.silent(rules.trapped_memory, full)
        self.assertIn("and 68 GiB were free in chunks that live", self.said(rules.out_of_memory, full).reason)
        self.assertIn("together that is 1 GiB more", self.said(rules.out_of_memory, full).reason)

    def test_a_callers_mistake_is_no_failure(self) -> None:
        mistake = failed(GIB)
        mistake.flags = 1
        story = Story(recording_of(allocate(1, GIB), mistake, capacity=GIB))
        self.assertEqual((story.failures, story.mistakes), ([], 1))

    def test_a_request_that_is_served_after_all_was_rescued(self) -> None:
        short = Event(Kind.OUT_OF_MEMORY, 0, 0, GIB, 1)
        recording = recording_of(short, allocate(1, GIB))
        self.assertIn("1 request was served only after", self.said(rules.rescued, recording).title)
        self.assertEqual(Story(recording).failures, [])
        self.silent(rules.rescued, recording_of(short, failed(GIB)))


class Held(Case):
    def test_a_leak_grows_all_the_time(self) -> None:
        said = self.said(rules.growth, leaking())
        self.assertIn("append (train.py:10) < log_loss (train.py:20)", said.reason)
        self.assertIn("looks like a leak", said.action)
        for steady in (training(), serving()):
            self.silent(rules.growth, steady)

    def test_mapped_far_beyond_live(self) -> None:
        def recording(mapped: int, source: str = "vpmm") -> Recording:
            return recording_of(allocate(1, GIB), sample(mapped, 0, 0), source=source)

        said = self.said(rules.mapped_beyond_live, recording(2 * GIB))
        self.assertEqual(said.title, "1.00 GiB more was mapped than ever lived at once")
        self.assertIn("VPMM_PREFER", said.action)
        self.assertIn("vpmm try", self.said(rules.mapped_beyond_live, recording(2 * GIB, "pytorch")).action)
        self.silent(rules.mapped_beyond_live, recording(GIB + 100 * MIB))

    def test_pending_memory_names_the_stream_that_frees(self) -> None:
        def recording(pending: int, stream: int | None) -> Recording:
            return recording_of(allocate(1, GIB), free(1, stream), sample(GIB, pending, GIB), allocate(1, MIB))

        named, unnamed = (self.said(rules.pending_memory, recording(GIB, stream)) for stream in (3, None))
        self.assertIn("named stream 3", named.reason)
        self.assertNotIn("Name the stream", named.action)
        self.assertIn("named no stream", unnamed.reason)
        self.assertIn("Name the stream", unnamed.action)
        self.silent(rules.pending_memory, recording(10 * MIB, 3))
        self.silent(rules.pending_memory, recording(GIB, 0))  # the only stream
        used = recording(GIB, 0)
        used.events.insert(1, Event(Kind.RECORD_USE, 1, 1, GIB, stream=9))
        self.said(rules.pending_memory, used)

    def test_pending_memory_at_the_end_hinders_nobody(self) -> None:
        self.silent(rules.pending_memory, recording_of(allocate(1, GIB), free(1), sample(GIB, GIB, GIB)))

    def test_a_stream_that_is_no_longer_used_and_holds(self) -> None:
        def recording(last_ns: int) -> Recording:
            made = recording_of(
                allocate(1, GIB, stream=1, time_ns=1),
                allocate(1 << 40, GIB, stream=2, time_ns=2),
                allocate(1 << 41, 9, stream=1, time_ns=last_ns),
                free(1 << 40, 2, time_ns=100),
            )
            made.streams = {1: "0xa0", 2: "0xb0"}
            return made

        self.assertIn("Stream 1 (0xa0) holds 1.00 GiB", self.said(rules.hoarding_stream, recording(3)).title)
        self.silent(rules.hoarding_stream, recording(90))
        for name in ("0x0", "0x2", "stream 7 (0x0)", "stream 9 (0x2)"):
            weights = recording(3)
            weights.streams[1] = name
            self.silent(rules.hoarding_stream, weights)
        unknown = recording(3)
        unknown.streams[1] = "stream 7"
        self.assertIn("Stream 7 holds 1.00 GiB", self.said(rules.hoarding_stream, unknown).title)

    def test_a_peak_close_to_the_capacity(self) -> None:
        said = self.said(rules.capacity_is_near, recording_of(allocate(1, 95), capacity=100))
        self.assertEqual(said.title, "The peak is 95 % of what there is")
        self.silent(rules.capacity_is_near, recording_of(allocate(1, 80), capacity=100))

    def test_rounding_that_takes_much(self) -> None:
        def recording(value: int) -> Recording:
            return recording_of(*(allocate(number * GIB, 3 * MIB, value) for number in range(50)))

        said = self.said(rules.rounding, recording(4 * MIB))
        self.assertEqual(said.title, "Rounding takes 50.00 MiB at the peak")
        self.silent(rules.rounding, recording(3 * MIB + 4096))
        few = [allocate(number * GIB, 3 * MIB, 4 * MIB) for number in range(5)]
        self.assertIn("3.00 MiB takes 4.00 MiB", self.said(rules.rounding, recording_of(*few)).reason)
        self.assertIn("whole multiples of 2.00 MiB", self.said(rules.rounding, recording_of(*few)).reason)
        small = [allocate(number * GIB, MIB, PAGE) for number in range(5)]
        said = self.said(rules.rounding, recording_of(*small, grain=PAGE // 32))
        self.assertIn("1.00 MiB takes 2.00 MiB. Pages have 2.00 MiB", said.reason)
        self.assertIn("whole multiples of 64.00 KiB", said.reason)
        self.silent(rules.rounding, recording_of(*few[:3]))
        self.silent(rules.rounding, recording(0))


class Time(Case):
    def driver(self, begin_ns: int, end_ns: int = 800 * MS) -> Recording:
        calls = [
            Event(Kind.DRIVER, begin_ns + number * end_ns // 800, 0, PAGE, MS // 10, flags=DriverCall.MAP)
            for number in range(100)
        ]
        first, last = Event(Kind.MARK, 1), Event(Kind.MARK, end_ns)
        return recording_of(first, *calls, last)

    def test_driver_calls_after_the_start(self) -> None:
        said = self.said(rules.driver_calls, self.driver(600 * MS))
        self.assertIn("100 calls took 10.0 ms, 3 % of the time", said.reason)
        self.silent(rules.driver_calls, self.driver(2))
        self.silent(rules.driver_calls, self.driver(6 * MS, end_ns=8 * MS))  # all of it is start

    def test_driver_calls_for_memory_that_is_new_are_growth(self) -> None:
        for value, kind in ((0, Kind.MAP), (1, Kind.UNMAP)):
            recording = self.driver(600 * MS)
            recording.events.insert(1, Event(Kind.MAP, 2, 0, PAGE, 1))
            recording.events.insert(-1, Event(Kind.MAP, 700 * MS, 2 * PAGE, PAGE, 1))
            self.silent(rules.driver_calls, recording)
            recording.events.insert(-1, Event(kind, 700 * MS, 0, PAGE, value))
            self.said(rules.driver_calls, recording)
        recording = self.driver(600 * MS)
        recording.events[1:1] = [Event(Kind.MAP, 2, 0, PAGE, 1), Event(Kind.UNMAP, 3, 0, PAGE, 1)]
        recording.events.insert(-1, Event(Kind.MAP, 700 * MS, 2 * PAGE, PAGE, 1))
        self.said(rules.driver_calls, recording)  # memory that it had given back before

    def test_memory_that_is_given_back_and_fetched_again(self) -> None:
        def recording(times: int) -> Recording:
            pair = [(Kind.MAP, 0), (Kind.UNMAP, 0)] * times
            return recording_of(*(Event(kind, 0, 0, 100 * MIB, 1) for kind, _ in pair))

        self.assertIn("500.00 MiB went back", self.said(rules.given_back, recording(5)).title)
        self.silent(rules.given_back, recording(1))

    def test_waits_for_the_gpu(self) -> None:
        def recording(ns: int) -> Recording:
            return recording_of(Event(Kind.MARK), Event(Kind.PAUSE, MS, value=ns), Event(Kind.MARK, 100 * MS))

        self.assertEqual(self.said(rules.waits, recording(7 * MS)).title, "Requests waited 7.0 ms for the GPU")
        self.silent(rules.waits, recording(10))


class All(Case):
    def test_a_program_without_fault_hears_so(self) -> None:
        (said,) = rules.advice(Story(recording_of(allocate(0, MIB), free(0))))
        self.assertEqual((said.level, said.title), ("good", "Nothing stands out"))

    def test_a_csv_without_fault_hears_which_rules_had_nothing_to_read(self) -> None:
        (said,) = rules.advice(Story(recording_of(allocate(0, MIB), free(0), source="csv")))
        self.assertEqual(said.title, "Nothing stands out in what was recorded")
        missing = "call stacks, maps, samples of pending memory, failed requests and driver calls and waits"
        self.assertIn(f"does not have {missing}, so", said.reason)
        self.assertIn("binary recording", said.action)
        self.assertEqual(
            rules.unread(Story(recording_of(allocate(0, MIB), source="pytorch")))[-1], "driver calls and waits"
        )

    def test_what_failed_comes_first(self) -> None:
        self.assertEqual(rules.advice(Story(training()))[0].level, "bad")

    def test_every_rule_has_a_test_here(self) -> None:
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        for rule in rules.RULES:
            self.assertIn(f"rules.{rule.__name__},", text)


if __name__ == "__main__":
    unittest.main()
