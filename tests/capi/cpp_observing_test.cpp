// capi: the C++ header's way to events, layouts, requests with flags, and several out-of-memory
// callbacks.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(CppObserving, a_request_with_a_tag_is_in_events_and_in_the_layout) {
  const memory_pool pool;
  std::vector<vpmm_event> heard;
  const auto hear = [](void* argument, const vpmm_event* event) {
    static_cast<std::vector<vpmm_event>*>(argument)->push_back(*event);
  };
  const std::uint64_t id = pool.add_event_callback(1U << VPMM_EVENT_ALLOCATE, hear, &heard);
  vpmm_request request{};
  request.bytes = 10 * kMiB;
  request.flags = VPMM_ALLOCATE_ONE_CHUNK;
  request.tag = 9;
  void* const ptr = pool.allocate(request);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].tag, 9U);
  const pool_layout layout = pool.layout();
  ASSERT_EQ(layout.chunks.size(), 1U);
  EXPECT_EQ(layout.chunks[0].begin, ptr);
  ASSERT_EQ(layout.blocks.size(), 1U);
  EXPECT_EQ(layout.blocks[0].tag, 9U);
  pool.remove_event_callback(id);
  EXPECT_THROW(pool.remove_event_callback(id), failure);
  request.flags = 1U << 31;
  EXPECT_THROW(pool.allocate(request), failure);
}

TEST(CppObserving, out_of_memory_callbacks_come_and_go) {
  const memory_pool pool;
  pool.set_capacity(8 * kMiB);
  int calls = 0;
  const auto count = [](void* argument, int, std::uint64_t) {
    return ++*static_cast<int*>(argument), 0;
  };
  const std::uint64_t id = pool.add_out_of_memory_callback(count, &calls);
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_EQ(calls, 1);
  pool.remove_out_of_memory_callback(id);
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(pool.remove_out_of_memory_callback(id), failure);
}

}  // namespace
}  // namespace vpmm::capi_test
