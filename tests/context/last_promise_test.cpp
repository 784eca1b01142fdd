// context: deferred frees while the process has host memory for one call and no more.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"
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

}  // namespace
}  // namespace vpmm::test
