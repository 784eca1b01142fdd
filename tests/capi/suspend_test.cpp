// SPDX-License-Identifier: Apache-2.0
// capi: tags, suspend and resume, and every mistake a caller can make there; the same in C++.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "capi/sim_pool.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

class SuspendAbi : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_EQ(vpmm_tag_with_name("weights", &tag_), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_tag_make_suspendable(pool_, tag_, VPMM_TAG_BACKUP), VPMM_OK);
  }
  void* tagged(std::size_t bytes) {
    vpmm_request request{};
    request.size = sizeof(request);
    request.bytes = bytes;
    request.tag = tag_;
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
    return ptr;
  }
  vpmm_tag_info info() {
    vpmm_tag_info info{};
    info.size = sizeof(info);
    EXPECT_EQ(vpmm_tag_get_info(pool_, tag_, &info), VPMM_OK) << vpmm_last_error();
    return info;
  }

  std::uint32_t tag_ = 0;
};

TEST_F(SuspendAbi, a_name_has_one_tag) {
  std::uint32_t again = 0;
  std::uint32_t other = 0;
  EXPECT_EQ(vpmm_tag_with_name("weights", &again), VPMM_OK);
  EXPECT_EQ(vpmm_tag_with_name("cache", &other), VPMM_OK);
  EXPECT_EQ(again, tag_);
  EXPECT_NE(other, tag_);
  EXPECT_GE(tag_, 1U << 31);
  EXPECT_STREQ(vpmm_tag_name(other), "cache");
  EXPECT_EQ(vpmm_set_tag_name(123456, "named by the program"), VPMM_OK);
  EXPECT_EQ(vpmm_tag_with_name("named by the program", &other), VPMM_OK);
  EXPECT_EQ(other, 123456U);
  EXPECT_EQ(vpmm_tag_with_name("", &other), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_with_name(nullptr, &other), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_with_name("x", nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(SuspendAbi, tells_states_and_sizes) {
  void* const ptr = tagged(3 * kMiB);
  EXPECT_EQ(info().state, VPMM_TAG_LIVE);
  EXPECT_EQ(info().flags, static_cast<std::uint32_t>(VPMM_TAG_BACKUP));
  EXPECT_EQ(info().mapped_bytes, 4 * kMiB);
  ASSERT_EQ(vpmm_suspend(pool_, tag_, VPMM_SUSPEND_TO_DRIVER, nullptr), VPMM_OK)
      << vpmm_last_error();
  EXPECT_EQ(info().state, VPMM_TAG_SUSPENDED);
  EXPECT_EQ(info().live_bytes, 3 * kMiB);
  EXPECT_EQ(info().mapped_bytes, 0U);
  EXPECT_EQ(info().suspended_bytes, 4 * kMiB);
  EXPECT_EQ(info().host_bytes, 3 * kMiB);
  EXPECT_EQ(statistics_of(pool_).suspended_bytes, 4 * kMiB);
  int is_suspended = 0;
  EXPECT_EQ(vpmm_is_suspended(pool_, plus(ptr, 100), &is_suspended), VPMM_OK);
  EXPECT_EQ(is_suspended, 1);
  vpmm_layout layout{};
  layout.size = sizeof(layout);
  ASSERT_EQ(vpmm_layout_take(pool_, &layout), VPMM_OK) << vpmm_last_error();
  std::size_t suspended = 0;
  for (std::size_t i = 0; i < layout.block_count; ++i)
    if (layout.blocks[i].state == VPMM_REGION_SUSPENDED) suspended += layout.blocks[i].bytes;
  EXPECT_EQ(suspended, 4 * kMiB);
  vpmm_layout_release(&layout);
  std::vector<vpmm_region> regions(16);
  std::size_t count = 0;
  ASSERT_EQ(vpmm_snapshot(pool_, regions.data(), regions.size(), &count), VPMM_OK);
  ASSERT_LE(count, regions.size());
  bool is_shown = false;
  for (std::size_t i = 0; i < count; ++i)
    is_shown = is_shown || regions[i].state == VPMM_REGION_SUSPENDED;
  EXPECT_TRUE(is_shown);
  char* text = nullptr;
  ASSERT_EQ(vpmm_dump_text(pool_, &text), VPMM_OK) << vpmm_last_error();
  EXPECT_NE(std::strstr(text, "suspended"), nullptr) << text;
  vpmm_string_free(text);
  ASSERT_EQ(vpmm_resume(pool_, tag_, 0), VPMM_OK) << vpmm_last_error();
  std::uint32_t tags[4] = {};
  ASSERT_EQ(vpmm_suspendable_tags(pool_, tags, 4, &count), VPMM_OK);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(tags[0], tag_);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(SuspendAbi, names_each_mistake) {
  std::uint32_t other = 0;
  ASSERT_EQ(vpmm_tag_with_name("never suspendable", &other), VPMM_OK);
  EXPECT_EQ(vpmm_suspend(pool_, other, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("never suspendable")) << vpmm_last_error();
  EXPECT_EQ(vpmm_resume(pool_, other, 0), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_suspend(pool_, tag_, 1U << 9, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("512")) << vpmm_last_error();
  EXPECT_EQ(vpmm_suspend(pool_, tag_, VPMM_SUSPEND_BACKUP | VPMM_SUSPEND_DISCARD, nullptr),
            VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_resume(pool_, tag_, 4), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_make_suspendable(pool_, 0, 0), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_make_suspendable(pool_, tag_, 8), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_enter(pool_, 0, VPMM_TAG_OF_PROCESS), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_leave(pool_, tag_, VPMM_TAG_OF_THREAD), VPMM_ERROR_INVALID_ARGUMENT);
  vpmm_tag_info short_info{};
  short_info.size = 8;
  EXPECT_EQ(vpmm_tag_get_info(pool_, tag_, &short_info), VPMM_ERROR_INVALID_ARGUMENT);
  vpmm_tag_info of_none{};
  of_none.size = sizeof of_none;
  EXPECT_EQ(vpmm_tag_get_info(pool_, 0, &of_none), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_set_limit(pool_, 0, 1), VPMM_ERROR_INVALID_ARGUMENT);
  for (const int percent : {-1, 0, 101, 1000})
    EXPECT_EQ(vpmm_tag_set_limit(pool_, tag_, VPMM_SHARE_OF_CAPACITY(percent)),
              VPMM_ERROR_INVALID_ARGUMENT)
        << percent;
  EXPECT_TRUE(last_error_names("VPMM_SHARE_OF_CAPACITY of 1 to 100")) << vpmm_last_error();
  std::size_t count = 0;
  EXPECT_EQ(vpmm_tags(pool_, nullptr, 1, &count), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tags(pool_, nullptr, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  int is_suspended = 0;
  EXPECT_EQ(vpmm_is_suspended(pool_, &is_suspended, &is_suspended), VPMM_ERROR_INVALID_POINTER);
  void* const ptr = tagged(100);
  void* host = nullptr;
  EXPECT_EQ(vpmm_host_copy(pool_, ptr, 100, &host), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(host, nullptr);
  EXPECT_EQ(vpmm_remove_suspend_hooks(pool_, 77), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_suspend(nullptr, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(vpmm_suspend(pool_, tag_, 0, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_suspend(pool_, tag_, 0, nullptr), VPMM_OK) << "it is already";
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_resume(pool_, tag_, 0), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_resume(pool_, tag_, 0), VPMM_OK) << "it is already";
}

TEST_F(SuspendAbi, hooks_run_around_it) {
  struct Calls {
    int before = 0;
    int after = 0;
  } calls;
  std::uint64_t id = 0;
  const auto before = [](void* argument, int, std::uint32_t) {
    ++static_cast<Calls*>(argument)->before;
    return 0;
  };
  const auto after = [](void* argument, int, std::uint32_t) {
    ++static_cast<Calls*>(argument)->after;
    return 0;
  };
  ASSERT_EQ(vpmm_add_suspend_hooks(pool_, tag_, before, after, &calls, &id), VPMM_OK);
  void* const ptr = tagged(kMiB);
  ASSERT_EQ(vpmm_suspend(pool_, tag_, 0, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(calls.before, 1);
  EXPECT_EQ(calls.after, 0);
  ASSERT_EQ(vpmm_resume(pool_, 0, 0), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(calls.after, 1);
  EXPECT_EQ(vpmm_remove_suspend_hooks(pool_, id), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(SuspendAbi, a_hook_ends_its_call_with_an_error_of_its_own) {
  struct Hook {
    bool fails;
    int after = 0;
  } quiet{false}, failing{true};
  const auto before = [](void* argument, int, std::uint32_t) {
    if (!static_cast<Hook*>(argument)->fails) return 0;
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "it is registered"), VPMM_OK);
    return 0;
  };
  const auto after = [](void* argument, int, std::uint32_t) {
    ++static_cast<Hook*>(argument)->after;
    if (!static_cast<Hook*>(argument)->fails) return 0;
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_UNSUPPORTED, "cannot register"), VPMM_OK);
    return 0;
  };
  std::uint64_t id = 0;
  ASSERT_EQ(vpmm_add_suspend_hooks(pool_, tag_, before, after, &quiet, &id), VPMM_OK);
  ASSERT_EQ(vpmm_add_suspend_hooks(pool_, tag_, before, after, &failing, &id), VPMM_OK);
  void* const ptr = tagged(kMiB);
  EXPECT_EQ(vpmm_suspend(pool_, tag_, 0, nullptr), VPMM_ERROR_NOT_SHARED);
  EXPECT_STREQ(vpmm_last_error(), "it is registered");
  EXPECT_EQ(quiet.after, 1);
  EXPECT_EQ(failing.after, 0);
  failing.fails = false;
  ASSERT_EQ(vpmm_suspend(pool_, tag_, 0, nullptr), VPMM_OK) << vpmm_last_error();
  failing.fails = true;
  EXPECT_EQ(vpmm_resume(pool_, tag_, 0), VPMM_ERROR_UNSUPPORTED);
  EXPECT_STREQ(vpmm_last_error(), "cannot register");
  EXPECT_EQ(failing.after, 1);
  EXPECT_EQ(quiet.after, 2) << "is told although the one before failed";
  int is_suspended = 1;
  EXPECT_EQ(vpmm_is_suspended(pool_, ptr, &is_suspended), VPMM_OK);
  EXPECT_EQ(is_suspended, 0);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(SuspendAbi, the_entered_tag_is_told_with_the_order_of_entries) {
  std::uint32_t tag = 1;
  std::uint64_t entry = 0;
  ASSERT_EQ(vpmm_tag_entered(pool_, &tag, &entry), VPMM_OK);
  EXPECT_EQ(tag, 0U);
  const std::uint64_t before = vpmm_tag_entries();
  EXPECT_EQ(vpmm_tag_entries(), before) << "to ask is no entry";
  ASSERT_EQ(vpmm_tag_enter(pool_, tag_, VPMM_TAG_OF_THREAD), VPMM_OK);
  const std::uint64_t after = vpmm_tag_entries();
  ASSERT_EQ(vpmm_tag_entered(pool_, &tag, &entry), VPMM_OK);
  EXPECT_EQ(tag, tag_);
  EXPECT_LT(before, entry);
  EXPECT_LT(entry, after);
  ASSERT_EQ(vpmm_tag_leave(pool_, tag_, VPMM_TAG_OF_THREAD), VPMM_OK);
}

TEST(SuspendCpp, a_guard_enters_and_memory_sleeps) {
  memory_pool pool;
  const std::uint32_t tag = tag_with_name("of C++");
  pool.make_suspendable(tag);
  void* ptr = nullptr;
  {
    const tag_guard guard(pool, tag, tag_scope::thread);
    ptr = pool.allocate(5 * kMiB, default_stream);
  }
  void* const other = pool.allocate(kMiB, default_stream);
  pool.suspend(tag, suspend_flags::to_driver | suspend_flags::keep_host_copy);
  EXPECT_TRUE(pool.is_suspended(ptr));
  EXPECT_FALSE(pool.is_suspended(other));
  EXPECT_NE(pool.host_copy(ptr, 5 * kMiB), nullptr);
  EXPECT_EQ(state_of(pool.tag_info(tag)), tag_state::suspended);
  EXPECT_THROW(static_cast<void>(pool.host_copy(other, 1)), error);
  pool.resume(tag);
  EXPECT_EQ(pool.suspendable_tags(), std::vector<std::uint32_t>{tag});
  EXPECT_EQ(pool.entered_tag(), 0U);
  pool.remove_suspend_hooks(pool.add_suspend_hooks(tag, nullptr, nullptr, nullptr));
  EXPECT_FALSE(pool.is_suspended(ptr));
  pool.suspend_after(default_stream, tag);
  EXPECT_TRUE(pool.try_resume(tag).ok());
  pool.deallocate(ptr, default_stream);
  pool.deallocate(other, default_stream);
}

}  // namespace
}  // namespace vpmm::capi_test
