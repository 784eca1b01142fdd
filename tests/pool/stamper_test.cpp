// SPDX-License-Identifier: Apache-2.0
// pool: which work a free waits for: Note [Free on which stream].
#include "pool/stamper.hpp"

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::pool {
namespace {

using settings::AnyStreamOrder;
using settings::UnnamedFree;
using time::Stamp;
using time::StampPart;
using time::TimelineId;

class StamperTest : public ::testing::Test {
 protected:
  StamperTest() {
    time::enter_primary(sim, timelines);
    for (Caller* const each : {&a, &b, &c}) *each = caller();
  }
  ~StamperTest() override {
    EXPECT_EQ(timelines.validate(), "");
    timelines.destroy_events();
  }
  Caller caller() {
    Caller made;
    driver::StreamHandle stream{};
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream),
              driver::CuResult::success);
    made.stream = stream;
    made.timeline = timelines.of(stream).value();
    return made;
  }
  // Of an allocation of `owner` that `others` are known to use.
  Stamp free_on(const Caller& caller, std::optional<TimelineId> owner,
                const Vector<TimelineId>& others = {}) {
    return Stamper(timelines, config).stamp_of({owner, others, kMiB}, caller);
  }
  // Whether it is the last number that was given of the timeline alone.
  static bool is_last_of(const time::Timeline& timeline, const Stamp& stamp) {
    return stamp == Stamp(StampPart{timeline.id, timeline.numbers.last});
  }

  // Out of line, so that the stream stays in memory as it does in an allocation's.
  [[gnu::noinline]] static void disown(std::optional<TimelineId>& owner) { owner.reset(); }

  driver::sim::SimDriver sim{{}};
  time::Timelines timelines{sim, {}};
  settings::Config config;
  Caller a;
  Caller b;
  Caller c;
  const Caller nobody{};
};

TEST_F(StamperTest, a_free_on_the_stream_of_the_allocation_waits_for_that_stream) {
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(a, a.timeline->id)));
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(a, a.timeline->id, {a.timeline->id})))
      << "named as well";
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(a, std::nullopt))) << "allocated without a stream";
  EXPECT_EQ(a.timeline->numbers.last, 3u) << "each free has a number";
  EXPECT_EQ(a.timeline->since_event.bytes, 3 * kMiB);
  EXPECT_FALSE(a.timeline->wanted);
}

TEST_F(StamperTest, two_streams_are_both_waited_for_and_proof_of_the_other_is_wanted) {
  const Stamp freed_elsewhere = free_on(b, a.timeline->id);
  EXPECT_EQ(freed_elsewhere, Stamp({b.timeline->id, 1}, {a.timeline->id, 1}));
  EXPECT_TRUE(a.timeline->wanted);
  EXPECT_FALSE(b.timeline->wanted) << "it is calling";
  const Stamp used_elsewhere = free_on(b, b.timeline->id, {c.timeline->id});
  EXPECT_EQ(used_elsewhere, Stamp({b.timeline->id, 2}, {c.timeline->id, 1}));
  EXPECT_TRUE(c.timeline->wanted);
  EXPECT_EQ(c.timeline->since_event.bytes, 0u) << "counted once";
}

TEST_F(StamperTest, three_streams_are_everything_that_is_queued) {
  EXPECT_TRUE(is_last_of(timelines.any_stream(), free_on(a, b.timeline->id, {c.timeline->id})));
  config.streams.any_stream = AnyStreamOrder::legacy;
  EXPECT_TRUE(is_last_of(timelines.every_stream(), free_on(a, b.timeline->id, {c.timeline->id})))
      << "the legacy stream does not wait for all of them";
  EXPECT_EQ(a.timeline->numbers.last, 0u);
}

TEST_F(StamperTest, a_free_without_a_stream_is_everything_that_is_queued) {
  for (const AnyStreamOrder order : {AnyStreamOrder::context, AnyStreamOrder::legacy}) {
    config.streams.any_stream = order;
    const std::uint64_t before = timelines.any_stream().numbers.last;
    EXPECT_TRUE(is_last_of(timelines.any_stream(), free_on(nobody, a.timeline->id)));
    EXPECT_EQ(timelines.any_stream().numbers.last, before + 1);
    EXPECT_TRUE(is_last_of(
        order == AnyStreamOrder::legacy ? timelines.every_stream() : timelines.any_stream(),
        free_on(nobody, a.timeline->id, {b.timeline->id})))
        << "the user said which streams";
  }
}

TEST_F(StamperTest, a_free_without_a_stream_may_be_one_of_the_allocating_stream) {
  config.streams.unnamed_free = UnnamedFree::allocating_stream;
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(nobody, a.timeline->id)));
  EXPECT_EQ(free_on(nobody, a.timeline->id, {b.timeline->id}),
            Stamp({a.timeline->id, 2}, {b.timeline->id, 1}));
  EXPECT_TRUE(is_last_of(timelines.any_stream(), free_on(nobody, std::nullopt))) << "there is none";
  EXPECT_TRUE(is_last_of(timelines.any_stream(), free_on(nobody, TimelineId{99}))) << "a past one";
  a.timeline->is_over = true;
  EXPECT_TRUE(is_last_of(timelines.any_stream(), free_on(nobody, a.timeline->id)));
  EXPECT_TRUE(is_last_of(*b.timeline, free_on(b, a.timeline->id)));
}

// Note [A repeated free may lack its stream]
TEST_F(StamperTest, after_a_refusal_a_free_without_a_stream_is_everything_that_is_queued) {
  for (const AnyStreamOrder order : {AnyStreamOrder::context, AnyStreamOrder::legacy})
    for (const UnnamedFree unnamed : {UnnamedFree::any_stream, UnnamedFree::allocating_stream}) {
      config.streams.any_stream = order;
      config.streams.unnamed_free = unnamed;
      Stamper stamper(timelines, config);
      const Vector<TimelineId> none;
      const Stamper::Uses uses{a.timeline->id, none, kMiB};
      const time::Timeline& before =
          unnamed == UnnamedFree::allocating_stream ? *a.timeline : timelines.any_stream();
      EXPECT_TRUE(is_last_of(before, stamper.stamp_of(uses, nobody)));
      stamper.note_refused();
      const time::Timeline& all =
          order == AnyStreamOrder::legacy ? timelines.every_stream() : timelines.any_stream();
      EXPECT_TRUE(is_last_of(all, stamper.stamp_of(uses, nobody)));
      EXPECT_TRUE(is_last_of(*a.timeline, stamper.stamp_of(uses, a))) << "which names its stream";
    }
}

TEST_F(StamperTest, streams_that_are_gone_are_not_waited_for) {
  b.timeline->is_over = true;
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(a, b.timeline->id, {TimelineId{99}})));
  std::optional<TimelineId> owner = c.timeline->id;
  disown(owner);
  EXPECT_TRUE(is_last_of(*a.timeline, free_on(a, owner)));
}

TEST_F(StamperTest, a_caller_may_queue_work_and_has_memory_of_its_own_on_an_ordinary_stream) {
  EXPECT_TRUE(a.may_queue());
  EXPECT_EQ(a.own(), a.timeline->id);
  EXPECT_FALSE(nobody.may_queue());
  EXPECT_EQ(nobody.own(), std::nullopt);
  for (const Standing standing : {Standing::capturing, Standing::blocked}) {
    a.standing = standing;
    EXPECT_FALSE(a.may_queue());
    EXPECT_EQ(a.own(), std::nullopt);
  }
}

TEST_F(StamperTest, uses_are_of_a_caller_if_nobody_else_is_known) {
  const Vector<TimelineId> none, some{b.timeline->id};
  const auto are_of_a = [&](std::optional<TimelineId> owner, const Vector<TimelineId>& others) {
    return Stamper::Uses{owner, others, kMiB}.are_of(a);
  };
  EXPECT_TRUE(are_of_a(a.timeline->id, none));
  EXPECT_TRUE(are_of_a(std::nullopt, none));
  EXPECT_FALSE(are_of_a(b.timeline->id, none));
  EXPECT_FALSE(are_of_a(a.timeline->id, some));
  EXPECT_FALSE((Stamper::Uses{std::nullopt, none, kMiB}.are_of(nobody)));
}

}  // namespace
}  // namespace vpmm::pool
