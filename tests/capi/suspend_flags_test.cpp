// SPDX-License-Identifier: Apache-2.0
// capi: each flag of tags, suspends and resumes by its effect, limits of tags and the figures of a
// tag.
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "capi/gpu_pool.hpp"
#include "vpmm/tags.h"

namespace vpmm::capi_test {
namespace {

constexpr std::uint32_t kSleepy = 815;
using Bytes8 = std::vector<std::uint8_t>;

class SuspendFlags : public GpuPool {
 protected:
  void make(std::uint32_t flags, std::uint32_t tag = kSleepy) {
    ASSERT_EQ(vpmm_tag_make_suspendable(pool_, tag, flags), VPMM_OK) << vpmm_last_error();
  }
  void* tagged(std::size_t bytes, std::uint32_t tag = kSleepy, std::uint32_t library = 0,
               vpmm_stream stream = nullptr) {
    vpmm_request request{};
    request.size = sizeof(request);
    request.bytes = bytes;
    request.tag = tag;
    request.library = library;
    request.stream = stream;
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
    return ptr;
  }
  void suspend(std::uint32_t flags, vpmm_stream stream = nullptr) {
    ASSERT_EQ(vpmm_suspend(pool_, kSleepy, flags, stream), VPMM_OK) << vpmm_last_error();
  }
  void resume(std::uint32_t flags) {
    ASSERT_EQ(vpmm_resume(pool_, kSleepy, flags), VPMM_OK) << vpmm_last_error();
  }
  vpmm_tag_info info(std::uint32_t tag = kSleepy) {
    vpmm_tag_info info{};
    info.size = sizeof(info);
    EXPECT_EQ(vpmm_tag_get_info(pool_, tag, &info), VPMM_OK) << vpmm_last_error();
    return info;
  }
};

TEST_F(SuspendFlags, of_a_tag_are_told_and_changed) {
  for (const std::uint32_t flags : {0U, 1U, 2U, 3U, 0U}) {
    make(flags);
    EXPECT_EQ(info().flags, flags);
  }
  EXPECT_EQ(vpmm_tag_make_suspendable(pool_, kSleepy, 4), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(),
               "`flags` is 4: this version of the library knows only the bits of 3");
}

// Both sides of each choice between a copy and none: of the tag, and of the call.
TEST_F(SuspendFlags, say_whether_contents_are_kept) {
  const Bytes8 content(1000, 0x5A);
  const Bytes8 zeros(1000, 0);
  const std::tuple<std::uint32_t, std::uint32_t, bool> cases[] = {
      {0, 0, false},
      {VPMM_TAG_BACKUP, 0, true},
      {0, VPMM_SUSPEND_BACKUP, true},
      {VPMM_TAG_BACKUP, VPMM_SUSPEND_BACKUP, true},
      {0, VPMM_SUSPEND_DISCARD, false},
      {VPMM_TAG_BACKUP, VPMM_SUSPEND_DISCARD, false},
  };
  for (const auto& [of_tag, of_call, is_kept] : cases) {
    SCOPED_TRACE(testing::Message() << of_tag << " and " << of_call);
    make(of_tag);
    void* const ptr = tagged(3 * kMiB);
    write(ptr, content);
    suspend(of_call);
    EXPECT_EQ(info().state, is_kept ? VPMM_TAG_SUSPENDED : VPMM_TAG_DISCARDED);
    EXPECT_EQ(info().host_bytes, is_kept ? 3 * kMiB : 0U);
    resume(VPMM_RESUME_ZERO);
    EXPECT_EQ(info().state, VPMM_TAG_LIVE);
    EXPECT_EQ(read(ptr, content.size()), is_kept ? content : zeros);
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
  }
}

TEST_F(SuspendFlags, keep_the_host_copy_by_the_tag_or_by_the_call) {
  for (const auto& [of_tag, of_call, is_kept] :
       {std::tuple{VPMM_TAG_BACKUP | VPMM_TAG_KEEP_HOST_COPY, 0, true},
        std::tuple{VPMM_TAG_BACKUP | 0, VPMM_SUSPEND_KEEP_HOST_COPY | 0, true},
        std::tuple{VPMM_TAG_BACKUP | 0, 0, false}}) {
    make(static_cast<std::uint32_t>(of_tag));
    void* const ptr = tagged(3 * kMiB);
    suspend(static_cast<std::uint32_t>(of_call));
    resume(0);
    EXPECT_EQ(info().host_bytes, is_kept ? 3 * kMiB : 0U);
    EXPECT_EQ(statistics_of(pool_).host_copy_bytes, is_kept ? 3 * kMiB : 0U);
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
  }
}

TEST_F(SuspendFlags, give_the_memory_to_the_driver_or_keep_it_in_the_pool) {
  make(VPMM_TAG_BACKUP);
  void* const ptr = tagged(4 * kMiB);
  suspend(0);
  EXPECT_EQ(statistics_of(pool_).mapped_bytes, 4 * kMiB);
  resume(0);
  suspend(VPMM_SUSPEND_TO_DRIVER);
  EXPECT_EQ(statistics_of(pool_).mapped_bytes, 0U);
  resume(0);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SuspendFlags, wait_for_one_stream_or_for_all) {
  make(VPMM_TAG_BACKUP);
  const vpmm_stream last = new_stream();
  const vpmm_stream other = new_stream();
  void* const ptr = tagged(4 * kMiB, kSleepy, 0, last);
  for (const bool is_after_stream : {true, false}) {
    keep_busy(last, kMillisecond);
    keep_busy(other, 1'000'000 * kMillisecond);
    suspend(is_after_stream ? VPMM_SUSPEND_AFTER_STREAM : 0, is_after_stream ? last : nullptr);
    EXPECT_TRUE(is_idle(last));
    EXPECT_EQ(is_idle(other), !is_after_stream);
    resume(0);
    gpu_->run_until_idle();
  }
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SuspendFlags, of_a_resume_leave_the_contents_away) {
  make(VPMM_TAG_BACKUP);
  void* const ptr = tagged(3 * kMiB);
  const Bytes8 content(1000, 0x5A);
  write(ptr, content);
  for (const std::uint32_t flags : {0U, static_cast<std::uint32_t>(VPMM_RESUME_WITHOUT_COPY),
                                    static_cast<std::uint32_t>(VPMM_RESUME_ZERO)}) {
    suspend(VPMM_SUSPEND_KEEP_HOST_COPY | VPMM_SUSPEND_TO_DRIVER);
    void* host = nullptr;
    ASSERT_EQ(vpmm_host_copy(pool_, plus(ptr, 500), 500, &host), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(*static_cast<std::uint8_t*>(host), 0x5A);
    *static_cast<std::uint8_t*>(host) = 0x77;
    resume(flags);
    const std::uint8_t back = read(plus(ptr, 500), 1).front();
    EXPECT_EQ(back == 0x77, flags != VPMM_RESUME_WITHOUT_COPY) << flags;
    EXPECT_EQ(vpmm_host_copy(pool_, ptr, 500, &host),
              flags == VPMM_RESUME_WITHOUT_COPY ? VPMM_ERROR_INVALID_POINTER : VPMM_OK);
    write(ptr, content);
  }
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SuspendFlags, of_a_resume_zero_what_has_no_copy_and_only_that) {
  make(0);
  void* const ptr = tagged(3 * kMiB);
  write(ptr, Bytes8(1000, 0x5A));
  suspend(0);  // its chunks stay in the pool, with their bytes
  resume(0);
  EXPECT_NE(read(ptr, 1000), Bytes8(1000, 0));
  suspend(0);
  resume(VPMM_RESUME_ZERO);
  EXPECT_EQ(read(ptr, 1000), Bytes8(1000, 0));
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SuspendFlags, that_are_unknown_are_named) {
  make(VPMM_TAG_BACKUP);
  vpmm_arena* arena = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &arena), VPMM_OK);
  for (const bool is_arena : {false, true}) {
    EXPECT_EQ(is_arena ? vpmm_arena_suspend(arena, 32, nullptr)
                       : vpmm_suspend(pool_, kSleepy, 32, nullptr),
              VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(),
                 "`flags` is 32: this version of the library knows only the bits of 31");
    EXPECT_EQ(
        is_arena ? vpmm_arena_suspend(arena, 3, nullptr) : vpmm_suspend(pool_, kSleepy, 3, nullptr),
        VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(), "`flags` asks to copy and to discard");
    EXPECT_EQ(is_arena ? vpmm_arena_resume(arena, 4) : vpmm_resume(pool_, kSleepy, 4),
              VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(),
                 "`flags` is 4: this version of the library knows only the bits of 3");
  }
  EXPECT_EQ(vpmm_arena_release(arena), VPMM_OK);
}

TEST_F(SuspendFlags, serve_an_arena_as_well) {
  vpmm_arena* arena = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &arena), VPMM_OK);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_arena_allocate(arena, 4 * kMiB, 0, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  const Bytes8 content(1000, 0x5A);
  for (const auto& [of_suspend, of_resume, expected] :
       {std::tuple{0, 0, content},
        std::tuple{VPMM_SUSPEND_DISCARD | 0, VPMM_RESUME_ZERO | 0, Bytes8(1000, 0)}}) {
    write(ptr, content);
    int is_suspended = 0;
    ASSERT_EQ(vpmm_arena_suspend(arena, static_cast<std::uint32_t>(of_suspend), nullptr), VPMM_OK)
        << vpmm_last_error();
    EXPECT_EQ(vpmm_is_suspended(pool_, ptr, &is_suspended), VPMM_OK);
    EXPECT_EQ(is_suspended, 1);
    ASSERT_EQ(vpmm_arena_resume(arena, static_cast<std::uint32_t>(of_resume)), VPMM_OK)
        << vpmm_last_error();
    EXPECT_EQ(vpmm_is_suspended(pool_, ptr, &is_suspended), VPMM_OK);
    EXPECT_EQ(is_suspended, 0);
    EXPECT_EQ(read(ptr, content.size()), expected);
  }
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_release(arena), VPMM_OK);
}

TEST_F(SuspendFlags, of_the_tag_let_host_memory_be_prepared) {
  make(VPMM_TAG_BACKUP);
  void* const ptr = tagged(3 * kMiB);
  EXPECT_EQ(info().host_bytes, 0U);
  ASSERT_EQ(vpmm_prepare_suspend(pool_, kSleepy), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(info().host_bytes, 3 * kMiB);
  EXPECT_EQ(vpmm_prepare_suspend(pool_, kSleepy + 1), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

// --- figures and lists of tags

using TagFigures = SuspendFlags;

TEST_F(TagFigures, are_those_of_the_tag_and_of_the_library_of_its_name) {
  make(VPMM_TAG_BACKUP);
  void* const own = tagged(3 * kMiB);
  void* const of_library = tagged(1000, kSleepy + 1, kSleepy);
  void* const of_both = tagged(kMiB + 500, kSleepy, kSleepy);
  vpmm_tag_info now = info();
  EXPECT_EQ(now.size, sizeof(now));
  EXPECT_EQ(now.live_bytes, 4 * kMiB + 500);
  EXPECT_EQ(now.library_bytes, kMiB + 1500);
  EXPECT_EQ(now.mapped_bytes, 6 * kMiB);
  EXPECT_EQ(now.suspended_bytes, 0U);
  EXPECT_EQ(now.host_bytes, 0U);
  EXPECT_EQ(now.limit_bytes, VPMM_NO_LIMIT);
  suspend(0);
  now = info();
  EXPECT_EQ(now.mapped_bytes, 0U);
  EXPECT_EQ(now.suspended_bytes, 6 * kMiB);
  EXPECT_EQ(now.live_bytes, 4 * kMiB + 500);
  EXPECT_EQ(now.library_bytes, kMiB + 1500);
  EXPECT_EQ(now.host_bytes, 4 * kMiB + 512) << "whole units of 512 bytes";
  for (void* const ptr : {own, of_library, of_both})
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

using TagLists = SuspendFlags;

TEST_F(TagLists, are_filled_as_far_as_there_is_room) {
  make(0, 30);
  make(0, 10);
  void* const ptr = tagged(1000, 20);
  for (const bool is_all : {false, true}) {
    const auto list = is_all ? vpmm_tags : vpmm_suspendable_tags;
    const std::vector<std::uint32_t> all =
        is_all ? std::vector<std::uint32_t>{10, 20, 30} : std::vector<std::uint32_t>{10, 30};
    for (std::size_t capacity = 0; capacity <= all.size() + 1; ++capacity) {
      std::vector<std::uint32_t> tags(5, 77);
      std::size_t count = 0;
      ASSERT_EQ(list(pool_, tags.data(), capacity, &count), VPMM_OK) << vpmm_last_error();
      EXPECT_EQ(count, all.size());
      for (std::size_t i = 0; i < tags.size(); ++i)
        EXPECT_EQ(tags[i], i < std::min(capacity, all.size()) ? all[i] : 77) << i;
    }
    std::size_t count = 0;
    EXPECT_EQ(list(pool_, nullptr, 0, &count), VPMM_OK);
    EXPECT_EQ(list(pool_, nullptr, 1, &count), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(), "`tags` is null");
    EXPECT_EQ(list(pool_, nullptr, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(), "`count` is null");
  }
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

// --- limits

using TagLimits = SuspendFlags;

TEST_F(TagLimits, are_bytes_or_shares_of_the_capacity) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 100 * kMiB), VPMM_OK);
  const std::pair<std::uint64_t, std::uint64_t> cases[] = {
      {0, 0},
      {1, 1},
      {5 * kMiB, 5 * kMiB},
      {VPMM_SHARE_OF_CAPACITY(1), kMiB},
      {VPMM_SHARE_OF_CAPACITY(2), 2 * kMiB},
      {VPMM_SHARE_OF_CAPACITY(99), 99 * kMiB},
      {VPMM_SHARE_OF_CAPACITY(100), 100 * kMiB},
      {UINT64_MAX - 1000, UINT64_MAX - 1000},
      {VPMM_NO_LIMIT, VPMM_NO_LIMIT},
  };
  for (const auto& [asked, told] : cases) {
    ASSERT_EQ(vpmm_tag_set_limit(pool_, kSleepy, asked), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(info().limit_bytes, told) << asked;
  }
  ASSERT_EQ(vpmm_tag_set_limit(pool_, kSleepy, 5 * kMiB), VPMM_OK);
  for (const std::uint64_t percent : {101U, 500U, 999U}) {
    EXPECT_EQ(vpmm_tag_set_limit(pool_, kSleepy, UINT64_MAX - percent),
              VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(vpmm_last_error()),
              "limit " + std::to_string(UINT64_MAX - percent) +
                  ": must be a number of bytes, VPMM_SHARE_OF_CAPACITY of 1 to 100, or "
                  "VPMM_NO_LIMIT");
  }
  EXPECT_EQ(info().limit_bytes, 5 * kMiB) << "as before";
}

TEST_F(TagLimits, end_requests_of_their_tag_and_no_others) {
  ASSERT_EQ(vpmm_tag_set_limit(pool_, kSleepy, 2 * kMiB), VPMM_OK);
  void* const ptr = tagged(2 * kMiB - 5000);
  vpmm_request request{};
  request.size = sizeof(request);
  request.bytes = 5001;
  request.tag = kSleepy;
  void* more = nullptr;
  EXPECT_EQ(vpmm_allocate_with(pool_, &request, &more), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(more, nullptr);
  request.bytes = 5000;
  EXPECT_EQ(vpmm_allocate_with(pool_, &request, &more), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, more, nullptr), VPMM_OK);
  void* const other = tagged(4 * kMiB, kSleepy + 1);
  for (void* const each : {ptr, other}) EXPECT_EQ(vpmm_deallocate(pool_, each, nullptr), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::capi_test
