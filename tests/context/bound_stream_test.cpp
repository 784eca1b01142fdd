// SPDX-License-Identifier: Apache-2.0
// context: a free on a bound stream: without a driver call where its cache or the pool can do
// without, and always of the whole allocation.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

class BoundFree : public ::testing::Test {
 protected:
  void bind() {
    auto made = world.pool().bind(stream);
    ASSERT_TRUE(made.ok()) << message_of(made);
    bound = std::move(made).value();
  }
  DevicePtr take(Bytes bytes) {
    const auto made = bound->allocate(bytes, 0);
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }

  PoolWorld world{adaptive_world()};
  StreamHandle stream = world.stream();
  std::unique_ptr<context::BoundStream> bound;
};

TEST_F(BoundFree, of_what_its_cache_serves_makes_no_driver_call_beside_other_streams) {
  bind();
  const StreamHandle other = world.stream();
  for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, kPage}) {
    world.deallocate(world.allocate(bytes, other), other);
    ASSERT_TRUE(bound->deallocate(take(bytes)).ok());
    const DevicePtr ptr = take(bytes);
    const std::uint64_t before = world.calls().total_count();
    EXPECT_TRUE(bound->deallocate(ptr).ok());
    EXPECT_EQ(world.calls().total_count(), before) << bytes;
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

// More than a cache keeps, so the pool's lock is taken; where nothing is due, no visit is made.
TEST_F(BoundFree, ends_the_allocation_with_and_without_a_visit) {
  constexpr Bytes kBytes = 9 * kPage;
  bind();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(bound->deallocate(take(kBytes)).ok());
    world.wait();
  }
  const DevicePtr first = take(kBytes);
  std::uint64_t before = world.calls().total_count();
  ASSERT_TRUE(bound->deallocate(first).ok());
  EXPECT_EQ(world.calls().total_count(), before + 1) << "a look for a reset";
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(take(kBytes), first) << "its own memory";
  const StreamHandle other = world.stream();
  world.deallocate(world.allocate(1000, other), other);
  before = world.calls().total_count();
  ASSERT_TRUE(bound->deallocate(first).ok());
  EXPECT_GT(world.calls().total_count(), before + 1) << "there are two streams";
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  expect_error(bound->deallocate(first), ErrorCode::invalid_pointer, {hex(first)});
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
}

// A pool of few streams leaves them what they keep: only of more than it remembers idle ones give
// it back.
TEST(FewStreams, keep_all_in_their_caches_however_long_they_are_idle) {
  constexpr std::size_t kMost = 63;  // and what all streams together freed
  for (const std::size_t count : {std::size_t{2}, kMost}) {
    PoolWorld world(adaptive_world());
    std::vector<StreamHandle> streams;
    for (std::size_t i = 0; i < count; ++i) streams.push_back(world.stream());
    for (const StreamHandle stream : streams)
      for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 2 * kPage})
        world.deallocate(world.allocate(bytes, stream), stream);
    const DevicePtr ptr = world.allocate(1000, streams[0]);
    const Bytes kept = world.statistics().cached_bytes;
    for (std::size_t i = 0; i < 20 * count; ++i)
      ASSERT_TRUE(world.pool().record_use(ptr, streams[0]).ok());
    EXPECT_EQ(world.statistics().cached_bytes, kept) << count;
    EXPECT_EQ(world.statistics().timelines, count);
  }
}

}  // namespace
}  // namespace vpmm::test
