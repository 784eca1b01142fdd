// SPDX-License-Identifier: Apache-2.0
// pool: calls of a pool one by one: what they take, what they leave, and what they count.
#include "pool/pool.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pool/no_host_memory.hpp"
#include "pool/pool_calls.hpp"

namespace vpmm::pool {
namespace {

// --- requests

TEST(PlainRequest, _it_names_nothing_but_size_alignment_and_stream) {
  Request plain{kPage, kPage, driver::StreamHandle{}};
  EXPECT_TRUE(plain.is_plain());
  EXPECT_EQ(plain.stack + plain.guard_stack, 0u);
  plain.stack = plain.guard_stack = 1;  // of a recording, or guard mode
  EXPECT_TRUE(plain.is_plain());
  Request other = plain;
  other.tag = 1;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.library = 1;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.one_chunk = true;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.arena = ArenaId{1};
  EXPECT_FALSE(other.is_plain());
}

TEST_F(PoolCalls, a_request_that_free_memory_fits_is_served_without_a_plan) {
  open();
  const DevicePtr first = take(2, a);
  EXPECT_EQ(figures().plans, 1u);
  give_back(first);
  const std::optional<Placed> found = pool->find(request(2), a);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, first);
  EXPECT_TRUE(found->is_complete);
  EXPECT_EQ(region_of(first)->owner.timeline, a.timeline->id);
  give_back(first);
  const Result<Answer> mapped = pool->map(lock, request(2), a, Effort::by_policy, 0);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(std::get<Placed>(mapped.value()).begin, first) << "it was freed meanwhile";
  EXPECT_EQ(figures().plans, 1u);
  EXPECT_EQ(figures().hits, 2u);
  EXPECT_EQ(figures().allocations, 3u);
  EXPECT_EQ(figures().deallocations, 2u);
  EXPECT_FALSE(pool->find(request(1), a));
}

TEST_F(PoolCalls, memory_that_the_own_stream_still_uses_is_not_complete) {
  open();
  give_back_pending(take(2, a), a, Closed::yes);
  const std::optional<Placed> found = pool->find(request(2), a);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_complete);
}

TEST_F(PoolCalls, memory_that_others_still_use_is_found_behind_a_wait) {
  open();
  const DevicePtr ptr = take(2, b);
  give_back_pending(ptr, b, Closed::yes);
  EXPECT_FALSE(pool->find(request(2), a));
  const auto found = pool->find_waiting(request(2), a, Effort::by_policy);
  ASSERT_TRUE(found.ok() && found.value());
  EXPECT_EQ(found.value()->begin, ptr);
  EXPECT_EQ(figures().gpu_waits, 1u);
  const auto none = pool->find_waiting(request(2), a, Effort::by_policy);
  EXPECT_TRUE(none.ok() && !none.value());
}

TEST_F(PoolCalls, memory_of_a_capture_is_named_after_it) {
  open();
  Caller capturing = a;
  capturing.standing = Standing::capturing;
  capturing.capture = 7;
  EXPECT_EQ(region_of(take(1, capturing))->owner.capture, 7u);
  EXPECT_EQ(region_of(take(1, a))->owner.capture, 0u);
}

TEST_F(PoolCalls, beyond_the_limit_of_mappings_a_request_is_one_chunk) {
  config.limits.max_mappings = 4;
  open();
  take(2, a);
  take(2, a);
  EXPECT_EQ(figures().chunks, 4u) << "the limit itself is allowed";
  take(2, a);
  EXPECT_EQ(figures().chunks, 5u);
}

TEST_F(PoolCalls, mappings_beside_the_pool_count_against_the_limit) {
  config.limits.max_mappings = 6;
  open();
  pool->set_others({2 * kPage, 2});
  take(2, a);
  take(2, a);
  EXPECT_EQ(figures().chunks, 4u);
  take(2, a);
  EXPECT_EQ(figures().chunks, 5u) << "one chunk";
  EXPECT_EQ(figures().peak_mappings, 7u);
  EXPECT_EQ(figures().peak_chunks, 7u);
}

TEST_F(PoolCalls, what_comes_back_is_counted) {
  open();
  const DevicePtr first = take(1, a), second = take(1, a);
  const std::uint64_t before = pool->returned();
  give_back(first);
  EXPECT_EQ(pool->returned(), before + 1);
  give_back_pending(second, a, Closed::yes);
  EXPECT_EQ(pool->returned(), before + 2);
  see_done();
  EXPECT_EQ(pool->returned(), before + 3) << "and again once its work is done";
}

TEST_F(PoolCalls, a_broken_context_is_told_when_the_driver_is_asked_for_free_memory) {
  open();
  driver.on[Call::mem_get_info] = [] { return CuResult::illegal_address; };
  const Result<DevicePtr> refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::poisoned);
  driver.on[Call::mem_get_info] = [] { return CuResult::unknown; };
  EXPECT_TRUE(allocate(1, a).ok()) << "without an answer, a plan shows what there is";
  driver.on.clear();
}

TEST_F(PoolCalls, all_that_is_free_is_created_without_a_try) {
  open();
  take(1, a);
  take(999, a);
  EXPECT_EQ(driver.counts[Call::mem_create], 1000u);
  EXPECT_EQ(driver.counts[Call::mem_release], 0u);
}

TEST_F(PoolCalls, memory_can_be_exported_as_long_as_the_driver_makes_it_for_that) {
  open();
  EXPECT_FALSE(pool->can_export()) << "nobody asked for it";
  driver::ChunkProperties properties;
  properties.posix_file_descriptor = true;
  pool->release_everything();
  pool = std::make_unique<Pool>(driver, properties, config, kPage, timelines);
  EXPECT_TRUE(pool->can_export());
  int calls = 0;
  driver.on[Call::mem_create] = [&] {
    return ++calls == 1 ? CuResult::not_supported : CuResult::success;
  };
  take(1, a);
  driver.on.clear();
  EXPECT_FALSE(pool->can_export());
}

TEST_F(PoolCalls, the_drivers_error_is_that_of_the_request) {
  open();
  driver.on[Call::mem_create] = [] { return CuResult::unknown; };
  const Result<DevicePtr> refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::driver_failed);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("mem_create"));
  driver.on.clear();
}

// An old address of memory that the own stream has freed is unmapped once the stream's work is
// done, so an event is recorded behind that work, where there is none.
TEST_F(PoolCalls, memory_that_moves_behind_own_work_has_an_event) {
  for (const Closed closed : {Closed::no, Closed::yes}) {
    open();
    const DevicePtr first = take(1, a);
    take(1, a);
    const DevicePtr second = take(1, a);
    take(1, a);
    give_back_pending(first, a, closed);
    give_back_pending(second, a, closed);
    const std::uint64_t events = driver.counts[Call::event_record];
    take(2, a);
    EXPECT_EQ(driver.counts[Call::event_record], events + (closed == Closed::no ? 1 : 0));
    ASSERT_EQ(figures().zombie_bytes, 2 * kPage);
    see_done();
    ASSERT_TRUE(pool->settle(lock).ok());
    EXPECT_EQ(figures().zombie_bytes, 0u);
  }
}

TEST_F(PoolCalls, memory_that_moves_without_an_event_asks_its_stream_for_one_later) {
  open();
  const DevicePtr first = take(1, a);
  take(1, a);
  const DevicePtr second = take(1, a);
  take(1, a);
  for (const DevicePtr ptr : {first, second}) give_back_pending(ptr, a, Closed::no);
  driver.on[Call::event_record] = [] { return CuResult::unknown; };
  take(2, a);
  driver.on.clear();
  EXPECT_EQ(figures().chunks_moved, 2u);
  EXPECT_TRUE(a.timeline->wanted);
  sim.run_until_idle();
}

TEST_F(PoolCalls, memory_of_others_that_moves_needs_no_event_of_the_caller) {
  open();
  every_other_of(4);
  const std::uint64_t events = driver.counts[Call::event_record];
  take(2, Caller{});
  EXPECT_EQ(figures().chunks_moved, 2u);
  EXPECT_EQ(driver.counts[Call::event_record], events);
}

// --- allocations that change hands

TEST_F(PoolCalls, memory_that_is_passed_on_keeps_its_place_and_has_another_stream) {
  open();
  const DevicePtr ptr = take(2, a);
  ASSERT_EQ(a.timeline->references, 1u);
  const observe::Statistics before = figures();
  EXPECT_EQ(pool->pass_on(region_of(ptr), {kPage, 2 * kPage, kPage}, b), nullptr);
  EXPECT_EQ(region_of(ptr)->owner.timeline, b.timeline->id);
  EXPECT_EQ(a.timeline->references, 0u);
  EXPECT_EQ(b.timeline->references, 1u);
  EXPECT_EQ(figures().live_bytes, kPage) << "as the next user said";
  EXPECT_EQ(figures().allocations, before.allocations + 1);
  EXPECT_EQ(figures().deallocations, before.deallocations + 1);
  EXPECT_EQ(figures().hits, before.hits + 1);
  give_back(ptr);
  EXPECT_EQ(b.timeline->references, 0u);
}

TEST_F(PoolCalls, memory_that_is_passed_on_in_part_leaves_its_rest_to_the_owner) {
  open();
  const DevicePtr ptr = take(3, a);
  time::add_use(region_of(ptr)->owner.other_uses, *b.timeline);
  const observe::Statistics before = figures();
  region::Region* const rest = pool->pass_on(region_of(ptr), {kPage - 1, kPage, kPage}, b);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(picture(), "[1][2]");
  EXPECT_EQ(region_of(ptr + kPage), rest);
  EXPECT_EQ(rest->owner.timeline, a.timeline->id);
  EXPECT_EQ(a.timeline->references, 1u);
  EXPECT_EQ(b.timeline->references, 2u) << "of the front, and of the use of the rest";
  EXPECT_EQ(figures().live_bytes, before.live_bytes - 1);
  EXPECT_EQ(figures().allocations, before.allocations + 1);
  EXPECT_EQ(figures().deallocations, before.deallocations);
  EXPECT_EQ(pool->memory().validate(), "");
  give_back(ptr);
  give_back(ptr + kPage);
  EXPECT_EQ(a.timeline->references + b.timeline->references, 0u);
}

TEST_F(SharedChunks,
       a_request_is_served_from_the_front_of_memory_that_is_large_enough_and_aligned) {
  open();
  const region::Region& region = *region_of(take(6, a));
  for (const Bytes pages : {1u, 3u, 6u})
    EXPECT_EQ(pool->front_for(region, request(pages)), pages * kPage);
  EXPECT_EQ(pool->front_for(region, request(7)), 0u);
  PageRequest aligned = request(3);
  const Bytes begin = to_integer(region.range.begin);
  aligned.alignment = begin & (~begin + 1);
  EXPECT_EQ(pool->front_for(region, aligned), 3 * kPage);
  aligned.alignment *= 2;
  EXPECT_EQ(pool->front_for(region, aligned), 0u);
}

TEST_F(SharedChunks,
       own_chunks_serve_a_request_from_their_front_whole_and_at_most_an_eighth_larger) {
  open();
  const auto take_own = [&](Bytes pages, Chunks chunks) {
    PageRequest own = request(pages);
    own.chunks = chunks;
    const Result<Answer> answer = pool->map(lock, own, a, Effort::by_policy, 0);
    return region_of(std::get<Placed>(answer.value()).begin);
  };
  const region::Region* const fours = take_own(12, Chunks::own);
  ASSERT_EQ(pool->memory().chunks.inside(fours->range).size(), 3u);
  const region::Region* const nine = take_own(9, Chunks::one);
  ASSERT_EQ(pool->memory().chunks.inside(nine->range).size(), 1u);
  const struct {
    const region::Region* region;
    Bytes pages, served;
  } cases[] = {{fours, 12, 12}, {fours, 11, 12}, {fours, 10, 0}, {fours, 8, 8}, {fours, 7, 0},
               {fours, 4, 4},   {fours, 13, 0},  {nine, 9, 9},   {nine, 8, 9},  {nine, 7, 0}};
  for (const auto& each : cases) {
    PageRequest own = request(each.pages);
    own.chunks = Chunks::own;
    EXPECT_EQ(pool->front_for(*each.region, own), each.served * kPage) << each.pages;
  }
}

TEST_F(SharedChunks, memory_that_is_united_is_one_allocation) {
  open();
  const DevicePtr ptr = take(3, a);
  time::add_use(region_of(ptr)->owner.other_uses, *b.timeline);
  pool->divide(region_of(ptr), ptr + kPage);
  EXPECT_EQ(a.timeline->references, 2u);
  EXPECT_EQ(b.timeline->references, 2u);
  const observe::Statistics before = figures();
  region::Region* const whole = pool->unite(region_of(ptr));
  EXPECT_EQ(picture(), "[3][-1]");
  EXPECT_EQ(whole, region_of(ptr + 2 * kPage));
  EXPECT_EQ(a.timeline->references, 1u);
  EXPECT_EQ(b.timeline->references, 1u);
  EXPECT_EQ(figures().live_bytes, before.live_bytes);
  EXPECT_EQ(figures().deallocations, before.deallocations + 1);
  EXPECT_EQ(pool->memory().validate(), "");
  give_back(ptr);
  EXPECT_EQ(figures().trapped_bytes, 0u);
}

TEST_F(PoolCalls, memory_that_is_disowned_keeps_no_stream_alive) {
  open();
  const DevicePtr ptr = take(2, a);
  pool->disown(region_of(ptr));
  EXPECT_EQ(region_of(ptr)->owner.timeline, std::nullopt);
  EXPECT_EQ(a.timeline->references, 0u);
  give_back(ptr);
  EXPECT_EQ(a.timeline->references, 0u);
}

TEST_F(SharedChunks, memory_that_is_divided_is_two_allocations) {
  open();
  PageRequest owned = request(3);
  owned.chunks = Chunks::own;
  const Result<Answer> mapped = pool->map(lock, owned, a, Effort::by_policy, 0);
  ASSERT_TRUE(mapped.ok());
  region::Region* const front = region_of(std::get<Placed>(mapped.value()).begin);
  pool->disown(front);
  const observe::Statistics before = figures();
  region::Region* const behind = pool->divide(front, front->range.begin + kPage);
  EXPECT_EQ(picture(), "[1][2]");
  EXPECT_EQ(behind->range.begin, front->range.end());
  EXPECT_TRUE(front->has_own_chunks && behind->has_own_chunks);
  EXPECT_EQ(figures().allocations, before.allocations + 1);
  front->has_own_chunks = behind->has_own_chunks = false;  // they share one
  EXPECT_EQ(pool->memory().validate(), "") << "which counts what is used of each chunk";
  pool->deallocate(behind, {});
  EXPECT_EQ(figures().trapped_bytes, 2 * kPage);
  pool->deallocate(front, {});
  EXPECT_EQ(figures().trapped_bytes, 0u);
}

// --- figures

TEST_F(PoolCalls, peaks_are_those_since_the_last_reset) {
  open();
  give_back(take(5, a));
  trimmed_to(2);
  const auto peaks = [this] {
    const observe::Statistics seen = figures();
    return std::vector<std::uint64_t>{seen.peak_mapped_bytes / kPage, seen.peak_chunks,
                                      seen.peak_mappings};
  };
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{5, 5, 5}));
  pool->reset_peaks();
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{2, 2, 2}));
  pool->set_others({kPage, 0});
  take(3, a);
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{4, 3, 3})) << "other memory counts, too";
  every_other_of(4);
  take(2, a);
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{8, 7, 9})) << "two chunks have two mappings";
}

TEST_F(SharedChunks, figures_name_each_kind_of_memory) {
  config.va_size = 40 * kPage;
  open();
  const DevicePtr first = take(2, a);
  take(1, a);
  give_back(take(4, a));
  give_back_pending(first, b, Closed::yes);
  const observe::Statistics seen = figures();
  EXPECT_EQ(seen.mapped_bytes, 8 * kPage);
  EXPECT_EQ(seen.live_bytes, kPage);
  EXPECT_EQ(seen.allocated_bytes, kPage);
  EXPECT_EQ(seen.free_bytes, 7 * kPage);
  EXPECT_EQ(seen.trapped_bytes, 3 * kPage) << "of the chunk that is used in part";
  EXPECT_EQ(seen.pending_bytes, 2 * kPage);
  EXPECT_EQ(seen.largest_free_bytes, 5 * kPage);
  EXPECT_EQ(seen.reserved_bytes, 40 * kPage);
  EXPECT_EQ(seen.hole_bytes, 32 * kPage);
  EXPECT_EQ(seen.live_allocations, 1u);
  EXPECT_EQ(seen.free_regions, 2u);
  EXPECT_EQ(seen.chunks, 2u);
  EXPECT_EQ(seen.mappings, 2u);
  sim.run_until_idle();
}

TEST_F(SharedChunks, memory_could_move_if_all_allocations_in_its_chunk_were_idle) {
  open();
  const DevicePtr first = take(2, a), second = take(2, a), third = take(6, a);
  ASSERT_EQ(picture(), "[2][2][6][-2]");
  const auto movable = [&](const std::vector<DevicePtr>& idle) {
    const Bytes bytes =
        pool->memory().movable_bytes([&](const region::Region& region, AddressRange part) {
          EXPECT_TRUE(region.range.contains(part));
          EXPECT_LE(part.size, 4 * kPage);
          return std::find(idle.begin(), idle.end(), region.range.begin) != idle.end();
        });
    EXPECT_EQ(bytes % kPage, 0u);
    return bytes / kPage;
  };
  EXPECT_EQ(movable({}), 0u);
  EXPECT_EQ(movable({first}), 0u);
  EXPECT_EQ(movable({second}), 0u);
  EXPECT_EQ(movable({first, second}), 4u);
  EXPECT_EQ(movable({third}), 8u) << "the rest of its last chunk is free";
  EXPECT_EQ(movable({first, second, third}), 12u);
  take(2, a);
  give_back(third);
  EXPECT_EQ(movable({}), 4u);
  EXPECT_EQ(movable({first, second}), 8u);
  take(10, a);
  ASSERT_EQ(picture(), "[2][2][~4][-2][2][10][-2]");
  EXPECT_EQ(movable({first, second}), 4u) << "an old address counts for nothing";
}

// --- the end

TEST_F(SharedChunks, at_the_end_each_mapping_is_unmapped_once_and_all_address_space_is_freed) {
  config.va_size = 16 * kPage;
  open();
  for (int i = 0; i < 20; ++i) take(1, a);
  ASSERT_EQ(pool->memory().reservations.size(), 2u);
  ASSERT_EQ(figures().mappings, 5u);
  pool->release_everything();
  EXPECT_EQ(driver.counts[Call::mem_unmap], 5u);
  EXPECT_EQ(driver.counts[Call::mem_release], 5u);
  EXPECT_EQ(driver.counts[Call::mem_address_free], 2u);
  EXPECT_EQ(sim.census().reservations, 0u);
  EXPECT_EQ(figures().mapped_bytes + figures().reserved_bytes, 0u);
  open();
}

TEST_F(PoolCalls, at_the_end_without_host_memory_all_is_left_to_the_system) {
  open();
  take(3, a);
  {
    const NoReserve none;
    pool->release_everything();
  }
  for (const Call call : {Call::mem_unmap, Call::mem_release, Call::mem_address_free})
    EXPECT_EQ(driver.counts[call], 0u) << to_string(call);
  EXPECT_EQ(figures().mapped_bytes, 3 * kPage);
  EXPECT_EQ(host_reserve::used(), 0u);
}

TEST_F(PoolCalls, at_the_end_address_space_with_memory_in_it_is_not_freed) {
  open();
  take(1, a);
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  pool->release_everything();
  EXPECT_EQ(driver.counts[Call::mem_address_free], 0u) << "the driver would refuse it";
  driver.on.clear();
}

}  // namespace
}  // namespace vpmm::pool
