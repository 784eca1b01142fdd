// SPDX-License-Identifier: Apache-2.0
// context: deferred frees while the process has host memory for one call and no more.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/host_memory.hpp"
#include "context/deferred.hpp"
#include "fault/host_faults.hpp"
#include "fault/no_memory.hpp"
#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using fault::HostFaults;

// While it lives, one promise of host memory can be had.
class MemoryOfOneCall {
 public:
  MemoryOfOneCall() {
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    for (std::optional<HostPromise>& part : promised_)
      if (part.emplace(); !part->is_kept()) {
        is_the_last_ = true;
        break;
      }
    promised_.front().reset();
  }
  ~MemoryOfOneCall() { HostFaults::disarm(); }
  // False: an earlier test left a larger reserve.
  bool is_the_last() const { return is_the_last_; }
  MemoryOfOneCall(const MemoryOfOneCall&) = delete;
  MemoryOfOneCall& operator=(const MemoryOfOneCall&) = delete;

 private:
  fault::InsidePool inside_;
  std::array<std::optional<HostPromise>, 512> promised_;
  bool is_the_last_ = false;
};

// Each is promised its own need, as their number is unbounded.
TEST(DeferredFrees, wait_for_a_promise_of_host_memory_beside_that_of_the_call) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{1000}, 4 * kPage})
    world.pool().deallocate_deferred(world.allocate(bytes, stream));
  const std::uint64_t live = world.statistics().live_allocations;
  {
    const MemoryOfOneCall one;
    ASSERT_TRUE(one.is_the_last());
    EXPECT_THROW(static_cast<void>(world.pool().limits().memory_info()), std::bad_alloc);
  }
  EXPECT_EQ(world.statistics().live_allocations, live);
  EXPECT_TRUE(world.pool().limits().memory_info().ok());
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

// Another call took the last before this one had the lock.
TEST(Calls, that_find_no_host_memory_left_behind_the_lock_are_refused_and_change_nothing) {
  HookedWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(9 * kPage, stream);
  world.allocate(1000, world.stream());  // beside another stream each free is a visit
  std::optional<HostPromise> elsewhere;
  bool is_to_take = false;
  world.hooks.on[driver::Call::ctx_set_current] = [&] {
    if (std::exchange(is_to_take, false)) elsewhere.emplace();
    return driver::CuResult::success;
  };
  world.hooks.counts[driver::Call::ctx_set_current] = 0;  // counting must not need memory
  ASSERT_EQ(world.sim.ctx_set_current(driver::ContextHandle{}), driver::CuResult::success);
  Result<void> freed;
  {
    const MemoryOfOneCall one;
    ASSERT_TRUE(one.is_the_last());
    is_to_take = true;
    freed = world.pool->deallocate(ptr, stream);
  }
  ASSERT_TRUE(elsewhere.has_value() && elsewhere->is_kept());
  elsewhere.reset();
  expect_error(freed, ErrorCode::host_out_of_memory);
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
}

// --- the list of deferred frees by itself

std::vector<std::uint64_t> all_of(context::DeferredList& list) {
  std::vector<std::uint64_t> values;
  list.take_all([&](std::uint64_t value) { values.push_back(value); });
  EXPECT_TRUE(list.empty());
  return values;
}

TEST(DeferredList, has_room_without_memory_for_as_many_as_were_provided_for) {
  context::DeferredList list;
  for (int round = 0; round < 3; ++round) {  // what was visited is room again
    list.provide(4);
    {
      const fault::NoMemory none(fault::NoMemory::Reserve::promised);
      for (const std::uint64_t value : {1U, 2U, 3U, 4U}) list.push(value);
    }
    EXPECT_FALSE(list.empty());
    EXPECT_EQ(all_of(list), (std::vector<std::uint64_t>{1, 2, 3, 4}));
  }
}

// More than any reserve holds. From the first that is lost on there is nothing.
TEST(DeferredList, loses_what_it_has_neither_room_nor_memory_for) {
  constexpr std::uint64_t kMany = 1'000'000;
  context::DeferredList list;
  list.provide(1);
  {
    const fault::NoMemory none(fault::NoMemory::Reserve::promised);
    for (std::uint64_t value = 1; value <= kMany; ++value) list.push(value);
  }
  const std::vector<std::uint64_t> kept = all_of(list);
  ASSERT_FALSE(kept.empty());
  EXPECT_LT(kept.size(), kMany);
  EXPECT_EQ(kept.front(), 1u);
  EXPECT_EQ(kept.back(), kept.size());
}

TEST(DeferredList, keeps_the_rest_of_a_visit_that_threw_in_order) {
  context::DeferredList list;
  for (const std::uint64_t value : {1U, 2U, 3U, 4U}) list.push(value);
  std::vector<std::uint64_t> seen;
  EXPECT_THROW(list.take_all([&](std::uint64_t value) {
    if (value == 2) throw std::bad_alloc();
    seen.push_back(value);
  }),
               std::bad_alloc);
  EXPECT_EQ(seen, std::vector<std::uint64_t>{1});
  list.push(5);
  EXPECT_EQ(all_of(list), (std::vector<std::uint64_t>{2, 3, 4, 5}));
  EXPECT_TRUE(all_of(list).empty());
}

}  // namespace
}  // namespace vpmm::test
