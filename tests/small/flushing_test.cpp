// SPDX-License-Identifier: Apache-2.0
// small: what a stream that finds nothing takes from caches: first from its own, then from those
// that keep enough, and from nobody more than it has to.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// Grows by pages, and only where no cache has what is asked for.
WorldOptions frugal_world() {
  WorldOptions options = page_by_page_world();
  options.config.prefer = settings::Prefer::footprint;
  return options;
}

class Flushing : public ::testing::Test {
 protected:
  static constexpr Bytes kNearlyAPage = kPage - 8 * small::kUnit;
  PoolWorld world{frugal_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  std::vector<DevicePtr> take(int count, Bytes bytes, StreamHandle stream) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < count; ++i) live.push_back(world.allocate(bytes, stream));
    return live;
  }
  // Freed while the stream works on, if `is_in_use`.
  void give(const std::vector<DevicePtr>& live, Bytes bytes, StreamHandle stream, bool is_in_use) {
    for (const DevicePtr ptr : live) {
      world.use(ptr, bytes, stream, is_in_use ? kLongNs : 1000);
      world.deallocate(ptr, stream);
    }
    if (!is_in_use) world.sim().run_until_idle();
  }
  // How many such requests the stream's cache serves; they are freed again.
  int ready(Bytes bytes, StreamHandle stream) {
    std::vector<DevicePtr> live;
    for (;;) {
      const DevicePtr ptr = world.pool().allocate_if_ready(bytes, 0, stream);
      if (is_null(ptr)) break;
      live.push_back(ptr);
    }
    for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
    return static_cast<int>(live.size());
  }
};

// Its own memory is enough, so no other stream loses any, and the pool does not grow.
TEST_F(Flushing, what_the_stream_itself_keeps_is_taken_first) {
  const std::vector<DevicePtr> own = take(4, kNearlyAPage, a);
  const std::vector<DevicePtr> of_b = take(6, kNearlyAPage, b);
  give(of_b, kNearlyAPage, b, true);
  give(own, kNearlyAPage, a, true);
  ASSERT_EQ(ready(kNearlyAPage, a), 4);
  ASSERT_EQ(ready(kNearlyAPage, b), 6);
  const Bytes mapped = world.statistics().mapped_bytes;
  for (int i = 0; i < 4; ++i) world.use(world.allocate(kPage, a), kPage, a);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  EXPECT_EQ(ready(kNearlyAPage, a), 0);
  EXPECT_EQ(ready(kNearlyAPage, b), 6);
}

// Though its own is complete as well: two frees of a stream are worth an event.
TEST_F(Flushing, complete_memory_of_another_stream_is_taken_before_its_own) {
  const std::vector<DevicePtr> own = take(6, kNearlyAPage, a);
  const std::vector<DevicePtr> of_b = take(4, kNearlyAPage, b);
  give(own, kNearlyAPage, a, false);
  give(of_b, kNearlyAPage, b, false);
  const Bytes mapped = world.statistics().mapped_bytes;
  world.use(world.allocate(kPage, a), kPage, a);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
  EXPECT_EQ(ready(kNearlyAPage, a), 6);
  EXPECT_LT(ready(kNearlyAPage, b), 4);
}

// More than a cache keeps. So the memory for it may lie beside what the stream freed.
TEST_F(Flushing, before_a_large_request_a_stream_gives_back_the_pages_it_keeps) {
  for (const auto& [pages, kept] : {std::pair{Bytes{4}, Bytes{4}}, {Bytes{5}, Bytes{0}}}) {
    PoolWorld fresh(frugal_world());
    const StreamHandle stream = fresh.stream(), other = fresh.stream();
    const DevicePtr large = fresh.allocate(8 * kPage, stream);
    std::vector<DevicePtr> own;
    for (int i = 0; i < 4; ++i) own.push_back(fresh.allocate(kPage, stream));
    const DevicePtr of_other = fresh.allocate(kPage, other);
    fresh.deallocate(of_other, other);
    fresh.deallocate(large, stream);
    for (const DevicePtr ptr : own) fresh.deallocate(ptr, stream);
    ASSERT_EQ(fresh.statistics().cached_bytes, 5 * kPage);
    const Bytes mapped = fresh.statistics().mapped_bytes;
    fresh.allocate(pages * kPage, stream);
    EXPECT_EQ(fresh.statistics().mapped_bytes, mapped);
    EXPECT_EQ(fresh.statistics().cached_bytes, (1 + kept) * kPage) << pages;
  }
}

// Frees stay cached with the pool's lock or without, and if they wait for another stream.
TEST(FlushingOfFew, streams_keep_all_they_free) {
  constexpr int kSpans = 32;
  for (const bool is_by_other : {false, true}) {
    WorldOptions options = frugal_world();
    options.config.checks.fill_freed = true;  // so that no free is warm
    PoolWorld world(options);
    const StreamHandle a = world.stream(), b = world.stream();
    std::vector<DevicePtr> spans;
    for (int i = 0; i < kSpans; ++i) spans.push_back(world.allocate(kMiB, a));
    for (const DevicePtr ptr : spans) world.deallocate(ptr, is_by_other ? b : a);
    for (int i = 0; i < 3; ++i) {  // the last at least finds out that all is complete
      world.sim().run_until_idle();
      world.allocate(kMiB, a);
    }
    EXPECT_GE(world.statistics().cached_bytes, (kSpans - 3) * kMiB) << is_by_other;
  }
}

// Free pages of a segment that is in use: another stream gets them if they are more than a quarter
// of all that the stream has, and a 256th of all that is mapped.
TEST_F(Flushing, free_pages_between_spans_that_live_are_taken_if_they_are_many) {
  constexpr Bytes kBytes = kMiB + 1;  // such spans begin in one page and end in the next
  for (const auto& [freed, beside, are_many] :
       {std::tuple{10u, 1u, false}, {30u, 1u, true}, {30u, 6000u, false}}) {
    PoolWorld fresh(frugal_world());
    const StreamHandle stream = fresh.stream(), other = fresh.stream();
    fresh.allocate(beside * kPage, other);
    std::vector<DevicePtr> spans;
    for (int i = 0; i < 64; ++i) spans.push_back(fresh.allocate(kBytes, stream));
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 20; i < 20 + freed; ++i) fresh.deallocate(spans[i], stream);
    fresh.sim().run_until_idle();
    const Bytes mapped = fresh.statistics().mapped_bytes;
    const DevicePtr page = fresh.allocate(kPage, other);
    fresh.use(page, kPage, other);
    EXPECT_EQ(fresh.statistics().mapped_bytes == mapped, are_many) << freed;
    EXPECT_EQ(page > spans[20] && page < spans[20 + freed], are_many) << freed;
    for (std::size_t i = 0; i < 20; ++i) fresh.deallocate(spans[i], stream);
  }
}

// A request that needs 2 MiB from caches: 150 streams keep as much in units that none gives back.
TEST(FlushingOfMany, what_each_may_keep_in_any_case_does_not_count) {
  PoolWorld world(frugal_world());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 150; ++i) streams.push_back(world.stream());
  const StreamHandle with_two = streams.back(), asking = streams.front();
  world.allocate(100 * kPage, asking);
  for (int turn = 0; turn < 4; ++turn)
    for (const StreamHandle stream : streams)
      world.deallocate(world.allocate(5000, stream), stream);
  const DevicePtr first = world.allocate(5000, with_two), second = world.allocate(3000, with_two);
  world.deallocate(first, with_two);
  world.deallocate(second, with_two);
  ASSERT_EQ(world.statistics().cached_bytes, 151 * small::kUnit);
  const Bytes mapped = world.statistics().mapped_bytes;
  world.allocate(50 * kPage, asking);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped + 50 * kPage);
  EXPECT_EQ(world.statistics().cached_bytes, 150 * small::kUnit) << "all but its own";
  for (const Bytes bytes : {Bytes{5000}, Bytes{3000}})
    EXPECT_FALSE(is_null(world.pool().allocate_if_ready(bytes, 0, with_two))) << bytes;
}

}  // namespace
}  // namespace vpmm::test
