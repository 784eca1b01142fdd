// SPDX-License-Identifier: Apache-2.0
// context: how much memory a pool that is short asks other pools of the process for.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "process/neighbours.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

// Notes in pages what it is asked for, and gives nothing.
class AskedPool {
 public:
  explicit AskedPool(PoolWorld& world) {
    const auto give_back = [this](Bytes most) {
      EXPECT_EQ(most % kPage, 0u);
      asked.push_back(most / kPage);
      return Bytes{0};
    };
    process::enter_neighbourhood(this, {0, &world.pool().driver(), give_back, [] {}});
  }
  ~AskedPool() { process::leave_neighbourhood(this); }
  AskedPool(const AskedPool&) = delete;
  AskedPool& operator=(const AskedPool&) = delete;
  std::vector<Bytes> asked;
};

constexpr Bytes kAllPages = 16;

WorldOptions small_gpu() {
  WorldOptions options = page_world();
  options.sim.capacity = kAllPages * kPage;
  return options;
}

TEST(NeighbourAmounts, are_what_the_gpu_lacks_within_the_pools_own_limit) {
  struct Case {
    std::optional<Bytes> capacity;
    Bytes live, others, wanted;  // pages
    std::vector<Bytes> asked;
  };
  const Case cases[] = {
      {std::nullopt, 0, 12, 8, {4}},
      {std::nullopt, 0, 12, 16, {12}},  // all of the GPU
      {std::nullopt, 0, 12, 17, {}},
      {std::nullopt, 4, 12, 12, {12}},
      {std::nullopt, 4, 12, 13, {}},
      {8, 4, 12, 5, {4}},  // idle memory of its own would be the rest
      {8, 4, 11, 5, {3}},
      {8, 4, 8, 5, {}},
      {4, 4, 12, 1, {}},
      {2, 4, 12, 1, {}},
  };
  for (const Case& each : cases) {
    PoolWorld world(small_gpu());
    const StreamHandle stream = world.stream();
    if (each.live > 0) world.allocate(each.live * kPage, stream);
    world.sim().set_used_by_others(0, each.others * kPage);
    if (each.capacity) world.pool().limits().set_capacity(*each.capacity * kPage);
    const AskedPool neighbour(world);
    expect_error(world.pool().allocate({each.wanted * kPage, 0, stream}), ErrorCode::out_of_memory);
    EXPECT_EQ(neighbour.asked, each.asked) << each.capacity.value_or(0) << " " << each.live << " "
                                           << each.others << " " << each.wanted;
  }
}

// What streams keep for their own next requests is not in use.
TEST(NeighbourAmounts, are_asked_up_to_the_gpus_size_beside_what_is_in_use) {
  for (const Bytes wanted : {12, 13}) {
    PoolWorld world(small_gpu());
    const StreamHandle stream = world.stream();
    world.allocate(4 * kPage, stream);
    const DevicePtr kept = world.allocate(kPage, stream);
    world.deallocate(kept, stream);
    world.sim().set_used_by_others(0, 11 * kPage);
    const AskedPool neighbour(world);
    expect_error(world.pool().allocate({wanted * kPage, 0, stream}), ErrorCode::out_of_memory);
    EXPECT_EQ(neighbour.asked.empty(), wanted == 13) << wanted;
  }
}

TEST(NeighbourAmounts, of_a_pool_that_is_off_are_up_to_the_gpus_size) {
  for (const Bytes more : {0, 1}) {
    WorldOptions options = small_gpu();
    options.config.pool_enabled = false;
    PoolWorld world(options);
    world.sim().set_used_by_others(0, 12 * kPage);
    const AskedPool neighbour(world);
    expect_error(world.pool().allocate({kAllPages * kPage + more, 0, world.stream()}),
                 ErrorCode::out_of_memory);
    EXPECT_EQ(neighbour.asked, more == 0 ? std::vector<Bytes>{12} : std::vector<Bytes>{});
  }
}

TEST(NeighbourAmounts, of_a_preallocation_are_what_is_not_held_yet) {
  PoolWorld world(small_gpu());
  world.allocate(2 * kPage, world.stream());
  world.sim().set_used_by_others(0, 12 * kPage);
  const AskedPool neighbour(world);
  expect_error(world.pool().limits().preallocate(10 * kPage), ErrorCode::out_of_memory);
  EXPECT_EQ(neighbour.asked, std::vector<Bytes>{6});
  expect_error(world.pool().limits().preallocate(17 * kPage), ErrorCode::out_of_memory);
  EXPECT_EQ(neighbour.asked, std::vector<Bytes>{6});
}

// Memory would not help.
TEST(NeighbourAmounts, of_a_preallocation_that_the_driver_refuses_otherwise_are_none) {
  PoolWorld world(small_gpu());
  world.allocate(kPage, world.stream());
  world.sim().set_used_by_others(0, 12 * kPage);
  const AskedPool neighbour(world);
  for (const Call call : {Call::mem_create, Call::ctx_get_id}) {
    world.faults().set_plan({{call}, 1, CuResult::invalid_value});
    expect_error(world.pool().limits().preallocate(8 * kPage), ErrorCode::driver_failed,
                 {driver::to_string(call)});
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
  }
  EXPECT_TRUE(neighbour.asked.empty());
  EXPECT_TRUE(world.pool().limits().preallocate(2 * kPage).ok());
  EXPECT_TRUE(neighbour.asked.empty());
}

TEST(NeighbourAmounts, are_whole_pages_of_a_request_below_one) {
  PoolWorld world(small_gpu());
  world.sim().set_used_by_others(0, kAllPages * kPage);
  const AskedPool neighbour(world);
  expect_error(world.pool().allocate({100, 0, world.stream()}), ErrorCode::out_of_memory);
  EXPECT_EQ(neighbour.asked, std::vector<Bytes>{1});
}

// The driver fails the look for a reset of the n-th visit: that of the request, that before the
// question, that of the report.
TEST(NeighbourAmounts, are_asked_by_no_pool_that_could_not_look_at_its_context) {
  for (const std::uint64_t nth : {1, 2, 3}) {
    PoolWorld world(small_gpu());
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(kPage, stream), stream);
    world.sim().set_used_by_others(0, 12 * kPage);
    const AskedPool neighbour(world);
    world.faults().set_plan({{Call::ctx_get_id}, nth, CuResult::unknown});
    const auto refused = world.pool().allocate({8 * kPage, 0, stream});
    EXPECT_EQ(world.faults().fired(), 1u);
    world.faults().clear_plan();
    expect_error(refused, nth == 1 ? ErrorCode::driver_failed : ErrorCode::out_of_memory);
    EXPECT_EQ(neighbour.asked.size(), nth == 3 ? 1u : 0u) << nth;
  }
}

TEST(NeighbourAmounts, are_nothing_where_the_limit_of_the_tag_is_reached) {
  constexpr std::uint32_t kTag = 7;
  PoolWorld world(small_gpu());
  world.sim().set_used_by_others(0, 12 * kPage);
  const AskedPool neighbour(world);
  for (const auto& [limit, asked] :
       {std::pair<Bytes, std::vector<Bytes>>{7, {}}, {8, std::vector<Bytes>{4}}}) {
    world.pool().limits().set_tag_limit(kTag, settings::Portion{limit * kPage, 0});
    expect_error(world.pool().allocate({8 * kPage, 0, world.stream(), {}, kTag}),
                 ErrorCode::out_of_memory);
    EXPECT_EQ(neighbour.asked, asked) << limit;
  }
}

// Free memory that is not known is no reason to ask.
TEST(NeighbourAmounts, are_asked_by_no_pool_that_does_not_know_what_the_gpu_has) {
  PoolWorld world(small_gpu());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  world.sim().set_used_by_others(0, 12 * kPage);
  const AskedPool neighbour(world);
  world.faults().set_plan(
      {{Call::mem_get_info}, 1, CuResult::unknown, FaultPlan::Repeat::from_then_on});
  const auto refused = world.pool().allocate({8 * kPage, 0, stream});
  world.faults().clear_plan();
  expect_error(refused, ErrorCode::out_of_memory);
  EXPECT_TRUE(neighbour.asked.empty());
  EXPECT_EQ(refused.error().message.find("\n  GPU"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace vpmm::test
