// SPDX-License-Identifier: Apache-2.0
// capi: scopes in which a tag is entered, tags of names and of libraries, hooks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Tags = SimPool;

std::uint32_t entered_in(vpmm_pool* pool) {
  std::uint32_t tag = 77;
  EXPECT_EQ(vpmm_tag_entered(pool, &tag, nullptr), VPMM_OK) << vpmm_last_error();
  return tag;
}

std::uint32_t entered_in_another_thread(vpmm_pool* pool) {
  std::uint32_t tag = 0;
  std::thread([&] { tag = entered_in(pool); }).join();
  return tag;
}

void expect_invalid(vpmm_status status, const std::string& said) {
  EXPECT_EQ(status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_last_error(), said);
}

TEST_F(Tags, are_entered_for_all_threads_or_for_one) {
  ASSERT_EQ(vpmm_tag_enter(pool_, 5, VPMM_TAG_OF_PROCESS), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(entered_in(pool_), 5U);
  EXPECT_EQ(entered_in_another_thread(pool_), 5U);
  ASSERT_EQ(vpmm_tag_enter(pool_, 6, VPMM_TAG_OF_THREAD), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(entered_in(pool_), 6U);
  EXPECT_EQ(entered_in_another_thread(pool_), 5U);
  EXPECT_EQ(vpmm_tag_leave(pool_, 6, VPMM_TAG_OF_PROCESS), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_leave(pool_, 5, VPMM_TAG_OF_THREAD), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_tag_leave(pool_, 6, VPMM_TAG_OF_THREAD), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(entered_in(pool_), 5U);
  EXPECT_EQ(vpmm_tag_leave(pool_, 5, VPMM_TAG_OF_PROCESS), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(entered_in(pool_), 0U);
  EXPECT_EQ(entered_in_another_thread(pool_), 0U);
}

TEST_F(Tags, name_the_scope_and_the_tag_that_are_wrong) {
#if !defined(__SANITIZE_ADDRESS__)  // comes with that of undefined behaviour, which C++ calls it
  const int number = 2;
  vpmm_tag_scope none = VPMM_TAG_OF_PROCESS;
  std::memcpy(&none, &number, sizeof none);
  expect_invalid(vpmm_tag_enter(pool_, 5, none), "scope 2 is none of this version");
  expect_invalid(vpmm_tag_leave(pool_, 5, none), "scope 2 is none of this version");
#endif
  expect_invalid(vpmm_tag_enter(pool_, 0, VPMM_TAG_OF_THREAD), "tag 0 stands for none");
  expect_invalid(vpmm_tag_make_suspendable(pool_, 0, 0), "tag 0 stands for none");
  expect_invalid(vpmm_tag_set_limit(pool_, 0, 5), "tag 0 stands for none");
  vpmm_tag_info info{};
  info.size = sizeof(info);
  expect_invalid(vpmm_tag_get_info(pool_, 0, &info), "tag 0 stands for none");
  expect_invalid(vpmm_tag_get_info(pool_, 5, nullptr), "`info` is null");
  info.size = offsetof(vpmm_tag_info, limit_bytes) - 1;
  expect_invalid(vpmm_tag_get_info(pool_, 5, &info),
                 fmt::format("vpmm_tag_info.size is {}, at least {} is needed: set it to "
                             "sizeof(vpmm_tag_info)",
                             info.size, info.size + 1));
  info.size += 1;  // the first version
  info.limit_bytes = 123;
  EXPECT_EQ(vpmm_tag_get_info(pool_, 5, &info), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(info.limit_bytes, 123U) << "beyond what the caller has";
  expect_invalid(vpmm_tag_entered(pool_, nullptr, nullptr), "`tag` is null");
  expect_invalid(vpmm_is_suspended(pool_, pool_, nullptr), "`is_suspended` is null");
  expect_invalid(vpmm_host_copy(pool_, pool_, 1, nullptr), "`host` is null");
  expect_invalid(vpmm_set_tag_name(0, "x"), "tag 0 stands for none and has no name");
  expect_invalid(vpmm_set_tag_name(5, nullptr), "`name` is null");
  std::uint32_t tag = 7;
  expect_invalid(vpmm_tag_with_name("", &tag), "a tag's name has no letters");
  expect_invalid(vpmm_tag_with_name(nullptr, &tag), "`name` is null");
  expect_invalid(vpmm_tag_with_name("x", nullptr), "`tag` is null");
  expect_invalid(vpmm_library_tag("", &tag), "a tag's name has no letters");
  expect_invalid(vpmm_library_tag(nullptr, &tag), "`library` is null");
  expect_invalid(vpmm_library_tag("x", nullptr), "`tag` is null");
  EXPECT_EQ(tag, 7U) << "written on success only";
}

class Libraries : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("VPMM_TAG_LIBRARIES");
    unsetenv("VPMM_LIMITS");
  }
  static std::uint32_t tag_of(const char* library) {
    std::uint32_t tag = 77;
    EXPECT_EQ(vpmm_library_tag(library, &tag), VPMM_OK) << vpmm_last_error();
    return tag;
  }
};

TEST_F(Libraries, have_a_tag_if_the_environment_asks_for_it) {
  EXPECT_EQ(tag_of("lib-a"), 0U);
  setenv("VPMM_TAG_LIBRARIES", "1", 1);
  std::uint32_t named = 0;
  ASSERT_EQ(vpmm_tag_with_name("lib-a", &named), VPMM_OK);
  EXPECT_EQ(tag_of("lib-a"), named);
  EXPECT_STREQ(vpmm_tag_name(tag_of("lib-b")), "lib-b");
  setenv("VPMM_TAG_LIBRARIES", "0", 1);
  EXPECT_EQ(tag_of("lib-a"), 0U);
  setenv("VPMM_LIMITS", "lib-a=1MiB", 1);
  EXPECT_EQ(tag_of("lib-a"), named) << "which has a limit";
  EXPECT_EQ(tag_of("lib-b"), 0U);
  setenv("VPMM_TAG_LIBRARIES", "maybe", 1);
  std::uint32_t tag = 77;
  EXPECT_EQ(vpmm_library_tag("lib-a", &tag), VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_TRUE(last_error_names("VPMM_TAG_LIBRARIES=maybe")) << vpmm_last_error();
  EXPECT_EQ(tag, 77U);
}

TEST_F(Libraries, without_a_tag_are_named_where_memory_is_short) {
  EXPECT_EQ(tag_of("lib-c"), 0U);
  EXPECT_EQ(tag_of("lib-d"), 0U);
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_set_capacity(pool, 16 * kMiB), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(last_error_names("lib-c, lib-d")) << vpmm_last_error();
  setenv("VPMM_TAG_LIBRARIES", "1", 1);
  EXPECT_NE(tag_of("lib-d"), 0U);
  EXPECT_EQ(vpmm_allocate(pool, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(last_error_names("lib-c")) << vpmm_last_error();
  EXPECT_FALSE(last_error_names("lib-d")) << vpmm_last_error();
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK);
}

// --- hooks

struct Hook {
  std::vector<std::string> calls;
  int answer = 0;
};

int note_before(void* argument, int device, std::uint32_t tag) {
  auto& hook = *static_cast<Hook*>(argument);
  hook.calls.push_back(fmt::format("before {} {}", device, tag));
  return hook.answer;
}

int note_after(void* argument, int device, std::uint32_t tag) {
  static_cast<Hook*>(argument)->calls.push_back(fmt::format("after {} {}", device, tag));
  return 1;  // has no meaning
}

class SuspendHooks : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_EQ(vpmm_tag_make_suspendable(pool_, 9, VPMM_TAG_BACKUP), VPMM_OK);
    vpmm_request request{};
    request.size = sizeof(request);
    request.bytes = 2 * kMiB;
    request.tag = 9;
    ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr_), VPMM_OK) << vpmm_last_error();
  }
  void add(vpmm_suspend_hook before, vpmm_suspend_hook after, Hook& hook) {
    ASSERT_EQ(vpmm_add_suspend_hooks(pool_, 9, before, after, &hook, &id_), VPMM_OK)
        << vpmm_last_error();
  }

  void* ptr_ = nullptr;
  std::uint64_t id_ = 0;
};

TEST_F(SuspendHooks, get_argument_device_and_tag_and_either_may_be_null) {
  Hook both, first, second;
  add(note_before, note_after, both);
  add(note_before, nullptr, first);
  add(nullptr, note_after, second);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_resume(pool_, 9, 0), VPMM_OK) << vpmm_last_error();
  }
  EXPECT_EQ(both.calls,
            (std::vector<std::string>{"before 0 9", "after 0 9", "before 0 9", "after 0 9"}));
  EXPECT_EQ(first.calls, (std::vector<std::string>{"before 0 9", "before 0 9"}));
  EXPECT_EQ(second.calls, (std::vector<std::string>{"after 0 9", "after 0 9"}));
}

TEST_F(SuspendHooks, refuse_by_an_answer_other_than_zero) {
  Hook hook;
  add(note_before, note_after, hook);
  hook.answer = 3;
  EXPECT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  int is_suspended = 7;
  EXPECT_EQ(vpmm_is_suspended(pool_, ptr_, &is_suspended), VPMM_OK);
  EXPECT_EQ(is_suspended, 0);
  hook.answer = 0;
  EXPECT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(SuspendHooks, are_taken_away_once) {
  Hook hook;
  add(note_before, note_after, hook);
  EXPECT_EQ(vpmm_remove_suspend_hooks(pool_, id_), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_TRUE(hook.calls.empty());
  expect_invalid(vpmm_remove_suspend_hooks(pool_, id_),
                 fmt::format("no hooks of this pool have the number {}", id_));
  expect_invalid(vpmm_add_suspend_hooks(pool_, 0, note_before, nullptr, &hook, &id_),
                 "tag 0 stands for none");
  expect_invalid(vpmm_add_suspend_hooks(pool_, 9, note_before, nullptr, &hook, nullptr),
                 "`id` is null");
}

// Hooks end their call by an exception as well, of any type.
TEST_F(SuspendHooks, that_throw_end_their_call) {
  const auto throws_number = [](void*, int, std::uint32_t) -> int { throw 42; };
  const auto throws_text = [](void*, int, std::uint32_t) -> int {
    throw std::runtime_error("no time");
  };
  Hook hook;
  add(throws_number, nullptr, hook);
  EXPECT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_ERROR_DRIVER_FAILED);
  EXPECT_STREQ(vpmm_last_error(), "an exception of unknown type was thrown");
  ASSERT_EQ(vpmm_remove_suspend_hooks(pool_, id_), VPMM_OK);
  add(nullptr, throws_number, hook);
  ASSERT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_resume(pool_, 9, 0), VPMM_ERROR_DRIVER_FAILED);
  EXPECT_STREQ(vpmm_last_error(), "an exception of unknown type was thrown");
  ASSERT_EQ(vpmm_remove_suspend_hooks(pool_, id_), VPMM_OK);
  add(throws_text, nullptr, hook);
  EXPECT_EQ(vpmm_suspend(pool_, 9, 0, nullptr), VPMM_ERROR_DRIVER_FAILED);
  EXPECT_STREQ(vpmm_last_error(), "no time");
}

}  // namespace
}  // namespace vpmm::capi_test
