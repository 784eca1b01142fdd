// SPDX-License-Identifier: Apache-2.0
// context: who may have freed memory, when, and what that costs: phases 1, 1.5 and 2.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "pool/grow_delay.hpp"
#include "pool/tuning.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

// Two streams and a pool in page mode.
class Reuse : public ::testing::Test {
 protected:
  PoolWorld world{page_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  // Allocated, used for `duration_ns` and freed on `stream`.
  DevicePtr used_and_freed(Bytes pages, StreamHandle stream, std::uint64_t duration_ns = kLongNs) {
    const DevicePtr ptr = world.allocate(pages * kPage, stream);
    world.use(ptr, pages * kPage, stream, duration_ns);
    world.deallocate(ptr, stream);
    return ptr;
  }
  DevicePtr used(Bytes pages, StreamHandle stream) {
    const DevicePtr ptr = world.allocate(pages * kPage, stream);
    world.use(ptr, pages * kPage, stream);
    return ptr;
  }
};

TEST_F(Reuse, pending_memory_of_the_own_stream_is_taken_at_once_without_a_driver_call) {
  const DevicePtr freed = used_and_freed(4, a);
  const std::uint64_t memory_calls = world.calls().memory_call_count();
  EXPECT_EQ(used(4, a), freed);
  EXPECT_EQ(world.calls().memory_call_count(), memory_calls);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

TEST_F(Reuse, complete_memory_of_another_stream_is_taken_at_once) {
  const DevicePtr freed = used_and_freed(4, a, 0);
  world.sim().advance_host_ns(kLongNs);
  const std::uint64_t memory_calls = world.calls().memory_call_count();
  EXPECT_EQ(used(4, b), freed);
  EXPECT_EQ(world.calls().memory_call_count(), memory_calls);
  EXPECT_EQ(world.calls().count(Call::stream_wait_event), 0u);
}

TEST_F(Reuse, phase_1_never_takes_pending_memory_of_another_stream) {
  const DevicePtr pending = used(2, a);
  used(1, a);
  const DevicePtr complete = used(3, b);
  used(1, b);
  world.deallocate(complete, b);
  world.sim().advance_host_ns(kLongNs);
  world.use(pending, 2 * kPage, a, kLongNs);
  world.deallocate(pending, a);
  EXPECT_EQ(used(2, b), complete)
      << "the two pages that fit exactly are pending on the other stream";
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
}

TEST_F(Reuse, the_best_fit_is_over_own_and_complete_memory_together) {
  const DevicePtr own = used(5, a);
  used(1, a);
  const DevicePtr complete = used(3, b);
  used(1, b);
  world.deallocate(own, a);
  world.deallocate(complete, b);
  world.sim().advance_host_ns(kLongNs);
  EXPECT_EQ(used(3, a), complete) << "three pages fit better than the five of its own";
  EXPECT_EQ(used(5, a), own);
}

TEST_F(Reuse, the_lowest_address_wins_among_equal_fits) {
  const DevicePtr first = world.allocate(3 * kPage, a);
  world.allocate(kPage, a);
  const DevicePtr second = world.allocate(3 * kPage, a);
  world.allocate(kPage, a);
  world.deallocate(second, a);
  world.deallocate(first, a);
  EXPECT_EQ(world.allocate(3 * kPage, a), first);
  EXPECT_EQ(world.allocate(3 * kPage, a), second);
}

TEST_F(Reuse, neighbours_of_two_streams_are_taken_as_one_run_behind_a_wait_and_nothing_is_mapped) {
  const DevicePtr on_a = world.allocate(3 * kPage, a);
  const DevicePtr on_b = world.allocate(2 * kPage, b);
  world.use(on_a, 3 * kPage, a, kLongNs);
  world.use(on_b, 2 * kPage, b, kLongNs);
  world.deallocate(on_a, a);
  world.deallocate(on_b, b);
  EXPECT_EQ(world.picture(), "[-3][-2]");
  const std::uint64_t mapped = world.calls().count(Call::mem_map);
  EXPECT_EQ(used(5, a), on_a);
  EXPECT_EQ(world.picture(), "[5]");
  EXPECT_EQ(world.calls().count(Call::mem_map), mapped);
  EXPECT_EQ(world.statistics().gpu_waits, 1u) << "for the other stream's part only";
}

TEST_F(Reuse, a_single_pending_range_of_another_stream_is_taken_behind_a_wait_without_mapping) {
  const DevicePtr on_a = used_and_freed(4, a);
  const std::uint64_t memory_calls = world.calls().memory_call_count();
  EXPECT_EQ(used(4, b), on_a);
  EXPECT_EQ(world.calls().memory_call_count(), memory_calls);
  EXPECT_EQ(world.statistics().gpu_waits, 1u);
  EXPECT_EQ(world.statistics().host_waits, 0u) << "the host runs on";
}

TEST_F(Reuse, pages_of_several_streams_are_stitched_together_behind_waits_of_the_gpu) {
  const StreamHandle c = world.stream();
  const DevicePtr on_a = world.allocate(2 * kPage, a);
  const DevicePtr between = world.allocate(kPage, a);
  const DevicePtr on_b = world.allocate(2 * kPage, b);
  const DevicePtr end = world.allocate(kPage, b);
  world.use(on_a, 2 * kPage, a, kLongNs);
  world.use(on_b, 2 * kPage, b, kLongNs);
  world.deallocate(on_a, a);
  world.deallocate(on_b, b);
  const Bytes mapped = world.statistics().mapped_bytes;
  used(4, c);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped) << "no page was created";
  EXPECT_EQ(world.statistics().gpu_waits, 2u);
  EXPECT_EQ(world.statistics().chunks_moved, 4u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
  EXPECT_EQ(world.picture(), "[~2][1][~2][1][4]")
      << "the old addresses are zombies while their work runs";
  world.deallocate(between, a);
  world.deallocate(end, b);
}

TEST_F(Reuse, zombies_are_unmapped_when_their_work_is_done) {
  const DevicePtr first = used(2, a);
  used(1, a);
  world.deallocate(first, a);
  used(3, a);
  EXPECT_NE(world.statistics().zombie_bytes, 0u);
  world.wait();
  EXPECT_EQ(world.statistics().zombie_bytes, 0u);
  EXPECT_EQ(world.picture(), "[*2][1][3]");
  EXPECT_EQ(world.statistics().mappings, world.statistics().chunks);
}

TEST_F(Reuse, zombies_of_a_stream_that_is_alone_need_no_synchronisation_either) {
  WorldOptions options = adaptive_world();
  options.config.chunk_max = 4 * kPage;
  options.config.pages = 12;  // three chunks
  options.config.limits.capacity = 12 * kPage;
  PoolWorld alone(options);
  const StreamHandle stream = alone.stream();
  const DevicePtr front = alone.allocate(4 * kPage, stream);
  alone.allocate(4 * kPage, stream);
  const DevicePtr back = alone.allocate(4 * kPage, stream);
  alone.deallocate(front, stream);
  alone.deallocate(back, stream);
  alone.deallocate(alone.allocate(8 * kPage, stream), stream);
  ASSERT_EQ(alone.picture(), "[~4][4][-8]");
  alone.sim().advance_host_ns(kLongNs);
  alone.allocate(7 * kPage, stream);
  EXPECT_EQ(alone.picture(), "[*4][4][7][-1]");
}

TEST_F(Reuse, live_memory_keeps_its_address_and_its_bytes_whatever_moves) {
  const DevicePtr live = world.allocate(kPage, a);
  ASSERT_EQ(world.sim().memset_d8_async(live, 0xAB, kPage, a), driver::CuResult::success);
  const DevicePtr idle = used(3, a);
  used(1, a);
  world.deallocate(idle, a);
  used(8, a);
  EXPECT_EQ(world.statistics().chunks_moved, 3u);
  ASSERT_EQ(world.sim().stream_synchronize(a), driver::CuResult::success);
  std::uint8_t byte = 0;
  ASSERT_EQ(world.sim().memcpy_device_to_host(&byte, live + kPage - 1, 1),
            driver::CuResult::success);
  EXPECT_EQ(byte, 0xAB);
}

TEST_F(Reuse, leftovers_of_a_harvested_range_keep_their_stamp) {
  const DevicePtr on_a = world.allocate(6 * kPage, a);
  world.allocate(kPage, a);
  world.use(on_a, 6 * kPage, a, kLongNs);
  world.deallocate(on_a, a);
  const DevicePtr part = used(4, b);
  EXPECT_EQ(part, on_a);
  EXPECT_EQ(world.picture(), "[4][-2][1]");
  const auto regions = world.pool().reports().snapshot().regions;
  EXPECT_FALSE(regions[1].complete) << "still behind the work of the first stream";
  const std::uint64_t waits = world.statistics().gpu_waits;
  EXPECT_EQ(used(2, a), on_a + 4 * kPage);
  EXPECT_EQ(world.statistics().gpu_waits, waits) << "and still that stream's own";
}

TEST_F(Reuse, a_long_kernel_on_one_stream_delays_nobody_while_new_memory_exists) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    PoolWorld two(options);
    const StreamHandle busy = two.stream();
    const StreamHandle other = two.stream();
    const DevicePtr held = two.allocate(8 * kPage, busy);
    two.use(held, 8 * kPage, busy, kLongNs);
    const std::uint64_t start_ns = two.sim().now_ns();
    for (int i = 0; i < 20; ++i) {
      const DevicePtr ptr = two.allocate(4 * kPage, other);
      two.use(ptr, 4 * kPage, other);
      two.deallocate(ptr, other);
    }
    ASSERT_EQ(two.sim().stream_synchronize(other), driver::CuResult::success);
    EXPECT_LT(two.sim().now_ns() - start_ns, kLongNs)
        << "the other stream is done while the kernel still runs";
    EXPECT_EQ(two.sim().stream_query(busy), driver::CuResult::not_ready);
    EXPECT_EQ(two.statistics().gpu_waits, 0u);
    EXPECT_EQ(two.statistics().host_waits, 0u);
  }
}

TEST_F(Reuse, a_long_kernel_delays_nobody_while_complete_memory_is_free) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 16 * kPage;
  PoolWorld two(options);
  const StreamHandle busy = two.stream();
  const StreamHandle other = two.stream();
  two.deallocate(two.allocate(8 * kPage, other), other);
  two.wait();
  const DevicePtr held = two.allocate(8 * kPage, busy);
  two.use(held, 8 * kPage, busy, kLongNs);
  two.deallocate(held, busy);
  const DevicePtr ptr = two.allocate(8 * kPage, other);
  two.use(ptr, 8 * kPage, other);
  ASSERT_EQ(two.sim().stream_synchronize(other), driver::CuResult::success);
  EXPECT_EQ(two.sim().stream_query(busy), driver::CuResult::not_ready);
  EXPECT_EQ(two.statistics().gpu_waits, 0u);
  EXPECT_EQ(two.statistics().host_waits, 0u);
}

TEST_F(Reuse, the_adaptive_policy_grows_rather_than_waits) {
  PoolWorld two(adaptive_world());
  const StreamHandle busy = two.stream();
  const StreamHandle other = two.stream();
  const DevicePtr held = two.allocate(8 * kPage, busy);
  two.use(held, 8 * kPage, busy, kLongNs);
  two.deallocate(held, busy);
  const DevicePtr ptr = two.allocate(8 * kPage, other);
  two.use(ptr, 8 * kPage, other);
  EXPECT_NE(ptr, held);
  EXPECT_EQ(two.statistics().gpu_waits, 0u);
  EXPECT_EQ(two.statistics().mapped_bytes, 16 * kPage);
}

// --- a stream that is busy for long

// What one stream asks for after another has freed memory behind a kernel of 100 ms; an event
// stands for that free.
class BusyNeighbour : public ::testing::TestWithParam<settings::Prefer> {
 protected:
  WorldOptions options() const {
    WorldOptions options = adaptive_world();
    options.config.prefer = GetParam();
    return options;
  }
  // `quick` has `wanted` bytes and is done with them while `slow` works on.
  static void expect_no_delay(PoolWorld& world, StreamHandle slow, StreamHandle quick,
                              Bytes wanted) {
    ASSERT_GT(world.calls().count(Call::event_record), 0u) << "nothing to wait for";
    const DevicePtr ptr = world.allocate(wanted, quick);
    world.use(ptr, wanted, quick);
    ASSERT_EQ(world.sim().stream_synchronize(quick), driver::CuResult::success);
    EXPECT_EQ(world.sim().stream_query(slow), driver::CuResult::not_ready)
        << wanted / kMiB << " MiB waited for it";
    EXPECT_EQ(world.statistics().gpu_waits, 0u);
    EXPECT_EQ(world.statistics().host_waits, 0u);
  }
};

using GrowingPolicies = BusyNeighbour;
INSTANTIATE_TEST_SUITE_P(, GrowingPolicies,
                         ::testing::Values(settings::Prefer::balanced, settings::Prefer::latency),
                         [](const auto& tested) {
                           return tested.param == settings::Prefer::balanced ? "balanced"
                                                                             : "latency";
                         });

TEST_P(GrowingPolicies, delay_nobody_for_memory_that_is_larger_than_the_request_or_fits_it) {
  struct Sizes {
    Bytes held;
    Bytes wanted;
  };
  for (const Sizes& size : {Sizes{64 * kMiB, 32 * kMiB}, Sizes{64 * kMiB, 64 * kMiB},
                            Sizes{256 * kMiB, 32 * kMiB}, Sizes{256 * kMiB, 64 * kMiB}}) {
    PoolWorld world(options());
    const StreamHandle slow = world.stream();
    const StreamHandle quick = world.stream();
    world.deallocate(world.allocate(2 * kPage, quick), quick);
    const DevicePtr held = world.allocate(size.held, slow);
    world.use(held, size.held, slow, kLongNs);
    world.deallocate(held, slow);
    expect_no_delay(world, slow, quick, size.wanted);
  }
}

// The page that small requests are cut from is no exception. Where growth is delayed it is by what
// it is worth in all.
TEST_P(GrowingPolicies, delay_small_requests_no_longer_than_growth_is_worth) {
  constexpr std::uint64_t kForever = 100 * kLongNs;
  for (const Bytes small : {Bytes{100}, 5 * kKiB, 200 * kKiB, kMiB}) {
    PoolWorld world(options());
    const StreamHandle slow = world.stream();
    const StreamHandle quick = world.stream();
    world.deallocate(world.allocate(small, quick), quick);
    std::vector<DevicePtr> held;
    for (int i = 0; i < 100; ++i) held.push_back(world.allocate(small, slow));
    const DevicePtr large = world.allocate(64 * kMiB, slow);
    world.use(held.front(), small, slow, kForever);
    for (const DevicePtr ptr : held) world.deallocate(ptr, slow);
    world.deallocate(large, slow);
    std::uint64_t longest = 0;
    for (int i = 0; i < 100; ++i) {
      const Bytes before = world.statistics().mapped_bytes;
      const std::uint64_t begin = world.sim().now_ns();
      expect_no_delay(world, slow, quick, small);
      const Bytes growth = world.statistics().mapped_bytes - before;
      if (GetParam() == settings::Prefer::balanced)
        longest = pool::GrowDelay::longest_ns(growth, before);
      EXPECT_LT(world.sim().now_ns() - begin, longest + 1'000'000) << small;
    }
  }
}

// Complete memory is enough, but in two pieces, and what waits lies beside one of them.
using MovingPolicies = BusyNeighbour;
INSTANTIATE_TEST_SUITE_P(, MovingPolicies,
                         ::testing::Values(settings::Prefer::balanced, settings::Prefer::latency,
                                           settings::Prefer::footprint),
                         [](const auto& tested) {
                           return tested.param == settings::Prefer::balanced  ? "balanced"
                                  : tested.param == settings::Prefer::latency ? "latency"
                                                                              : "footprint";
                         });

TEST_P(MovingPolicies, put_complete_memory_together_rather_than_wait) {
  struct Pages {
    Bytes pending;
    Bytes wanted;
  };
  for (const Pages& pages : {Pages{4, 12}, Pages{16, 16}}) {
    WorldOptions pieces = options();
    pieces.config.chunk_max = kPage;
    PoolWorld world(pieces);
    const StreamHandle slow = world.stream();
    const StreamHandle quick = world.stream();
    const DevicePtr first = world.allocate(8 * kPage, quick);
    const DevicePtr pending = world.allocate(pages.pending * kPage, slow);
    world.allocate(kPage, quick);
    const DevicePtr second = world.allocate(8 * kPage, quick);
    world.allocate(kPage, quick);
    world.deallocate(first, quick);
    world.deallocate(second, quick);
    world.wait();
    world.sim().advance_host_ns(
        1'000'000);  // long enough after the last event of `slow` for another
    world.use(pending, pages.pending * kPage, slow, kLongNs);
    world.deallocate(pending, slow);
    ASSERT_EQ(world.picture(), "[-8][-" + std::to_string(pages.pending) + "][1][-8][1]");
    expect_no_delay(world, slow, quick, pages.wanted * kPage);
  }
}

WorldOptions preferring_footprint() {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  return options;
}

// What it saves and what that costs: nothing new is mapped, and the second stream's work is behind
// the first's.
TEST(Footprint, waits_for_other_streams_before_it_grows_past_the_largest_use) {
  PoolWorld world(preferring_footprint());
  const StreamHandle slow = world.stream();
  const StreamHandle quick = world.stream();
  world.deallocate(world.allocate(kPage, quick), quick);
  const DevicePtr held = world.allocate(64 * kMiB, slow);
  world.use(held, 64 * kMiB, slow, kLongNs);
  world.deallocate(held, slow);
  const Bytes mapped = world.statistics().mapped_bytes;
  world.use(world.allocate(64 * kMiB, quick), 64 * kMiB, quick);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  EXPECT_EQ(world.statistics().gpu_waits, 1u);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

// Whatever size the pieces have, whether the stream keeps them in its cache, and though it is the
// only one that called. Chunks of each size add up to the request: what the GPU still uses cannot
// be split.
TEST(Footprint, waits_for_what_the_only_other_stream_freed) {
  for (const Bytes piece :
       {20 * kKiB, 200 * kKiB, Bytes{kPage}, 3 * kPage, 8 * kPage, 20 * kPage}) {
    PoolWorld world(preferring_footprint());
    const StreamHandle slow = world.stream();
    std::vector<DevicePtr> held;
    for (Bytes bytes = 0; bytes < 60 * kPage; bytes += piece)
      held.push_back(world.allocate(piece, slow));
    for (const DevicePtr ptr : held)
      world.use(ptr, piece, slow, held.size() > 1000 ? 1'000'000 : kLongNs);
    for (const DevicePtr ptr : held) world.deallocate(ptr, slow);
    const Bytes mapped = world.statistics().mapped_bytes;
    const StreamHandle quick = world.stream();
    const Bytes wanted = piece < kPage ? 40 * kPage : round_down(40 * kPage, piece);
    world.use(world.allocate(wanted, quick), wanted, quick);
    EXPECT_EQ(world.statistics().mapped_bytes, mapped) << piece;
    EXPECT_GT(world.statistics().gpu_waits, 0u) << piece;
    EXPECT_EQ(world.statistics().host_waits, 0u) << piece;
    EXPECT_EQ(world.statistics().pauses, 0u) << piece;
  }
}

// No stream may wait for an event of the whole context, so the host looks, as by default.
TEST(Footprint, looks_for_a_moment_whether_what_has_no_stream_is_complete) {
  PoolWorld world(preferring_footprint());
  const StreamHandle stream = world.stream(driver::StreamFlags::blocking);
  const DevicePtr unnamed = world.allocate(64 * kMiB, std::nullopt);
  world.use(unnamed, 64 * kMiB, stream, 300'000);
  world.deallocate(unnamed, std::nullopt);
  const Bytes mapped = world.statistics().mapped_bytes;
  world.use(world.allocate(64 * kMiB, stream), 64 * kMiB, stream);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.statistics().pauses, 1u);
}

// A warm loop below a page pays for an event now and then, not for each free.
TEST(Footprint, records_one_event_for_each_page_that_a_stream_frees) {
  PoolWorld world(preferring_footprint());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(kPage / 16, stream), stream);
  const std::uint64_t before = world.calls().count(Call::event_record);
  for (int i = 0; i < 160; ++i) world.deallocate(world.allocate(kPage / 16, stream), stream);
  EXPECT_NEAR(static_cast<double>(world.calls().count(Call::event_record) - before), 10, 2);
}

// Chunks of many sizes: a stream keeps what it freed, up to four pages at a time.
class CachedFrees : public ::testing::Test {
 protected:
  PoolWorld world{adaptive_world()};
  StreamHandle stream = world.stream();
  // What is cached waits for nothing, for its stream alone may use it.
  Bytes pending_once_freed(Bytes pages) {
    world.deallocate(world.allocate(pages * kPage, stream), stream);
    return world.statistics().pending_bytes;
  }
};

TEST_F(CachedFrees, are_of_up_to_four_pages) {
  EXPECT_EQ(pending_once_freed(4), 0u);
  EXPECT_EQ(world.statistics().free_bytes, 4 * kPage);
}

TEST_F(CachedFrees, of_more_are_the_pools) { EXPECT_EQ(pending_once_freed(5), 5 * kPage); }

// Note [Streams that crowd cut their own]: the lock is taken while the driver is asked who another
// stream is.
TEST(CachedFreesInACrowd, become_one_with_their_neighbours_while_the_pools_lock_is_mostly_taken) {
  HookedWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const auto come_to_lock = [&](int times) {
    for (int i = 0; i < times; ++i)
      EXPECT_TRUE(is_null(world.pool->allocate_if_ready(4 * kPage, 0, stream)));
  };
  const auto find_taken = [&](int times) {
    bool is_asked = false;
    world.hooks.on[driver::Call::stream_get_ctx] = [&] {
      if (!std::exchange(is_asked, true)) world.on_another_thread([&] { come_to_lock(times); });
      return driver::CuResult::success;
    };
    world.deallocate(world.allocate(kGiB, world.stream()), std::nullopt);
    world.hooks.on.clear();
  };
  // Whether what is freed serves what is much smaller. It comes to the lock once, which is not
  // taken then.
  const auto is_cut = [&](Bytes bytes) {
    world.deallocate(world.allocate(bytes, stream), stream);
    return !is_null(world.pool->allocate_if_ready(kPage, 0, stream));
  };
  world.allocate(kPage / 2, stream);
  find_taken(3);
  EXPECT_FALSE(is_cut(3 * kPage)) << "twice not";
  find_taken(2);
  EXPECT_FALSE(is_cut(5 * kPage / 2));
  find_taken(4);
  EXPECT_TRUE(is_cut(2 * kPage));
  come_to_lock(64);
  EXPECT_FALSE(is_cut(7 * kPage / 4));
}

// Note [A hit needs no visit]
TEST(HitsOfAnOnlyStream, ask_nothing_but_who_the_stream_is) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const auto visits_of_a_pair = [&] {
    const std::uint64_t before = world.calls().count(Call::ctx_get_id);
    const DevicePtr ptr = world.allocate(8 * kPage, stream);
    world.use(ptr, 8 * kPage, stream);
    world.deallocate(ptr, stream);
    return world.calls().count(Call::ctx_get_id) - before;
  };
  visits_of_a_pair();
  EXPECT_EQ(visits_of_a_pair(), 0u);
  const DevicePtr other = world.allocate(8 * kPage, world.stream());
  EXPECT_EQ(visits_of_a_pair(), 2u) << "others may wait for what this stream frees";
  world.deallocate(other, std::nullopt);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST(HitsOfAnOnlyStream, take_back_what_its_cache_keeps) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(8 * kPage, stream), stream);
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  ASSERT_EQ(world.statistics().cached_bytes, 4 * kPage);
  const std::uint64_t visits = world.calls().count(Call::ctx_get_id);
  const std::uint64_t chunks = world.statistics().chunks_created;
  const DevicePtr ptr = world.allocate(3 * kPage, stream);
  EXPECT_EQ(world.calls().count(Call::ctx_get_id), visits);
  EXPECT_EQ(world.statistics().chunks_created, chunks);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST(HitsOfAnOnlyStream, leave_deferred_frees_and_mistakes_to_a_visit) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(8 * kPage, stream);
  world.deallocate(world.allocate(8 * kPage, stream), stream);
  world.pool().deallocate_deferred(first);
  const DevicePtr second = world.allocate(8 * kPage, stream);
  EXPECT_EQ(world.statistics().live_allocations, 1u) << "the deferred free came first";
  world.deallocate(second, stream);
  const auto again = world.pool().deallocate(second, stream);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::invalid_pointer);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

TEST(CachedFreesInPageMode, are_none_of_a_page) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_EQ(world.statistics().pending_bytes, kPage);
}

// 2000 MiB in pieces of one size, and then of the next: what the sizes before left in the cache is
// not what the program uses.
TEST_F(CachedFrees, are_no_reason_to_grow) {
  for (const Bytes size : {14 * kMiB, 6 * kMiB, 4 * kMiB, 2 * kMiB}) {
    std::vector<DevicePtr> all;
    for (Bytes sum = 0; sum + size <= 2000 * kMiB; sum += size) {
      const auto made = world.pool().allocate({size, 0, stream});
      ASSERT_TRUE(made.ok());
      all.push_back(made.value());
    }
    for (const std::size_t first : {0u, 1u})
      for (std::size_t i = first; i < all.size(); i += 2)
        ASSERT_TRUE(world.pool().deallocate(all[i], stream).ok());
  }
  EXPECT_LE(world.statistics().peak_mapped_bytes, 2200 * kMiB);
}

}  // namespace
}  // namespace vpmm::test
