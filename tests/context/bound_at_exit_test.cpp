// SPDX-License-Identifier: Apache-2.0
// context: bound streams that end while the process exits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "process/process_gate.hpp"
#include "support/held.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

std::unique_ptr<context::BoundStream>& bound_of_process() {
  static auto* const bound = new std::unique_ptr<context::BoundStream>;
  return *bound;
}

// Ends with code 0 if the bound stream's end did not wait for the lock, by a signal if it did.
[[noreturn]] void exit_while_the_lock_is_held() {
  auto* const world = new PoolWorld(adaptive_world());
  const StreamHandle stream = world->stream();
  bound_of_process() = world->pool().bind(stream).value();
  const DevicePtr ptr = world->allocate(4 * kPage, std::nullopt);
  std::atexit([] {
    if (!process::is_ending()) std::_Exit(3);
    bound_of_process().reset();
    std::_Exit(0);
  });
  process::close_gate_at_exit();
  ::alarm(60);
  const Held held(
      "a free holds the pool's lock, nothing has ended", [] { std::exit(4); },
      std::chrono::minutes(10));
  static_cast<void>(world->pool().deallocate(ptr, std::nullopt));
  std::_Exit(5);
}

// A thread that exit stopped may hold the lock for ever.
TEST(BoundStreamAtExit, ends_without_the_lock_of_its_pool) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_while_the_lock_is_held(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vpmm::test
