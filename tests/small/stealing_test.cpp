// SPDX-License-Identifier: Apache-2.0
// small: what a stream that finds nothing takes of memory that another one keeps: whole pages that
// it is done with, of the least size, and no more than serves.
#include <vector>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// Streams take from each other before the pool grows.
WorldOptions frugal_world() {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  return options;
}

class Stealing : public ::testing::Test {
 protected:
  static constexpr Bytes kBytes = 2 * kPage;

  std::vector<DevicePtr> take(int count, Bytes bytes, pool::Stream stream) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < count; ++i) live.push_back(world.allocate(bytes, stream));
    return live;
  }
  // Makes events worth while, so that other streams know when one is done.
  void hold(Bytes bytes) { ASSERT_TRUE(world.pool().allocate({bytes, 0, b}).ok()); }
  void end(const std::vector<DevicePtr>& live, Bytes bytes, StreamHandle stream) {
    for (const DevicePtr ptr : live) {
      world.use(ptr, bytes, stream);
      world.deallocate(ptr, stream);
      world.sim().advance_host_ns(1'000'000);
    }
  }
  // How many such requests the stream's cache serves; they stay allocated.
  int ready(Bytes bytes, StreamHandle stream) {
    int count = 0;
    while (!is_null(world.pool().allocate_if_ready(bytes, 0, stream))) ++count;
    return count;
  }
  Bytes mapped() { return world.statistics().mapped_bytes; }

  PoolWorld world{frugal_world()};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();
};

// It has no cache of its own for the other half.
TEST_F(Stealing, a_request_of_no_stream_takes_the_first_that_was_freed_and_no_other) {
  take(1, kBytes, b);
  const std::vector<DevicePtr> of_a = take(10, kBytes, a);
  hold(100 * kPage);
  end(of_a, kBytes, a);
  const observe::Statistics before = world.statistics();
  ASSERT_EQ(before.cached_bytes, 10 * kBytes);
  EXPECT_EQ(world.allocate(kBytes, std::nullopt), of_a.front());
  EXPECT_EQ(world.statistics().cached_bytes, 9 * kBytes);
  EXPECT_EQ(world.statistics().live_bytes, before.live_bytes + kBytes);
  EXPECT_EQ(world.statistics().allocated_bytes, before.allocated_bytes + kBytes);
  EXPECT_EQ(mapped(), before.mapped_bytes);
  EXPECT_EQ(world.pool().reports().validate(), "");
  EXPECT_EQ(ready(kBytes, a), 9);
}

TEST_F(Stealing, a_larger_request_than_is_ever_kept_takes_little_from_nobody) {
  take(1, kBytes, b);
  const std::vector<DevicePtr> of_a = take(1, kBytes, a);
  hold(800 * kPage);  // of which the other keeps less than a 256th
  end(of_a, kBytes, a);
  const Bytes before = mapped();
  take(1, 40 * kPage, b);
  EXPECT_GT(mapped(), before);
  EXPECT_EQ(ready(kBytes, a), 1);
}

TEST_F(Stealing, a_larger_piece_that_is_done_with_serves_before_a_smaller_one_in_use) {
  constexpr Bytes kLarger = kBytes + kPage;
  take(1, kBytes, b);
  const std::vector<DevicePtr> larger = take(1, kLarger, a);
  const std::vector<DevicePtr> smaller = take(2, kBytes, a);
  hold(100 * kPage);
  end(larger, kLarger, a);
  for (const DevicePtr ptr : smaller) {
    world.use(ptr, kBytes, a, kLongNs);
    world.deallocate(ptr, a);
  }
  const Bytes before = mapped();
  const DevicePtr ptr = world.allocate(kBytes, b);
  world.use(ptr, kBytes, b);
  EXPECT_EQ(ptr, larger.front());
  EXPECT_EQ(mapped(), before);
  EXPECT_EQ(ready(kBytes, a), 2);
}

// Pages that a stream cut and has free side by side: they serve a request of whole pages, of as
// many as may be kept, and for another that is worth no more to its stream the pool grows.
TEST_F(Stealing, free_cut_pages_serve_requests_of_a_few_whole_pages) {
  constexpr Bytes kSpan = kMiB + 64 * kKiB;  // begin in one page, and end in the next
  for (const auto& [bytes, is_taken] : {std::pair{kPage, true},
                                        {4 * kPage, true},
                                        {kPage + kPage / 2, false},
                                        {5 * kPage, false}}) {
    SCOPED_TRACE(bytes);
    PoolWorld fresh(frugal_world());
    const StreamHandle stream = fresh.stream(), other = fresh.stream();
    ASSERT_FALSE(is_null(fresh.allocate(kPage, other)));
    std::vector<DevicePtr> spans;
    for (int i = 0; i < 16; ++i) spans.push_back(fresh.allocate(kSpan, stream));
    ASSERT_FALSE(is_null(fresh.allocate(4000 * kPage, other))) << "of which they are little";
    for (const DevicePtr span : spans) {
      fresh.use(span, kSpan, stream);
      fresh.deallocate(span, stream);
      fresh.sim().advance_host_ns(1'000'000);
    }
    const Bytes mapped = fresh.statistics().mapped_bytes;
    const DevicePtr taken = fresh.allocate(bytes, other);
    fresh.use(taken, bytes, other);
    EXPECT_EQ(fresh.statistics().mapped_bytes == mapped, is_taken);
    fresh.deallocate(taken, other);
  }
}

// The stream's pages serve it as they are, and only one that crowds cuts pages of all sizes.
TEST_F(Stealing, a_small_request_leaves_a_stream_that_does_not_crowd_its_whole_pages) {
  const std::vector<DevicePtr> pages = take(1, kBytes, a);
  take(1, kBytes, b);
  const std::vector<DevicePtr> idle = take(1, 8 * kPage, b);
  for (const DevicePtr ptr : idle) world.deallocate(ptr, b);
  world.sim().run_until_idle();
  world.deallocate(pages.front(), a);
  ASSERT_EQ(world.statistics().cached_bytes, kBytes);
  const Bytes before = mapped();
  take(1, 5000, a);
  EXPECT_EQ(mapped(), before) << "idle pages are cut";
  EXPECT_EQ(world.pool().allocate_if_ready(kBytes, 0, a), pages.front());
}

}  // namespace
}  // namespace vpmm::test
