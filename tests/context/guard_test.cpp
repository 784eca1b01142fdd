// SPDX-License-Identifier: Apache-2.0
// context: VPMM_GUARD gives allocations pages of their own, which end at unmapped addresses, and
// VPMM_FILL fills memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/scope_exit.hpp"
#include "guard/description.hpp"
#include "observe/log.hpp"
#include "observe/stack_table.hpp"
#include "support/hooked_world.hpp"
#include "support/own_file.hpp"
#include "support/pool_world_words.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

WorldOptions guarded_world(std::uint64_t every = 1) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = every;
  return options;
}

class Guard : public ::testing::Test {
 protected:
  explicit Guard(const WorldOptions& options = guarded_world()) : world(options) {}
  PoolWorld world;
  StreamHandle stream = world.stream();
  StreamHandle other = world.stream();

  bool is_mapped(DevicePtr ptr) {
    AddressRange range;
    return world.sim().mem_get_address_range(ptr, range) == CuResult::success;
  }
  std::string explained(DevicePtr ptr) {
    const auto text = world.pool().reports().explain(ptr);
    return text ? text.value() : text.error().message;
  }
  void poke(DevicePtr ptr, Bytes bytes) {
    EXPECT_EQ(world.sim().memset_d8_async(ptr, 0x11, bytes, stream), CuResult::success);
  }
};

TEST_F(Guard, an_allocation_ends_at_unmapped_addresses) {
  for (const Bytes bytes : {Bytes{1}, Bytes{1000}, Bytes{4096}, 2 * kMiB, 2 * kMiB + 4, 9 * kMiB}) {
    const DevicePtr ptr = world.allocate(bytes, stream);
    const DevicePtr end = align_up(ptr + bytes, 2 * kMiB);
    EXPECT_TRUE(is_aligned(ptr, 256));
    EXPECT_LT(end - (ptr + bytes), 256u);
    EXPECT_TRUE(is_mapped(ptr));
    EXPECT_FALSE(is_mapped(end));
    EXPECT_FALSE(is_mapped(align_down(ptr, 2 * kMiB) - 1));
    world.use(ptr, bytes, stream);
  }
  const observe::Statistics now = world.statistics();
  EXPECT_EQ(now.guarded_allocations, 6u);
  EXPECT_EQ(now.unguarded_allocations, 0u);
  EXPECT_EQ(now.guarded_bytes, 6 * 2 * kMiB + 2 * kMiB + 8 * kMiB);
  EXPECT_EQ(now.live_allocations, 6u);
  EXPECT_EQ(now.chunks_created, 6u);
  EXPECT_EQ(now.chunks_released, 0u);
}

TEST_F(Guard, freed_memory_is_unmapped_when_its_work_is_complete_and_its_address_stays_unused) {
  const DevicePtr ptr = world.allocate(3000, stream);
  world.use(ptr, 3000, stream, kLongNs);
  world.deallocate(ptr, stream);
  EXPECT_TRUE(is_mapped(ptr));
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  world.sim().run_until_idle();
  const DevicePtr next = world.allocate(3000, stream);
  EXPECT_EQ(world.statistics().deallocations, 1u);
  EXPECT_FALSE(is_mapped(ptr));
  EXPECT_NE(next, ptr);
  EXPECT_EQ(world.statistics().guarded_bytes, 2 * kMiB);
}

TEST_F(Guard, many_at_once_are_aligned_as_one_is) {
  std::vector<DevicePtr> made(3);
  const std::vector<Bytes> sizes{1, 1000, 2 * kMiB + 4};
  ASSERT_TRUE(world.pool().allocate_many(sizes, stream, made).ok());
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_TRUE(is_aligned(made[i], 256)) << sizes[i];
    EXPECT_FALSE(is_mapped(align_up(made[i] + sizes[i], 2 * kMiB)));
  }
  ASSERT_TRUE(world.pool().deallocate_many(made, stream).ok());
}

TEST_F(Guard, the_layout_says_what_is_live_what_waits_and_for_whom) {
  const auto only_block = [&] {
    const report::Layout layout = world.pool().reports().layout();
    EXPECT_EQ(layout.blocks.size(), 1u);
    return layout.blocks.empty() ? report::LayoutBlock{} : layout.blocks.front();
  };
  driver::StreamId id{};
  ASSERT_EQ(world.sim().stream_get_id(stream, id), CuResult::success);
  const DevicePtr ptr = world.allocate(1000, stream);
  report::LayoutBlock block = only_block();
  EXPECT_EQ(block.state, region::RegionState::allocated);
  EXPECT_EQ(block.range, (AddressRange{ptr, 1000}));
  EXPECT_EQ(block.requested, 1000u);
  EXPECT_EQ(block.stream_id, static_cast<std::uint64_t>(id));
  EXPECT_FALSE(block.is_complete);
  world.use(ptr, 1000, stream);
  world.deallocate(ptr, stream);
  block = only_block();
  EXPECT_EQ(block.state, region::RegionState::zombie);
  EXPECT_EQ(block.range.size, 2 * kMiB) << "its pages";
  EXPECT_EQ(block.requested, 0u);
  EXPECT_EQ(block.stream_id, static_cast<std::uint64_t>(id));
  EXPECT_FALSE(block.is_complete);
}

TEST_F(Guard, the_layout_can_be_read_while_pages_are_mapped_and_unmapped) {
  std::atomic<bool> is_over{false};
  std::atomic<int> reads{0};
  std::thread reading([&] {
    for (; !is_over; ++reads) {
      const report::Layout layout = world.pool().reports().layout();
      EXPECT_EQ(layout.chunks.size(), layout.blocks.size());
    }
  });
  std::uint64_t made = 0;
  for (; made < 200 || reads < 10; ++made) {
    world.deallocate(world.allocate(3000, stream), stream);
    world.sim().run_until_idle();
  }
  is_over = true;
  reading.join();
  EXPECT_EQ(world.statistics().guarded_allocations, made);
}

TEST_F(Guard, work_of_a_named_stream_is_over_before_the_memory_is_unmapped) {
  const DevicePtr ptr = world.allocate(3000, stream);
  EXPECT_TRUE(world.pool().record_use(ptr, other).ok());
  EXPECT_TRUE(world.pool().streams().make_wait(other, stream).ok());
  world.use(ptr, 3000, other, kLongNs);
  world.deallocate(ptr, stream);
  world.deallocate(world.allocate(100, stream), stream);
  EXPECT_TRUE(is_mapped(ptr));
  world.wait();
  EXPECT_FALSE(is_mapped(ptr));
  EXPECT_EQ(world.statistics().guarded_bytes, 0u);
}

TEST_F(Guard, freed_memory_goes_although_a_stream_that_used_it_never_calls_again) {
  const DevicePtr ptr = world.allocate(3000, stream);
  EXPECT_TRUE(world.pool().record_use(ptr, other).ok());
  EXPECT_TRUE(world.pool().streams().make_wait(other, stream).ok());
  world.use(ptr, 3000, other, kLongNs);
  world.deallocate(ptr, stream);
  for (int i = 0; i < 20; ++i) world.deallocate(world.allocate(100, stream), stream);
  EXPECT_TRUE(is_mapped(ptr)) << "its work is not over";
  world.sim().run_until_idle();
  world.deallocate(world.allocate(100, stream), stream);
  world.deallocate(world.allocate(100, stream), stream);
  EXPECT_FALSE(is_mapped(ptr));
}

TEST_F(Guard, memory_without_a_stream_is_guarded) {
  const DevicePtr ptr = world.allocate(3000, std::nullopt);
  world.use(ptr, 3000, stream, kLongNs);
  world.deallocate(ptr, std::nullopt);
  world.sim().run_until_idle();
  world.allocate(3000, stream);
  world.wait();
  EXPECT_FALSE(is_mapped(ptr));
}

TEST_F(Guard, deferred_frees_and_frees_of_other_streams_end_it) {
  const DevicePtr first = world.allocate(3000, stream);
  const DevicePtr second = world.allocate(3000, stream);
  world.pool().deallocate_deferred(first);
  world.deallocate(second, other);
  world.wait();
  EXPECT_FALSE(is_mapped(first));
  EXPECT_FALSE(is_mapped(second));
}

TEST_F(Guard, a_margin_that_was_overwritten_is_reported_when_it_is_unmapped) {
  const Told told;
  const DevicePtr ptr = world.allocate(1000, stream);
  poke(ptr + 1002, 2);
  world.deallocate(ptr, stream);
  world.wait();
  EXPECT_THAT(told.lines(), HasSubstr("memory beyond an allocation was overwritten: 2 bytes, the "
                                      "first 2 bytes beyond its end; 1000 bytes at 0x"));
  EXPECT_EQ(world.statistics().damaged_allocations, 1u);
  EXPECT_THAT(explained(ptr), HasSubstr("memory beside it was overwritten"));
}

TEST_F(Guard, a_program_that_stays_inside_hears_nothing) {
  const Told told;
  for (int i = 0; i < 40; ++i) {
    const Bytes bytes = 100 + 777 * static_cast<Bytes>(i);
    const DevicePtr ptr = world.allocate(bytes, i % 3 == 0 ? other : stream);
    world.use(ptr, bytes, i % 3 == 0 ? other : stream);
    world.deallocate(ptr, i % 3 == 0 ? other : stream);
  }
  world.wait();
  EXPECT_EQ(told.lines(), "");
  EXPECT_EQ(world.statistics().damaged_allocations, 0u);
  EXPECT_EQ(world.statistics().mappings, world.statistics().chunks);
}

TEST_F(Guard, a_trim_counts_what_it_unmaps) {
  world.allocate(1000, stream);
  std::vector<DevicePtr> all;
  for (int i = 0; i < 20; ++i) all.push_back(world.allocate(1000, stream));
  world.use(all.back(), 1000, stream, 50'000'000);
  for (const DevicePtr ptr : all) world.deallocate(ptr, stream);
  const Bytes held = world.statistics().guarded_bytes;
  world.sim().run_until_idle();
  const Result<Bytes> released = world.pool().limits().trim(0);
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value() + kPage, held);
  EXPECT_EQ(world.statistics().guarded_bytes, kPage) << "of the one that lives";
  EXPECT_EQ(world.statistics().chunks_released, 20u);
}

TEST_F(Guard, a_second_free_names_the_allocation) {
  const DevicePtr ptr = world.allocate(1000, stream);
  world.deallocate(ptr, stream);
  const auto again = world.pool().deallocate(ptr, stream);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("is not a live allocation: 1000 bytes at 0x"));
  EXPECT_THAT(again.error().message, HasSubstr(", freed on stream "));
  world.wait();
  const auto later = world.pool().deallocate(ptr, stream);
  ASSERT_FALSE(later.ok());
  EXPECT_THAT(later.error().message, HasSubstr("1000 bytes at 0x"));
}

TEST_F(Guard, stacks_of_allocation_and_free_are_explained) {
  static constinit std::uint64_t line = 0;
  observe::StackProvider python;
  python.capture = [](void*, std::uint64_t* frames, std::size_t) -> std::size_t {
    *frames = line;
    return line == 0 ? 0 : 1;
  };
  python.describe = [](void*, std::uint64_t frame, const char** file, std::uint64_t* at,
                       const char** function) {
    *file = "train.py";
    *at = frame;
    *function = "step";
  };
  observe::set_stack_provider(python);
  const ScopeExit none([] { observe::set_stack_provider({}); });
  line = 12;
  const DevicePtr ptr = world.allocate(1000, stream);
  EXPECT_THAT(explained(ptr), AllOf(HasSubstr("\n  allocated by\n    train.py:12 step\n"),
                                    Not(HasSubstr("freed by"))));
  line = 13;
  world.deallocate(ptr, stream);
  world.wait();
  EXPECT_THAT(explained(ptr), HasSubstr("\n  allocated by\n    train.py:12 step\n"
                                        "  freed by\n    train.py:13 step\n"));
  line = 0;  // a thread without frames of Python: those of the program
  const DevicePtr native = world.allocate(1000, stream);
  EXPECT_THAT(explained(native), HasSubstr("\n  allocated by\n    " + own_file() + " "));
  world.deallocate(native, stream);
}

TEST_F(Guard, an_address_is_explained_after_the_gpu_failed) {
  const DevicePtr ptr = world.allocate(1000, stream);
  world.break_context();
  EXPECT_FALSE(world.pool().allocate({1000, 0, stream}).ok());
  EXPECT_THAT(explained(ptr + 1000), HasSubstr("beyond the end of an allocation"));
}

TEST_F(Guard, captures_arenas_and_single_chunks_are_not_guarded) {
  pool::Request request{3 * kMiB, 0, stream};
  request.one_chunk = true;
  const auto chunk = world.pool().allocate(request);
  ASSERT_TRUE(chunk.ok());
  const auto arena = world.pool().arenas().create({});
  ASSERT_TRUE(arena.ok());
  request = {1000, 0, stream, arena.value()};
  const auto block = world.pool().allocate(request);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(world.statistics().guarded_allocations, 0u);
  EXPECT_EQ(world.statistics().unguarded_allocations, 2u);
  world.deallocate(chunk.value(), stream);
  world.deallocate(block.value(), stream);
  EXPECT_FALSE(world.pool().sharing().share({world.allocate(1000, stream), 1000}).ok());
}

TEST_F(Guard, a_large_alignment_is_kept_or_not_guarded) {
  const DevicePtr aligned = world.allocate(1000, stream, 64 * kKiB);
  EXPECT_TRUE(is_aligned(aligned, 64 * kKiB));
  EXPECT_EQ(world.statistics().guarded_allocations, 1u);
  const DevicePtr far = world.allocate(1000, stream, 8 * kMiB);
  EXPECT_TRUE(is_aligned(far, 8 * kMiB));
  EXPECT_EQ(world.statistics().unguarded_allocations, 1u);
}

TEST_F(Guard, an_allocation_for_which_the_driver_has_no_pages_is_served_unguarded) {
  world.deallocate(world.allocate(1000, stream), stream);
  world.faults().set_plan({{Call::mem_create}, 1, CuResult::out_of_memory});
  const DevicePtr ptr = world.allocate(1000, stream);
  EXPECT_EQ(world.faults().fired(), 1u);
  EXPECT_EQ(world.statistics().unguarded_allocations, 1u);
  world.use(ptr, 1000, stream);
  world.deallocate(ptr, stream);
}

class GuardWithFewMappings : public Guard {
 protected:
  static WorldOptions options() {
    WorldOptions options = guarded_world();
    options.config.limits.max_mappings = 16;
    return options;
  }
  GuardWithFewMappings() : Guard(options()) {}
};

TEST_F(GuardWithFewMappings, at_the_limit_allocations_are_served_as_usual) {
  std::vector<DevicePtr> live;
  for (int i = 0; i < 40; ++i) live.push_back(world.allocate(1000, stream));
  EXPECT_EQ(world.statistics().guarded_allocations, 14u) << "an eighth is left to others";
  EXPECT_LE(world.statistics().mappings, 17u);
  EXPECT_GT(world.statistics().unguarded_allocations, 20u);
  for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
  world.wait();
  world.allocate(1000, stream);
  EXPECT_EQ(world.statistics().guarded_allocations + world.statistics().unguarded_allocations, 41u);
}

TEST_F(GuardWithFewMappings, the_largest_number_of_mappings_counts_guarded_ones_and_those_beside) {
  for (int i = 0; i < 10; ++i) world.allocate(1000, stream);
  const observe::Statistics now = world.statistics();
  EXPECT_EQ(now.mappings, 10u);
  EXPECT_EQ(now.peak_mappings, 10u);
  EXPECT_EQ(now.chunks, 10u);
  EXPECT_EQ(now.peak_chunks, 10u);
}

class GuardWithLittleMemory : public Guard {
 protected:
  static WorldOptions options() {
    WorldOptions options = guarded_world();
    options.config.limits.capacity = 16 * kMiB;
    options.config.va_size = 64 * kMiB;
    return options;
  }
  GuardWithLittleMemory() : Guard(options()) {}
};

TEST_F(GuardWithLittleMemory, without_room_allocations_share_pages) {
  std::vector<DevicePtr> live;
  for (int i = 0; i < 30; ++i) live.push_back(world.allocate(1000, stream));
  EXPECT_LE(world.statistics().mapped_bytes, 16 * kMiB);
  EXPECT_GT(world.statistics().guarded_allocations, 4u);
  EXPECT_GT(world.statistics().unguarded_allocations, 0u);
  for (const DevicePtr ptr : live) world.deallocate(ptr, stream);
  EXPECT_NE(world.allocate(14 * kMiB, stream), DevicePtr{});
}

TEST_F(GuardWithLittleMemory, addresses_are_used_again_when_all_were_used) {
  std::vector<DevicePtr> seen;
  const DevicePtr kept = world.allocate(1000, stream);
  for (int i = 0; i < 60; ++i) {
    const DevicePtr ptr = world.allocate(1000, stream);
    EXPECT_NE(ptr, kept);
    seen.push_back(ptr);
    world.deallocate(ptr, stream);
    world.wait();
  }
  EXPECT_EQ(world.statistics().unguarded_allocations, 0u);
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[0], seen[13]);
}

class GuardSampled : public Guard {
 protected:
  GuardSampled() : Guard(guarded_world(4)) {}
};

TEST_F(GuardSampled, each_nth_is_guarded_and_others_stay_warm) {
  for (int i = 0; i < 40; ++i) {
    const DevicePtr ptr = world.allocate(1000, stream);
    world.use(ptr, 1000, stream);
    world.deallocate(ptr, stream);
  }
  EXPECT_EQ(world.statistics().guarded_allocations, 10u);
  EXPECT_EQ(world.statistics().unguarded_allocations, 0u);
  EXPECT_EQ(world.statistics().allocations, 40u);
  auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
}

TEST_F(GuardSampled, many_at_once_are_counted_too) {
  std::vector<Bytes> sizes(8, 1000);
  std::vector<DevicePtr> out(8);
  ASSERT_TRUE(world.pool().allocate_many(sizes, stream, out).ok());
  EXPECT_EQ(world.statistics().guarded_allocations, 2u);
  EXPECT_TRUE(world.pool().deallocate_many(out, stream).ok());
}

TEST_F(GuardSampled, a_program_that_tries_first_gets_guarded_ones) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < 40; ++i) {
    const pool::Stream on = i % 2 == 0 ? pool::Stream(stream) : std::nullopt;
    DevicePtr ptr =
        on ? world.pool().allocate_if_ready(1000, 0, *on) : world.pool().allocate_if_ready(1000, 0);
    if (is_null(ptr)) ptr = world.allocate(1000, on);
    all.push_back(ptr);
  }
  EXPECT_EQ(world.statistics().guarded_allocations, 10u);
  for (std::size_t i = 0; i < all.size(); ++i)
    world.deallocate(all[i], i % 2 == 0 ? pool::Stream(stream) : std::nullopt);
}

TEST_F(GuardSampled, whole_pages_that_are_there_are_counted_once) {
  for (const Bytes bytes : {3 * kPage, 9 * kPage}) {
    const std::uint64_t before = world.statistics().guarded_allocations;
    for (int i = 0; i < 40; ++i) world.deallocate(world.allocate(bytes, stream), stream);
    EXPECT_EQ(world.statistics().guarded_allocations - before, 10u) << bytes;
  }
  auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  const std::uint64_t before = world.statistics().guarded_allocations;
  for (int i = 0; i < 40; ++i) {
    const auto ptr = bound.value()->allocate(9 * kPage, 0);
    ASSERT_TRUE(ptr.ok());
    EXPECT_TRUE(bound.value()->deallocate(ptr.value()).ok());
  }
  EXPECT_EQ(world.statistics().guarded_allocations - before, 10u);
}

TEST_F(GuardSampled, whole_pages_for_any_stream_that_are_there_are_counted) {
  for (int i = 0; i < 40; ++i) {
    DevicePtr ptr = world.pool().allocate_if_ready(3 * kPage, 0);
    if (is_null(ptr)) ptr = world.allocate(3 * kPage, std::nullopt);
    world.deallocate(ptr, std::nullopt);
    world.wait();
  }
  EXPECT_EQ(world.statistics().guarded_allocations, 10u);
}

// A free without a stream waits there for the legacy stream alone.
TEST(GuardLegacy, what_the_pool_fills_is_over_when_the_memory_goes) {
  WorldOptions options = guarded_world();
  options.config.streams.any_stream = settings::AnyStreamOrder::legacy;
  PoolWorld world(options);
  const StreamHandle busy = world.stream();
  const DevicePtr other = world.allocate(4096, busy);
  world.use(other, 4096, busy, 50'000'000);
  world.deallocate(world.allocate(1000, busy), std::nullopt);
  world.sim().advance_host_ns(1'000'000);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().damaged_allocations, 0u);
  world.check_hazards();
  world.deallocate(other, busy);
}

class GuardFill : public Guard {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.checks.fill_new = options.config.checks.fill_freed = true;
    return options;
  }
  GuardFill() : Guard(options()) {}
  std::vector<unsigned char> bytes_at(DevicePtr ptr, Bytes count) {
    std::vector<unsigned char> found(count);
    EXPECT_EQ(world.sim().memcpy_device_to_host_async(found.data(), ptr, count, stream),
              CuResult::success);
    world.sim().run_until_idle();
    return found;
  }
};

TEST_F(GuardFill, new_memory_and_freed_memory_hold_the_filling) {
  const std::vector<unsigned char> filling(1000, 0xFF);
  const DevicePtr first = world.allocate(1000, stream);
  EXPECT_EQ(bytes_at(first, 1000), filling);
  poke(first, 1000);
  world.deallocate(first, stream);
  const DevicePtr second = world.allocate(1000, stream);
  EXPECT_EQ(second, first);
  EXPECT_EQ(bytes_at(second, 1000), filling);
  const DevicePtr large = world.allocate(20 * kMiB, stream);
  EXPECT_EQ(bytes_at(large + 19 * kMiB, 1000), filling);
}

// Whatever serves it: a cut page, pages, pages of its own, or the driver's pool.
TEST(Fill, of_freed_memory_is_queued_once_behind_the_work_of_its_stream) {
  for (const auto& change : std::vector<void (*)(settings::Config&)>{
           [](settings::Config&) {},
           [](settings::Config& config) { config.checks.guard_every = 1; },
           [](settings::Config& config) {
             config.small = settings::SmallRequests::stream_ordered;
           }}) {
    WorldOptions options = adaptive_world();
    options.config.checks.fill_freed = true;
    change(options.config);
    PoolWorld world(options);
    const StreamHandle stream = world.stream(), other = world.stream();
    for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 9 * kPage}) {
      for (const StreamHandle freeing : {stream, other}) {
        const DevicePtr ptr = world.allocate(bytes, stream);
        world.use(ptr, bytes, stream, kLongNs);
        const std::uint64_t before = world.calls().count(Call::memset_d8_async);
        world.deallocate(ptr, freeing);
        EXPECT_EQ(world.calls().count(Call::memset_d8_async) - before, freeing == stream ? 1u : 0u)
            << bytes;
      }
    }
  }
}

TEST(GuardedRoom, memory_that_comes_for_a_guarded_block_counts_against_the_capacity) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  options.config.limits.capacity = 32 * kPage;
  HookedWorld world(options);
  const StreamHandle stream = world.stream();
  const auto arena = world.pool->arenas().create({});
  ASSERT_TRUE(arena.ok());
  bool has_come = false;
  bool is_served = false;
  world.hooks.on[Call::mem_create] = [&] {
    if (!std::exchange(has_come, true))
      world.on_another_thread([&] {
        is_served = world.pool->allocate({25 * kPage, 0, std::nullopt, arena.value()}).ok();
      });
    return CuResult::success;
  };
  world.allocate(8 * kPage, stream);
  EXPECT_TRUE(has_come);
  EXPECT_FALSE(is_served);
  EXPECT_LE(world.statistics().peak_mapped_bytes, 32 * kPage);
}

TEST(GuardedRoom, of_a_block_that_could_not_be_made_is_the_pools_again) {
  WorldOptions options = guarded_world();
  options.config.limits.capacity = 16 * kPage;
  HookedWorld world(options);
  bool is_refused = false;
  world.hooks.on[Call::mem_create] = [&] {
    return std::exchange(is_refused, true) ? CuResult::success : CuResult::out_of_memory;
  };
  world.allocate(9 * kPage, world.stream());
  EXPECT_TRUE(is_refused);
  EXPECT_EQ(world.statistics().guarded_bytes, 0u);
  EXPECT_EQ(world.statistics().live_bytes, 9 * kPage);
}

// Of all of it, although a call unmaps a bounded number otherwise.
TEST(GuardedRoom, a_request_that_is_short_waits_for_guarded_memory_that_was_freed) {
  WorldOptions options = guarded_world();
  options.sim.capacity = 40 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  std::vector<DevicePtr> guarded;
  for (int i = 0; i < 24; ++i) guarded.push_back(world.allocate(1000, stream));
  for (const DevicePtr ptr : guarded) {
    world.use(ptr, 1000, stream, kLongNs);
    world.deallocate(ptr, stream);
  }
  ASSERT_EQ(world.statistics().guarded_bytes, 24 * kPage);
  world.use(world.allocate(38 * kPage, stream), 38 * kPage, stream);
  EXPECT_EQ(world.statistics().guarded_bytes, 0u);
  EXPECT_GT(world.statistics().host_waits, 0u);
}

TEST(GuardedRoom, a_free_inside_a_guarded_block_is_a_mistake) {
  WorldOptions options = adaptive_world();
  options.config.checks.guard_every = 1;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4096, stream);
  expect_error(world.pool().deallocate(ptr + 256, stream), ErrorCode::invalid_pointer,
               {"points inside"});
  world.use(ptr, 4096, stream);
  world.deallocate(ptr, stream);
}

TEST_F(Guard, the_layout_says_that_what_could_not_be_unmapped_is_complete) {
  const DevicePtr ptr = world.allocate(1000, stream);
  world.use(ptr, 1000, stream, kLongNs);
  world.deallocate(ptr, stream);
  world.sim().run_until_idle();
  world.faults().set_plan({{Call::mem_unmap}, 1, CuResult::invalid_value});
  const DevicePtr next = world.allocate(1000, stream);
  world.faults().clear_plan();
  EXPECT_TRUE(is_mapped(ptr));
  std::size_t freed = 0;
  for (const report::LayoutBlock& block : world.pool().reports().layout().blocks) {
    if (block.range.contains(next)) continue;
    ++freed;
    EXPECT_EQ(block.state, region::RegionState::zombie);
    EXPECT_TRUE(block.is_complete);
    EXPECT_EQ(block.stream_id, 0u) << "no stream holds it up";
  }
  EXPECT_EQ(freed, 1u);
  world.deallocate(next, stream);
  EXPECT_FALSE(is_mapped(ptr));
}

// Whichever call unmaps it, the next one is refused, and no driver call is made any more.
TEST(GuardBroken, breaks_the_pool_when_freed_memory_is_unmapped) {
  const std::function<void(context::Context&)> acts[] = {
      [](context::Context& pool) {
        expect_error(pool.allocate({1000, 0, std::nullopt}), ErrorCode::poisoned);
      },
      [](context::Context& pool) {
        expect_error(pool.streams().synchronize(), ErrorCode::poisoned);
      },
      [](context::Context& pool) { expect_error(pool.limits().trim(0), ErrorCode::poisoned); }};
  for (const auto& act : acts) {
    HookedWorld world(guarded_world());
    const StreamHandle stream = world.stream();
    world.allocate(1000, stream);
    world.deallocate(world.allocate(1000, stream), stream);
    ASSERT_EQ(world.sim.ctx_synchronize(), CuResult::success);
    world.hooks.on[Call::mem_unmap] = [] { return CuResult::illegal_address; };
    const std::uint64_t before = world.hooks.counts[Call::mem_unmap];
    act(*world.pool);
    EXPECT_EQ(world.hooks.counts[Call::mem_unmap], before + 1);
    const std::uint64_t calls = world.calls.total_count();
    expect_error(world.pool->allocate({1000, 0, stream}), ErrorCode::poisoned);
    EXPECT_EQ(world.calls.total_count(), calls);
  }
}

TEST_F(Guard, a_free_tells_of_a_guarded_allocation_only_in_its_pages) {
  const DevicePtr ptr = world.allocate(1000, stream);
  const DevicePtr behind = align_up(ptr + 1000, 2 * kMiB);
  world.deallocate(ptr, stream);
  expect_error(world.pool().deallocate(ptr, stream), ErrorCode::invalid_pointer,
               {hex(ptr) + " is not a live allocation: ", "1000"});
  for (const DevicePtr elsewhere : {behind, DevicePtr{256}})
    expect_error(world.pool().deallocate(elsewhere, stream), ErrorCode::invalid_pointer,
                 {hex(elsewhere) + " is not a live allocation of this pool", "from elsewhere"});
}

}  // namespace
}  // namespace vpmm::test
