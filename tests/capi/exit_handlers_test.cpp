// SPDX-License-Identifier: Apache-2.0
// capi: exit handlers of the library: how many there are, and what a fork beside their registration
// leaves behind.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "capi/sim_pool.hpp"

namespace {

std::atomic<int> registrations{0};
std::atomic<bool> is_registering{false};
std::atomic<useconds_t> registration_us{0};
// glibc's lock of the list of handlers, held long enough for a fork to meet it.
std::mutex list_of_handlers;
std::atomic<bool> is_forked_child{false};

}  // namespace

// Asked by the leak sanitizer at exit: what the threads of the parent held is nobody's in a child.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return is_forked_child ? 1 : 0; }

// In the place of glibc's, for the whole binary.
extern "C" int __cxa_atexit(void (*)(void*), void*, void*) noexcept;
extern "C" int atexit(void (*handler)(void)) noexcept {
  const std::lock_guard lock(list_of_handlers);
  is_registering = true;
  if (registration_us != 0) usleep(registration_us);
  ++registrations;
  // As glibc does it: a handler that takes an argument may be called where none is expected.
  const int result = __cxa_atexit(reinterpret_cast<void (*)(void*)>(handler), nullptr, nullptr);
  is_registering = false;
  return result;
}

namespace vpmm::capi_test {
namespace {

void use_a_pool_of_its_own() {
  vpmm_pool* pool = nullptr;
  void* ptr = nullptr;
  if (vpmm_pool_create(0, nullptr, &pool) != VPMM_OK) _exit(90);
  if (vpmm_allocate_any_stream(pool, 100'000, 0, &ptr) != VPMM_OK) _exit(91);
  if (vpmm_deallocate_any_stream(pool, ptr) != VPMM_OK || vpmm_pool_destroy(pool) != VPMM_OK)
    _exit(92);
}

using ExitHandlers = SimPool;

TEST_F(ExitHandlers, are_not_more_after_more_pools_and_resets) {
  use_a_pool_of_its_own();
  const int before = registrations;
  EXPECT_GT(before, 0);
  for (int i = 0; i < 20; ++i) {
    use_a_pool_of_its_own();
    EXPECT_EQ(vpmm_reset(pool_), VPMM_OK) << vpmm_last_error();
  }
  EXPECT_EQ(registrations, before);
}

// Started anew by the threadsafe style, so that the library registers its handlers in a process of
// its own.
class ExitHandlersDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// What exit() does first. Where the lock is taken and nobody is there who will leave it, the alarm
// ends the process.
[[noreturn]] void exit_as_glibc_does() {
  is_forked_child = true;
  alarm(60);
  list_of_handlers.lock();
  list_of_handlers.unlock();
  std::exit(0);
}

int status_of_child_that_exits() {
  std::fflush(nullptr);  // or the child writes it again
  const pid_t child = fork();
  if (child == 0) exit_as_glibc_does();
  int status = 0;
  return child < 0 || waitpid(child, &status, 0) != child ? -1 : status;
}

TEST_F(ExitHandlersDeathTest, are_never_half_registered_in_a_forked_child) {
  EXPECT_EXIT(
      {
        registration_us = 50'000;
        std::thread first_user(use_a_pool_of_its_own);
        while (!is_registering) std::this_thread::yield();
        const pid_t child = fork();
        if (child == 0) _exit(is_registering ? 1 : 0);
        int status = 0;
        if (waitpid(child, &status, 0) != child) _exit(93);
        first_user.join();
        _exit(status == 0 ? 50 : 1);
      },
      testing::ExitedWithCode(50), "");
}

TEST_F(ExitHandlersDeathTest, let_every_forked_child_exit_whatever_other_threads_do) {
  EXPECT_EXIT(
      {
        constexpr int kForks = 60;
        registration_us = 1000;
        std::atomic<bool> is_over{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i)
          threads.emplace_back([&] {
            while (!is_over) use_a_pool_of_its_own();
          });
        int failed = 0;
        for (int i = 0; i < kForks && failed == 0; ++i) failed = status_of_child_that_exits();
        is_over = true;
        for (std::thread& thread : threads) thread.join();
        _exit(failed == 0 ? 51 : 1);
      },
      testing::ExitedWithCode(51), "");
}

}  // namespace
}  // namespace vpmm::capi_test
