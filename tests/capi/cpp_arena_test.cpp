// SPDX-License-Identifier: Apache-2.0
// capi: arenas and enums of the C++ headers.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "capi/sim_pool.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

static_assert(std::is_nothrow_move_constructible_v<memory_arena> &&
              !std::is_copy_constructible_v<memory_arena>);

// --- flags of one call are none of another
template <typename... Arguments>
concept CanSuspend = requires(const pool_ref& pool, Arguments... arguments) {
  pool.suspend(arguments...);
};
static_assert(CanSuspend<std::uint32_t, suspend_flags>);
static_assert(!CanSuspend<std::uint32_t, tag_flags> && !CanSuspend<std::uint32_t, resume_flags>);
static_assert(!CanSuspend<std::uint32_t, int>);
template <typename Left, typename Right>
concept CanJoin = requires(Left left, Right right) {
  left | right;
};
static_assert(CanJoin<suspend_flags, suspend_flags> && !CanJoin<suspend_flags, resume_flags>);
static_assert(!CanJoin<tag_scope, tag_scope>);

TEST(CppEnums, every_value_of_a_setting_is_one_that_the_library_takes) {
  const auto accepts = [](auto change) {
    vpmm_config settings = settings_from_environment();
    change(settings);
    const memory_pool pool(0, settings);
    return pool.device() == 0;
  };
  for (const auto value : {small_requests::pool, small_requests::stream_ordered})
    EXPECT_TRUE(accepts([&](vpmm_config& settings) { settings.small = text(value); }));
  for (const auto value :
       {any_stream_work::context, any_stream_work::legacy, any_stream_work::park})
    EXPECT_TRUE(accepts([&](vpmm_config& settings) { settings.any_stream = text(value); }));
  for (const auto value :
       {log_level::quiet, log_level::error, log_level::warning, log_level::info, log_level::debug})
    EXPECT_TRUE(accepts([&](vpmm_config& settings) { settings.log = text(value); }));
  for (const auto value : {preference::footprint, preference::balanced, preference::latency})
    EXPECT_TRUE(accepts([&](vpmm_config& settings) { settings.prefer = text(value); }));
  EXPECT_TRUE(accepts([&](vpmm_config& settings) { settings.driver = text(driver_kind::sim); }));
  EXPECT_STREQ(text(driver_kind::automatic), "auto");
  EXPECT_STREQ(text(driver_kind::cuda), "cuda");
}

TEST(CppArena, counts_for_the_library_that_it_was_told_whichever_tag_it_has) {
  const memory_pool pool;
  const std::uint32_t library = tag_with_name("torch");
  const memory_arena arena(pool, arena_flags::none, tag_with_name("kv-cache"));
  arena.set_library(library);
  void* const ptr = arena.allocate(3000, default_stream);
  EXPECT_EQ(pool.tag_info(library).library_bytes, 3000U);
  EXPECT_EQ(pool.tag_info(library).live_bytes, 0U);
  EXPECT_EQ(pool.tags(), (std::vector<std::uint32_t>{library, tag_with_name("kv-cache")}));
  pool.deallocate(ptr, default_stream);
  arena.allocate_at(ptr, 2000, default_stream);
  EXPECT_EQ(pool.tag_info(library).library_bytes, 2000U);
  pool.deallocate(ptr, default_stream);
  EXPECT_EQ(pool.tag_info(library).library_bytes, 0U);
  EXPECT_TRUE(pool.tags().empty());
}

TEST(CppArena, has_memory_of_its_own_and_ends_with_the_object) {
  const memory_pool pool;
  void* kept = nullptr;
  {
    const memory_arena arena(pool, arena_flags::one_chunk | arena_flags::no_split, 5);
    EXPECT_NE(arena.id(), 0U);
    EXPECT_EQ(arena.pool(), pool);
    void* const first = arena.allocate(3 * kMiB, default_stream);
    kept = arena.allocate(kMiB, default_stream, 4096);
    EXPECT_EQ(arena.live().size(), 2U);
    pool.deallocate(first, default_stream);
    EXPECT_EQ(arena.live(), std::vector<void*>{kept});
    arena.allocate_at(first, kMiB, default_stream);
    pool.deallocate(first, default_stream);
    pool.synchronize();
    EXPECT_GE(arena.trim(), kMiB);
    EXPECT_EQ(arena.try_allocate(kMiB, default_stream, 3).status(), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_THROW(static_cast<void>(arena.allocate(std::size_t{1} << 60, default_stream)),
                 out_of_memory);
  }
  EXPECT_EQ(pool.usable_size(kept), 2 * kMiB) << "live allocations outlast it";
  pool.deallocate(kept, default_stream);
}

TEST(CppArena, keeps_the_pool_that_it_was_made_from) {
  std::optional<memory_arena> arena;
  {
    const memory_pool pool;
    arena.emplace(pool);
  }
  memory_arena moved = std::move(*arena);
  EXPECT_THROW(static_cast<void>(arena->id()),
               failure);  // NOLINT(bugprone-use-after-move): the test
  void* const ptr = moved.allocate(kMiB, default_stream);
  moved.pool().deallocate(ptr, default_stream);
  moved = memory_arena(moved.pool(), arena_flags::external);
  EXPECT_EQ(moved.take_memory().ptr, nullptr);
  EXPECT_THROW(moved.add_memory(nullptr, 512), failure);
}

TEST(CppArena, assigned_to_ends_before_the_pool_that_it_alone_keeps) {
  const auto made = [] { return memory_arena(memory_pool(), arena_flags::none, 6); };
  memory_arena arena = made();
  static_cast<void>(arena.allocate(kMiB, default_stream));
  arena = made();
  EXPECT_TRUE(arena.live().empty());
  memory_arena& same = arena;
  arena = std::move(same);
  EXPECT_TRUE(arena.live().empty());
}

TEST(CppArena, sleeps_by_itself) {
  const memory_pool pool;
  const memory_arena arena(pool);
  void* const ptr = arena.allocate(3 * kMiB, default_stream);
  arena.suspend(suspend_flags::backup | suspend_flags::to_driver);
  EXPECT_TRUE(pool.is_suspended(ptr));
  arena.resume();
  arena.suspend_after(default_stream, suspend_flags::discard);
  arena.resume(resume_flags::zero);
  EXPECT_FALSE(pool.is_suspended(ptr));
  pool.deallocate(ptr, default_stream);
  arena.pin();
}

}  // namespace
}  // namespace vpmm::capi_test
