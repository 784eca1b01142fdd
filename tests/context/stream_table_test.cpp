// context: which cache a stream's calls find without a lock.
#include "context/stream_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>

#include "support/page_size.hpp"

namespace vpmm::context {
namespace {

constexpr std::uint64_t kAlike = 64;  // ids that differ by this share their places

class StreamTableTest : public ::testing::Test {
 protected:
  small::StreamCache& serve(std::uint64_t stream) {
    small::StreamCache& cache = caches.emplace_back(kPage);
    cache.stream = stream;
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
  EXPECT_EQ(table.find(7 + kAlike), nullptr);
}

TEST_F(StreamTableTest, four_streams_with_ids_that_end_alike_stay) {
  for (std::uint64_t i = 0; i < 4; ++i) serve(7 + i * kAlike);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(table.find(7 + i * kAlike), &caches[i]);
}

TEST_F(StreamTableTest, one_of_five_is_driven_out) {
  for (std::uint64_t i = 0; i < 5; ++i) serve(7 + i * kAlike);
  int found = 0;
  for (std::uint64_t i = 0; i < 5; ++i) found += table.find(7 + i * kAlike) == &caches[i] ? 1 : 0;
  EXPECT_EQ(found, 4);
  EXPECT_EQ(table.find(7 + 4 * kAlike), &caches[4]);
}

TEST_F(StreamTableTest, one_that_is_no_more_in_service_makes_room) {
  for (std::uint64_t i = 0; i < 4; ++i) serve(7 + i * kAlike);
  caches[2].stream = 0;
  serve(7 + 4 * kAlike);
  for (const std::uint64_t i : {0u, 1u, 3u, 4u}) EXPECT_EQ(table.find(7 + i * kAlike), &caches[i]);
  EXPECT_EQ(table.find(7 + 2 * kAlike), nullptr);
}

TEST_F(StreamTableTest, a_stream_has_one_cache_at_a_time) {
  serve(7);
  small::StreamCache& later = serve(7);
  EXPECT_EQ(table.find(7), &later);
  caches.front().stream = 0;
  EXPECT_EQ(table.find(7), &later);
}

}  // namespace
}  // namespace vpmm::context
