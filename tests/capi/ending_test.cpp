// SPDX-License-Identifier: Apache-2.0
// capi: what calls do in a forked child and after exit began.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "capi/sim_pool.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

using Ending = SimPool;

// 0, or the number of the first expectation that does not hold in a forked child.
int check_child(vpmm_pool* pool, void* live) {
  void* ptr = live;
  vpmm_statistics statistics{};
  statistics.size = sizeof(statistics);
  vpmm_pool* other = nullptr;
  if (vpmm_allocate(pool, 3 * kMiB, nullptr, &ptr) != VPMM_ERROR_PROCESS_ENDING) return 1;
  if (ptr != live) return 2;
  if (!last_error_names("forked child")) return 3;
  if (vpmm_deallocate(pool, live, nullptr) != VPMM_OK) return 4;
  if (vpmm_deallocate(pool, live, nullptr) != VPMM_OK) return 5;
  if (vpmm_deallocate_any_stream(pool, live) != VPMM_OK) return 6;
  vpmm_deallocate_deferred(pool, live);
  if (vpmm_get_statistics(pool, &statistics) != VPMM_ERROR_PROCESS_ENDING) return 7;
  if (vpmm_default_pool(0, &other) != VPMM_ERROR_PROCESS_ENDING) return 8;
  if (vpmm_pool_create(0, nullptr, &other) != VPMM_ERROR_PROCESS_ENDING) return 9;
  if (vpmm_synchronize(pool) != VPMM_ERROR_PROCESS_ENDING) return 10;
  if (vpmm_pool_destroy(pool) != VPMM_OK) return 11;
  if (vpmm_try_allocate_any_stream(pool, 80, 0, &ptr) != VPMM_WOULD_BLOCK) return 12;
  if (vpmm_defer_cleanup_begin(pool) != VPMM_OK || vpmm_defer_cleanup_end(pool) != VPMM_OK)
    return 13;
  return 0;
}

TEST_F(Ending, in_a_forked_child_frees_are_silent_and_everything_else_is_an_error) {
  void* const live = allocate(3 * kMiB);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(check_child(pool_, live));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 1U);
  EXPECT_EQ(vpmm_deallocate(pool_, live, nullptr), VPMM_OK);
}

// Started anew by the threadsafe style, so that exit begins in a process of its own.
class EndingDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Destroyed after the library closed: constructed, empty, before its first use.
std::unique_ptr<buffer> early_buffer;
std::unique_ptr<memory_pool> early_pool;

void check_after_exit_began() {
  void* ptr = nullptr;
  vpmm_pool* pool = nullptr;
  const bool refused =
      vpmm_default_pool(0, &pool) == VPMM_ERROR_PROCESS_ENDING &&
      vpmm_allocate(early_pool->handle(), kMiB, nullptr, &ptr) == VPMM_ERROR_PROCESS_ENDING;
  early_buffer.reset();
  early_pool.reset();
  _exit(refused && last_error_names("exiting") ? 42 : 1);
}

// The children of a process that never used a pool may use them.
TEST_F(EndingDeathTest, null_is_freed_and_unbound_without_a_trace) {
  const auto try_in_child = [] {
    vpmm_stream_unbind(nullptr);
    vpmm_string_free(nullptr);
    vpmm_deallocate_deferred(nullptr, nullptr);
    const pid_t child = fork();
    int devices = 0;
    if (child == 0) _exit(vpmm_device_count(&devices) == VPMM_OK ? 42 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  };
  EXPECT_EXIT(try_in_child(), testing::ExitedWithCode(42), "");
}

TEST_F(EndingDeathTest, objects_destroyed_after_exit_began_free_silently) {
  EXPECT_EXIT(
      {
        std::atexit(check_after_exit_began);
        early_pool = std::make_unique<memory_pool>();
        early_buffer = std::make_unique<buffer>(*early_pool, 3 * kMiB, default_stream);
        std::exit(0);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(EndingDeathTest, static_objects_of_both_orders_end_the_process_cleanly) {
  EXPECT_EXIT(
      {
        early_buffer = std::make_unique<buffer>(default_pool(), 3 * kMiB, default_stream);
        static memory_pool late_pool;
        static buffer late_buffer(late_pool, 3 * kMiB, default_stream);
        std::exit(43);
      },
      testing::ExitedWithCode(43), "");
}

}  // namespace
}  // namespace vpmm::capi_test
