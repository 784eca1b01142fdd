// SPDX-License-Identifier: Apache-2.0
// tests: the thread that looks whether all others go on.
#include "support/watchdog.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace vpmm::test {
namespace {

constexpr int kLooks = 16;  // while a thread may stay in one step

std::string running_test() {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? "no test" : fmt::format("{}.{}", test->test_suite_name(), test->name());
}

}  // namespace

thread_local Watchdog::Post* Watchdog::current_ = nullptr;

Watchdog::Watchdog(std::string run, std::chrono::milliseconds patience)
    : run_(running_test() + ", " + std::move(run)),
      patience_(patience),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

Watchdog::Watched::Watched(Watchdog& watchdog, std::string name)
    : watchdog_(watchdog), outer_(current_) {
  const std::lock_guard lock(watchdog.mutex_);
  post_ = watchdog.posts_.emplace(watchdog.posts_.end());
  post_->name = std::move(name);
  current_ = &*post_;
}

Watchdog::Watched::~Watched() {
  current_ = outer_;
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.posts_.erase(post_);
}

void Watchdog::doing(const char* what) {
  if (current_ == nullptr) return;
  current_->doing.store(what, std::memory_order_relaxed);
  current_->steps.fetch_add(1, std::memory_order_relaxed);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, patience_ / kLooks, [this] { return is_ended_; })) look();
}

void Watchdog::look() {
  for (Post& post : posts_) {
    const std::uint64_t steps = post.steps.load(std::memory_order_relaxed);
    post.idle_looks = std::exchange(post.seen_steps, steps) == steps ? post.idle_looks + 1 : 0;
    if (post.idle_looks > kLooks) give_up(post);
  }
}

void Watchdog::give_up(const Post& hanging) {
  std::string text = fmt::format("watchdog: {}: {} has been in one step for {} s:\n", run_,
                                 hanging.name, std::chrono::duration<double>(patience_).count());
  for (const Post& post : posts_)
    text += fmt::format("  {}: {}, step {}\n", post.name, post.doing.load(), post.steps.load());
  std::fputs(text.c_str(), stderr);
  std::abort();
}

}  // namespace vpmm::test
