// SPDX-License-Identifier: Apache-2.0
// context: several callbacks that may free memory before a request fails, and taking one away while
// others run.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "context/out_of_memory.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using context::OutOfMemory;
using context::OutOfMemoryCallbacks;

TEST(OutOfMemoryCallbacks, are_asked_in_turn_until_one_helps) {
  OutOfMemoryCallbacks callbacks;
  std::string asked;
  EXPECT_FALSE(callbacks.ask({}));
  callbacks.add([&](const OutOfMemory&) { return asked += 'a', false; });
  callbacks.add([&](const OutOfMemory&) { return asked += 'b', true; });
  callbacks.add([&](const OutOfMemory&) { return asked += 'c', true; });
  EXPECT_TRUE(callbacks.ask({}));
  EXPECT_EQ(asked, "ab");
  callbacks.set([&](const OutOfMemory&) { return asked += 's', false; });
  EXPECT_TRUE(callbacks.ask({}));
  EXPECT_EQ(asked, "absab");
  callbacks.set({});
  EXPECT_TRUE(callbacks.ask({}));
  EXPECT_EQ(asked, "absabab");
}

TEST(OutOfMemoryCallbacks, are_taken_away_by_a_number_that_none_ever_has_again) {
  OutOfMemoryCallbacks callbacks;
  const std::uint64_t first = callbacks.add([](const OutOfMemory&) { return true; });
  EXPECT_TRUE(callbacks.remove(first));
  EXPECT_FALSE(callbacks.remove(first));
  EXPECT_FALSE(callbacks.ask({}));
  EXPECT_NE(callbacks.add([](const OutOfMemory&) { return true; }), first);
  callbacks.set([](const OutOfMemory&) { return true; });
  EXPECT_FALSE(callbacks.remove(0)) << "the one that is set has no number";
}

TEST(OutOfMemoryCallbacks, one_that_is_taken_away_is_waited_for) {
  OutOfMemoryCallbacks callbacks;
  std::atomic<bool> is_running{false};
  std::atomic<bool> may_end{false};
  std::atomic<bool> is_over{false};
  const std::uint64_t id = callbacks.add([&](const OutOfMemory&) {
    is_running = true;
    while (!may_end) std::this_thread::yield();
    is_over = true;
    return false;
  });
  std::thread asking([&] { EXPECT_FALSE(callbacks.ask({})); });
  while (!is_running) std::this_thread::yield();
  std::atomic<bool> was_over{false};
  std::thread removing([&] {
    EXPECT_TRUE(callbacks.remove(id));
    was_over = is_over.load();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  may_end = true;
  removing.join();
  asking.join();
  EXPECT_TRUE(was_over);
}

TEST(OutOfMemoryCallbacks, one_may_take_itself_away) {
  OutOfMemoryCallbacks callbacks;
  std::uint64_t id = 0;
  int calls = 0;
  id = callbacks.add([&](const OutOfMemory&) {
    ++calls;
    EXPECT_TRUE(callbacks.remove(id));
    return false;
  });
  EXPECT_FALSE(callbacks.ask({}));
  EXPECT_FALSE(callbacks.ask({}));
  EXPECT_EQ(calls, 1);
}

TEST(OutOfMemoryCallbacks, one_that_throws_is_not_running_any_more) {
  OutOfMemoryCallbacks callbacks;
  const std::uint64_t id =
      callbacks.add([](const OutOfMemory&) -> bool { throw std::runtime_error("no"); });
  EXPECT_THROW(callbacks.ask({}), std::runtime_error);
  std::thread([&] { EXPECT_TRUE(callbacks.remove(id)); }).join();
}

TEST(OutOfMemoryCallbacks, of_a_pool_may_all_free_until_the_request_fits) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(8 * kPage);
  std::vector<DevicePtr> first{world.allocate(2 * kPage, stream),
                               world.allocate(2 * kPage, stream)};
  std::vector<DevicePtr> second{world.allocate(4 * kPage, stream)};
  const auto freeing = [&](std::vector<DevicePtr>& from) {
    return [&](const OutOfMemory& event) {
      EXPECT_EQ(event.requested, 8 * kPage);
      if (from.empty()) return false;
      world.deallocate(from.back(), stream);
      from.pop_back();
      return true;
    };
  };
  const std::uint64_t one = world.pool().limits().out_of_memory_callbacks().add(freeing(first));
  const std::uint64_t two = world.pool().limits().out_of_memory_callbacks().add(freeing(second));
  const DevicePtr all = world.allocate(8 * kPage, stream);
  EXPECT_TRUE(first.empty());
  EXPECT_TRUE(second.empty());
  world.use(all, 8 * kPage, stream);
  EXPECT_TRUE(world.pool().limits().remove_out_of_memory_callback(one).ok());
  EXPECT_TRUE(world.pool().limits().remove_out_of_memory_callback(two).ok());
  expect_error(world.pool().limits().remove_out_of_memory_callback(two),
               ErrorCode::invalid_argument, {std::to_string(two)});
}

TEST(OutOfMemoryCallbacks, one_that_always_says_it_helped_does_not_hold_a_request_for_ever) {
  WorldOptions options = page_world();
  options.config.limits.capacity = kPage;
  PoolWorld world(options);
  unsigned asked = 0;
  world.pool().limits().out_of_memory_callbacks().add(
      [&](const OutOfMemory&) { return ++asked, true; });
  expect_error(world.pool().allocate({2 * kPage, 0, world.stream()}), ErrorCode::out_of_memory);
  EXPECT_EQ(asked, context::Limits::kMostAnswers);
}

}  // namespace
}  // namespace vpmm::test
