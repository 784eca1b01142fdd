// SPDX-License-Identifier: Apache-2.0
// time: what is due, of a stream and of none in particular, and how streams are named.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "time/timelines_fixture.hpp"

namespace vpmm::time {
namespace {

// An event of the context is all that proves such memory; nobody waits for one of its own.
TEST_F(TimelinesTest, of_no_stream_in_particular_nothing_is_due_that_the_context_has_an_event_for) {
  Timeline& any = timelines.any_stream();
  any.wanted = true;
  EXPECT_FALSE(timelines.is_due(any)) << "nothing was freed";
  any.next(1);
  EXPECT_TRUE(timelines.is_due(any));
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_TRUE(any.wanted);
  EXPECT_FALSE(timelines.is_due(any)) << "not done, but proven some day";
  any.next(1);
  EXPECT_TRUE(timelines.is_due(any));
  poll();
}

// Others may wait for an event of the stream alone.
TEST_F(TimelinesTest, of_a_stream_an_event_of_its_own_is_due_whatever_the_context_proves) {
  of(stream());
  const StreamHandle a = stream();
  Timeline& timeline = of(a);
  for (int i = 0; i < 2; ++i) timeline.next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_TRUE(timelines.is_due(timeline));
  ASSERT_TRUE(timelines.close(timeline, a).ok());
  EXPECT_FALSE(timelines.is_due(timeline));
  poll();
}

TEST_F(TimelinesTest, a_stream_has_one_turn_in_a_poll_however_many_events_it_has) {
  const StreamHandle busy = stream(), other = stream();
  work(busy);
  for (int i = 0; i < 3; ++i) {
    of(busy).next(1);
    ASSERT_TRUE(timelines.close(of(busy), busy).ok());
  }
  const StampPart number = of(other).next(1);
  ASSERT_TRUE(timelines.close(of(other), other).ok());
  EXPECT_EQ(poll(2), Vector<StampPart>{number});
  sim.run_until_idle();
  EXPECT_EQ(poll(1).size(), 3u);
}

TEST_F(TimelinesTest, a_timeline_begins_without_a_past) {
  for (Timeline* const timeline : {&of(stream()), &timelines.any_stream()}) {
    EXPECT_FALSE(timeline->is_noted || timeline->is_over || timeline->wanted);
    EXPECT_EQ(timeline->next_number, nullptr);
    EXPECT_EQ(timeline->references, 0u);
    EXPECT_TRUE(timeline->closings.empty());
    EXPECT_TRUE(timeline->numbers.are_complete() && timeline->numbers.are_provable());
    EXPECT_EQ(timeline->numbers.last, 0u);
    EXPECT_EQ(timeline->since_event.count, 0u);
    EXPECT_EQ(timeline->since_event.bytes, 0u);
  }
}

TEST_F(TimelinesTest, on_the_legacy_stream_of_the_context_that_is_current_one_call_is_enough) {
  for (int i = 0; i < 2; ++i) {  // the second has an event to spare
    const StampPart number = timelines.any_stream().next(1);
    calls.start_listing();
    EXPECT_TRUE(timelines.close_all(Everything::legacy_stream).value());
    const std::vector<std::string> listed = calls.stop_listing();
    EXPECT_EQ(poll(), Vector<StampPart>{number});
    if (i == 1) {
      EXPECT_THAT(listed, testing::ElementsAre("event_record"));
    }
  }
}

TEST_F(TimelinesTest, a_stream_that_nobody_called_with_is_named_by_its_id_alone) {
  EXPECT_EQ(describe_stream(timelines, driver::StreamId{99}), "stream 99");
  const StreamHandle a = stream();
  driver::StreamId id{};
  expect(sim.stream_get_id(a, id));
  const auto number = static_cast<std::uint64_t>(id);
  EXPECT_EQ(describe_stream(timelines, id), fmt::format("stream {}", number));
  const TimelineId timeline = of(a).id;
  const std::string full = fmt::format("stream {} ({:#x})", number, static_cast<std::uint64_t>(a));
  EXPECT_EQ(describe_stream(timelines, id), full);
  EXPECT_EQ(timelines.describe_stream(timeline), full);
  timelines.forget(of(a));
  EXPECT_EQ(describe_stream(timelines, id), fmt::format("stream {}", number));
  EXPECT_EQ(timelines.describe({timeline, 7}), "a past stream up to 7");
  EXPECT_EQ(timelines.describe({timelines.every_stream().id, 3}), "any stream up to 3");
}

TEST_F(TimelinesTest, both_handles_of_the_default_stream_have_one_name) {
  for (const StreamHandle handle : {driver::kLegacyStream, driver::kNullStream}) {
    Timelines others{calls, every(2)};
    enter_primary(sim, others);
    driver::StreamId id{};
    expect(sim.stream_get_id(handle, id));
    ASSERT_TRUE(others.of(handle).ok());
    EXPECT_EQ(others.handle_of(id), handle);
    EXPECT_EQ(describe_stream(others, id),
              fmt::format("default stream ({})", static_cast<std::uint64_t>(id)));
  }
}

TEST_F(TimelinesTest, a_wait_for_what_has_no_event_says_for_what) {
  const StampPart number = of(stream()).next(1);
  const auto waited = timelines.queue_wait(stream(), number);
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(waited.error().message, "no event stands for " + timelines.describe(number));
  EXPECT_EQ(calls.count(Call::stream_wait_event), 0u);
}

TEST_F(TimelinesTest, a_stream_that_uses_an_allocation_is_named_once_and_stays_known) {
  Timeline &a = of(stream()), &b = of(stream());
  Vector<TimelineId> uses;
  for (Timeline* const timeline : {&a, &b, &a, &b}) add_use(uses, *timeline);
  EXPECT_EQ(uses, (Vector<TimelineId>{a.id, b.id}));
  for (const Timeline* const timeline : {&a, &b}) {
    EXPECT_EQ(timeline->references, 1u);
    EXPECT_FALSE(timelines.may_be_forgotten(*timeline));
  }
  count_references(timelines, std::nullopt, uses, -1);
  for (const Timeline* const timeline : {&a, &b})
    EXPECT_TRUE(timelines.may_be_forgotten(*timeline));
}

}  // namespace
}  // namespace vpmm::time
