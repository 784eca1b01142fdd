// SPDX-License-Identifier: Apache-2.0
// context: streams that work side by side, each on what it freed itself (Note [Streams that work
// side by side]).
#include <gtest/gtest.h>

#include <vector>

#include "support/page_size.hpp"
#include "support/pool_world.hpp"

namespace vpmm::test {
namespace {

constexpr Bytes kPair = 2 * kPage;  // what streams' caches serve

std::vector<DevicePtr> pairs(PoolWorld& world, int count, StreamHandle stream) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < count; ++i) all.push_back(world.allocate(kPair, stream));
  return all;
}

// The GPU keeps pace: what is freed is soon complete.
void free_all(PoolWorld& world, const std::vector<DevicePtr>& all, StreamHandle stream) {
  for (const DevicePtr ptr : all) {
    world.use(ptr, kPair, stream);
    world.deallocate(ptr, stream);
    world.sim().advance_host_ns(1'000'000);
  }
}

// `one` and `other` have 100 pairs each; then `one` keeps some of its own for itself.
struct SideBySide {
  explicit SideBySide(std::size_t kept, const WorldOptions& options = adaptive_world())
      : world(options) {
    std::vector<DevicePtr> freed = pairs(world, 100, one);
    pairs(world, 100, other);
    freed.resize(kept);
    free_all(world, freed, one);
    mapped = world.statistics().mapped_bytes;
  }

  PoolWorld world;
  StreamHandle one = world.stream();
  StreamHandle other = world.stream();
  Bytes mapped = 0;
};

TEST(StreamsSideBySide, take_nothing_from_each_other_while_the_pool_may_grow_a_little) {
  SideBySide streams(10);
  pairs(streams.world, 5, streams.other);
  EXPECT_GE(streams.world.statistics().mapped_bytes, streams.mapped + 5 * kPair);
  // So the one finds without a call of the driver what it kept.
  const std::uint64_t calls = streams.world.statistics().driver_calls;
  pairs(streams.world, 10, streams.one);
  EXPECT_EQ(streams.world.statistics().driver_calls, calls);
}

TEST(StreamsSideBySide, take_it_before_the_pool_grows_by_more_than_8_percent) {
  SideBySide streams(60);
  pairs(streams.world, 60, streams.other);
  EXPECT_LE(streams.world.statistics().mapped_bytes, 216 * kPair);
}

TEST(StreamsSideBySide, take_it_before_the_pool_grows_at_all_where_memory_matters_more) {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  SideBySide streams(10, options);
  pairs(streams.world, 10, streams.other);
  EXPECT_EQ(streams.world.statistics().mapped_bytes, streams.mapped);
}

// What is idle with one stream is no use of the pool's, however long it has been there.
TEST(StreamsSideBySide, hold_what_a_program_needs_that_moves_from_one_stream_to_the_next) {
  PoolWorld world(adaptive_world());
  for (int phase = 0; phase < 100; ++phase) {
    const StreamHandle stream = world.stream();
    free_all(world, pairs(world, 100, stream), stream);
    EXPECT_LE(world.statistics().mapped_bytes, 108 * kPair) << "in phase " << phase;
  }
}

}  // namespace
}  // namespace vpmm::test
