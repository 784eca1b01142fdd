// SPDX-License-Identifier: Apache-2.0
// context: pages that VPMM_PAGES maps ahead, once, or as many as there is room for.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

WorldOptions with_pages(std::uint64_t pages) {
  WorldOptions options = page_by_page_world();
  options.config.pages = pages;
  return options;
}

TEST(Preallocation, that_was_given_back_does_not_come_again) {
  PoolWorld world(with_pages(12));
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(5000, stream), stream);
  EXPECT_EQ(world.statistics().mapped_bytes, 12 * kPage);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.allocate(5000, stream);
  EXPECT_EQ(world.statistics().mapped_bytes, kPage);
}

// A power of two, one less, and neither. The request itself takes nothing.
TEST(Preallocation, fills_any_room_that_is_too_small) {
  constexpr std::uint32_t kFull = 7;
  for (const std::uint64_t wanted : {1U, 7U, 8U, 40U})
    for (std::uint64_t room = 1; room <= 7; ++room) {
      WorldOptions options = with_pages(wanted);
      options.sim.capacity = room * kPage;
      PoolWorld world(options);
      world.pool().limits().set_tag_limit(kFull, settings::Portion{1, 0});
      for (int i = 0; i < 2; ++i) {
        expect_error(world.pool().allocate({5000, 0, world.stream(), {}, kFull}),
                     ErrorCode::out_of_memory, {"of its limit of 1 byte"});
        EXPECT_EQ(world.statistics().mapped_bytes, std::min(wanted, room) * kPage) << wanted;
        EXPECT_EQ(world.statistics().peak_mapped_bytes, world.statistics().mapped_bytes);
      }
    }
}

TEST(Preallocation, in_a_broken_context_fails_the_call) {
  PoolWorld world(with_pages(4));
  const StreamHandle stream = world.stream();
  world.break_context();
  expect_error(world.pool().allocate({5000, 0, stream}), ErrorCode::poisoned);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
