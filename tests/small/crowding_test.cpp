// SPDX-License-Identifier: Apache-2.0
// small: requests of a page and more that a stream which crowds cuts from pages of its own.
#include <algorithm>
#include <functional>
#include <random>
#include <tuple>
#include <vector>

#include "small/small_world.hpp"
#include "support/held.hpp"

namespace vpmm::test {
namespace {

WorldOptions crowded_world() {
  WorldOptions options = adaptive_world();
  options.config.streams.crowded_after = 0;
  return options;
}

class Crowding : public ::testing::Test {
 protected:
  PoolWorld world{crowded_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  DevicePtr if_ready(Bytes bytes, StreamHandle stream) {
    return world.pool().allocate_if_ready(bytes, 0, stream);
  }
};

TEST_F(Crowding, what_a_stream_freed_serves_smaller_and_larger_requests_without_the_lock) {
  const DevicePtr first = world.allocate(2 * kPage, a), second = world.allocate(2 * kPage, a);
  world.use(first, 2 * kPage, a);
  ASSERT_EQ(second, first + 2 * kPage) << "the second becomes one with the pages before";
  world.deallocate(first, a);
  world.deallocate(second, a);
  const DevicePtr larger = if_ready(3 * kPage, a), smaller = if_ready(kPage, a);
  EXPECT_EQ(larger, first);
  EXPECT_EQ(smaller, first + 3 * kPage);
  EXPECT_TRUE(is_null(if_ready(kPage, b))) << "it is the stream's own";
  world.deallocate(larger, a);
  world.deallocate(smaller, a);
}

// Less than a page, more than a page, and nothing a stream may keep.
TEST_F(Crowding, allocations_begin_at_whole_grains_whatever_lies_before_them) {
  std::mt19937_64 random(7);
  std::vector<DevicePtr> all;
  for (int i = 0; i < 400; ++i) {
    const Bytes bytes = 1 + random() % (i % 2 == 0 ? 5 * kPage : kMiB);
    const DevicePtr ptr = world.allocate(bytes, a);
    EXPECT_TRUE(is_multiple(to_integer(ptr), bytes >= 512 * kKiB  ? 64 * kKiB
                                             : bytes > 120 * kKiB ? 16 * kKiB
                                                                  : 256))
        << bytes;
    all.push_back(ptr);
    if (i % 3 == 2) {
      std::swap(all[random() % all.size()], all.back());
      world.deallocate(all.back(), a);
      all.pop_back();
    }
  }
  for (const DevicePtr ptr : all) world.deallocate(ptr, a);
}

TEST_F(Crowding, none_takes_more_than_a_32nd_above_its_size) {
  for (Bytes bytes = kPage; bytes <= 4 * kPage; bytes += 777'777) {
    const Bytes before = world.statistics().small_bytes - world.statistics().small_free_bytes;
    const DevicePtr ptr = world.allocate(bytes, a);
    const Bytes taken =
        world.statistics().small_bytes - world.statistics().small_free_bytes - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LE(taken, bytes + bytes / 32);
    world.deallocate(ptr, a);
  }
}

TEST_F(Crowding, other_streams_and_larger_requests_have_all_that_is_idle) {
  WorldOptions options = crowded_world();
  options.config.limits.capacity = 64 * kPage;
  PoolWorld small(options);
  const StreamHandle first = small.stream(), second = small.stream();
  std::vector<DevicePtr> all;
  for (int i = 0; i < 16; ++i) all.push_back(small.allocate(4 * kPage - 100'000, first));
  for (const DevicePtr ptr : all) small.deallocate(ptr, first);
  small.deallocate(small.allocate(60 * kPage, first), first);
  all.clear();
  for (int i = 0; i < 20; ++i) all.push_back(small.allocate(3 * kPage, second));
  for (const DevicePtr ptr : all) small.deallocate(ptr, second);
  small.deallocate(small.allocate(62 * kPage, first), first);
}

// Between allocations of no stream, which crowd nowhere, three whole pages are nowhere free.
TEST_F(Crowding, where_whole_pages_are_short_the_grains_between_them_serve) {
  WorldOptions options = crowded_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld small(options);
  const StreamHandle stream = small.stream();
  const DevicePtr other = small.pool().allocate({5 * kPage + kPage / 2, 0, std::nullopt}).value();
  const DevicePtr ptr = small.allocate(2 * kPage + kPage / 4, stream);
  small.use(ptr, 2 * kPage + kPage / 4, stream);
  EXPECT_FALSE(small.pool().allocate({kPage, 0, stream}).ok());
  small.deallocate(ptr, stream);
  EXPECT_EQ(small.allocate(2 * kPage + kPage / 2, stream), ptr);
  ASSERT_TRUE(small.pool().deallocate(other, std::nullopt).ok());
}

TEST_F(Crowding, all_goes_back_when_all_is_freed) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < 50; ++i)
    all.push_back(world.allocate(kPage + static_cast<Bytes>(i) * 100'000, i % 2 ? a : b));
  for (std::size_t i = 0; i < all.size(); ++i) world.deallocate(all[i], i % 2 ? a : b);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

TEST_F(Crowding, memory_that_another_stream_uses_or_frees_waits_for_it) {
  const DevicePtr used = world.allocate(2 * kPage, a), freed = world.allocate(3 * kPage, a);
  ASSERT_TRUE(world.pool().record_use(used, b).ok());
  order(world, a, b);
  world.use(used, 2 * kPage, b, 500'000);
  world.use(freed, 3 * kPage, b, 500'000);
  world.deallocate(used, a);
  world.deallocate(freed, b);
  for (int i = 0; i < 4; ++i) {
    const DevicePtr ptr = world.allocate(2 * kPage, a);
    world.use(ptr, 2 * kPage, a);
  }
}

TEST_F(Crowding, every_allocation_is_found_by_each_of_its_addresses) {
  const DevicePtr ptr = world.allocate(3 * kPage + 1, a);
  for (const Bytes offset : {Bytes{0}, kPage - 1, kPage, 3 * kPage}) {
    const auto found = world.pool().query(ptr + offset);
    ASSERT_TRUE(found.ok()) << offset;
    EXPECT_EQ(found.value().begin, ptr);
  }
}

TEST_F(Crowding, random_programs_hold_little_more_than_they_use) {
  std::mt19937_64 random(3);
  std::vector<std::pair<DevicePtr, Bytes>> all;
  Bytes live = 0, most = 0;
  for (int i = 0; i < 4000; ++i) {
    if (all.size() >= 300) {
      std::swap(all[random() % all.size()], all.back());
      ASSERT_TRUE(world.pool().deallocate(all.back().first, a).ok());
      live -= all.back().second;
      all.pop_back();
    }
    const Bytes bytes = 1 + random() % (2 * kPage);
    const auto made = world.pool().allocate({bytes, 0, a});
    ASSERT_TRUE(made.ok());
    all.emplace_back(made.value(), bytes);
    most = std::max(most, live += bytes);
  }
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_LE(world.statistics().peak_mapped_bytes, most / 100 * 120);
}

// Pages that came together lie in one part of a run; those of them that go back go alone.
TEST_F(Crowding, free_pages_among_those_that_came_together_go_back_alone) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < 8; ++i) all.push_back(world.allocate(4 * kPage, a));
  for (const DevicePtr ptr : all) world.deallocate(ptr, a);
  all.clear();
  constexpr Bytes kBytes = 3 * kPage / 2;
  for (int i = 0; i < 20; ++i) all.push_back(world.allocate(kBytes, a));
  std::vector<DevicePtr> kept;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i % 5 == 2)
      kept.push_back(all[i]);
    else
      world.deallocate(all[i], a);
  for (const DevicePtr ptr : kept) world.use(ptr, kBytes, a, kLongNs);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_LE(world.statistics().small_bytes, kept.size() * 3 * kPage);
  for (int i = 0; i < 20; ++i) world.use(world.allocate(kPage, b), kPage, b);
  for (const DevicePtr ptr : kept) {
    EXPECT_EQ(world.pool().query(ptr + (kBytes - 1)).value().begin, ptr);
    world.deallocate(ptr, a);
  }
}

// A 32nd of a page, which is more than 64 KiB.
TEST(CrowdingInLargePages, allocations_begin_at_a_32nd_of_a_page) {
  constexpr Bytes kLargePage = 4 * kPage;
  WorldOptions options = crowded_world();
  options.config.page_size = kLargePage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> all;
  std::mt19937_64 random(9);
  for (int i = 0; i < 60; ++i) {
    const Bytes bytes = i % 2 == 0 ? kLargePage + random() % kLargePage : 1 + random() % kMiB;
    all.push_back(world.allocate(bytes, stream));
    if (i % 2 == 0) {
      EXPECT_TRUE(is_multiple(to_integer(all.back()), kLargePage / 32)) << bytes;
    }
    if (i % 5 == 4) {
      std::swap(all[random() % all.size()], all.back());
      world.deallocate(all.back(), stream);
      all.pop_back();
    }
  }
  for (const DevicePtr ptr : all) world.deallocate(ptr, stream);
}

// Note [Streams that crowd cut their own]
TEST(StreamsThatCrowd, found_the_lock_taken_four_times_more_often_than_not_until_alone_for_long) {
  small::Crowding stream;
  const auto come = [&](bool is_taken, int times) {
    for (int i = 0; i < times; ++i) stream.note(is_taken, 4);
    return stream.is_crowded();
  };
  EXPECT_FALSE(come(false, 200));
  EXPECT_EQ(stream.alone, small::kAlone) << "counted no further, so that it never begins anew";
  EXPECT_FALSE(come(true, 3));
  EXPECT_FALSE(come(false, 2));
  EXPECT_FALSE(come(true, 2)) << "three times more often";
  EXPECT_TRUE(come(true, 1));
  EXPECT_TRUE(come(false, 63));
  EXPECT_FALSE(come(false, 1)) << "alone 64 times";
  EXPECT_FALSE(come(true, 3)) << "all begins anew";
  EXPECT_TRUE(come(true, 1));
}

// Calls that find nothing in the cache look whether another thread has the pool's lock.
TEST(StreamsThatCrowd, are_known_by_calls_of_theirs_that_found_the_lock_taken) {
  for (const auto& [times, is_taken, cuts] :
       {std::tuple{4, true, true}, {3, true, false}, {4, false, false}}) {
    WorldOptions options = adaptive_world();
    options.config.streams.crowded_after = 4;
    PoolWorld world(options);
    const StreamHandle a = world.stream(), b = world.stream();
    world.deallocate(world.allocate(5000, a), a);
    const DevicePtr block = world.allocate(5000, b);
    const Bytes cut = world.statistics().small_bytes;
    const auto miss = [&world, a = a, times = times] {
      for (int i = 0; i < times; ++i)
        EXPECT_TRUE(is_null(world.pool().allocate_if_ready(2 * kPage, 0, a)));
    };
    Held held(
        "a free holds the pool's lock, nothing has ended",
        is_taken ? std::function<void()>(miss) : [] {});
    world.deallocate(block, a);
    ASSERT_TRUE(held.end());
    if (!is_taken) miss();
    const DevicePtr ptr = world.allocate(2 * kPage, a);
    EXPECT_EQ(world.statistics().small_bytes > cut, cuts) << times << ", " << is_taken;
    world.deallocate(ptr, a);
  }
}

// Whose chunks are pages, or whose pages have no power of two, are cut no further.
TEST(CrowdingInPageMode, changes_nothing) {
  WorldOptions options = page_world();
  options.config.streams.crowded_after = 0;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(2 * kPage, stream);
  EXPECT_EQ(world.statistics().small_bytes, 0u);
  world.deallocate(ptr, stream);
}

}  // namespace
}  // namespace vpmm::test
