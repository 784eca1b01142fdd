// SPDX-License-Identifier: Apache-2.0
// capi: requests with flags and a tag, names of tags, and several out-of-memory callbacks.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Requests = SimPool;

vpmm_request request_of(std::size_t bytes, std::uint32_t flags = 0, std::uint32_t tag = 0) {
  vpmm_request request{};
  request.size = sizeof(request);
  request.bytes = bytes;
  request.flags = flags;
  request.tag = tag;
  return request;
}

struct LongerRequest {
  vpmm_request known;
  std::uint64_t new_setting;
};

bool is_one_chunk(vpmm_pool* pool, const void* ptr, std::uint64_t bytes) {
  vpmm_layout layout{};
  layout.size = sizeof(layout);
  EXPECT_EQ(vpmm_layout_take(pool, &layout), VPMM_OK) << vpmm_last_error();
  bool found = false;
  for (std::size_t i = 0; i < layout.chunk_count; ++i)
    found = found || (layout.chunks[i].begin == ptr && layout.chunks[i].bytes == bytes);
  vpmm_layout_release(&layout);
  return found;
}

TEST_F(Requests, plain_ones_are_as_any_other) {
  const vpmm_request request = request_of(3000);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(block_at(pool_, ptr).requested, 3000U);
  EXPECT_NE(block_at(pool_, ptr).stream_id, 0U);
  const vpmm_request nothing = request_of(0, VPMM_ALLOCATE_ONE_CHUNK, 3);
  ASSERT_EQ(vpmm_allocate_with(pool_, &nothing, &ptr), VPMM_OK);
  EXPECT_EQ(ptr, nullptr);
}

TEST_F(Requests, meet_the_capacity_that_was_set_last) {
  std::uint64_t capacity = 0;
  ASSERT_EQ(vpmm_get_capacity(pool_, &capacity), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(capacity, UINT64_MAX);
  ASSERT_EQ(vpmm_set_capacity(pool_, 24 * kMiB), VPMM_OK);
  ASSERT_EQ(vpmm_get_capacity(pool_, &capacity), VPMM_OK);
  EXPECT_EQ(capacity, 24 * kMiB);
  EXPECT_EQ(vpmm_get_capacity(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Requests, of_any_stream_name_none) {
  vpmm_request request = request_of(4 * kMiB, VPMM_ALLOCATE_ANY_STREAM);
  request.stream = reinterpret_cast<vpmm_stream>(0x1234);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(block_at(pool_, ptr).stream_id, 0U);
}

TEST_F(Requests, for_one_chunk_get_it) {
  for (const std::uint32_t any : {0U, std::uint32_t{VPMM_ALLOCATE_ANY_STREAM}}) {
    const vpmm_request request = request_of(10 * kMiB - 1, VPMM_ALLOCATE_ONE_CHUNK | any);
    void* ptr = nullptr;
    ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
    EXPECT_TRUE(is_one_chunk(pool_, ptr, 10 * kMiB));
  }
}

TEST_F(Requests, carry_a_tag_into_the_layout) {
  const vpmm_request request = request_of(3000, 0, 12);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(block_at(pool_, ptr).tag, 12U);
}

TEST_F(Requests, refuse_what_this_version_does_not_know) {
  void* ptr = nullptr;
  const vpmm_request flags = request_of(3000, 4);
  EXPECT_EQ(vpmm_allocate_with(pool_, &flags, &ptr), VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(last_error_names("vpmm_request.flags is 0x4")) << vpmm_last_error();
  LongerRequest longer{request_of(3000), 1};
  longer.known.size = sizeof(longer);
  EXPECT_EQ(vpmm_allocate_with(pool_, &longer.known, &ptr), VPMM_ERROR_UNSUPPORTED);
  longer.new_setting = 0;
  EXPECT_EQ(vpmm_allocate_with(pool_, &longer.known, &ptr), VPMM_OK) << vpmm_last_error();
  vpmm_request shorter = request_of(3000);
  shorter.size = offsetof(vpmm_request, tag);
  EXPECT_EQ(vpmm_allocate_with(pool_, &shorter, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  shorter.size = offsetof(vpmm_request, library);  // the first version
  EXPECT_EQ(vpmm_allocate_with(pool_, &shorter, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_allocate_with(pool_, nullptr, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_allocate_with(pool_, &flags, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST(TagNames, are_given_changed_and_taken_away) {
  EXPECT_STREQ(vpmm_tag_name(5), "");
  ASSERT_EQ(vpmm_set_tag_name(5, "activations"), VPMM_OK) << vpmm_last_error();
  EXPECT_STREQ(vpmm_tag_name(5), "activations");
  ASSERT_EQ(vpmm_set_tag_name(5, ""), VPMM_OK);
  EXPECT_STREQ(vpmm_tag_name(5), "");
  EXPECT_EQ(vpmm_set_tag_name(0, "none"), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_set_tag_name(5, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

struct Asked {
  vpmm_pool* pool;
  void* reserve;
  int calls;
};

int give_reserve(void* argument, int, std::uint64_t) {
  auto* const asked = static_cast<Asked*>(argument);
  ++asked->calls;
  if (asked->reserve == nullptr) return 0;
  const bool is_freed = vpmm_deallocate(asked->pool, asked->reserve, nullptr) == VPMM_OK;
  asked->reserve = nullptr;
  return is_freed;
}

TEST_F(Requests, several_out_of_memory_callbacks_help_beside_the_one_that_is_set) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 24 * kMiB), VPMM_OK);
  Asked set{pool_, allocate(8 * kMiB), 0};
  Asked first{pool_, allocate(8 * kMiB), 0};
  Asked second{pool_, allocate(8 * kMiB), 0};
  std::uint64_t one = 0;
  std::uint64_t two = 0;
  ASSERT_EQ(vpmm_add_out_of_memory_callback(pool_, give_reserve, &first, &one), VPMM_OK)
      << vpmm_last_error();
  ASSERT_EQ(vpmm_add_out_of_memory_callback(pool_, give_reserve, &second, &two), VPMM_OK);
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, give_reserve, &set), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 16 * kMiB, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(set.calls, 2) << "it helped, then had nothing more";
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(second.calls, 0);
  EXPECT_EQ(vpmm_remove_out_of_memory_callback(pool_, two), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_allocate(pool_, 24 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(second.calls, 0) << "it was taken away";
  EXPECT_EQ(vpmm_remove_out_of_memory_callback(pool_, two), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_add_out_of_memory_callback(pool_, nullptr, nullptr, &one),
            VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_add_out_of_memory_callback(pool_, give_reserve, &first, nullptr),
            VPMM_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace vpmm::capi_test
