// SPDX-License-Identifier: Apache-2.0
// tests: MutexLock holds its mutex for a scope and can leave it in between.
#include "base/mutex.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace vpmm {
namespace {

// Whether another thread could take the mutex now. (Asking from the holding thread would be
// undefined.)
bool is_free(Mutex& mutex) {
  bool taken = false;
  std::thread other([&] {
    if (mutex.try_lock()) {
      taken = true;
      mutex.unlock();
    }
  });
  other.join();
  return taken;
}

TEST(MutexLock, holds_the_mutex_until_the_scope_ends) {
  Mutex mutex;
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, unlock_and_lock_leave_and_re_enter) {
  Mutex mutex;
  MutexLock lock(mutex);
  lock.unlock();
  EXPECT_TRUE(is_free(mutex));
  lock.lock();
  EXPECT_FALSE(is_free(mutex));
}

TEST(MutexLock, a_scope_left_unlocked_unlocks_nothing) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.unlock();
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(Mutex, increments_under_the_lock_are_not_lost) {
  constexpr int kThreads = 4;
  constexpr int kIncrements = 5000;
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kIncrements; ++i) {
        const MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kIncrements);
}

}  // namespace
}  // namespace vpmm
