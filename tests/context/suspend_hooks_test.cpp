// SPDX-License-Identifier: Apache-2.0
// tests/context: hooks around a suspend and a resume.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context/suspend_case.hpp"

namespace vpmm::test {
namespace {

using context::TagState;

TEST_F(Suspend, after_a_hook_that_throws_those_before_it_are_told) {
  const DevicePtr ptr = tagged(kPage);
  std::vector<int> calls;
  const auto add = [&](int number, bool throws) {
    context::SuspendHooks hooks;
    hooks.tag = kWeights;
    hooks.before_unmap = [&calls, number, throws](int, std::uint32_t) {
      if (throws) throw std::runtime_error("not now");
      calls.push_back(number);
      return true;
    };
    hooks.after_map = [&calls, number](int, std::uint32_t) { calls.push_back(-number); };
    return suspension().add_hooks(std::move(hooks));
  };
  add(1, false);
  const std::uint64_t thrower = add(2, true);
  EXPECT_THROW(static_cast<void>(suspension().suspend(kWeights, {})), std::runtime_error);
  EXPECT_EQ(calls, (std::vector<int>{1, -1}));
  EXPECT_EQ(state(), TagState::live);
  EXPECT_TRUE(suspension().remove_hooks(thrower));
  suspend();
  resume();
  world.deallocate(ptr, a);
}

TEST_F(Suspend,
       a_hook_that_throws_after_a_resume_leaves_the_others_told_and_the_first_error_is_thrown) {
  const DevicePtr ptr = tagged(kPage);
  std::vector<int> calls;
  for (int number = 1; number <= 3; ++number)
    suspension().add_hooks({kWeights, {}, [&calls, number](int, std::uint32_t) {
                              calls.push_back(number);
                              if (number != 1) throw std::runtime_error(std::to_string(number));
                            }});
  suspend();
  try {
    static_cast<void>(suspension().resume(kWeights, {}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
  EXPECT_EQ(calls, (std::vector<int>{3, 2, 1}));
  EXPECT_FALSE(is_suspended(ptr));
  world.deallocate(ptr, a);
}

TEST_F(Suspend, hooks_are_called_in_order_and_may_refuse) {
  const DevicePtr ptr = tagged(kPage);
  std::vector<int> calls;
  bool refuses = false;
  const auto hooks = [&](int number) {
    context::SuspendHooks made;
    made.tag = kWeights;
    made.before_unmap = [&, number](int, std::uint32_t) {
      calls.push_back(number);
      return number != 2 || !refuses;
    };
    made.after_map = [&, number](int, std::uint32_t) {
      EXPECT_FALSE(is_suspended(ptr));
      calls.push_back(-number);
    };
    return made;
  };
  const std::uint64_t first = suspension().add_hooks(hooks(1));
  suspension().add_hooks(hooks(2));
  suspend();
  resume();
  EXPECT_EQ(calls, (std::vector<int>{1, 2, -2, -1}));
  calls.clear();
  refuses = true;
  expect_error(suspension().suspend(kWeights, {}), ErrorCode::invalid_argument, {"hook"});
  EXPECT_EQ(calls, (std::vector<int>{1, 2, -1}));
  EXPECT_EQ(state(), TagState::live);
  EXPECT_TRUE(suspension().remove_hooks(first));
  EXPECT_FALSE(suspension().remove_hooks(first));
  refuses = false;
  calls.clear();
  suspend();
  resume();
  EXPECT_EQ(calls, (std::vector<int>{2, -2}));
  world.deallocate(ptr, a);
}

// Counts calls of the hooks that it adds.
struct Told {
  int before = 0, after = 0;
  std::uint64_t add(context::Suspension& to) {
    return to.add_hooks({kWeights, [this](int, std::uint32_t) { return ++before, true; },
                         [this](int, std::uint32_t) { ++after; }});
  }
};

// With two arenas of a tag.
class SuspendInParts : public Suspend {
 protected:
  static arena::ArenaOptions of_weights() {
    arena::ArenaOptions options;
    options.tag = kWeights;
    return options;
  }
  const pool::ArenaId first = make_arena(world, of_weights());
  const pool::ArenaId second = make_arena(world, of_weights());
  const DevicePtr in_first = allocate_in(world, first, kPage, a);
  const DevicePtr in_second = allocate_in(world, second, kPage, a);
};

TEST_F(SuspendInParts, hooks_are_called_once_for_all_arenas_of_a_tag) {
  int told = 0, calls = 0;
  suspension().add_hooks({kWeights, [&](int, std::uint32_t) { return ++told, ++calls, true; },
                          [&](int, std::uint32_t) { --told, ++calls; }});
  ASSERT_TRUE(suspension().suspend(first, {}).ok());
  EXPECT_EQ(told, 1);
  suspend();
  EXPECT_EQ(told, 1) << "it was asleep in part";
  ASSERT_TRUE(suspension().resume(second, {}).ok());
  EXPECT_EQ(told, 1) << "it is still asleep in part";
  resume();
  EXPECT_EQ(told, 0);
  EXPECT_EQ(calls, 2);
}

TEST_F(SuspendInParts, hooks_that_come_while_a_part_sleeps_are_told_before_the_next_part_does) {
  Told early, late;
  early.add(suspension());
  ASSERT_TRUE(suspension().suspend(first, {}).ok());
  late.add(suspension());
  EXPECT_EQ(late.before, 0);
  ASSERT_TRUE(suspension().suspend(second, {}).ok());
  EXPECT_EQ(early.before, 1);
  EXPECT_EQ(late.before, 1);
  resume();
  EXPECT_EQ(early.after, 1);
  EXPECT_EQ(late.after, 1);
}

TEST_F(SuspendInParts, hooks_are_told_of_the_end_when_the_part_that_slept_was_released) {
  Told told;
  told.add(suspension());
  ASSERT_TRUE(suspension().suspend(first, {}).ok());
  release(world, first);
  world.deallocate(in_first, a);
  resume();
  EXPECT_EQ(told.before, 1);
  EXPECT_EQ(told.after, 1);
  resume();
  EXPECT_EQ(told.after, 1) << "once";
}

TEST_F(SuspendInParts, hooks_are_told_of_the_end_when_every_arena_of_the_tag_was_released) {
  Told told;
  told.add(suspension());
  suspend();
  for (const auto& [arena, ptr] : {std::pair(first, in_first), std::pair(second, in_second)}) {
    release(world, arena);
    world.deallocate(ptr, a);
  }
  resume();
  EXPECT_EQ(told.after, 1);
  tagged(kPage);
  suspend();
  EXPECT_EQ(told.before, 2);
  resume();
}

// The second arena is being suspended when the first is back.
TEST_F(SuspendInParts, hooks_are_not_told_of_the_end_while_another_thread_suspends_the_rest) {
  Told told;
  told.add(suspension());
  ASSERT_TRUE(suspension().suspend(first, {}).ok());
  const auto resume_first = [&](int, std::uint32_t) {
    std::thread([&] { EXPECT_TRUE(suspension().resume(first, {}).ok()); }).join();
    EXPECT_EQ(told.after, 0);
    return true;
  };
  suspension().add_hooks({kWeights, resume_first, {}});
  ASSERT_TRUE(suspension().suspend(second, {}).ok());
  EXPECT_EQ(told.after, 0);
  resume();
  EXPECT_EQ(told.before, 1);
  EXPECT_EQ(told.after, 1);
}

TEST_F(SuspendInParts, a_suspend_that_is_refused_leaves_hooks_to_one_in_progress) {
  Told told;
  told.add(suspension());
  bool refuses = false;
  const auto suspend_first = [&](int, std::uint32_t) {
    if (refuses) return false;
    refuses = true;
    std::thread([&] {
      expect_error(suspension().suspend(first, {}), ErrorCode::invalid_argument, {"hook"});
    }).join();
    EXPECT_EQ(told.after, 0) << "the second is on its way";
    return true;
  };
  suspension().add_hooks({kWeights, suspend_first, {}});
  ASSERT_TRUE(suspension().suspend(second, {}).ok());
  EXPECT_EQ(told.after, 0);
  resume();
  EXPECT_EQ(told.before, 1);
  EXPECT_EQ(told.after, 1);
}

TEST_F(Suspend, hooks_of_other_tags_are_not_called) {
  const DevicePtr ptr = tagged(kPage);
  context::SuspendHooks hooks;
  hooks.tag = kCache;
  hooks.before_unmap = [](int, std::uint32_t) { return false; };
  hooks.after_map = [](int, std::uint32_t tag) { ADD_FAILURE() << tag; };
  suspension().add_hooks(std::move(hooks));
  suspend();
  resume();
  world.deallocate(ptr, a);
}

}  // namespace
}  // namespace vpmm::test
