// SPDX-License-Identifier: Apache-2.0
// context: what a pool does not do while cleaning up is put off, and that it catches up.
#include <gtest/gtest.h>

#include <thread>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

// While it lives.
class Hold {
 public:
  explicit Hold(PoolWorld& world) : world_(world) { world_.pool().limits().defer_cleanup_begin(); }
  ~Hold() { EXPECT_TRUE(world_.pool().limits().defer_cleanup_end().ok()); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  PoolWorld& world_;
};

// Two pages that moved: their old addresses are zombies, complete and not yet unmapped.
void make_zombies(PoolWorld& world, StreamHandle stream) {
  const DevicePtr first = world.allocate(kPage, stream);
  world.allocate(kPage, stream);
  const DevicePtr last = world.allocate(kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(first, stream);
  world.deallocate(last, stream);
  world.allocate(2 * kPage, stream);
  ASSERT_GT(world.statistics().zombie_bytes, 0u);
  world.sim().advance_host_ns(kLongNs);
}

TEST(DeferredCleanup, old_addresses_stay_mapped_until_it_ends) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  {
    const Hold hold(world);
    make_zombies(world, stream);
    const std::uint64_t unmaps = world.calls().count(Call::mem_unmap);
    for (int i = 0; i < 5; ++i) world.deallocate(world.allocate(kPage, stream), stream);
    EXPECT_EQ(world.calls().count(Call::mem_unmap), unmaps);
    EXPECT_GT(world.statistics().zombie_bytes, 0u);
  }
  world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
}

TEST(DeferredCleanup, nothing_is_given_back_above_the_threshold_until_it_ends) {
  WorldOptions options = page_world();
  options.config.limits.release_threshold = 0;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  {
    const Hold hold(world);
    world.deallocate(world.allocate(6 * kPage, stream), stream);
    world.sim().advance_host_ns(kLongNs);
    const DevicePtr again = world.allocate(6 * kPage, stream);
    world.deallocate(again, stream);
    EXPECT_EQ(world.statistics().chunks_released, 0u);
    EXPECT_EQ(world.statistics().mapped_bytes, 6 * kPage) << "and it was used again";
  }
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_LT(world.statistics().mapped_bytes, 6 * kPage);
}

TEST(DeferredCleanup, the_host_does_not_wait_for_any_stream_memory) {
  for (const bool is_held : {false, true}) {
    PoolWorld world(page_world());
    const StreamHandle stream = world.stream();
    if (is_held) world.pool().limits().defer_cleanup_begin();
    for (int i = 0; i < 20; ++i) {
      const DevicePtr ptr = world.allocate(8 * kPage, std::nullopt);
      world.use(ptr, 8 * kPage, stream, kLongNs);
      world.deallocate(ptr, std::nullopt);
    }
    EXPECT_EQ(world.statistics().host_waits == 0, is_held);
    EXPECT_EQ(world.calls().count(Call::event_synchronize) == 0, is_held);
    EXPECT_EQ(world.pool().limits().defer_cleanup_end().ok(), is_held);
    world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
    EXPECT_GT(world.statistics().host_waits, 0u) << "the next free catches up";
  }
}

TEST(DeferredCleanup, no_call_pauses_before_the_pool_grows) {
  for (const bool is_held : {false, true}) {
    PoolWorld world(adaptive_world());
    const StreamHandle own = world.stream();
    const StreamHandle other = world.stream();
    world.deallocate(world.allocate(kPage, own), own);
    const DevicePtr theirs = world.allocate(64 * kMiB, other);
    world.use(theirs, 64 * kMiB, other, 300'000);
    world.deallocate(theirs, other);
    if (is_held) world.pool().limits().defer_cleanup_begin();
    const std::uint64_t before = world.statistics().pauses;
    world.allocate(64 * kMiB, own);
    EXPECT_EQ(world.statistics().pauses - before, is_held ? 0u : 1u);
    EXPECT_EQ(world.pool().limits().defer_cleanup_end().ok(), is_held);
  }
}

TEST(DeferredCleanup, memory_that_runs_out_comes_first) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const Hold hold(world);
  const DevicePtr all = world.allocate(8 * kPage, stream);
  world.use(all, 8 * kPage, stream, kLongNs);
  world.deallocate(all, std::nullopt);
  EXPECT_EQ(world.statistics().host_waits, 0u);
  world.allocate(8 * kPage, std::nullopt);
  EXPECT_GT(world.statistics().host_waits, 0u) << "it waited rather than fail";
}

TEST(DeferredCleanup, what_the_caller_asks_for_is_done) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const Hold hold(world);
  make_zombies(world, stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
}

TEST(DeferredCleanup, ends_with_the_last_of_nested_holds_on_whatever_thread) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().defer_cleanup_begin();
  world.pool().limits().defer_cleanup_begin();
  make_zombies(world, stream);
  std::thread([&] { EXPECT_TRUE(world.pool().limits().defer_cleanup_end().ok()); }).join();
  world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_GT(world.statistics().zombie_bytes, 0u);
  EXPECT_TRUE(world.pool().limits().defer_cleanup_end().ok());
  world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
  expect_error(world.pool().limits().defer_cleanup_end(), ErrorCode::invalid_argument,
               {"defer_cleanup_begin"});
}

}  // namespace
}  // namespace vpmm::test
