// SPDX-License-Identifier: Apache-2.0
// context: the order of steps before a request fails: Note [Steps in a shortage].
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

enum class Step { moved, anew, caches, gpu_wait, host_wait };
enum class Scarcity {
  capacity,
  others
};  // the pool's own, or what other processes leave of the GPU

constexpr std::array kNames = {"moved", "anew", "caches", "gpu_wait", "host_wait"};
void PrintTo(Step step, std::ostream* out) { *out << kNames.at(static_cast<std::size_t>(step)); }

constexpr Bytes kPages = 64;     // all that there is
constexpr Bytes kWanted = 9;     // more than a stream keeps for itself
constexpr Bytes kWaitable = 17;  // more than a stream frees without an event
constexpr Bytes kCached = 10;    // by the driver's pool

// A step finds as much as is wanted, and so does each dearer one, or more.
class ShortageOrder : public ::testing::TestWithParam<std::tuple<Scarcity, Step>> {
 protected:
  ShortageOrder() {
    stream = world.stream();
    other = world.stream();
    fill();
  }
  static Step first() { return std::get<Step>(GetParam()); }
  static bool has(Step step) { return first() <= step; }
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.chunk_max = kPage;
    options.config.prefer = settings::Prefer::latency;  // no waits while there is anything else
    options.config.small = settings::SmallRequests::stream_ordered;
    if (first() == Step::anew)
      options.config.limits.max_mappings = kPages - kCached;  // nothing can move
    if (std::get<Scarcity>(GetParam()) == Scarcity::capacity) {
      options.config.limits.capacity = kPages * kPage;
    } else {
      options.sim.capacity = 2 * kPages * kPage;
      options.sim.used_by_others = kPages * kPage;
    }
    return options;
  }
  void fill() {
    Bytes left = kPages;
    const auto take = [&](Bytes pages, pool::Stream on) {
      left -= pages;
      return world.allocate(pages * kPage, on);
    };
    std::vector<DevicePtr> cached;
    if (has(Step::caches)) {
      for (Bytes i = 0; i < 2 * kCached; ++i) cached.push_back(world.allocate(kPage / 2, stream));
      EXPECT_EQ(world.statistics().stream_ordered_bytes, kCached * kPage);
      left -= kCached;
    }
    std::vector<DevicePtr> idle;
    for (Bytes i = 0; has(Step::anew) && i < kWanted; ++i) {
      idle.push_back(take(1, stream));
      take(1, stream);
    }
    const DevicePtr waitable = has(Step::gpu_wait) ? take(kWaitable, other) : DevicePtr{};
    const DevicePtr provable = take(kWanted, other);
    while (left > 0) take(1, stream);
    for (const DevicePtr ptr : idle) world.deallocate(ptr, stream);
    for (const DevicePtr ptr : cached) world.deallocate(ptr, stream);
    world.wait();
    if (has(Step::gpu_wait)) {
      world.use(waitable, kWaitable * kPage, other, kLongNs);
      world.deallocate(waitable, other);
    }
    world.use(provable, kWanted * kPage, other, kLongNs);
    world.deallocate(provable, std::nullopt);
  }
  // What it took to serve the request.
  std::vector<Step> used_by_a_request() {
    const observe::Statistics before = world.statistics();
    world.allocate(kWanted * kPage, stream);
    const observe::Statistics after = world.statistics();
    std::vector<Step> used;
    if (after.chunks_moved != before.chunks_moved) used.push_back(Step::moved);
    if (after.chunks_released != before.chunks_released) used.push_back(Step::anew);
    if (after.stream_ordered_bytes != before.stream_ordered_bytes) used.push_back(Step::caches);
    if (after.gpu_waits != before.gpu_waits) used.push_back(Step::gpu_wait);
    if (after.host_waits != before.host_waits) used.push_back(Step::host_wait);
    return used;
  }

  PoolWorld world{options()};
  StreamHandle stream{};
  StreamHandle other{};
};

TEST_P(ShortageOrder, the_cheapest_step_that_helps_is_taken_and_none_after_it) {
  EXPECT_EQ(used_by_a_request(), std::vector{first()});
}

INSTANTIATE_TEST_SUITE_P(, ShortageOrder,
                         ::testing::Combine(::testing::Values(Scarcity::capacity, Scarcity::others),
                                            ::testing::Values(Step::moved, Step::anew, Step::caches,
                                                              Step::gpu_wait, Step::host_wait)),
                         [](const auto& tested) {
                           const bool is_own =
                               std::get<Scarcity>(tested.param) == Scarcity::capacity;
                           return std::string(is_own ? "capacity_" : "others_") +
                                  kNames.at(static_cast<std::size_t>(std::get<Step>(tested.param)));
                         });

// It comes while the pool asks the driver for more, which refuses.
TEST(ShortageOrderOfFrees, a_deferred_free_is_carried_out_before_idle_memory_of_arenas_is_taken) {
  WorldOptions options = page_by_page_world();
  options.sim.capacity = kPages * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream(), other = world.stream();
  const pool::ArenaId arena = world.pool->arenas().create({}).value();
  const auto block = world.pool->allocate({4 * kPage, 0, other, arena});
  ASSERT_TRUE(block.ok());
  const DevicePtr freed = world.allocate(kWanted * kPage, stream);
  world.allocate((kPages - kWanted - 4) * kPage, stream);
  world.deallocate(block.value(), other);
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  bool is_deferred = false;
  world.hooks.on[driver::Call::mem_create] = [&] {
    if (!std::exchange(is_deferred, true)) world.pool->deallocate_deferred(freed);
    return driver::CuResult::success;
  };
  EXPECT_EQ(world.allocate(kWanted * kPage, stream), freed);
  EXPECT_TRUE(is_deferred);
  EXPECT_EQ(world.pool->arenas().trim(arena).value(), 4 * kPage) << "which it still had";
}

}  // namespace
}  // namespace vpmm::test
