// SPDX-License-Identifier: Apache-2.0
// capi: callbacks for events, and the layout of a pool.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "capi/sim_pool.hpp"
#include "vpmm/emm.h"

namespace vpmm::capi_test {
namespace {

using Events = SimPool;

constexpr std::uint32_t kAllKinds = (1U << 9) - 1;

struct Heard {
  std::vector<vpmm_event> events;
};

void hear(void* argument, const vpmm_event* event) {
  static_cast<Heard*>(argument)->events.push_back(*event);
}

// docs/reference/c-abi.md: elements of arrays and plain bytes never grow.
static_assert(sizeof(vpmm_region) == 32 && sizeof(vpmm_block) == 48 && sizeof(vpmm_chunk) == 16);
static_assert(sizeof(vpmm_ipc_handle) == 104 && sizeof(vpmm_emm_block) == 40);

TEST_F(Events, come_with_every_field_filled) {
  Heard heard;
  std::uint64_t id = 0;
  ASSERT_EQ(vpmm_add_event_callback(pool_, kAllKinds, hear, &heard, &id), VPMM_OK)
      << vpmm_last_error();
  EXPECT_NE(id, 0U);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate_any_stream(pool_, 4 * kMiB - 1, 0, &ptr), VPMM_OK);
  ASSERT_EQ(heard.events.size(), 2U);
  const vpmm_event& mapped = heard.events[0];
  EXPECT_EQ(mapped.kind, static_cast<std::uint32_t>(VPMM_EVENT_MAP));
  EXPECT_EQ(mapped.bytes, 8 * kMiB) << "a chunk, which is not cut to size";
  const vpmm_event& allocated = heard.events[1];
  EXPECT_EQ(allocated.size, sizeof(vpmm_event));
  EXPECT_EQ(allocated.kind, static_cast<std::uint32_t>(VPMM_EVENT_ALLOCATE));
  EXPECT_EQ(allocated.ptr, ptr);
  EXPECT_EQ(allocated.bytes, 4 * kMiB - 1);
  EXPECT_EQ(allocated.stream, nullptr);
  EXPECT_EQ(allocated.flags, static_cast<std::uint32_t>(VPMM_EVENT_NO_STREAM));
  EXPECT_EQ(allocated.device, 0);
  EXPECT_EQ(allocated.arena, 0U);
  EXPECT_GE(allocated.time_ns, mapped.time_ns);
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(heard.events.back().kind, static_cast<std::uint32_t>(VPMM_EVENT_FREE));
  EXPECT_EQ(heard.events.back().flags, 0U) << "the null stream was named";
  ASSERT_EQ(vpmm_remove_event_callback(pool_, id), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_remove_event_callback(pool_, id), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Events, name_the_arena_and_tell_what_it_gets_and_gives_back) {
  Heard heard;
  std::uint64_t id = 0, number = 0;
  ASSERT_EQ(vpmm_add_event_callback(pool_, kAllKinds & ~1U, hear, &heard, &id), VPMM_OK)
      << vpmm_last_error();
  vpmm_arena* arena = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &arena), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_arena_id(arena, &number), VPMM_OK);
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_arena_allocate(arena, 4 * kMiB, 0, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_arena_release(arena), VPMM_OK);
  ASSERT_EQ(vpmm_remove_event_callback(pool_, id), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(heard.events.size(), 4U) << "map, grow, free, shrink";
  for (const std::size_t i : {1U, 3U}) {
    const vpmm_event& event = heard.events[i];
    EXPECT_EQ(event.kind,
              static_cast<std::uint32_t>(i == 1 ? VPMM_EVENT_ARENA_GROW : VPMM_EVENT_ARENA_SHRINK));
    EXPECT_EQ(event.ptr, ptr);
    EXPECT_EQ(event.bytes, 4 * kMiB);
    EXPECT_EQ(event.arena, number);
    EXPECT_EQ(event.flags, static_cast<std::uint32_t>(VPMM_EVENT_NO_STREAM));
  }
  EXPECT_EQ(heard.events[2].arena, number);
}

TEST_F(Events, refuse_no_kind_kinds_of_the_future_and_null_pointers) {
  Heard heard;
  std::uint64_t id = 0;
  EXPECT_EQ(vpmm_add_event_callback(pool_, 0, hear, &heard, &id), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("`kinds` is 0")) << vpmm_last_error();
  EXPECT_EQ(vpmm_add_event_callback(pool_, 1U << 11, hear, &heard, &id), VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(last_error_names("0x800")) << vpmm_last_error();
  EXPECT_EQ(vpmm_add_event_callback(pool_, 1, nullptr, &heard, &id), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_add_event_callback(pool_, 1, hear, &heard, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_add_event_callback(nullptr, 1, hear, &heard, &id), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(id, 0U);
}

struct Watched {
  std::atomic<bool> is_there{true};
  std::atomic<int> late{0};
};

TEST_F(Events, no_callback_runs_after_it_was_taken_away_whatever_other_threads_do) {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!is_over) {
        void* ptr = nullptr;
        ASSERT_EQ(vpmm_allocate(pool_, 3000, nullptr, &ptr), VPMM_OK);
        ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    Watched watched;
    const auto check = [](void* argument, const vpmm_event*) {
      auto& seen = *static_cast<Watched*>(argument);
      if (!seen.is_there) ++seen.late;
    };
    std::uint64_t id = 0;
    ASSERT_EQ(vpmm_add_event_callback(pool_, kAllKinds, check, &watched, &id), VPMM_OK);
    std::this_thread::yield();
    ASSERT_EQ(vpmm_remove_event_callback(pool_, id), VPMM_OK);
    watched.is_there = false;
    std::this_thread::yield();
    ASSERT_EQ(watched.late, 0);
  }
  is_over = true;
  for (std::thread& other : others) other.join();
}

using Layouts = SimPool;

vpmm_layout layout_of(vpmm_pool* pool) {
  vpmm_layout layout{};
  layout.size = sizeof(layout);
  EXPECT_EQ(vpmm_layout_take(pool, &layout), VPMM_OK) << vpmm_last_error();
  return layout;
}

TEST_F(Layouts, show_blocks_and_chunks_by_address) {
  void* const large = allocate(6 * kMiB - 3);
  void* const small = allocate(1000);
  vpmm_layout layout = layout_of(pool_);
  EXPECT_EQ(layout.size, sizeof(vpmm_layout));
  std::size_t found = 0;
  const char* reached = nullptr;
  for (std::size_t i = 0; i < layout.block_count; ++i) {
    const auto& block = layout.blocks[i];
    EXPECT_GE(static_cast<char*>(block.begin), reached);
    reached = static_cast<char*>(block.begin) + block.bytes;
    if (block.begin == large) {
      EXPECT_EQ(block.bytes, 6 * kMiB);
      EXPECT_EQ(block.requested, 6 * kMiB - 3);
      EXPECT_EQ(block.is_small, 0);
    } else if (block.begin == small) {
      EXPECT_EQ(block.requested, 1000U);
      EXPECT_EQ(block.is_small, 1);
    } else {
      EXPECT_EQ(block.state, VPMM_REGION_FREE);
      continue;
    }
    ++found;
    EXPECT_EQ(block.state, VPMM_REGION_ALLOCATED);
    EXPECT_NE(block.stream_id, 0U);
    EXPECT_EQ(block.tag, 0U);
  }
  EXPECT_EQ(found, 2U);
  std::uint64_t mapped = 0;
  for (std::size_t i = 0; i < layout.chunk_count; ++i) mapped += layout.chunks[i].bytes;
  EXPECT_EQ(mapped, statistics_of(pool_).mapped_bytes);
  vpmm_layout_release(&layout);
  EXPECT_EQ(layout.blocks, nullptr);
  EXPECT_EQ(layout.chunks, nullptr);
  EXPECT_EQ(layout.block_count, 0U);
  EXPECT_EQ(layout.chunk_count, 0U);
  EXPECT_EQ(layout.owner, nullptr);
  vpmm_layout_release(&layout);
  vpmm_layout_release(nullptr);
}

TEST_F(Layouts, say_up_to_what_size_requests_share_pages) {
  vpmm_layout layout = layout_of(pool_);
  const std::uint64_t largest = layout.largest_small;
  vpmm_layout_release(&layout);
  ASSERT_GT(largest, 0U);
  const void* const small = allocate(largest);
  const void* const whole = allocate(largest + 1);
  layout = layout_of(pool_);
  for (std::size_t i = 0; i < layout.block_count; ++i) {
    const auto& block = layout.blocks[i];
    if (block.begin == small || block.begin == whole) {
      EXPECT_EQ(block.is_small, block.begin == small ? 1 : 0);
    }
  }
  vpmm_layout_release(&layout);
}

TEST_F(Layouts, stay_as_they_were_taken) {
  void* const ptr = allocate(24 * kMiB);
  vpmm_layout layout = layout_of(pool_);
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  ASSERT_EQ(layout.block_count, 1U);
  EXPECT_EQ(layout.blocks[0].state, VPMM_REGION_ALLOCATED);
  vpmm_layout_release(&layout);
}

TEST_F(Layouts, refuse_a_struct_that_is_too_short) {
  vpmm_layout layout{};
  EXPECT_EQ(vpmm_layout_take(pool_, &layout), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("vpmm_layout.size")) << vpmm_last_error();
  EXPECT_EQ(vpmm_layout_take(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(layout.owner, nullptr);
}

}  // namespace
}  // namespace vpmm::capi_test
