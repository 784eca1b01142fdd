// SPDX-License-Identifier: Apache-2.0
// context: any-stream memory that can be had at once: without a driver call, and without waiting
// for a lock.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "driver/forwarding.hpp"
#include "observe/trace_file.hpp"
#include "support/held.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

// Counts every driver call that the request makes.
DevicePtr take_if_ready(PoolWorld& world, Bytes bytes, Bytes alignment = 0) {
  const std::uint64_t calls = world.calls().total_count();
  const DevicePtr begin = world.pool().allocate_if_ready(bytes, alignment);
  EXPECT_EQ(world.calls().total_count(), calls);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return begin;
}

// So much that was freed, and is complete.
void put_in_hand(PoolWorld& world, Bytes bytes, int count = 1) {
  std::vector<DevicePtr> live;
  for (int i = 0; i < count; ++i) live.push_back(world.allocate(bytes, std::nullopt));
  for (const DevicePtr ptr : live) world.deallocate(ptr, std::nullopt);
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(world.allocate(bytes, std::nullopt), std::nullopt);
  world.sim().advance_host_ns(kLongNs);
  world.deallocate(world.allocate(512, std::nullopt), std::nullopt);
}

TEST(Ready, small_memory_in_hand_is_given_without_a_driver_call) {
  PoolWorld world(adaptive_world());
  for (const Bytes bytes : {Bytes{80}, Bytes{5000}, Bytes{100'000}}) {
    put_in_hand(world, bytes);
    const DevicePtr ptr = take_if_ready(world, bytes);
    ASSERT_FALSE(is_null(ptr)) << bytes;
    world.use(ptr, bytes, world.stream());
    world.deallocate(ptr, std::nullopt);
  }
}

TEST(Ready, pages_that_are_complete_are_given_without_a_driver_call) {
  PoolWorld world(adaptive_world());
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.deallocate(ptr, std::nullopt);
  world.wait();
  const std::uint64_t allocations = world.statistics().allocations;
  EXPECT_EQ(take_if_ready(world, 4 * kPage), ptr);
  EXPECT_EQ(world.statistics().allocations, allocations + 1);
  EXPECT_EQ(world.statistics().live_bytes, 4 * kPage);
  world.use(ptr, 4 * kPage, world.stream());
  world.deallocate(ptr, std::nullopt);
}

TEST(Ready, no_pages_are_while_another_thread_has_the_lock) {
  PoolWorld world(adaptive_world());
  const DevicePtr free = world.allocate(4 * kPage, std::nullopt);
  const DevicePtr other = world.allocate(4 * kPage, std::nullopt);
  world.deallocate(free, std::nullopt);
  world.wait();
  DevicePtr taken = free;
  Held held("a free holds the pool's lock, nothing has ended",
            [&] { taken = world.pool().allocate_if_ready(4 * kPage, 0); });
  world.deallocate(other, std::nullopt);
  ASSERT_TRUE(held.end());
  EXPECT_TRUE(held.is_over());
  EXPECT_TRUE(is_null(taken));
  EXPECT_EQ(take_if_ready(world, 4 * kPage), free);
}

// There each request unmaps old mappings first.
TEST(Ready, no_pages_are_where_each_is_a_chunk) {
  PoolWorld world(page_world());
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  world.wait();
  EXPECT_TRUE(is_null(take_if_ready(world, 4 * kPage)));
}

// It would keep both of its chunks from moving.
TEST(Ready, a_page_is_taken_where_a_page_begins) {
  PoolWorld world(adaptive_world());
  const DevicePtr whole = world.allocate(8 * kPage, std::nullopt);
  world.deallocate(whole, std::nullopt);
  world.wait();
  const DevicePtr front = take_if_ready(world, kPage + 1);
  const DevicePtr page = take_if_ready(world, kPage);
  ASSERT_EQ(front, whole);
  EXPECT_EQ(page, whole + 2 * kPage);
  for (const DevicePtr each : {front, page}) world.deallocate(each, std::nullopt);
}

TEST(Ready, pending_memory_is_not) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{kPage / 2}, 4 * kPage}) {
    const DevicePtr ptr = world.allocate(bytes, std::nullopt);
    world.use(ptr, bytes, stream, kLongNs);
    world.deallocate(ptr, std::nullopt);
    std::vector<DevicePtr> taken;
    for (DevicePtr next = take_if_ready(world, bytes); !is_null(next);
         next = take_if_ready(world, bytes)) {
      EXPECT_NE(next, ptr);
      taken.push_back(next);
    }
    for (const DevicePtr next : taken) world.deallocate(next, std::nullopt);
  }
}

TEST(Ready, nothing_is_before_the_first_ordinary_call) {
  PoolWorld world(adaptive_world());
  EXPECT_TRUE(is_null(take_if_ready(world, 80)));
  EXPECT_TRUE(is_null(take_if_ready(world, 4 * kPage)));
}

TEST(Ready, wrong_requests_are_left_to_the_ordinary_call) {
  PoolWorld world(adaptive_world());
  world.deallocate(world.allocate(8 * kPage, std::nullopt), std::nullopt);
  world.wait();
  world.allocate(80, std::nullopt);
  EXPECT_TRUE(is_null(take_if_ready(world, 0)));
  EXPECT_TRUE(is_null(take_if_ready(world, 80, 24)));
  EXPECT_TRUE(is_null(take_if_ready(world, 4 * kPage, 3)));
  EXPECT_TRUE(is_null(take_if_ready(world, ~Bytes{0})));
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
}

TEST(Ready, hand_that_was_recalled_serves_again_after_an_ordinary_call) {
  PoolWorld world(adaptive_world());
  world.allocate(80, std::nullopt);
  ASSERT_FALSE(is_null(take_if_ready(world, 80)));
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  world.allocate(80, std::nullopt);
  EXPECT_FALSE(is_null(take_if_ready(world, 80)));
}

TEST(Ready, requests_do_not_starve_frees_that_were_deferred) {
  PoolWorld world(adaptive_world());
  const DevicePtr large = world.allocate(64 * kPage, std::nullopt);
  put_in_hand(world, 80, 200);
  const std::uint64_t deallocations = world.statistics().deallocations;
  world.pool().deallocate_deferred(large);
  int served = 0;
  for (; served < 1000; ++served) {
    const DevicePtr ptr = take_if_ready(world, 80);
    if (is_null(ptr)) break;
  }
  EXPECT_EQ(served, 64);
  EXPECT_EQ(world.statistics().deallocations, deallocations);
  world.allocate(80, std::nullopt);
  EXPECT_EQ(world.statistics().deallocations, deallocations + 1)
      << "the ordinary call carried them out";
  EXPECT_FALSE(is_null(take_if_ready(world, 80)));
}

TEST(Ready, whole_pages_are_not_given_while_frees_are_deferred) {
  PoolWorld world(adaptive_world());
  const DevicePtr other = world.allocate(kPage, std::nullopt);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  world.wait();
  const DevicePtr ready = take_if_ready(world, 4 * kPage);
  ASSERT_FALSE(is_null(ready));
  world.deallocate(ready, std::nullopt);
  world.wait();
  world.pool().deallocate_deferred(other);
  EXPECT_TRUE(is_null(take_if_ready(world, 4 * kPage)));
}

TEST(Ready, calls_are_served_and_recorded_while_the_pool_is_recorded) {
  PoolWorld world(adaptive_world());
  world.allocate(80, std::nullopt);
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  world.wait();
  const std::string path = ::testing::TempDir() + "ready_recording.csv.gz";
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  EXPECT_FALSE(is_null(take_if_ready(world, 80)));
  EXPECT_FALSE(is_null(take_if_ready(world, 4 * kPage)));
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  EXPECT_EQ(observe::read_trace(path).value().allocations, 2u);
  std::filesystem::remove(path);
}

// Stops in cuMemCreate until told to go on.
class Halting final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult mem_create(Bytes size, const driver::ChunkProperties& properties,
                              driver::ChunkHandle& out) override {
    is_inside = true;
    is_inside.notify_all();
    may_go_on.wait(false);
    return ForwardingDriver::mem_create(size, properties, out);
  }
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_go_on{true};
};

TEST(Ready, memory_is_given_while_another_thread_is_inside_the_driver) {
  driver::sim::SimDriver sim;
  driver::ContextHandle context{};
  ASSERT_EQ(sim.init(), driver::CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
  Halting halting(sim);
  auto created = context::Context::create(halting, 0, adaptive_world().config);
  ASSERT_TRUE(created.ok());
  context::Context& pool = *created.value();
  ASSERT_TRUE(pool.allocate({80, 0, std::nullopt}).ok());
  halting.is_inside = false;
  halting.may_go_on = false;
  std::thread grower([&] { EXPECT_TRUE(pool.allocate({512 * kMiB, 0, std::nullopt}).ok()); });
  halting.is_inside.wait(false);
  EXPECT_FALSE(is_null(pool.allocate_if_ready(80, 0)));
  halting.may_go_on = true;
  halting.may_go_on.notify_all();
  grower.join();
}

// What a stream frees and takes again, in the order of its work.
TEST(Ready, what_a_stream_freed_serves_it_behind_its_own_work) {
  PoolWorld world(adaptive_world());
  context::Context& pool = world.pool();
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{80}, Bytes{100'000}, 2 * kPage}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    world.use(ptr, bytes, stream, kLongNs);
    ASSERT_TRUE(pool.deallocate_if_ready(ptr, stream)) << bytes;
    EXPECT_FALSE(pool.deallocate_if_ready(ptr, stream)) << "it is freed";
    EXPECT_TRUE(is_null(pool.allocate_if_ready(bytes, 0, world.stream())))
        << "another stream has nothing";
    const DevicePtr again = pool.allocate_if_ready(bytes, 0, stream);
    EXPECT_EQ(again, ptr) << bytes;
    world.use(again, bytes, stream);
    EXPECT_EQ(pool.reports().validate(), "");
    world.deallocate(again, stream);
  }
  EXPECT_TRUE(is_null(pool.allocate_if_ready(0, 0, stream)));
  EXPECT_TRUE(is_null(pool.allocate_if_ready(80, 24, stream)))
      << "the ordinary call says what is wrong";
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

// Its requests have to be filled, which queues work.
TEST(Ready, nothing_is_where_new_memory_is_filled) {
  WorldOptions options = adaptive_world();
  options.config.checks.fill_new = true;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  put_in_hand(world, 1000);
  const DevicePtr ptr = world.allocate(1000, stream);
  world.deallocate(world.allocate(1000, stream), stream);
  EXPECT_TRUE(world.pool().deallocate_if_ready(ptr, stream)) << "frees are served";
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 0, stream)));
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(4 * kPage, 0)));
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 0)));
}

// The driver is asked about the stream only where its cache may serve.
TEST(Ready, what_no_cache_serves_is_refused_without_a_driver_call) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(64 * kPage, stream), stream);
  world.deallocate(world.allocate(1000, stream), stream);
  const std::uint64_t calls = world.calls().total_count();
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(0, 0, stream)));
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(64 * kPage, 0, stream)));
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 24, stream)));
  EXPECT_EQ(world.calls().total_count(), calls);
  EXPECT_FALSE(is_null(world.pool().allocate_if_ready(1000, 0, stream)));
  EXPECT_GT(world.calls().total_count(), calls);
}

// The event that others wait for is recorded without waiting, so the free of one stream reaches the
// others.
TEST(Ready, a_free_at_once_proves_what_others_wait_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle first = world.stream();
  const StreamHandle second = world.stream();
  world.deallocate(world.allocate(80, second), second);
  const Bytes bytes = 2 * kPage;
  for (int turn = 0; turn < 50; ++turn) {
    const DevicePtr ptr = world.allocate(bytes, first);
    ASSERT_TRUE(world.pool().deallocate_if_ready(ptr, first));
    world.wait();
    const DevicePtr other = world.allocate(bytes, second);
    world.use(other, bytes, second);
    world.deallocate(other, second);
  }
  EXPECT_LE(world.statistics().mapped_bytes, 6 * kPage) << "each stream's frees served the other";
}

// As finalizers and allocations of several threads meet, with a thread that names its stream beside
// them.
TEST(Ready, threads_take_and_defer_side_by_side) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&world, seed] {
      for (std::uint64_t i = 0; i < 3000; ++i) {
        const Bytes bytes = (i * 7919 + seed * 104729) % (i % 8 == 0 ? 3 * kPage : kPage / 8) + 1;
        DevicePtr ptr = world.pool().allocate_if_ready(bytes, 0);
        if (is_null(ptr)) ptr = world.pool().allocate({bytes, 0, std::nullopt}).value();
        world.pool().deallocate_deferred(ptr);
      }
    });
  }
  for (int i = 0; i < 1000; ++i) {
    const DevicePtr ptr = world.pool().allocate({Bytes{1000}, 0, stream}).value();
    ASSERT_TRUE(world.pool().deallocate(ptr, stream).ok());
  }
  for (std::thread& thread : threads) thread.join();
  world.wait();
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
  EXPECT_EQ(world.statistics().allocations, 10'000u);
}

TEST(Ready, are_no_pages_before_those_of_the_setting_are_mapped) {
  WorldOptions options = adaptive_world();
  options.config.pages = 16;
  PoolWorld world(options);
  ASSERT_TRUE(world.pool().limits().preallocate(4 * kPage).ok());
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(kPage, 0)));
  world.allocate(kPage, world.stream());
  EXPECT_GE(world.statistics().mapped_bytes, 16 * kPage);
  EXPECT_FALSE(is_null(world.pool().allocate_if_ready(kPage, 0)));
}

}  // namespace
}  // namespace vpmm::test
