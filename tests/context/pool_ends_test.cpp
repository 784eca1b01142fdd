// SPDX-License-Identifier: Apache-2.0
// context: the begin of a pool, which reads its settings and is tried out, and its end, which gives
// all back or touches nothing.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "settings/variable.hpp"
#include "support/hooked_world.hpp"
#include "support/left_memory.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// With memory of every kind, pending work, events, a pinned copy on the host and a peer.
class PoolEnd : public ::testing::Test {
 protected:
  static WorldOptions two_devices() {
    WorldOptions options = adaptive_world();
    options.sim.device_count = 2;
    return options;
  }
  PoolEnd() { EXPECT_EQ(world.sim.device_primary_ctx_retain(1, far), CuResult::success); }
  ~PoolEnd() override {
    world.hooks.on.clear();
    EXPECT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
    if (world.pool == nullptr)
      world.pool = context::Context::create(world.hooks, 0, adaptive_world().config).value();
  }
  enum class End { gives_back, touches_nothing };
  void fill(End end) {
    const StreamHandle stream = world.stream();
    EXPECT_TRUE(world.pool->sharing().set_peer_access(1).ok());
    EXPECT_TRUE(world.pool->suspension().make_suspendable(7, {true, true}).ok());
    EXPECT_TRUE(world.pool->allocate({kPage, 0, stream, {}, 7}).ok());
    {
      std::optional<LeftMemory> left;  // the pinned copy
      if (end == End::touches_nothing) left.emplace();
      EXPECT_TRUE(world.pool->suspension().suspend(7, {}).ok());
    }
    world.allocate(1000, stream);
    const DevicePtr pending = world.allocate(9 * kPage, stream);
    world.use(pending, 9 * kPage, stream, kLongNs);
    world.deallocate(pending, stream);
    world.deallocate(world.allocate(3 * kPage, std::nullopt), std::nullopt);
  }
  // Calls that give anything back.
  std::vector<std::uint64_t> given_back() const {
    std::vector<std::uint64_t> counts;
    for (const Call call :
         {Call::mem_unmap, Call::mem_release, Call::mem_address_free, Call::event_destroy,
          Call::mem_host_unregister, Call::device_primary_ctx_release})
      counts.push_back(world.calls.count(call));
    return counts;
  }

  HookedWorld world{two_devices()};
  driver::ContextHandle far{};
};

TEST_F(PoolEnd, waits_for_work_and_gives_everything_back) {
  fill(End::gives_back);
  const std::vector<std::uint64_t> before = given_back();
  ASSERT_EQ(world.sim.ctx_set_current(far), CuResult::success);
  world.pool.reset();
  const driver::sim::Census left = world.sim.census();
  EXPECT_EQ(left.chunks + left.mappings + left.reservations + left.events, 0u);
  EXPECT_EQ(world.calls.count(Call::mem_host_register),
            world.calls.count(Call::mem_host_unregister));
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_GT(given_back()[i], before[i]) << i;
  EXPECT_EQ(given_back().back(), before.back() + 2) << "of the device and of the peer";
  driver::ContextHandle current{};
  ASSERT_EQ(world.sim.ctx_get_current(current), CuResult::success);
  EXPECT_EQ(current, far) << "as before";
}

TEST_F(PoolEnd, touches_nothing_if_a_wait_for_the_work_fails) {
  for (const Call call : {Call::ctx_get_id, Call::ctx_get_current, Call::ctx_synchronize}) {
    SCOPED_TRACE(driver::to_string(call));
    fill(End::touches_nothing);
    const std::vector<std::uint64_t> before = given_back();
    world.hooks.on[call] = [] { return CuResult::invalid_value; };
    world.pool.reset();
    world.hooks.on.clear();
    EXPECT_EQ(given_back(), before);
    world.pool = context::Context::create(world.hooks, 0, adaptive_world().config).value();
  }
}

TEST_F(PoolEnd, touches_nothing_if_it_cannot_look_for_work_of_peers) {
  fill(End::touches_nothing);
  ASSERT_EQ(world.sim.device_primary_ctx_reset(1), CuResult::success);
  world.allocate(kPage, std::nullopt);  // which forgets its context
  const std::vector<std::uint64_t> before = given_back();
  world.hooks.on[Call::device_primary_ctx_get_state] = [] { return CuResult::invalid_value; };
  world.pool.reset();
  EXPECT_EQ(given_back(), before);
}

TEST_F(PoolEnd, calls_no_driver_in_a_context_that_broke) {
  fill(End::touches_nothing);
  world.hooks.on[Call::mem_create] = [] { return CuResult::illegal_address; };
  expect_error(world.pool->allocate({64 * kPage, 0, std::nullopt}), ErrorCode::poisoned);
  const std::uint64_t calls = world.calls.total_count();
  world.pool.reset();
  EXPECT_EQ(world.calls.total_count(), calls);
}

TEST_F(PoolEnd, calls_no_driver_more_if_the_context_breaks_at_the_last_look) {
  fill(End::touches_nothing);
  const std::vector<std::uint64_t> before = given_back();
  world.hooks.on[Call::ctx_get_id] = [] { return CuResult::illegal_address; };
  const std::uint64_t calls = world.calls.total_count();
  world.pool.reset();
  EXPECT_EQ(world.calls.total_count(), calls);
  EXPECT_EQ(given_back(), before);
}

TEST(PoolBegin, is_refused_with_the_variable_that_is_wrong) {
  for (const auto& [name, value] :
       {std::pair("VPMM_STATS", "maybe"), std::pair("VPMM_LIMITS", "cupy"),
        std::pair("VPMM_TAG_LIBRARIES", "yes")}) {
    const settings::Variable wrong(name, value);
    driver::sim::SimDriver sim;
    const auto refused = context::Context::create(sim, 0, {});
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code, ErrorCode::bad_configuration);
    EXPECT_NE(refused.error().message.find(name), std::string::npos) << refused.error().message;
  }
  driver::sim::SimDriver sim;
  settings::Config config;
  config.page_size = 3 * kMiB;
  const auto refused = context::Context::create(sim, 0, config);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("VPMM_PAGE_SIZE"), std::string::npos)
      << refused.error().message;
}

TEST(PoolBegin, tries_out_a_page_unless_pages_are_huge) {
  struct Case {
    Bytes page = 0;
    std::uint64_t pages = 0;
    bool is_tried = false;
  };
  for (const Case& each :
       {Case{2 * kMiB, 0, true}, Case{64 * kMiB, 0, true}, Case{66 * kMiB, 0, false},
        Case{2 * kMiB, 16, true}, Case{2 * kMiB, ~std::uint64_t{0}, false}}) {
    WorldOptions options = page_world(each.page);
    options.config.pages = each.pages;
    PoolWorld world(options);
    EXPECT_EQ(world.calls().count(Call::mem_create), each.is_tried ? 1u : 0u)
        << each.page << " " << each.pages;
  }
}

TEST(RequestErrors, count_as_failures_and_only_wrong_ones_as_mistakes) {
  PoolWorld world(adaptive_world());
  world.pool().limits().set_capacity(8 * kPage);
  struct Case {
    pool::Request request;
    ErrorCode code{};
    std::string text;
  };
  constexpr Bytes kMost = pool::kAddressSpace;
  const std::vector<Case> cases{
      {{1000, 3, std::nullopt}, ErrorCode::invalid_argument, "alignment 3 is not a power of two"},
      {{1000, 2 * kMost, std::nullopt},
       ErrorCode::invalid_argument,
       "alignment " + std::to_string(2 * kMost) + " is more than any address space"},
      {{kMost + 1, 0, std::nullopt},
       ErrorCode::out_of_memory,
       "asked for  128 TiB (" + std::to_string(kMost + 1) + " bytes)"},
      {{kMost, 0, std::nullopt}, ErrorCode::out_of_memory, "out of device memory"},
      {{9 * kPage, 0, std::nullopt}, ErrorCode::out_of_memory, "asked for  18 MiB"}};
  std::uint64_t failures = 0, mistakes = 0;
  for (const Case& each : cases) {
    expect_error(world.pool().allocate(each.request), each.code, {each.text});
    if (each.code == ErrorCode::invalid_argument) ++mistakes;
    EXPECT_EQ(world.statistics().failed_allocations, ++failures);
    EXPECT_EQ(world.statistics().caller_mistakes, mistakes);
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

}  // namespace
}  // namespace vpmm::test
