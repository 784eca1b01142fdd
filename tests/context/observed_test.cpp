// SPDX-License-Identifier: Apache-2.0
// context: the driver's observer of memory hears where every allocation begins and ends, of every
// kind and on which stream.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver/faulting.hpp"
#include "support/pool_world_words.hpp"
#include "support/watching_driver.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr std::uint32_t kTag = 7;  // whose frees take the pool's lock

class Observed : public ::testing::Test {
 protected:
  void open(const settings::Config& config) {
    ASSERT_EQ(sim.init(), CuResult::success);
    driver::ContextHandle context{};
    ASSERT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
    ASSERT_EQ(sim.ctx_set_current(context), CuResult::success);
    for (StreamHandle* const stream : {&own, &other})
      ASSERT_EQ(sim.stream_create(StreamFlags::non_blocking, *stream), CuResult::success);
    auto created = context::Context::create(faults, 0, config);
    ASSERT_TRUE(created.ok()) << message_of(created);
    pool = std::move(created).value();
  }
  void TearDown() override {
    EXPECT_EQ(watching.wrong, 0);
    EXPECT_EQ(pool->reports().validate(), "");
    pool.reset();
    EXPECT_EQ(sim.hazard_count(), 0u);
  }
  DevicePtr take(const pool::Request& request) {
    const auto made = pool->allocate(request);
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }

  using Tolds = std::vector<WatchingDriver::Told>;
  // What came after the first `from` and begins there: a guard tells of its margins, too.
  static Tolds told_of(DevicePtr begin, const Tolds& all, std::size_t from) {
    Tolds those;
    for (std::size_t i = from; i < all.size(); ++i)
      if (all[i].first.begin == begin) those.push_back(all[i]);
    return those;
  }

  driver::sim::SimDriver sim;
  WatchingDriver watching{sim};
  driver::FaultingDriver faults{watching};
  StreamHandle own{}, other{};
  std::unique_ptr<context::Context> pool;
};

struct Kind {
  const char* name;
  Bytes bytes;
  Bytes taken;
  std::function<void(settings::Config&)> set;
  bool is_in_an_arena;
};
class ObservedKind : public Observed, public ::testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    settings::Config config = page_by_page_world().config;
    GetParam().set(config);
    open(config);
    if (GetParam().is_in_an_arena) arena = pool->arenas().create({}).value();
  }
  pool::ArenaId arena{};
};
void as_it_is(settings::Config&) {}
INSTANTIATE_TEST_SUITE_P(
    Of, ObservedKind,
    ::testing::Values(
        Kind{"a_block", 1000, 1024, as_it_is, false},
        Kind{"pages", 9 * kPage - 100, 9 * kPage, as_it_is, false},
        Kind{"an_arena", 4 * kPage, 4 * kPage, as_it_is, true},
        Kind{"a_guarded_block", 3000, 3000, [](auto& to) { to.checks.guard_every = 1; }, false},
        Kind{"the_drivers_pool", 1000, 1000,
             [](auto& to) { to.small = settings::SmallRequests::stream_ordered; }, false}),
    [](const auto& each) { return std::string(each.param.name); });

// The pool, and no stream, orders a free behind several users.
TEST_P(ObservedKind, ends_on_the_stream_of_all_its_uses_or_on_none) {
  struct Free {
    const char* what;
    pool::Stream on;
    pool::Stream also;  // uses it
    pool::Stream told;
  };
  const Free frees[] = {{"its own", own, std::nullopt, own},
                        {"its own, which used it again", own, own, own},
                        {"another", other, std::nullopt, std::nullopt},
                        {"none", std::nullopt, std::nullopt, std::nullopt},
                        {"its own, of two that used it", own, other, std::nullopt}};
  for (const Free& each : frees) {
    SCOPED_TRACE(each.what);
    const std::size_t begun = watching.begun.size(), ended = watching.ended.size();
    const DevicePtr ptr = take({GetParam().bytes, 0, own, arena, kTag});
    EXPECT_EQ(told_of(ptr, watching.begun, begun), Tolds({{{ptr, GetParam().taken}, own}}));
    if (each.also) {
      ASSERT_TRUE(pool->record_use(ptr, *each.also).ok());
    }
    EXPECT_EQ(told_of(ptr, watching.ended, ended), Tolds());
    ASSERT_TRUE(pool->deallocate(ptr, each.on).ok());
    EXPECT_EQ(told_of(ptr, watching.ended, ended), Tolds({{{ptr, GetParam().taken}, each.told}}));
    sim.run_until_idle();
    ASSERT_TRUE(pool->streams().synchronize().ok());
  }
}

TEST_F(Observed, memory_of_a_capture_ends_with_its_graph) {
  open(page_by_page_world().config);
  ASSERT_EQ(sim.stream_begin_capture(own, driver::CaptureMode::relaxed), CuResult::success);
  const DevicePtr ptr = take({4 * kPage, 0, own});
  ASSERT_TRUE(pool->deallocate(ptr, own).ok());
  driver::GraphHandle graph{};
  ASSERT_EQ(sim.stream_end_capture(own, graph), CuResult::success);
  const DevicePtr next = take({kPage, 0, own});  // sees that the capture is over
  EXPECT_TRUE(watching.ended.empty());
  ASSERT_EQ(sim.graph_destroy(graph), CuResult::success);
  ASSERT_TRUE(pool->streams().synchronize().ok());
  ASSERT_EQ(watching.ended.size(), 1u);
  EXPECT_EQ(watching.ended.back(),
            WatchingDriver::Told(AddressRange{ptr, 4 * kPage}, std::nullopt));
  EXPECT_TRUE(pool->deallocate(next, own).ok());
}

// The memory is live again, as before.
TEST_F(Observed, a_free_that_the_driver_refuses_has_not_been) {
  settings::Config config = page_by_page_world().config;
  config.small = settings::SmallRequests::stream_ordered;
  open(config);
  const DevicePtr ptr = take({1000, 0, own});
  faults.set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value});
  expect_error(pool->deallocate(ptr, own), ErrorCode::driver_failed);
  faults.clear_plan();
  EXPECT_EQ(watching.live, (std::set<DevicePtr>{ptr}));
  EXPECT_EQ(watching.begun.back(), watching.begun.front());
  EXPECT_TRUE(pool->deallocate(ptr, own).ok());
}

}  // namespace
}  // namespace vpmm::test
