// SPDX-License-Identifier: Apache-2.0
// capi: arenas, and every mistake a caller can make there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

class ArenaAbi : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_EQ(vpmm_arena_create(pool_, 0, 7, &arena_), VPMM_OK) << vpmm_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(vpmm_arena_release(arena_), VPMM_OK) << vpmm_last_error();
    SimPool::TearDown();
  }
  void* take(std::size_t bytes, std::size_t alignment = 0) {
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_arena_allocate(arena_, bytes, alignment, nullptr, &ptr), VPMM_OK)
        << vpmm_last_error();
    return ptr;
  }

  vpmm_arena* arena_ = nullptr;
};

TEST_F(ArenaAbi, gives_memory_that_the_pools_functions_take_back) {
  void* const small = take(100);
  void* const large = take(5 * kMiB, 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % (4 * kMiB), 0U);
  EXPECT_EQ(statistics_of(pool_).live_bytes, 100 + 5 * kMiB);
  std::size_t usable = 0;
  EXPECT_EQ(vpmm_usable_size(pool_, plus(small, 50), &usable), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(usable, 512U);
  EXPECT_EQ(vpmm_record_use(pool_, small, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, small, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, large), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, small, nullptr), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
  EXPECT_EQ(take(0), nullptr);
}

TEST_F(ArenaAbi, has_a_number_of_its_own) {
  vpmm_arena* other = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, VPMM_ARENA_NO_SPLIT, 0, &other), VPMM_OK);
  std::uint64_t first = 0, second = 0;
  EXPECT_EQ(vpmm_arena_id(arena_, &first), VPMM_OK);
  EXPECT_EQ(vpmm_arena_id(other, &second), VPMM_OK);
  EXPECT_NE(first, 0U);
  EXPECT_NE(first, second);
  EXPECT_EQ(vpmm_arena_release(other), VPMM_OK);
}

TEST_F(ArenaAbi, lists_what_is_live_as_far_as_there_is_room) {
  std::vector<void*> all = {take(1000), take(3 * kMiB), take(2000)};
  std::sort(all.begin(), all.end());
  std::size_t count = 0;
  EXPECT_EQ(vpmm_arena_live(arena_, nullptr, 0, &count), VPMM_OK);
  EXPECT_EQ(count, 3U);
  std::vector<void*> live(2);
  EXPECT_EQ(vpmm_arena_live(arena_, live.data(), 2, &count), VPMM_OK);
  EXPECT_EQ(count, 3U);
  EXPECT_EQ(live, (std::vector<void*>{all[0], all[1]}));
  live.assign(4, this);
  EXPECT_EQ(vpmm_arena_live(arena_, live.data(), 4, &count), VPMM_OK);
  EXPECT_EQ(count, 3U);
  EXPECT_EQ(live, (std::vector<void*>{all[0], all[1], all[2], this}));
}

TEST_F(ArenaAbi, a_place_can_be_asked_for) {
  void* const ptr = take(8192);
  EXPECT_EQ(vpmm_arena_allocate_at(arena_, ptr, 100, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("not free")) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_allocate_at(arena_, plus(ptr, 1024), 100, nullptr), VPMM_OK)
      << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_allocate_at(arena_, allocate(3 * kMiB), 100, nullptr),
            VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_arena_allocate_at(arena_, nullptr, 100, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(ArenaAbi, trims_unless_it_is_pinned) {
  std::size_t released = 1;
  EXPECT_EQ(vpmm_deallocate(pool_, take(4 * kMiB), nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_trim(arena_, &released), VPMM_OK);
  EXPECT_EQ(released, 4 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, take(4 * kMiB), nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_pin(arena_), VPMM_OK);
  EXPECT_EQ(vpmm_arena_pin(arena_), VPMM_OK);
  EXPECT_EQ(vpmm_arena_trim(arena_, &released), VPMM_OK);
  EXPECT_EQ(released, 0U);
  EXPECT_EQ(vpmm_arena_trim(arena_, nullptr), VPMM_OK);
}

TEST_F(ArenaAbi, what_lives_outlives_the_release) {
  vpmm_arena* other = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &other), VPMM_OK);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_arena_allocate(other, 1000, 0, nullptr, &ptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_release(other), VPMM_OK);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 1U);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

TEST_F(ArenaAbi, names_the_parameter_that_is_wrong) {
  vpmm_arena* arena = nullptr;
  EXPECT_EQ(vpmm_arena_create(pool_, 8, 0, &arena), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("flags")) << vpmm_last_error();
  EXPECT_EQ(arena, nullptr) << "written on success only";
  EXPECT_EQ(vpmm_arena_create(pool_, 0, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_create(nullptr, 0, 0, &arena), VPMM_ERROR_INVALID_ARGUMENT);
  void* ptr = pool_;
  EXPECT_EQ(vpmm_arena_allocate(nullptr, 1, 0, nullptr, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_allocate(arena_, 1, 0, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_allocate(arena_, 1, 384, nullptr, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_allocate(arena_, std::size_t{1} << 60, 0, nullptr, &ptr),
            VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ptr, pool_);
  EXPECT_EQ(vpmm_arena_id(arena_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_live(arena_, nullptr, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  std::size_t count = 0;
  EXPECT_EQ(vpmm_arena_live(arena_, nullptr, 1, &count), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_pin(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_trim(nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_release(nullptr), VPMM_OK) << "does nothing";
}

// The simulator of the process is behind another door, so the memory is another pool's, which does
// not know.
class ExternalArenaAbi : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &owner_), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_allocate(owner_, kBytes, nullptr, &memory_), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_arena_create(pool_, VPMM_ARENA_EXTERNAL, 7, &arena_), VPMM_OK)
        << vpmm_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(vpmm_arena_release(arena_), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_pool_destroy(owner_), VPMM_OK) << vpmm_last_error();
    SimPool::TearDown();
  }

  static constexpr std::size_t kBytes = 8 * kMiB;
  vpmm_pool* owner_ = nullptr;
  vpmm_arena* arena_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(ExternalArenaAbi, divides_memory_that_it_is_given_and_gives_it_back) {
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_arena_allocate(arena_, 1, 0, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(vpmm_arena_add_memory(arena_, memory_, kBytes), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_allocate(arena_, kBytes, 0, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(ptr, memory_);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
  void* taken = this;
  std::size_t bytes = 1;
  EXPECT_EQ(vpmm_arena_take_memory(arena_, &taken, &bytes), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(taken, nullptr);
  EXPECT_EQ(bytes, 0U);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_take_memory(arena_, &taken, &bytes), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(taken, memory_);
  EXPECT_EQ(bytes, kBytes);
  EXPECT_EQ(vpmm_arena_add_memory(arena_, memory_, kBytes), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_take_memory(arena_, &taken, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(taken, memory_);
}

TEST_F(ExternalArenaAbi, refuses_by_name_what_is_no_memory_for_it) {
  void* taken = this;
  EXPECT_EQ(vpmm_arena_add_memory(nullptr, memory_, kBytes), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_add_memory(arena_, nullptr, kBytes), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("`ptr`")) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_add_memory(arena_, memory_, 100), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("multiples of 512")) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_add_memory(arena_, allocate(4 * kMiB), 4 * kMiB),
            VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("this pool's")) << vpmm_last_error();
  EXPECT_EQ(vpmm_arena_take_memory(nullptr, &taken, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_take_memory(arena_, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(taken, this);
}

TEST_F(ExternalArenaAbi, an_arena_of_the_pools_memory_takes_no_other) {
  vpmm_arena* ordinary = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &ordinary), VPMM_OK);
  void* taken = this;
  EXPECT_EQ(vpmm_arena_add_memory(ordinary, memory_, kBytes), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_arena_take_memory(ordinary, &taken, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("from the pool")) << vpmm_last_error();
  EXPECT_EQ(taken, this);
  EXPECT_EQ(vpmm_arena_release(ordinary), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::capi_test
