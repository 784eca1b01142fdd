// SPDX-License-Identifier: Apache-2.0
// time: timelines of streams of several contexts, and contexts that die.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "driver/forwarding.hpp"
#include "time/timelines_fixture.hpp"

namespace vpmm::time {
namespace {

TEST_F(TimelinesTest, default_streams_are_of_the_primary_context_whichever_is_current) {
  driver::ContextHandle other{};
  expect(sim.device_primary_ctx_retain(1, other));
  const std::uint64_t before = calls.count(Call::stream_get_ctx);
  for (const StreamHandle each :
       {driver::kNullStream, driver::kLegacyStream, driver::kPerThreadStream})
    EXPECT_EQ(of(each).context.handle, context);
  EXPECT_EQ(calls.count(Call::stream_get_ctx), before) << "nobody is asked";
  EXPECT_TRUE(timelines.contexts().others.empty());
}

TEST_F(TimelinesTest, without_another_context_what_nobody_named_begins_anew_after_a_death) {
  const StampPart number = timelines.any_stream().next(1);
  const StampPart of_every = timelines.every_stream().next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  const driver::ContextId dead = timelines.contexts().primary.id;
  expect(sim.device_primary_ctx_reset(0));
  enter_primary(sim, timelines);
  EXPECT_THAT(timelines.forget_context(dead), testing::UnorderedElementsAre(number, of_every));
  EXPECT_EQ(timelines.outstanding_events(), 0u);
  EXPECT_FALSE(timelines.awaits_context_event());
  EXPECT_NE(timelines.any_stream().id, number.timeline);
  EXPECT_NE(timelines.every_stream().id, of_every.timeline);
  EXPECT_EQ(timelines.any_stream().context.id, timelines.contexts().primary.id);
}

TEST_F(TimelinesTest, a_dead_context_is_forgotten_without_touching_its_events) {
  const StreamHandle a = stream();
  work(a);
  const StampPart number = of(a).next(1);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  const driver::ContextId dead = timelines.contexts().primary.id;
  expect(sim.device_primary_ctx_reset(0));
  EXPECT_EQ(timelines.forget_context(dead), Vector<StampPart>{number});
  EXPECT_EQ(timelines.outstanding_events(), 0u);
  EXPECT_TRUE(poll().empty()) << "the simulator aborts when a dead event is touched";
}

TEST_F(TimelinesTest, a_stream_of_a_dead_context_is_none_of_its_streams_any_more) {
  const StreamHandle a = stream();
  const TimelineId gone = of(a).id;
  driver::StreamId id{};
  expect(sim.stream_get_id(a, id));
  timelines.any_stream();
  const driver::ContextId dead = timelines.contexts().primary.id;
  expect(sim.device_primary_ctx_reset(0));
  enter_primary(sim, timelines);
  timelines.forget_context(dead);
  EXPECT_EQ(timelines.stream_count(), 0u);
  EXPECT_EQ(timelines.handle_of(id), std::nullopt);
  const StreamHandle next = stream();
  of(next);
  timelines.forget(*timelines.find(gone));
  EXPECT_EQ(timelines.find(gone), nullptr);
  EXPECT_EQ(timelines.stream_count(), 1u);
}

// A driver before CUDA 12 has no ids of contexts.
class WithoutContextIds : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool has(Call call) const override {
    return call != Call::ctx_get_id && driver::ForwardingDriver::has(call);
  }

 protected:
  std::optional<CuResult> before(Call call) override {
    return call == Call::ctx_get_id ? std::optional(CuResult::not_supported) : std::nullopt;
  }
};

TEST_F(TimelinesTest, where_contexts_have_no_ids_their_handles_tell_them_apart) {
  WithoutContextIds old(sim);
  Timelines with_old{old, every(2)};
  enter_primary(sim, with_old);
  Vector<driver::ContextId> ids{with_old.contexts().primary.id};
  driver::ContextHandle other{};
  expect(sim.device_primary_ctx_retain(1, other));
  expect(sim.ctx_set_current(other));
  const StreamHandle foreign = stream();
  expect(sim.ctx_set_current(context));
  EXPECT_EQ(with_old.of(stream()).value()->context.id, ids.front());
  const auto timeline = with_old.of(foreign);
  ASSERT_TRUE(timeline.ok());
  EXPECT_EQ(timeline.value()->context.id, driver::ContextId{static_cast<std::uint64_t>(other)});
  EXPECT_EQ(with_old.contexts().others.size(), 1u);
  with_old.destroy_events();
}

TEST_F(TimelinesTest, a_stream_of_the_primary_context_asks_for_no_other) {
  const std::uint64_t before = calls.count(Call::ctx_get_id);
  of(stream());
  EXPECT_EQ(calls.count(Call::ctx_get_id), before);
  EXPECT_TRUE(timelines.contexts().others.empty());
}

TEST_F(TimelinesTest, a_stream_of_another_context_is_closed_by_events_of_that_context) {
  driver::ContextHandle other{};
  expect(sim.device_primary_ctx_retain(1, other));
  expect(sim.ctx_set_current(other));
  const StreamHandle foreign = stream();
  expect(sim.ctx_set_current(context));
  Timeline& timeline = of(foreign);
  EXPECT_EQ(timeline.context.handle, other);
  driver::ContextId id{};
  expect(sim.ctx_get_id(other, id));
  EXPECT_EQ(timeline.context.id, id);
  const StampPart number = timeline.next(1);
  ASSERT_EQ(timelines.contexts().others.size(), 1u);
  ASSERT_TRUE(timelines.close(timeline, foreign).ok());
  driver::ContextHandle current{};
  expect(sim.ctx_get_current(current));
  EXPECT_EQ(current, context);
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

// A stream of device 1's primary context, which the timelines come to know by it.
class TwoContexts : public TimelinesTest {
 protected:
  TwoContexts() {
    expect(sim.device_primary_ctx_retain(1, other));
    expect(sim.ctx_set_current(other));
    foreign = stream();
    expect(sim.ctx_set_current(context));
    of(foreign);
  }
  driver::ContextId id_of(driver::ContextHandle handle) {
    driver::ContextId id{};
    expect(sim.ctx_get_id(handle, id));
    return id;
  }
  driver::ContextHandle other{};
  StreamHandle foreign{};
};

TEST_F(TwoContexts, each_is_proven_by_an_event_of_its_own) {
  work(foreign);
  const StampPart here = (of(stream())).next(1);
  const StampPart there = of(foreign).next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_EQ(poll(), Vector<StampPart>{here});
  EXPECT_NE(timelines.proof_of(there), nullptr);
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{there});
}

TEST_F(TwoContexts, what_nobody_named_is_complete_when_both_are_done) {
  for (const StreamHandle last : {stream(), foreign}) {
    work(last);
    const StampPart number = timelines.any_stream().next(1);
    ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
    EXPECT_TRUE(poll().empty());
    const std::shared_ptr<Event> proof = timelines.proof_of(number);
    ASSERT_NE(proof, nullptr);
    EXPECT_EQ(proof->context(), id_of(last == foreign ? other : context))
        << "the other one is done";
    sim.run_until_idle();
    EXPECT_EQ(poll(), Vector<StampPart>{number});
    EXPECT_EQ(timelines.outstanding_events(), 0u);
  }
}

TEST_F(TwoContexts, what_every_stream_may_use_is_complete_when_both_are_done) {
  work(foreign);
  const StampPart number = timelines.every_stream().next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_TRUE(poll().empty());
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, after_the_death_of_one_its_streams_are_asked_no_more) {
  const StampPart gone = of(foreign).next(1);
  ASSERT_TRUE(timelines.close(of(foreign), foreign).ok());
  const StreamHandle here = stream();
  const StampPart number = of(here).next(1);
  ASSERT_TRUE(timelines.close(of(here), here).ok());
  const driver::ContextId dead = id_of(other);
  expect(sim.device_primary_ctx_reset(1));
  EXPECT_EQ(timelines.forget_context(dead), Vector<StampPart>{gone});
  EXPECT_EQ(poll(1), Vector<StampPart>{number});
}

TEST_F(TwoContexts, on_legacy_streams_too) {
  const StreamHandle blocking = [&] {
    expect(sim.ctx_set_current(other));
    StreamHandle made{};
    expect(sim.stream_create(driver::StreamFlags::blocking, made));
    expect(sim.ctx_set_current(context));
    return made;
  }();
  work(blocking);
  const StampPart number = timelines.any_stream().next(1);
  ASSERT_TRUE(timelines.close_all(Everything::legacy_stream).ok());
  EXPECT_TRUE(poll().empty());
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, the_death_of_one_leaves_what_nobody_named_to_the_other) {
  for (const bool is_primary_first : {true, false}) {
    work(foreign);
    work(stream());
    const StampPart closed = timelines.any_stream().next(1);
    ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
    const StampPart open = timelines.any_stream().next(1);
    if (is_primary_first) {
      const driver::ContextId dead = timelines.contexts().primary.id;
      expect(sim.device_primary_ctx_reset(0));
      enter_primary(sim, timelines);
      EXPECT_TRUE(timelines.forget_context(dead).empty());
      EXPECT_EQ(timelines.any_stream().id, open.timeline);
      EXPECT_TRUE(poll().empty());
      sim.run_until_idle();
      EXPECT_EQ(poll(), Vector<StampPart>{closed});
      ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
      EXPECT_EQ(poll(), Vector<StampPart>{open});
    } else {
      const driver::ContextId dead = id_of(other);
      expect(sim.device_primary_ctx_reset(1));
      EXPECT_TRUE(timelines.forget_context(dead).empty()) << "the primary context is still busy";
      EXPECT_TRUE(timelines.contexts().others.empty());
      sim.run_until_idle();
      EXPECT_EQ(poll(), Vector<StampPart>{closed});
    }
    EXPECT_EQ(timelines.validate(), "");
  }
}

TEST_F(TwoContexts, the_death_of_one_leaves_events_of_streams_of_the_other) {
  const StreamHandle here = stream();
  work(here);
  const StampPart number = of(here).next(1);
  ASSERT_TRUE(timelines.close(of(here), here).ok());
  work(foreign);
  const StampPart there = of(foreign).next(1);
  ASSERT_TRUE(timelines.close(of(foreign), foreign).ok());
  const driver::ContextId dead = id_of(other);
  expect(sim.device_primary_ctx_reset(1));
  EXPECT_EQ(timelines.forget_context(dead), Vector<StampPart>{there});
  EXPECT_TRUE(poll().empty());
  sim.run_until_idle();
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, what_nobody_named_outlives_both_one_after_the_other) {
  const TimelineId any = timelines.any_stream().id;
  driver::ContextId dead = timelines.contexts().primary.id;
  expect(sim.device_primary_ctx_reset(0));
  enter_primary(sim, timelines);
  timelines.forget_context(dead);
  dead = id_of(other);
  expect(sim.device_primary_ctx_reset(1));
  timelines.forget_context(dead);
  const StampPart number = timelines.any_stream().next(1);
  EXPECT_EQ(number.timeline, any);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, one_set_of_events_stands_for_what_nobody_named) {
  const StampPart number = timelines.any_stream().next(1);
  ASSERT_TRUE(timelines.close_all(Everything::context_event).value());
  EXPECT_EQ(timelines.events_recorded(), 2u);
  EXPECT_EQ(timelines.outstanding_events(), 1u);
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, the_legacy_stream_of_one_that_cannot_be_entered_proves_nothing) {
  timelines.any_stream().next(1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  poll();  // both contexts have an event to spare
  const StampPart number = timelines.any_stream().next(1);
  faults.set_plan(
      {{Call::ctx_set_current}, 1, CuResult::invalid_context, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(timelines.close_all(Everything::legacy_stream).ok());
  EXPECT_EQ(timelines.proof_of(number), nullptr);
  ASSERT_TRUE(timelines.close_all(Everything::legacy_stream).ok());
  EXPECT_EQ(poll(), Vector<StampPart>{number});
}

TEST_F(TwoContexts, a_third_stays_known_when_one_of_them_dies) {
  const driver::ContextId first = timelines.contexts().primary.id;
  const driver::ContextId second = id_of(other);
  const time::KnownContext third{driver::ContextHandle{77}, driver::ContextId{77}};
  timelines.contexts().add(third);
  timelines.forget_context(second);
  EXPECT_EQ(timelines.contexts().others, Vector<KnownContext>{third});
  EXPECT_EQ(timelines.contexts().primary.id, first);
}

TEST_F(TwoContexts, a_failed_record_in_one_does_not_keep_the_other_from_being_proven) {
  const StampPart here = (of(stream())).next(1);
  const StampPart there = of(foreign).next(1);
  const StampPart unnamed = timelines.any_stream().next(1);
  faults.set_plan(
      {{Call::ctx_record_event}, 2, CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(timelines.close_all(Everything::context_event).ok());
  EXPECT_EQ(poll(), Vector<StampPart>{here});
  ASSERT_TRUE(timelines.close_all(Everything::context_event).ok());
  EXPECT_THAT(poll(), testing::UnorderedElementsAre(there, unnamed));
}

}  // namespace
}  // namespace vpmm::time
