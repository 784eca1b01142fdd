// SPDX-License-Identifier: Apache-2.0
// context: how many pages small requests take at a time.
#include <gtest/gtest.h>

#include <utility>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

// A 64th of what the stream has, of idle pages.
TEST(SmallRequests, take_several_pages_at_a_time_where_their_stream_has_much) {
  constexpr Bytes kPart = 512 * kKiB;
  for (const auto& [live, taken] : {std::pair<Bytes, Bytes>{16, 1}, {200, 1}, {320, 2}, {448, 3}}) {
    PoolWorld world(page_world());
    const StreamHandle stream = world.stream();
    constexpr int kMost = 2000;
    int allocated = 0;
    const auto allocate = [&] {
      const auto made = world.pool().allocate({kPart, 0, stream});
      EXPECT_TRUE(made.ok()) << message_of(made);
      return made.ok() && ++allocated < kMost;
    };
    while (world.statistics().live_bytes < live * kMiB) ASSERT_TRUE(allocate());
    world.deallocate(world.allocate(16 * kPage, stream), stream);
    world.wait();
    const observe::Statistics before = world.statistics();
    observe::Statistics now = before;
    for (; now.small_bytes == before.small_bytes; now = world.statistics()) ASSERT_TRUE(allocate());
    EXPECT_EQ(now.small_bytes - before.small_bytes, taken * kPage) << live;
    EXPECT_EQ(now.chunks_created, before.chunks_created) << "they were idle";
  }
}

}  // namespace
}  // namespace vpmm::test
