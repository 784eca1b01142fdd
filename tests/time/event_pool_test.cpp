// SPDX-License-Identifier: Apache-2.0
// time: events that are lent, come back and serve again.
#include "time/event_pool.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/no_host_memory.hpp"
#include "time/timelines_fixture.hpp"

namespace vpmm::time {
namespace {

class EventPoolTest : public TimelinesTest {
 protected:
  std::shared_ptr<Event> take(const KnownContext& of) {
    auto event = events.take(of);
    EXPECT_TRUE(event.ok());
    return event ? event.value() : nullptr;
  }
  KnownContext primary() { return timelines.contexts().primary; }
  std::uint64_t created() { return calls.count(Call::event_create); }
  std::uint64_t destroyed() { return calls.count(Call::event_destroy); }

  EventPool events{calls};
};

TEST_F(EventPoolTest, an_event_serves_again_in_its_context_alone) {
  driver::ContextHandle handle{};
  expect(sim.device_primary_ctx_retain(1, handle));
  const KnownContext other{handle, driver::ContextId{77}};
  std::shared_ptr<Event> one = take(primary());
  EXPECT_EQ(one->context(), primary().id);
  const driver::EventHandle first = one->handle();
  one.reset();
  std::shared_ptr<Event> two = take(other);
  EXPECT_EQ(two->context(), other.id);
  EXPECT_EQ(created(), 2u);
  driver::ContextHandle current{};
  expect(sim.ctx_get_current(current));
  EXPECT_EQ(current, context) << "as before the creation in the other";
  one = take(primary());
  EXPECT_EQ(one->handle(), first);
  EXPECT_EQ(created(), 2u);
  two.reset();
  events.forget_context(other.id);
  two = take(other);
  EXPECT_EQ(created(), 3u) << "the one before died with its context";
  EXPECT_EQ(destroyed(), 0u);
  for (std::shared_ptr<Event>* const event : {&one, &two}) event->reset();
  events.destroy_spares();
  EXPECT_EQ(destroyed(), 2u);
  events.destroy_spares();
  EXPECT_EQ(destroyed(), 2u) << "once";
}

// The last owner may be a call that has no host memory left, and has nobody to tell.
TEST_F(EventPoolTest, an_event_comes_back_without_host_memory) {
  for (const std::size_t count : {1U, 2U, 9U}) {
    std::vector<std::shared_ptr<Event>> lent;
    std::vector<std::weak_ptr<Event>> records;  // which keep their memory meanwhile
    for (std::size_t i = 0; i < count; ++i)
      records.emplace_back(lent.emplace_back(take(primary())));
    {
      const NoHostMemory none;
      for (std::shared_ptr<Event>& event : lent) event.reset();
    }
    for (const std::weak_ptr<Event>& record : records) EXPECT_TRUE(record.expired());
    EXPECT_EQ(created(), count);
  }
  events.destroy_spares();
  EXPECT_EQ(destroyed(), 9u);
}

TEST_F(EventPoolTest, an_event_that_cannot_be_made_is_not_lent) {
  for (const Call failing : {Call::event_create, Call::ctx_get_current}) {
    faults.set_plan({{failing}, 1, CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
    const auto event = events.take(primary());
    ASSERT_FALSE(event.ok());
    EXPECT_EQ(event.error().code, ErrorCode::out_of_memory) << event.error().message;
  }
  EXPECT_NE(take(primary()), nullptr);
  events.destroy_spares();
  EXPECT_EQ(destroyed(), 1u);
}

TEST_F(EventPoolTest, an_event_that_the_driver_keeps_serves_again) {
  const std::shared_ptr<Event> lent = take(primary());
  take(primary());
  faults.set_plan({{Call::event_destroy}, 1, CuResult::unknown, driver::FaultPlan::Repeat::once});
  events.destroy_spares();
  take(primary());
  EXPECT_EQ(created(), 2u);
  events.destroy_spares();
  take(primary());
  EXPECT_EQ(created(), 3u);
  events.destroy_spares();
  expect(sim.event_destroy(lent->handle()));
  events.forget_context(primary().id);
}

TEST_F(EventPoolTest, an_event_is_done_when_the_work_before_it_is) {
  const std::shared_ptr<Event> event = take(primary());
  const StreamHandle a = stream();
  work(a);
  expect(sim.event_record(event->handle(), a));
  EXPECT_FALSE(event->is_done().value());
  sim.run_until_idle();
  EXPECT_TRUE(event->is_done().value());
  faults.set_plan({{Call::event_query}, 1, CuResult::unknown, driver::FaultPlan::Repeat::once});
  EXPECT_FALSE(event->is_done().ok());
  expect(sim.event_destroy(event->handle()));
  events.forget_context(primary().id);
}

}  // namespace
}  // namespace vpmm::time
