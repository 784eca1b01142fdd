// SPDX-License-Identifier: Apache-2.0
// context: which cache a stream's calls find without a lock.
#include "context/stream_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>

#include "context/streams_kept.hpp"
#include "support/page_size.hpp"

namespace vpmm::context {
namespace {

// The i-th stream that shares its places with stream 7, which is the first.
std::uint64_t alike(std::uint64_t i) {
  std::uint64_t stream = 7;
  for (; i > 0; --i) do
      ++stream;
    while (StreamTable::set_of(stream) != StreamTable::set_of(7));
  return stream;
}

class StreamTableTest : public ::testing::Test {
 protected:
  small::StreamCache& serve(std::uint64_t stream) {
    small::StreamCache& cache = caches.emplace_back(kPage);
    cache.service.stream = stream;
    table.note(stream, cache);
    return cache;
  }
  StreamTable table;
  std::deque<small::StreamCache> caches;
};

TEST_F(StreamTableTest, finds_what_was_noted_and_nothing_else) {
  small::StreamCache& seven = serve(7);
  small::StreamCache& eight = serve(8);
  EXPECT_EQ(table.find(7), &seven);
  EXPECT_EQ(table.find(8), &eight);
  EXPECT_EQ(table.find(9), nullptr);
  EXPECT_EQ(table.find(alike(1)), nullptr);
}

TEST_F(StreamTableTest, four_streams_that_share_their_places_stay) {
  for (std::uint64_t i = 0; i < 4; ++i) serve(alike(i));
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(table.find(alike(i)), &caches[i]);
}

TEST_F(StreamTableTest, one_of_five_is_driven_out) {
  for (std::uint64_t i = 0; i < 5; ++i) serve(alike(i));
  int found = 0;
  for (std::uint64_t i = 0; i < 5; ++i) found += table.find(alike(i)) == &caches[i] ? 1 : 0;
  EXPECT_EQ(found, 4);
  EXPECT_EQ(table.find(alike(4)), &caches[4]);
}

TEST_F(StreamTableTest, the_next_four_drive_out_the_four_before_them) {
  for (std::uint64_t i = 0; i < 12; ++i) {
    serve(alike(i));
    for (std::uint64_t k = i / 4 * 4; k <= i; ++k) EXPECT_EQ(table.find(alike(k)), &caches[k]) << k;
    for (std::uint64_t k = 0; i % 4 == 3 && k < i / 4 * 4; ++k)
      EXPECT_EQ(table.find(alike(k)), nullptr) << k;
  }
}

TEST_F(StreamTableTest, one_that_is_no_more_in_service_makes_room) {
  for (std::uint64_t i = 0; i < 4; ++i) serve(alike(i));
  caches[2].service.stream = 0;
  serve(alike(4));
  for (const std::uint64_t i : {0u, 1u, 3u, 4u}) EXPECT_EQ(table.find(alike(i)), &caches[i]);
  EXPECT_EQ(table.find(alike(2)), nullptr);
}

TEST_F(StreamTableTest, a_stream_has_one_cache_at_a_time) {
  serve(7);
  small::StreamCache& later = serve(7);
  EXPECT_EQ(table.find(7), &later);
  caches.front().service.stream = 0;
  EXPECT_EQ(table.find(7), &later);
  for (int i = 0; i < 8; ++i) {
    small::StreamCache& latest = serve(7);
    EXPECT_EQ(table.find(7), &latest) << i;
  }
}

// Whatever the driver's ids are: one after another, or addresses.
TEST_F(StreamTableTest, thousands_of_streams_at_equal_distances_stay) {
  for (const std::uint64_t distance : {1U, 2U, 16U, 64U, 4096U, 12345U}) {
    StreamTable many;
    for (std::uint64_t i = 1; i <= 4000; ++i) {
      small::StreamCache& cache = caches.emplace_back(kPage);
      cache.service.stream = i * distance;
      many.note(i * distance, cache);
    }
    int found = 0;
    for (std::uint64_t i = 1; i <= 4000; ++i) found += many.find(i * distance) != nullptr ? 1 : 0;
    EXPECT_EQ(found, 4000) << distance;
  }
}

TEST_F(StreamTableTest, one_that_is_forgotten_stays_while_there_is_room) {
  for (std::uint64_t i = 0; i < 3; ++i) serve(alike(i)).service.stream = 0;
  serve(alike(3));
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_NE(table.find(alike(i)), nullptr);
}

TEST(StreamsKept, are_as_many_until_as_many_were_forgotten_after_one_came_back) {
  StreamsKept kept;
  const std::size_t least = kept.most();
  for (std::size_t i = 1; i < least; ++i) kept.is_forgotten();
  kept.came_back();
  EXPECT_EQ(kept.most(), 2 * least);
  for (std::size_t i = 1; i < 2 * least; ++i) kept.is_forgotten();
  EXPECT_EQ(kept.most(), 2 * least);
  kept.is_forgotten();
  EXPECT_EQ(kept.most(), least);
  for (std::size_t i = 0; i < 2 * least; ++i) kept.is_forgotten();
  EXPECT_EQ(kept.most(), least);
}

}  // namespace
}  // namespace vpmm::context
