// SPDX-License-Identifier: Apache-2.0
// tests/context: what tags tell of themselves, the numbers of their entries, and which requests and
// calls they reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>

#include "context/suspend_case.hpp"
#include "report/tags.hpp"
#include "support/event_log.hpp"

namespace vpmm::test {
namespace {

using context::SuspendHow;
using context::TagInfo;
using context::TagScope;
using context::TagScopes;
using context::TagState;
using ::testing::ElementsAre;

constexpr std::uint32_t kNotSuspendable = 77;

arena::ArenaOptions options_of_tag(std::uint32_t tag) {
  arena::ArenaOptions options;
  options.tag = tag;
  return options;
}

TEST_F(Suspend, tags_tell_their_options_and_their_limit) {
  make(kWeights, true, true);
  TagInfo info = suspension().info(kWeights);
  EXPECT_TRUE(info.options.has_backup);
  EXPECT_TRUE(info.options.keeps_host_copy);
  EXPECT_EQ(info.limit, std::nullopt);
  make(kWeights, false, true);
  info = suspension().info(kWeights);
  EXPECT_FALSE(info.options.has_backup) << "as it was made last";
  EXPECT_TRUE(info.options.keeps_host_copy);
  info = suspension().info(kNotSuspendable);
  EXPECT_FALSE(info.options.has_backup);
  EXPECT_FALSE(info.options.keeps_host_copy);
  EXPECT_EQ(info.state, TagState::live);
  EXPECT_EQ(info.amounts.live + info.amounts.held + info.amounts.suspended, 0u);
  EXPECT_EQ(info.of_library + info.host_bytes, 0u);
  world.pool().limits().set_tag_limit(kNotSuspendable, settings::Portion{5 * kMiB, 0});
  EXPECT_EQ(suspension().info(kNotSuspendable).limit, 5 * kMiB);
  EXPECT_THAT(suspension().suspendable_tags(), ElementsAre(kWeights, kCache));
  EXPECT_THAT(suspension().all_tags(), ElementsAre(kWeights, kCache, kNotSuspendable));
  world.pool().limits().set_tag_limit(kNotSuspendable, std::nullopt);
  EXPECT_THAT(suspension().all_tags(), ElementsAre(kWeights, kCache));
  const DevicePtr ptr = tagged(1000, kNotSuspendable);
  EXPECT_THAT(suspension().all_tags(), ElementsAre(kWeights, kCache, kNotSuspendable));
  world.deallocate(ptr, a);
}

TEST_F(Suspend, entries_of_tags_ascend_and_there_is_a_number_between_any_two) {
  EXPECT_EQ(suspension().entered().tag, 0u);
  EXPECT_EQ(suspension().entered().number, 0u);
  std::uint64_t between = TagScopes::entries_so_far();
  std::vector<TagScopes::Entered> entered;
  for (const std::uint32_t tag : {kWeights, kCache, kWeights}) {
    ASSERT_TRUE(suspension().enter(tag, TagScope::process).ok());
    entered.push_back(suspension().entered());
    EXPECT_EQ(entered.back().tag, tag);
    EXPECT_GT(entered.back().number, between);
    between = TagScopes::entries_so_far();
    EXPECT_GT(between, entered.back().number);
    EXPECT_EQ(TagScopes::entries_so_far(), between) << "it only tells";
  }
  // The last of two entries of a tag ends first.
  ASSERT_TRUE(suspension().leave(kWeights, TagScope::process).ok());
  EXPECT_EQ(suspension().entered().number, entered[1].number);
  ASSERT_TRUE(suspension().leave(kCache, TagScope::process).ok());
  EXPECT_EQ(suspension().entered().number, entered[0].number);
  ASSERT_TRUE(suspension().leave(kWeights, TagScope::process).ok());
  EXPECT_EQ(suspension().entered().number, 0u);
}

TEST(EntriesOfTags, have_no_number_before_the_first) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(TagScopes::entries_so_far() == 0 ? 0 : 1), ::testing::ExitedWithCode(0),
              "");
}

TEST_F(Suspend, a_tag_is_left_where_it_was_entered) {
  report::set_tag_name(kNotSuspendable, "activations");
  ASSERT_TRUE(suspension().enter(kWeights, TagScope::process).ok());
  expect_error(suspension().leave(kWeights, TagScope::thread), ErrorCode::invalid_argument,
               {"tag 7 is not entered for this thread"});
  expect_error(suspension().leave(kCache, TagScope::process), ErrorCode::invalid_argument,
               {"tag 8 is not entered for the process"});
  expect_error(suspension().leave(kNotSuspendable, TagScope::process), ErrorCode::invalid_argument,
               {"the tag \"activations\" is not entered for the process"});
  ASSERT_TRUE(suspension().enter(kCache, TagScope::thread).ok());
  expect_error(suspension().leave(kCache, TagScope::process), ErrorCode::invalid_argument,
               {"the process"});
  std::thread([&] {
    expect_error(suspension().leave(kCache, TagScope::thread), ErrorCode::invalid_argument,
                 {"this thread"});
    EXPECT_EQ(suspension().entered().tag, kWeights);
    EXPECT_TRUE(suspension().leave(kWeights, TagScope::process).ok()) << "by any thread";
    EXPECT_EQ(suspension().entered().tag, 0u);
  }).join();
  EXPECT_EQ(suspension().entered().tag, kCache);
  ASSERT_TRUE(suspension().leave(kCache, TagScope::thread).ok());
  report::set_tag_name(kNotSuspendable, "");
}

// New threads, which get their numbers as they enter their first tag.
TEST_F(Suspend, each_thread_has_the_tags_that_it_entered) {
  ASSERT_TRUE(suspension().enter(kWeights, context::TagScope::thread).ok());
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      ASSERT_TRUE(suspension().enter(kCache, context::TagScope::thread).ok());
      for (int look = 0; look < 2; ++look) EXPECT_EQ(suspension().entered().tag, kCache);
      EXPECT_TRUE(suspension().leave(kCache, context::TagScope::thread).ok());
      EXPECT_EQ(suspension().entered().tag, 0u);
    }).join();
  EXPECT_EQ(suspension().entered().tag, kWeights);
  ASSERT_TRUE(suspension().leave(kWeights, context::TagScope::thread).ok());
}

TEST_F(Suspend, caches_serve_again_as_soon_as_the_last_tag_is_left) {
  world.deallocate(world.allocate(1000, a), a);
  const auto is_served = [&] {
    const DevicePtr ptr = world.pool().allocate_if_ready(1000, 0, a);
    return !is_null(ptr) && world.pool().deallocate_if_ready(ptr, a);
  };
  EXPECT_TRUE(is_served());
  ASSERT_TRUE(suspension().enter(kWeights, TagScope::process).ok());
  ASSERT_TRUE(suspension().enter(kCache, TagScope::thread).ok());
  EXPECT_FALSE(is_served());
  ASSERT_TRUE(suspension().leave(kWeights, TagScope::process).ok());
  EXPECT_FALSE(is_served());
  ASSERT_TRUE(suspension().leave(kCache, TagScope::thread).ok());
  EXPECT_TRUE(is_served());
}

// A request's own tag comes before its arena's, this before the one that is entered, and this
// before its library's.
TEST_F(Suspend, a_request_has_the_first_tag_that_is_named) {
  constexpr std::uint32_t kLibrary = 90;
  make(kLibrary, true);
  const ArenaId plain = make_arena(world);
  const ArenaId weights = make_arena(world, options_of_tag(kWeights));
  struct Case {
    ArenaId arena{};
    std::uint32_t tag = 0, entered = 0, expected = 0;
  };
  for (const Case& each :
       {Case{{}, 0, 0, kLibrary}, Case{{}, 0, kCache, kCache},
        Case{{}, kNotSuspendable, kCache, kNotSuspendable}, Case{plain, 0, 0, kLibrary},
        Case{plain, 0, kCache, kLibrary}, Case{weights, 0, kCache, kWeights},
        Case{weights, kNotSuspendable, kCache, kNotSuspendable}}) {
    SCOPED_TRACE(each.expected);
    if (each.entered != 0) {
      ASSERT_TRUE(suspension().enter(each.entered, TagScope::process).ok());
    }
    const Bytes before = suspension().info(each.expected).amounts.live;
    const auto made = world.pool().allocate({1000, 0, a, each.arena, each.tag, kLibrary});
    ASSERT_TRUE(made.ok()) << message_of(made);
    EXPECT_EQ(suspension().info(each.expected).amounts.live, before + 1000);
    const ArenaId arena = world.pool().query(made.value()).value().arena;
    if (each.arena != ArenaId{}) {
      EXPECT_EQ(arena, each.arena);
    }
    // Without an arena of its own it is the tag's, if that can be suspended.
    if (each.arena == ArenaId{}) {
      EXPECT_EQ(arena == ArenaId{}, each.expected == kNotSuspendable);
      if (each.expected != kNotSuspendable) {
        suspend(each.expected);
        EXPECT_TRUE(is_suspended(made.value()));
        resume(each.expected);
      }
    }
    world.deallocate(made.value(), a);
    if (each.entered != 0) {
      ASSERT_TRUE(suspension().leave(each.entered, TagScope::process).ok());
    }
  }
  for (const ArenaId arena : {plain, weights}) release(world, arena);
}

TEST_F(Suspend, a_tag_has_one_arena_for_single_chunks_and_one_for_all_else) {
  std::vector<DevicePtr> all;
  std::vector<ArenaId> arenas;
  for (const bool one_chunk : {false, true, true, false}) {
    const auto made = world.pool().allocate({2 * kPage, 0, a, {}, kWeights, 0, one_chunk});
    ASSERT_TRUE(made.ok()) << message_of(made);
    all.push_back(made.value());
    arenas.push_back(world.pool().query(made.value()).value().arena);
  }
  EXPECT_NE(arenas[0], ArenaId{});
  EXPECT_NE(arenas[1], ArenaId{});
  EXPECT_NE(arenas[0], arenas[1]);
  EXPECT_EQ(arenas[1], arenas[2]);
  EXPECT_EQ(arenas[0], arenas[3]);
  EXPECT_EQ(suspension().info(kWeights).amounts.held, 8 * kPage) << "of both";
  suspend();
  EXPECT_EQ(suspension().info(kWeights).amounts.suspended, 8 * kPage);
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 8 * kPage);
  for (const DevicePtr ptr : all) EXPECT_TRUE(is_suspended(ptr));
  resume();
  for (const DevicePtr ptr : all) world.deallocate(ptr, a);
}

// So that what sleeps and comes back is what lives.
TEST_F(Suspend, large_requests_of_a_tag_share_no_stretch) {
  const DevicePtr large = tagged(64 * kPage);
  world.deallocate(large, a);
  const DevicePtr smaller = tagged(40 * kPage);
  EXPECT_NE(smaller, large);
  EXPECT_EQ(tagged(63 * kPage), large) << "a 32nd is lost at most";
  world.deallocate(large, a);
  world.deallocate(smaller, a);
}

TEST_F(Suspend, of_all_tags_takes_the_suspendable_ones_and_a_tag_by_name_takes_its_arenas) {
  const ArenaId arena = make_arena(world, options_of_tag(kNotSuspendable));
  const DevicePtr in_arena = allocate_in(world, arena, 2 * kPage, a);
  const DevicePtr weights = tagged(kPage);
  suspend(0);
  EXPECT_FALSE(is_suspended(in_arena));
  EXPECT_TRUE(is_suspended(weights));
  suspend(kNotSuspendable);
  EXPECT_TRUE(is_suspended(in_arena));
  resume(0);
  EXPECT_TRUE(is_suspended(in_arena));
  EXPECT_FALSE(is_suspended(weights));
  resume(kNotSuspendable);
  EXPECT_FALSE(is_suspended(in_arena));
  report::set_tag_name(55, "gradients");
  const auto refused = {suspension().suspend(55, {}), suspension().resume(55, {}),
                        suspension().prepare(55)};
  for (const Result<void>& each : refused)
    expect_error(each, ErrorCode::invalid_argument, {"the tag \"gradients\" is not suspendable"});
  report::set_tag_name(55, "");
  world.deallocate(in_arena, a);
  world.deallocate(weights, a);
  release(world, arena);
}

TEST_F(Suspend, a_tag_is_as_its_first_arena_that_is_not_live) {
  const ArenaId first = make_arena(world, options_of_tag(kWeights));
  const ArenaId second = make_arena(world, options_of_tag(kWeights));
  const DevicePtr in_first = allocate_in(world, first, 2 * kPage, a);
  const DevicePtr in_second = allocate_in(world, second, 3 * kPage, a);
  SuspendHow discarding;
  discarding.has_backup = false;
  const auto change = [&](ArenaId arena, const SuspendHow& how) {
    EXPECT_TRUE(suspension().suspend(arena, how).ok());
  };
  change(second, {});
  EXPECT_EQ(state(), TagState::suspended);
  EXPECT_EQ(suspension().info(kWeights).amounts.suspended, 3 * kPage);
  EXPECT_EQ(suspension().info(kWeights).amounts.held, 5 * kPage);
  EXPECT_EQ(suspension().info(kWeights).host_bytes, 3 * kPage);
  change(first, discarding);
  EXPECT_EQ(state(), TagState::discarded);
  EXPECT_EQ(suspension().info(kWeights).amounts.suspended, 5 * kPage);
  ASSERT_TRUE(suspension().resume(first, {}).ok());
  EXPECT_EQ(state(), TagState::suspended);
  ASSERT_TRUE(suspension().resume(second, {}).ok());
  EXPECT_EQ(state(), TagState::live);
  change(second, discarding);
  EXPECT_EQ(state(), TagState::discarded);
  resume();
  world.deallocate(in_first, a);
  world.deallocate(in_second, a);
  for (const ArenaId arena : {first, second}) release(world, arena);
}

TEST_F(Suspend, frees_of_finalizers_happen_before_memory_leaves_and_before_it_comes_back) {
  const EventLog log(world.pool());
  const DevicePtr stays = tagged(16 * kPage);
  const DevicePtr before = tagged(32 * kPage);
  const DevicePtr asleep = tagged(64 * kPage);
  write(stays, 16 * kPage, 3);
  world.pool().deallocate_deferred(before);
  suspend();
  EXPECT_EQ(world.statistics().host_copy_bytes, 80 * kPage);
  world.pool().deallocate_deferred(asleep);
  resume();
  ASSERT_EQ(log.of(EventKind::resume).size(), 1u);
  EXPECT_EQ(log.of(EventKind::resume)[0].bytes, 16 * kPage) << "nobody wants the rest";
  EXPECT_EQ(log.of(EventKind::resume)[0].tag, kWeights);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
  expect_written(stays, 16 * kPage, 3);
  world.deallocate(stays, a);
}

}  // namespace
}  // namespace vpmm::test
