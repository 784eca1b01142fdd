// SPDX-License-Identifier: Apache-2.0
// context: deferred frees while the process has host memory for one call and no more.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <optional>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"
#include "support/pool_world_words.hpp"

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

}  // namespace
}  // namespace vpmm::test
