// SPDX-License-Identifier: Apache-2.0
// capi: suspended memory where a pool, a context or the process ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

constexpr std::uint32_t kTag = 4711;

void* sleeping_in(vpmm_pool* pool, std::uint32_t flags) {
  void* ptr = nullptr;
  vpmm_request request{};
  request.size = sizeof(request);
  request.bytes = 3 * kMiB;
  request.tag = kTag;
  if (vpmm_tag_make_suspendable(pool, kTag, VPMM_TAG_BACKUP) != VPMM_OK ||
      vpmm_allocate_with(pool, &request, &ptr) != VPMM_OK ||
      vpmm_suspend(pool, kTag, flags, nullptr) != VPMM_OK)
    return nullptr;
  return ptr;
}

TEST(SuspendEnding, a_pool_ends_with_all_kinds_of_suspended_memory) {
  for (const std::uint32_t flags :
       {std::uint32_t{0}, std::uint32_t{VPMM_SUSPEND_KEEP_HOST_COPY},
        std::uint32_t{VPMM_SUSPEND_KEEP_HOST_COPY | VPMM_SUSPEND_TO_DRIVER},
        std::uint32_t{VPMM_SUSPEND_DISCARD}, std::uint32_t{VPMM_SUSPEND_TO_DRIVER}}) {
    vpmm_pool* pool = nullptr;
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
    EXPECT_NE(sleeping_in(pool, flags), nullptr) << vpmm_last_error();
    EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
    EXPECT_NE(sleeping_in(pool, flags), nullptr) << vpmm_last_error();
    EXPECT_EQ(vpmm_reset(pool), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
  }
}

TEST(SuspendEnding, a_kept_copy_of_live_memory_ends_with_the_pool) {
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
  EXPECT_NE(sleeping_in(pool, VPMM_SUSPEND_KEEP_HOST_COPY), nullptr) << vpmm_last_error();
  EXPECT_EQ(vpmm_reset(pool), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_resume(pool, kTag, 0), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool).host_copy_bytes, 3 * kMiB);
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
}

// 0, or the number of the first expectation that does not hold in a forked child.
int check_sleep_in_child(vpmm_pool* pool, void* live) {
  std::uint32_t tag = 0;
  std::size_t count = 0;
  int is_suspended = 0;
  void* host = nullptr;
  vpmm_tag_info info{};
  info.size = sizeof(info);
  if (vpmm_suspend(pool, kTag, 0, nullptr) != VPMM_ERROR_PROCESS_ENDING) return 1;
  if (vpmm_resume(pool, kTag, 0) != VPMM_ERROR_PROCESS_ENDING) return 2;
  if (vpmm_tag_enter(pool, kTag, VPMM_TAG_OF_PROCESS) != VPMM_ERROR_PROCESS_ENDING) return 3;
  if (vpmm_tag_get_info(pool, kTag, &info) != VPMM_ERROR_PROCESS_ENDING) return 4;
  if (vpmm_is_suspended(pool, live, &is_suspended) != VPMM_ERROR_PROCESS_ENDING) return 5;
  if (vpmm_host_copy(pool, live, 1, &host) != VPMM_ERROR_PROCESS_ENDING) return 6;
  if (vpmm_suspendable_tags(pool, &tag, 1, &count) != VPMM_ERROR_PROCESS_ENDING) return 7;
  if (vpmm_deallocate(pool, live, nullptr) != VPMM_OK) return 8;
  if (vpmm_pool_destroy(pool) != VPMM_OK) return 9;
  return 0;
}

TEST(SuspendEnding, in_a_forked_child_nothing_sleeps_or_wakes) {
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
  void* const live = sleeping_in(pool, VPMM_SUSPEND_KEEP_HOST_COPY);
  ASSERT_NE(live, nullptr) << vpmm_last_error();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(check_sleep_in_child(pool, live));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(vpmm_resume(pool, kTag, 0), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool, live, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
}

class SuspendEndingDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SuspendEndingDeathTest, a_process_exits_with_suspended_memory_and_kept_copies) {
  for (const std::uint32_t flags :
       {std::uint32_t{0}, std::uint32_t{VPMM_SUSPEND_KEEP_HOST_COPY | VPMM_SUSPEND_TO_DRIVER}})
    EXPECT_EXIT(
        {
          vpmm_pool* pool = nullptr;
          vpmm_pool* own = nullptr;
          const bool is_ok = vpmm_default_pool(0, &pool) == VPMM_OK &&
                             vpmm_pool_create(0, nullptr, &own) == VPMM_OK &&
                             sleeping_in(pool, flags) != nullptr &&
                             sleeping_in(own, flags) != nullptr;
          std::exit(is_ok ? 44 : 1);
        },
        testing::ExitedWithCode(44), "");
}

}  // namespace
}  // namespace vpmm::capi_test
