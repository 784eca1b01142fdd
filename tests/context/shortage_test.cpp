// SPDX-License-Identifier: Apache-2.0
// context: running out of memory as a caller sees it: callback, report, what is given up first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using testing::HasSubstr;

WorldOptions small_device(Bytes pages) {
  WorldOptions options = page_world();
  options.sim.capacity = pages * kPage;
  return options;
}

// What there is no more of: the pool's own limit, the GPU, or the part of it that another process
// has left.
enum class Limit { capacity, gpu, others };

std::string name_of(const ::testing::TestParamInfo<Limit>& tested) {
  constexpr std::array kLimits = {"capacity", "gpu", "others"};
  return kLimits.at(static_cast<std::size_t>(tested.param));
}

class ShortOfMemory : public ::testing::TestWithParam<Limit> {
 protected:
  class World : public PoolWorld {
   public:
    explicit World(Bytes pages, const WorldOptions& options = page_world())
        : PoolWorld(limited(options, pages * kPage)) {
      // It comes when the pool has asked already how much there is.
      if (GetParam() == Limit::others) sim().set_used_by_others(0, pages * kPage);
    }
    static WorldOptions limited(WorldOptions options, Bytes bytes) {
      if (GetParam() == Limit::capacity) options.config.limits.capacity = bytes;
      if (GetParam() == Limit::gpu) options.sim.capacity = bytes;
      if (GetParam() == Limit::others) options.sim.capacity = 2 * bytes;
      return options;
    }
  };
};

TEST_P(ShortOfMemory, deferred_frees_are_done_before_anything_is_waited_for) {
  World world(8);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(8 * kPage, stream);
  world.pool().deallocate_deferred(ptr);
  const DevicePtr next = world.allocate(8 * kPage, stream);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
  world.use(next, 8 * kPage, stream);
}

TEST(OutOfMemory, idle_pages_are_moved_together_before_the_driver_is_asked_in_vain) {
  PoolWorld world(small_device(8));
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 8; ++i) live.push_back(world.allocate(kPage, stream));
  for (std::size_t i = 0; i < 8; i += 2) world.deallocate(live[i], stream);
  const DevicePtr four = world.allocate(4 * kPage, stream);
  world.use(four, 4 * kPage, stream);
  EXPECT_EQ(world.statistics().chunks_moved, 4u);
  EXPECT_EQ(world.statistics().failed_plans, 0u);
}

TEST(OutOfMemory, names_the_stream_of_the_request_or_none) {
  PoolWorld world(small_device(4));
  const StreamHandle stream = world.stream();
  const auto refused = [&](const pool::Stream& on) {
    const auto made = world.pool().allocate({5 * kPage, 0, on});
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(refused(std::nullopt), HasSubstr("(10485760 bytes) on no stream\n"));
  EXPECT_THAT(refused(stream), HasSubstr("(10485760 bytes) on stream "));
  EXPECT_THAT(refused(StreamHandle{}), HasSubstr("(10485760 bytes) on default stream "));
}

// Memory beside live memory in its chunk cannot move to an aligned address.
TEST(OutOfMemory, because_of_the_alignment_is_said_to_be_so) {
  PoolWorld world(small_device(8));
  const StreamHandle stream = world.stream();
  pool::Request whole{8 * kPage, 0, stream};
  whole.one_chunk = true;
  world.deallocate(world.pool().allocate(whole).value(), stream);
  static_cast<void>(world.allocate(kPage, stream));
  const auto refused = [&](Bytes alignment) {
    const auto made = world.pool().allocate({3 * kPage, alignment, stream});
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(refused(64 * kPage), HasSubstr("(6291456 bytes), aligned to 128 MiB on stream"));
  EXPECT_THAT(refused(64 * kPage), HasSubstr("- ask for a smaller alignment: 14 MiB are free"));
  EXPECT_EQ(refused(kPage), "");
}

TEST_P(ShortOfMemory, the_drivers_pool_is_emptied_for_pages_and_pages_for_the_drivers_pool) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  World world(40, options);  // 80 MiB
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  world.wait();
  ASSERT_GT(world.statistics().stream_ordered_bytes, 0u);
  const DevicePtr everything = world.allocate(40 * kPage, stream);
  EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
  world.deallocate(everything, stream);
  world.wait();
  EXPECT_FALSE(is_null(world.allocate(1000, stream)));
  EXPECT_LT(world.statistics().mapped_bytes - world.statistics().stream_ordered_bytes, 40 * kPage);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST(OutOfMemory, the_drivers_pool_is_not_trimmed_for_a_record_where_it_has_nothing_idle) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> small;
  while (world.statistics().stream_ordered_bytes <
         world.statistics().live_bytes + kPage + world.statistics().stream_ordered_bytes / 64) {
    small.push_back(world.allocate(kPage / 2, stream));
    if (small.size() == 100) break;
  }
  const std::uint64_t trimmed = world.calls().count(Call::mem_pool_trim_to);
  world.allocate(64 * kPage, stream);
  EXPECT_EQ(world.calls().count(Call::mem_pool_trim_to), trimmed);
}

TEST(OutOfMemory, below_a_page_pending_pages_are_waited_for_and_given_to_the_drivers_pool) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.sim.capacity = 40 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr all = world.allocate(40 * kPage, stream);
  world.use(all, 40 * kPage, stream, kLongNs);
  world.deallocate(all, stream);
  const DevicePtr small = world.allocate(1000, world.stream());
  EXPECT_GT(world.statistics().stream_ordered_bytes, 0u);
  world.deallocate(small, stream);
}

// 64 MiB, or twice the request.
TEST(OutOfMemory, below_a_page_no_more_idle_pages_go_back_than_the_drivers_pool_may_need) {
  struct Case {
    Bytes page, pages, asked, kept;
  };
  for (const Case& each : {Case{2 * kMiB, 100, 1000, 68}, Case{64 * kMiB, 4, 30 * kMiB, 3},
                           Case{64 * kMiB, 4, 60 * kMiB, 2}, Case{2 * kMiB, 20, 1000, 0}}) {
    WorldOptions options = page_world(each.page);
    options.config.small = settings::SmallRequests::stream_ordered;
    options.sim.capacity = each.pages * each.page;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(each.pages * each.page, stream), stream);
    world.wait();
    world.allocate(each.asked, stream);
    const observe::Statistics now = world.statistics();
    EXPECT_EQ(now.mapped_bytes - now.stream_ordered_bytes, each.kept * each.page) << each.asked;
    EXPECT_EQ(now.host_waits, 0u);
  }
}

TEST(OutOfMemory, names_the_call_that_failed_where_no_memory_is_missing) {
  WorldOptions options = adaptive_world();
  options.sim.address_space = kMiB;
  PoolWorld world(options);
  expect_error(world.pool().allocate({kPage, 0, world.stream()}), ErrorCode::out_of_memory,
               {"asked for 2 MiB; mem_address_reserve failed: CUDA_ERROR_OUT_OF_MEMORY"});
  options = adaptive_world();
  options.config.pool_enabled = false;
  HookedWorld ordered(options);
  ordered.hooks.on[Call::mem_alloc_from_pool_async] = [] { return CuResult::out_of_memory; };
  expect_error(ordered.pool->allocate({kPage, 0, ordered.stream()}), ErrorCode::out_of_memory,
               {"asked for 2 MiB; of the driver's stream-ordered pool: mem_alloc_from_pool_async "
                "failed: CUDA_ERROR_OUT_OF_MEMORY"});
}

TEST(OutOfMemory, below_a_page_names_the_capacity_and_leaves_the_drivers_pool_empty) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(8 * kPage, stream);
  expect_error(
      world.pool().allocate({1000, 0, stream}), ErrorCode::out_of_memory,
      {"asked for 1000 bytes; 2 MiB are missing; live 16 MiB, free 0 bytes, limit 16 MiB"});
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
}

// It goes back once all work that was queued before is over.
TEST(OutOfMemory, below_a_page_the_capacity_is_kept_although_the_driver_does_not_take_it_back) {
  WorldOptions options = page_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr all = world.allocate(8 * kPage, stream);
  world.use(all, 8 * kPage, stream, kLongNs);
  world.faults().set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value});
  expect_error(world.pool().allocate({1000, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.faults().fired(), 1u);
  world.faults().clear_plan();
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  const std::uint64_t before = world.calls().count(Call::mem_free_async);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.calls().count(Call::mem_free_async), before);
  EXPECT_GT(world.statistics().stream_ordered_bytes, 0u);
  world.wait();
  EXPECT_EQ(world.calls().count(Call::mem_free_async), before + 1);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().stream_ordered_bytes, 0u);
}

// Meanwhile the pool gives idle pages back, without its lock.
TEST(OutOfMemory, below_a_page_a_reset_while_the_capacity_is_kept_has_taken_the_memory) {
  for (const Bytes capacity : {16 * kPage, 4 * kPage}) {
    WorldOptions options = page_world();
    options.config.small = settings::SmallRequests::stream_ordered;
    options.config.limits.capacity = 16 * kPage;
    HookedWorld world(options);
    world.allocate(8 * kPage, std::nullopt);
    world.deallocate(world.allocate(8 * kPage, std::nullopt), std::nullopt);
    ASSERT_TRUE(world.pool->streams().synchronize().ok());
    bool has_reset = false;
    world.hooks.on[Call::mem_unmap] = [&] {
      if (std::exchange(has_reset, true)) return CuResult::success;
      world.on_another_thread([&] {
        EXPECT_EQ(world.sim.device_primary_ctx_reset(0), CuResult::success);
        EXPECT_TRUE(world.pool->limits().memory_info().ok());
        world.pool->limits().set_capacity(capacity);
      });
      return CuResult::success;
    };
    EXPECT_FALSE(world.pool->allocate({1000, 0, std::nullopt}).ok());
    EXPECT_TRUE(has_reset);
    EXPECT_EQ(world.statistics().live_allocations, 1u);
  }
}

TEST_P(ShortOfMemory, what_other_streams_have_in_hand_is_taken_back_for_pages) {
  World world(8);
  const StreamHandle hoarder = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 16; ++i) live.push_back(world.allocate(kMiB, hoarder));
  for (const DevicePtr ptr : live) world.deallocate(ptr, hoarder);
  ASSERT_EQ(world.statistics().small_bytes, 8 * kPage);
  const StreamHandle stream = world.stream();
  world.use(world.allocate(8 * kPage, stream), 8 * kPage, stream);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
}

// Pages that several streams have cut memory from come back when the last of these is done.
TEST_P(ShortOfMemory, pending_small_memory_of_several_streams_is_waited_for) {
  for (const Bytes wanted : {8 * kPage, kMiB, Bytes{1000}}) {
    World world(8);
    const StreamHandle streams[] = {world.stream(), world.stream()};
    std::vector<DevicePtr> live;
    for (std::size_t i = 0; i < 32; ++i) {
      live.push_back(world.allocate(kMiB / 2, streams[i % 2]));
      world.use(live.back(), kMiB / 2, streams[i % 2], kLongNs);
    }
    ASSERT_EQ(world.statistics().small_bytes, 8 * kPage);
    for (std::size_t i = 0; i < 32; ++i) world.deallocate(live[i], streams[i % 2]);
    const StreamHandle stream = world.stream();
    world.use(world.allocate(wanted, stream), wanted, stream);
    EXPECT_EQ(world.statistics().failed_allocations, 0u) << wanted;
  }
}

TEST_P(ShortOfMemory, blocks_that_another_stream_freed_are_waited_for) {
  for (const Bytes wanted : {kPage, Bytes{100'000}}) {
    World world(1);
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 18; ++i) live.push_back(world.allocate(100'000, a));
    for (const DevicePtr ptr : live) world.use(ptr, 100'000, a, kLongNs);
    for (const DevicePtr ptr : live) world.deallocate(ptr, b);
    const StreamHandle c = world.stream();
    world.use(world.allocate(wanted, c), wanted, c);
    EXPECT_EQ(world.statistics().failed_allocations, 0u) << wanted;
  }
}

TEST_P(ShortOfMemory, the_host_waits_for_pending_memory_of_streams_that_do_not_call_any_more) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    World world(8, options);
    const StreamHandle gone = world.stream();
    const DevicePtr ptr = world.allocate(8 * kPage, gone);
    world.use(ptr, 8 * kPage, gone, kLongNs);
    world.deallocate(ptr, gone);
    ASSERT_EQ(world.sim().stream_destroy(gone), CuResult::success);
    const StreamHandle stream = world.stream();
    const DevicePtr next = world.allocate(8 * kPage, stream);
    world.use(next, 8 * kPage, stream);
    EXPECT_EQ(world.statistics().failed_allocations, 0u);
  }
}

// Chunks that moved while their old addresses were in use are split like others once they are not.
TEST_P(ShortOfMemory, chunks_that_moved_are_split_when_their_work_is_waited_for) {
  WorldOptions options = adaptive_world();
  options.config.chunk_max = 16 * kPage;
  options.config.pages = 64;  // four chunks
  World world(64, options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 4; ++i) live.push_back(world.allocate(16 * kPage, stream));
  for (const std::size_t i : {0u, 2u}) {
    world.use(live[i], 16 * kPage, stream, kLongNs);
    world.deallocate(live[i], stream);
  }
  world.deallocate(world.allocate(32 * kPage, stream), stream);
  ASSERT_EQ(world.statistics().zombie_bytes, 32 * kPage);
  const StreamHandle other = world.stream();
  world.use(world.allocate(8 * kPage, other), 8 * kPage, other);
  EXPECT_EQ(world.statistics().host_waits, 1u);
}

TEST(OutOfMemory, a_chunk_that_the_driver_takes_back_late_makes_room) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 8 * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> live;
  for (int i = 0; i < 8; ++i) live.push_back(world.allocate(kPage, stream));
  int refusals = 1000;
  world.hooks.on[Call::mem_release] = [&] {
    return --refusals < 0 ? CuResult::success : CuResult::invalid_value;
  };
  ASSERT_TRUE(world.pool->deallocate(live[0], stream).ok());
  world.sim.run_until_idle();
  (void)world.pool->limits().trim(0);
  ASSERT_EQ(world.statistics().mapped_bytes, 8 * kPage) << "the driver still has it";
  ASSERT_EQ(world.statistics().free_bytes, 0u);
  refusals = 1;
  EXPECT_FALSE(is_null(world.allocate(kPage, stream)));
  EXPECT_LT(refusals, 0);
}

// Which is: when the pool asks whether it may grow, or whether chunks made anew have room.
TEST(OutOfMemory, memory_that_comes_to_a_cache_during_the_search_serves_the_request) {
  for (const int when : {1, 2}) {
    WorldOptions options = adaptive_world();
    options.sim.capacity = 8 * kPage;
    HookedWorld world(options);
    const StreamHandle holder = world.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 8; ++i) live.push_back(world.allocate(kPage, holder));
    world.use(live[0], kPage, holder, kLongNs);
    int asked = 0;
    world.hooks.on[Call::mem_get_info] = [&] {
      if (++asked == when) {
        EXPECT_TRUE(world.pool->deallocate_if_ready(live[0], holder));
      }
      return CuResult::success;
    };
    EXPECT_EQ(world.allocate(kPage, holder), live[0]);
    EXPECT_GE(asked, when);
    EXPECT_EQ(world.statistics().host_waits, 0u);
  }
}

TEST(OutOfMemory, without_context_events_the_context_is_synchronised) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = 8 * kPage;
  options.sim.context_events_supported = false;
  PoolWorld world(options);
  const StreamHandle gone = world.stream();
  const DevicePtr ptr = world.allocate(8 * kPage, gone);
  world.use(ptr, 8 * kPage, gone, kLongNs);
  world.deallocate(ptr, gone);
  ASSERT_EQ(world.sim().stream_destroy(gone), CuResult::success);
  world.allocate(8 * kPage, world.stream());
  EXPECT_GE(world.calls().count(Call::ctx_synchronize), 1u);
}

TEST_P(ShortOfMemory, the_callback_may_free_memory_of_the_pool_and_have_the_request_tried_again) {
  World world(8);
  const StreamHandle stream = world.stream();
  DevicePtr cache = world.allocate(6 * kPage, stream);
  int called = 0;
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory& need) {
    ++called;
    EXPECT_EQ(need.requested, 4 * kPage);
    EXPECT_EQ(need.device, 0);
    world.deallocate(cache, stream);  // re-entrant: no lock is held
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    return true;
  });
  world.use(world.allocate(4 * kPage, stream), 4 * kPage, stream);
  EXPECT_EQ(called, 1);
}

TEST_P(ShortOfMemory, the_callback_is_not_called_where_a_wait_of_the_host_helps) {
  World world(8, adaptive_world());
  const StreamHandle other = world.stream();
  const DevicePtr freed = world.allocate(6 * kPage, other);
  world.use(freed, 6 * kPage, other, kLongNs);
  world.deallocate(freed, other);
  int called = 0;
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return ++called < 2; });
  world.allocate(6 * kPage, world.stream());
  EXPECT_EQ(called, 0);
  EXPECT_EQ(world.statistics().host_waits, 1u);
}

TEST_P(ShortOfMemory, the_callback_may_itself_allocate) {
  World world(8);
  const StreamHandle stream = world.stream();
  const DevicePtr cache = world.allocate(8 * kPage, stream);
  bool is_first = true;
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    if (!is_first) return false;
    is_first = false;
    world.deallocate(cache, stream);
    world.allocate(2 * kPage, stream);
    return true;
  });
  world.allocate(6 * kPage, stream);
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  EXPECT_EQ(world.statistics().failed_allocations, 0u);
}

TEST_P(ShortOfMemory, the_request_fails_when_the_callback_gives_up) {
  World world(8);
  const StreamHandle stream = world.stream();
  world.allocate(6 * kPage, stream);
  int called = 0;
  world.pool().limits().out_of_memory_callbacks().set(
      [&](const context::OutOfMemory&) { return ++called < 3; });
  expect_error(world.pool().allocate({4 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(called, 3);
  EXPECT_EQ(world.statistics().failed_allocations, 1u)
      << "the calls that failed, not what was tried for them";
}

TEST(OutOfMemory, the_report_names_asked_live_free_pending_and_the_largest_range) {
  PoolWorld world(small_device(8));
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(2 * kPage, stream);
  world.allocate(2 * kPage, stream);
  const DevicePtr second = world.allocate(3 * kPage, stream);
  world.deallocate(first, stream);
  world.deallocate(second, stream);
  world.wait();
  expect_error(
      world.pool().allocate({7 * kPage, 0, stream}), ErrorCode::out_of_memory,
      {"out of device memory: asked for 14 MiB; 2 MiB are missing; live 4 MiB, free 10 MiB, limit "
       "none\n",
       "asked for  14 MiB (14680064 bytes) on stream ",
       "live       4 MiB in 1 allocation, which take 4 MiB\n",
       "free       10 MiB, the largest range 6 MiB\n",
       "mapped     14 MiB; the limit is none; 2 MiB more may be mapped\n",
       "GPU        16 MiB, of which 2 MiB free, 0 bytes held by others\n", "what to try:\n"});
}

TEST(OutOfMemory, the_report_names_what_a_small_request_asked_for_not_the_page_it_wanted) {
  for (WorldOptions options : {page_world(), adaptive_world()}) {
    options.config.limits.capacity = 2 * kPage;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    world.allocate(2 * kPage, stream);
    expect_error(world.pool().allocate({100, 0, stream}), ErrorCode::out_of_memory,
                 {"asked for 100 bytes; ", "free 0 bytes", "raise VPMM_CAPACITY"});
  }
}

TEST(OutOfMemory, the_report_says_if_a_later_limit_than_that_of_the_settings_is_in_the_way) {
  for (const std::uint32_t percent : {0U, 50U, 1U}) {
    WorldOptions options = small_device(percent == 1 ? 800 : 16);
    if (percent != 0)
      options.config.limits.capacity_percent = percent;
    else
      options.config.limits.capacity = 8 * kPage;
    PoolWorld world(options);
    const auto expect_advice = [&](const char* text) {
      expect_error(world.pool().allocate({12 * kPage, 0, world.stream()}), ErrorCode::out_of_memory,
                   {text});
    };
    expect_advice("raise VPMM_CAPACITY (vpmm_set_capacity) by 8 MiB");
    world.pool().limits().set_capacity(4 * kPage);
    expect_advice("raise the limit, which vpmm_set_capacity or PyTorch's memory fraction set, by");
    world.pool().limits().set_capacity(8 * kPage);
    expect_advice("raise VPMM_CAPACITY (vpmm_set_capacity) by 8 MiB");
  }
}

TEST(OutOfMemory, a_request_that_can_never_succeed_takes_nothing_from_others) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    const DevicePtr live = world.allocate(4 * kPage, stream);  // a chunk, so that nothing is idle
    const std::uint64_t created = world.calls().count(Call::mem_create);
    const std::uint64_t released = world.calls().count(Call::mem_release);
    expect_error(world.pool().allocate({200 * kGiB, 0, stream}), ErrorCode::out_of_memory);
    expect_error(world.pool().limits().preallocate(200 * kGiB), ErrorCode::out_of_memory);
    EXPECT_EQ(world.calls().count(Call::mem_create), created + 2)
        << "each is tried in one piece, once";
    EXPECT_EQ(world.calls().count(Call::mem_release), released);
    EXPECT_EQ(world.statistics().failed_plans, 0u);
    EXPECT_EQ(world.statistics().peak_mapped_bytes, world.statistics().mapped_bytes);
    world.deallocate(live, stream);
  }
}

TEST(OutOfMemory, chunks_of_a_plan_that_was_undone_count_in_the_peaks) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.faults().set_plan(
      {{Call::mem_map}, 1, driver::CuResult::out_of_memory, driver::FaultPlan::Repeat::once});
  expect_error(world.pool().allocate({10 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 10 * kPage);
  EXPECT_EQ(world.statistics().peak_chunks, 10u);
  EXPECT_EQ(world.statistics().failed_plans, 1u) << "no step helped, so it was not tried again";
  world.pool().reports().reset_peaks();
  EXPECT_EQ(world.statistics().peak_mapped_bytes, 0u);
}

TEST_P(ShortOfMemory, a_failed_request_leaves_the_pool_as_usable_as_before) {
  World world(8);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(5 * kPage, stream);
  for (int i = 0; i < 5; ++i)
    expect_error(world.pool().allocate({6 * kPage, 0, stream}), ErrorCode::out_of_memory);
  EXPECT_EQ(world.pool().reports().validate(), "");
  world.use(ptr, 5 * kPage, stream);
  world.use(world.allocate(3 * kPage, stream), 3 * kPage, stream);
  EXPECT_EQ(world.statistics().failed_allocations, 5u);
}

TEST(OutOfMemory, memory_that_other_processes_give_back_is_found) {
  WorldOptions options = small_device(8);
  options.sim.used_by_others = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(4 * kPage, stream);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::out_of_memory);
  world.sim().set_used_by_others(0, 0);
  world.allocate(4 * kPage, stream);
}

INSTANTIATE_TEST_SUITE_P(Limits, ShortOfMemory,
                         ::testing::Values(Limit::capacity, Limit::gpu, Limit::others), name_of);

TEST(OutOfMemory, the_report_knows_no_limit_of_settings_that_have_none) {
  PoolWorld world(small_device(16));
  for (const Bytes pages : {4, 8}) {
    world.pool().limits().set_capacity(pages * kPage);
    expect_error(world.pool().allocate({12 * kPage, 0, world.stream()}), ErrorCode::out_of_memory,
                 {"raise the limit, which vpmm_set_capacity or PyTorch's memory fraction set, by"});
  }
}

}  // namespace
}  // namespace vpmm::test
