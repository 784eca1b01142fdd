// SPDX-License-Identifier: Apache-2.0
// time: what a free's number needs to become waitable, provable and complete.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "time/timelines_fixture.hpp"

namespace vpmm::time {
namespace {

TEST_F(TimelinesTest, a_stream_is_known_by_its_id) {
  const StreamHandle a = stream();
  EXPECT_EQ(&of(a), &of(a));
  EXPECT_NE(&of(a), &of(stream()));
  EXPECT_EQ(timelines.count(), 2u);
}

TEST_F(TimelinesTest, the_legacy_stream_has_two_handles_and_one_timeline) {
  EXPECT_EQ(&of(driver::kNullStream), &of(driver::kLegacyStream));
}

TEST_F(TimelinesTest, a_recycled_handle_is_a_new_timeline) {
  const StreamHandle first = stream();
  const TimelineId before = of(first).id;
  expect(sim.stream_destroy(first));
  const StreamHandle second = stream();
  ASSERT_EQ(second, first) << "the simulator recycles handles, as the driver does";
  EXPECT_NE(of(second).id, before);
}

TEST_F(TimelinesTest, numbers_rise_by_one) {
  Timeline& timeline = of(stream());
  EXPECT_EQ(timeline.next(1), (StampPart{timeline.id, 1}));
  EXPECT_EQ(timeline.next(1), (StampPart{timeline.id, 2}));
}

TEST_F(TimelinesTest, an_own_event_makes_all_numbers_so_far_waitable_and_then_complete) {
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  work(a);
  timeline.next(1);
  const StampPart second = timeline.next(1);
  EXPECT_FALSE(timelines.is_waitable(second));
  ASSERT_TRUE(timelines.close(timeline, a).ok());
  EXPECT_TRUE(timelines.is_waitable(second));
  const StampPart third = timeline.next(1);
  EXPECT_FALSE(timelines.is_waitable(third));
  EXPECT_TRUE(poll().empty());
  EXPECT_FALSE(timelines.reduce(Stamp(second)).is_complete());
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{second});
  EXPECT_TRUE(timelines.reduce(Stamp(second)).is_complete());
  EXPECT_FALSE(timelines.reduce(Stamp(third)).is_complete());
}

TEST_F(TimelinesTest, a_stamp_of_two_parts_loses_each_when_it_completes) {
  const StreamHandle a = stream();
  const StreamHandle b = stream();
  const StampPart on_a = of(a).next(1);
  const StampPart on_b = of(b).next(1);
  work(b);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  ASSERT_TRUE(timelines.close(of(b), b).ok());
  poll();
  EXPECT_EQ(timelines.reduce(Stamp(on_a, on_b)), Stamp(on_b));
  sim.run_until_idle();
  poll();
  EXPECT_TRUE(timelines.reduce(Stamp(on_a, on_b)).is_complete());
}

TEST_F(TimelinesTest, a_single_timeline_records_nothing_until_somebody_wants_proof) {
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  for (int i = 0; i < 100; ++i) timeline.next(kMiB);
  EXPECT_FALSE(timelines.is_due(timeline));
  timeline.wanted = true;
  EXPECT_TRUE(timelines.is_due(timeline));
}

TEST_F(TimelinesTest, from_two_timelines_on_each_is_due_after_so_many_frees_or_bytes) {
  Timeline& a = of(stream());
  Timeline& b = of(stream());
  a.next(1);
  EXPECT_FALSE(timelines.is_due(a));
  a.next(1);
  EXPECT_TRUE(timelines.is_due(a)) << "two frees";
  b.next(kGiB);
  EXPECT_TRUE(timelines.is_due(b)) << "many bytes";
}

TEST_F(TimelinesTest, sixteen_frees_or_32_mib_are_due_unless_told_otherwise) {
  Timelines by_default{calls, ClosingRule{}};
  enter_primary(sim, by_default);
  Timeline& many = *by_default.of(stream()).value();
  Timeline& large = *by_default.of(stream()).value();
  for (int i = 0; i < 15; ++i) many.next(1);
  large.next(32 * kMiB - 1);
  EXPECT_FALSE(by_default.is_due(many));
  EXPECT_FALSE(by_default.is_due(large));
  many.next(1);
  large.next(1);
  EXPECT_TRUE(by_default.is_due(many));
  EXPECT_TRUE(by_default.is_due(large));
  by_default.destroy_events();
}

// Others may wait for an event of the stream only.
TEST_F(TimelinesTest,
       frees_that_an_event_of_the_context_covers_still_make_one_of_their_stream_due) {
  of(stream());
  Timeline& timeline = of(stream());
  timeline.next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_FALSE(timelines.is_due(timeline));
  timeline.next(1);
  EXPECT_TRUE(timelines.is_due(timeline)) << "two frees since the last event of its own";
}

TEST_F(TimelinesTest, nothing_is_due_when_everything_is_closed) {
  const StreamHandle a = stream();
  of(stream());
  Timeline& timeline = of(a);
  timeline.wanted = true;
  EXPECT_FALSE(timelines.is_due(timeline));
  timeline.next(kGiB);
  ASSERT_TRUE(timelines.close(timeline, a).ok());
  EXPECT_FALSE(timelines.is_due(timeline));
}

TEST_F(TimelinesTest, frees_count_anew_after_each_event) {
  of(stream());
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  for (int i = 0; i < 3; ++i) {
    timeline.next(1);
    EXPECT_FALSE(timelines.is_due(timeline));
    timeline.next(1);
    EXPECT_TRUE(timelines.is_due(timeline));
    ASSERT_TRUE(timelines.close(timeline, a).ok());
  }
  EXPECT_EQ(timelines.events_recorded(), 3u);
  EXPECT_EQ(timelines.outstanding_events(), 3u);
  timelines.any_stream().next(kMiB);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_EQ(timelines.events_recorded(), 4u);
  timelines.any_stream().next(1);
  EXPECT_FALSE(timelines.is_due(timelines.any_stream()));
  EXPECT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_EQ(timelines.events_recorded(), 5u);
  EXPECT_FALSE(timelines.close_all(Everything::context_event).value()) << "all are closed";
  EXPECT_EQ(timelines.events_recorded(), 5u);
}

// As little as may not be told from a stream that nobody else needs proof of.
TEST_F(TimelinesTest, of_a_stream_fewer_bytes_are_due_than_of_no_stream_in_particular) {
  ClosingRule rule = every(100);
  rule.bytes = 4 * kMiB;
  Timelines with_bytes{calls, rule};
  enter_primary(sim, with_bytes);
  with_bytes.any_stream().next(1);
  Timeline& named = *with_bytes.of(stream()).value();
  named.next(3 * kMiB);
  EXPECT_FALSE(with_bytes.is_due(named)) << "enough for memory of any stream";
  named.next(kMiB);
  EXPECT_TRUE(with_bytes.is_due(named));
  with_bytes.destroy_events();
}

TEST_F(TimelinesTest, what_is_complete_is_waitable_and_provable) {
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  const StampPart number = timeline.next(1);
  EXPECT_FALSE(timelines.is_waitable(number));
  EXPECT_EQ(timelines.mark_complete({number}), Vector<StampPart>{number});
  EXPECT_TRUE(timelines.mark_complete({number}).empty()) << "again";
  EXPECT_EQ(timeline.numbers.provable, number.sequence);
  EXPECT_EQ(timeline.numbers.waitable, number.sequence);
  EXPECT_FALSE(timelines.close_all(Everything::context_event).value()) << "nothing to prove";
}

TEST_F(TimelinesTest, a_stream_has_the_handle_with_which_it_first_called) {
  const StreamHandle a = stream();
  driver::StreamId id{};
  expect(sim.stream_get_id(a, id));
  EXPECT_EQ(timelines.handle_of(id), std::nullopt);
  of(a);
  EXPECT_EQ(timelines.handle_of(id), a);
}

TEST_F(TimelinesTest, proof_that_was_wanted_is_wanted_no_more_once_an_event_stands_for_it) {
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  const StampPart number = timeline.next(1);
  timeline.wanted = true;
  ASSERT_TRUE(timelines.close(timeline, a).ok());
  EXPECT_FALSE(timeline.wanted);
  EXPECT_EQ(timelines.proof_of(number), timeline.closings.front().event);
  EXPECT_EQ(timelines.proof_of(timeline.next(1)), nullptr) << "the event is older";
  EXPECT_FALSE(timelines.awaits_context_event());
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_TRUE(timelines.awaits_context_event());
}

TEST_F(TimelinesTest, memory_of_every_stream_needs_an_event_of_the_context) {
  EXPECT_FALSE(timelines.is_every_stream_unproven());
  Timeline& every = timelines.every_stream();
  EXPECT_EQ(&timelines.every_stream(), &every);
  EXPECT_NE(&timelines.any_stream(), &every);
  EXPECT_FALSE(timelines.is_every_stream_unproven());
  const StampPart number = every.next(1);
  EXPECT_TRUE(timelines.is_every_stream_unproven());
  ASSERT_TRUE(timelines.close_all(Everything::legacy_stream).ok());
  EXPECT_TRUE(timelines.is_every_stream_unproven()) << "that stream does not wait for all";
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_FALSE(timelines.is_every_stream_unproven());
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

// Frees that leave a stream's cache without the pool's lock share a number that is not given yet.
TEST_F(TimelinesTest, a_number_that_a_cache_laid_out_is_given_when_it_is_to_be_proven) {
  const StreamHandle a = stream();
  of(stream());
  Timeline& timeline = of(a);
  NextNumber laid_out;
  timeline.next_number = &laid_out;
  EXPECT_FALSE(timeline.has_unsealed());
  EXPECT_TRUE(timelines.numbers_so_far().empty());
  EXPECT_EQ(laid_out.of_a_free(), 1u);
  EXPECT_TRUE(timeline.has_unsealed());
  timeline.wanted = true;
  EXPECT_TRUE(timelines.is_due(timeline));
  EXPECT_EQ(timelines.numbers_so_far(), (Vector<StampPart>{{timeline.id, 1}}));
  EXPECT_FALSE(timeline.has_unsealed());
  EXPECT_EQ(laid_out.of_a_free(), 2u);
  ASSERT_TRUE(timelines.close(timeline, a).ok());
  EXPECT_EQ(poll(), (Vector<StampPart>{{timeline.id, 2}}));
  timeline.next_number = nullptr;
}

TEST_F(TimelinesTest, allocations_that_name_a_timeline_keep_it) {
  Timeline& a = of(stream());
  Timeline& b = of(stream());
  EXPECT_EQ(timelines.stream_count(), 2u);
  count_references(timelines, a.id, {b.id, TimelineId{99}}, +1);
  count_references(timelines, std::nullopt, {b.id}, +1);
  EXPECT_EQ(a.references, 1u);
  EXPECT_EQ(b.references, 2u);
  EXPECT_FALSE(timelines.may_be_forgotten(a));
  count_references(timelines, a.id, {b.id}, -1);
  EXPECT_TRUE(timelines.may_be_forgotten(a));
  EXPECT_FALSE(timelines.may_be_forgotten(b));
  count_references(timelines, std::nullopt, {b.id}, -1);
}

TEST_F(TimelinesTest, without_events_nothing_is_outstanding) {
  const StreamHandle a = stream();
  of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  of(a).next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_EQ(timelines.outstanding_events(), 2u);
  timelines.destroy_events();
  EXPECT_EQ(timelines.outstanding_events(), 0u);
  EXPECT_EQ(timelines.validate(), "");
  const std::uint64_t queries = calls.count(Call::event_query);
  EXPECT_TRUE(poll().empty());
  EXPECT_EQ(calls.count(Call::event_query), queries);
  EXPECT_EQ(calls.count(Call::event_destroy), calls.count(Call::event_create));
}

TEST_F(TimelinesTest, numbers_whose_event_was_destroyed_need_another) {
  const StreamHandle a = stream();
  const StreamHandle b = stream();
  const StampPart of_a = of(a).next(1);
  const StampPart of_b = of(b).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  timelines.destroy_events();
  EXPECT_FALSE(timelines.is_waitable(of_a));
  EXPECT_EQ(timelines.proof_of(of_a), nullptr);
  ASSERT_TRUE(timelines.close(of(b), b).ok());
  EXPECT_EQ(poll(1), Vector<StampPart>{of_b}) << "a has no event to ask for";
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_EQ(poll(), Vector<StampPart>{of_a});
}

TEST_F(TimelinesTest, a_context_event_proves_every_timeline_but_nobody_may_wait_for_it) {
  const StreamHandle a = stream();
  work(a);
  const StampPart number = of(a).next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_FALSE(timelines.is_waitable(number));
  EXPECT_NE(timelines.proof_of(number), nullptr);
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TimelinesTest, a_context_event_covers_a_destroyed_stream_that_still_runs) {
  const StreamHandle gone = stream();
  work(gone);
  const StampPart number = of(gone).next(1);
  expect(sim.stream_destroy(gone));
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_TRUE(poll().empty()) << "its work has not run yet";
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TimelinesTest, an_event_on_the_legacy_stream_proves_any_stream_frees_only) {
  const StreamHandle a = stream();
  work(a);
  const StampPart named = of(a).next(1);
  const StampPart unnamed = timelines.any_stream().next(1);
  ASSERT_TRUE(timelines.close_all(Everything::legacy_stream).ok());
  EXPECT_EQ(timelines.proof_of(named), nullptr)
      << "the legacy stream does not wait for non-blocking streams";
  EXPECT_EQ(poll(), Vector<StampPart>{unnamed});
}

TEST_F(TimelinesTest, any_stream_frees_are_due_at_once_when_large) {
  Timeline& any = timelines.any_stream();
  any.next(1);
  EXPECT_FALSE(timelines.is_due(any));
  any.next(2 * kMiB);
  EXPECT_TRUE(timelines.is_due(any));
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  any.next(2 * kMiB);
  EXPECT_TRUE(timelines.is_due(any)) << "few, but large";
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  for (const bool is_due : {false, true}) {
    any.next(1);
    EXPECT_EQ(timelines.is_due(any), is_due) << "small, but many";
  }
}

TEST_F(TimelinesTest, a_wait_is_queued_once_for_the_oldest_event_that_covers_the_number) {
  const StreamHandle a = stream();
  const StreamHandle b = stream();
  work(a);
  const StampPart first = of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  work(a);
  of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  ASSERT_TRUE(timelines.queue_wait(b, first).ok());
  work(b, kSecondNs / 10);
  EXPECT_EQ(calls.count(Call::stream_wait_event), 1u);
  sim.advance_host_ns(kSecondNs);
  EXPECT_EQ(sim.stream_query(b), CuResult::not_ready) << "b has begun only now";
  sim.advance_host_ns(kSecondNs / 2);
  EXPECT_EQ(sim.stream_query(b), CuResult::success);
  EXPECT_EQ(sim.stream_query(a), CuResult::not_ready)
      << "b waited for the first piece of work only";
}

TEST_F(TimelinesTest, no_event_before_the_number_is_waited_for_in_its_place) {
  const StreamHandle a = stream();
  const StreamHandle b = stream();
  StampPart last;
  for (int i = 0; i < 3; ++i) {
    work(a);
    last = of(a).next(1);
    ASSERT_TRUE(timelines.close(of(a), a).ok());
  }
  ASSERT_TRUE(timelines.queue_wait(b, last).ok());
  sim.advance_host_ns(kSecondNs * 5 / 2);
  EXPECT_EQ(sim.stream_query(b), CuResult::not_ready) << "two of three are done";
  sim.advance_host_ns(kSecondNs);
  EXPECT_EQ(sim.stream_query(b), CuResult::success);
}

TEST_F(TimelinesTest, nothing_is_queued_for_what_is_complete) {
  const StreamHandle a = stream();
  const StampPart number = of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  poll();
  ASSERT_TRUE(timelines.queue_wait(stream(), number).ok());
  EXPECT_EQ(calls.count(Call::stream_wait_event), 0u);
}

TEST_F(TimelinesTest, waiting_for_a_number_without_event_is_an_error) {
  const StreamHandle a = stream();
  const StampPart number = of(a).next(1);
  EXPECT_FALSE(timelines.queue_wait(stream(), number).ok());
}

TEST_F(TimelinesTest, events_are_created_as_often_as_they_are_outstanding_together) {
  const StreamHandle a = stream();
  for (int i = 0; i < 100; ++i) {
    work(a);
    of(a).next(1);
    ASSERT_TRUE(timelines.close(of(a), a).ok());
    if (i % 3 != 2) continue;
    sim.run_until_idle();
    poll();
  }
  EXPECT_EQ(timelines.events_recorded(), 100u);
  EXPECT_EQ(calls.count(Call::event_create), 3u);
}

TEST_F(TimelinesTest, a_poll_asks_at_most_so_many_timelines_and_the_others_next_time) {
  Vector<StreamHandle> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(stream());
    (of(streams.back())).next(1);
    ASSERT_TRUE(timelines.close(of(streams.back()), streams.back()).ok());
  }
  EXPECT_EQ(poll(3).size(), 3u);
  EXPECT_EQ(poll(3).size(), 1u);
  EXPECT_EQ(timelines.outstanding_events(), 0u);
}

TEST_F(TimelinesTest, a_poll_without_events_makes_no_driver_call) {
  of(stream()).next(1);
  const std::uint64_t before = calls.total_count();
  EXPECT_TRUE(poll().empty());
  EXPECT_EQ(calls.total_count(), before);
}

TEST_F(TimelinesTest, a_poll_asks_no_timeline_without_an_event) {
  const StreamHandle a = stream();
  const StreamHandle b = stream();
  work(b);
  const StampPart of_a = of(a).next(1);
  const StampPart of_b = of(b).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  ASSERT_TRUE(timelines.close(of(b), b).ok());
  EXPECT_EQ(poll(1), Vector<StampPart>{of_a});
  EXPECT_TRUE(poll(1).empty()) << "that of b, which is not done";
  sim.run_until_idle();
  EXPECT_EQ(poll(1), Vector<StampPart>{of_b});
}

// The later ones cannot be done before.
TEST_F(TimelinesTest, of_unfinished_events_of_a_context_only_the_oldest_is_asked) {
  const StreamHandle a = stream();
  work(a);
  for (int i = 0; i < 3; ++i) {
    of(a).next(1);
    ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  }
  const std::uint64_t before = calls.count(Call::event_query);
  EXPECT_TRUE(poll().empty());
  EXPECT_EQ(calls.count(Call::event_query), before + 1);
  sim.run_until_idle();
  EXPECT_EQ(poll().size(), 3u);
}

TEST_F(TimelinesTest, a_query_that_fails_for_good_is_an_error_not_not_ready) {
  const StreamHandle a = stream();
  of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  sim.break_context(0, CuResult::illegal_address);
  Vector<StampPart> done;
  const auto asked = timelines.poll(kAll, done);
  ASSERT_FALSE(asked.ok());
  EXPECT_EQ(asked.error().code, ErrorCode::poisoned);
}

// Three events of streams, and one of the context for a fourth stream; whichever query fails.
TEST_F(TimelinesTest, what_was_found_complete_before_a_query_failed_is_told) {
  for (std::uint64_t failing = 1; failing <= 4; ++failing) {
    Vector<StampPart> freed;
    for (int i = 0; i < 4; ++i) {
      const StreamHandle on = stream();
      freed.push_back(of(on).next(1));
      EXPECT_TRUE(i == 3 || timelines.close(of(on), on).ok());
    }
    ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
    Vector<StampPart> done;
    faults.set_plan(
        {{Call::event_query}, failing, CuResult::unknown, driver::FaultPlan::Repeat::once});
    EXPECT_FALSE(timelines.poll(kAll, done).ok());
    EXPECT_EQ(done.size(), failing - 1);
    EXPECT_TRUE(timelines.poll(kAll, done).ok());
    EXPECT_THAT(done, testing::UnorderedElementsAreArray(freed));
    EXPECT_EQ(timelines.outstanding_events(), 0u);
  }
}

TEST_F(TimelinesTest, a_synchronisation_completes_what_was_numbered_before_it) {
  const StreamHandle a = stream();
  const StampPart before = of(a).next(1);
  const Vector<StampPart> numbers = timelines.numbers_so_far(timelines.contexts().primary.id);
  const StampPart after = of(a).next(1);
  EXPECT_EQ(timelines.mark_complete(numbers), Vector<StampPart>{before});
  EXPECT_FALSE(timelines.reduce(Stamp(after)).is_complete());
}

TEST_F(TimelinesTest, only_what_is_needed_by_nobody_may_be_forgotten) {
  const StreamHandle busy = stream();
  of(busy).next(1);
  const StreamHandle with_tenant = stream();
  of(with_tenant).references = 1;
  of(stream()).references = 1;
  timelines.any_stream();
  timelines.every_stream();
  Timeline& idle = of(stream());
  std::size_t seen = 0;
  timelines.for_each([&](Timeline& each) VPMM_REQUIRES(pool_lock) {
    EXPECT_EQ(timelines.may_be_forgotten(each), &each == &idle);
    ++seen;
  });
  EXPECT_EQ(seen, timelines.count());
  EXPECT_EQ(seen, 6u);
}

TEST_F(TimelinesTest, each_of_them_has_its_turn) {
  Timeline* const first = &of(stream());
  Timeline* const second = &of(stream());
  Timeline* const third = &of(stream());
  EXPECT_EQ(timelines.next_in_turn(), first);
  EXPECT_EQ(timelines.next_in_turn(), second);
  timelines.forget(*third);
  Timeline* const fourth = &of(stream());
  for (Timeline* const next : {first, second, fourth, first})
    EXPECT_EQ(timelines.next_in_turn(), next);
  for (Timeline* const each : {first, second, fourth}) timelines.forget(*each);
  EXPECT_EQ(timelines.next_in_turn(), nullptr);
}

TEST_F(TimelinesTest, a_forgotten_stream_begins_another_timeline) {
  const StreamHandle a = stream();
  const TimelineId id = of(a).id;
  timelines.forget(of(a));
  EXPECT_EQ(timelines.find(id), nullptr);
  EXPECT_EQ(timelines.stream_count(), 0u);
  EXPECT_NE(of(a).id, id);
}

TEST_F(TimelinesTest, parts_of_a_forgotten_timeline_are_complete) {
  const StreamHandle a = stream();
  const StampPart number = of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  poll();
  ASSERT_TRUE(timelines.may_be_forgotten(of(a)));
  timelines.forget(of(a));
  EXPECT_EQ(timelines.count(), 0u);
  EXPECT_TRUE(timelines.reduce(Stamp(number)).is_complete());
  EXPECT_TRUE(timelines.is_waitable(number));
  EXPECT_EQ(timelines.proof_of(number), nullptr);
}

TEST_F(TimelinesTest, describes_stamps_by_stream) {
  const StreamHandle a = stream();
  const auto number = [&](StreamHandle handle) {
    driver::StreamId id{};
    expect(sim.stream_get_id(handle, id));
    return static_cast<std::uint64_t>(id);
  };
  EXPECT_EQ(timelines.describe(of(a).next(1)),
            fmt::format("stream {} ({:#x}) up to 1", number(a), static_cast<std::uint64_t>(a)));
  EXPECT_EQ(timelines.describe_stream(of(driver::kNullStream).id),
            fmt::format("default stream ({})", number(driver::kNullStream)));
  EXPECT_EQ(timelines.describe_stream(of(driver::kPerThreadStream).id),
            fmt::format("a thread's default stream ({})", number(driver::kPerThreadStream)));
  EXPECT_EQ(timelines.describe_stream(timelines.any_stream().id), "any stream");
  EXPECT_EQ(timelines.describe_stream(TimelineId{99}), "a past stream");
}

}  // namespace
}  // namespace vpmm::time
