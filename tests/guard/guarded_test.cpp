// SPDX-License-Identifier: Apache-2.0
// guard tests: addresses, pages and figures of guarded allocations, from begin to end.
#include <thread>

#include "guard/guard_world.hpp"

namespace vpmm::guard {
namespace {

using testing::HasSubstr;

TEST_F(GuardedTest, pages_hold_an_allocation_unless_its_alignment_is_larger) {
  struct Case {
    Bytes bytes, alignment, pages;
  };
  for (const Case& each : {Case{1, 0, kPage}, Case{kPage, 0, kPage}, Case{kPage + 1, 0, 2 * kPage},
                           Case{9 * kPage, 4, 9 * kPage}, Case{1000, 64 * kKiB, kPage},
                           Case{1000, kPage, kPage}, Case{1000, 2 * kPage, 0}})
    EXPECT_EQ(guarded.pages_for(each.bytes, each.alignment), each.pages)
        << each.bytes << " at " << each.alignment;
}

TEST_F(GuardedTest, takes_address_space_with_the_first_allocation) {
  EXPECT_EQ(guarded.reserved_bytes(), 0u);
  EXPECT_FALSE(guarded.may_hold(DevicePtr{4096}));
  EXPECT_FALSE(guarded.owns_part_of({DevicePtr{4096}, kTiB}));
  EXPECT_EQ(sim.census().reservations, 0u);
  const DevicePtr ptr = allocate(1000);
  EXPECT_EQ(guarded.reserved_bytes(), 64 * kGiB);
  const DevicePtr begin = around(ptr)->slot.begin - kPage;  // no page before the first slot
  const DevicePtr end = begin + 64 * kGiB;
  for (const DevicePtr inside : {begin, ptr, end - 1}) {
    EXPECT_TRUE(guarded.may_hold(inside));
    EXPECT_TRUE(guarded.owns_part_of({inside, 1}));
  }
  for (const DevicePtr outside : {begin - 1, end}) {
    EXPECT_FALSE(guarded.may_hold(outside));
    EXPECT_FALSE(guarded.owns_part_of({outside, 1}));
  }
  EXPECT_TRUE(guarded.owns_part_of({begin - 1, 2}));
  allocate(1000);
  EXPECT_EQ(sim.census().reservations, 1u);
  EXPECT_EQ(calls.count(Call::stream_create), 1u);
}

TEST_F(GuardedTest, lies_at_the_end_of_its_pages_with_as_many_unmapped_ones_behind) {
  struct Case {
    Bytes bytes, alignment, pages, gap;
  };
  DevicePtr reached{};
  for (const Case& each :
       {Case{1, 0, kPage, kPage}, Case{1000, 0, kPage, kPage}, Case{4096, 16, kPage, kPage},
        Case{kPage, 0, kPage, kPage}, Case{kPage + 4, 0, 2 * kPage, 2 * kPage},
        Case{1000, 64 * kKiB, kPage, kPage}, Case{1000, kPage, kPage, kPage},
        Case{9 * kMiB, 0, 5 * kPage, 5 * kPage}, Case{300 * kMiB, 0, 300 * kMiB, 256 * kMiB}}) {
    const DevicePtr ptr = allocate(each.bytes, std::nullopt, each.alignment);
    const Block* const block = around(ptr);
    ASSERT_NE(block, nullptr);
    const Bytes alignment = std::max<Bytes>(each.alignment, 256);
    EXPECT_EQ(block->range, (AddressRange{ptr, each.bytes}));
    EXPECT_TRUE(is_aligned(ptr, alignment));
    EXPECT_LT(block->mapped.end() - block->range.end(), alignment) << "as near as it may be";
    EXPECT_EQ(block->mapped, (AddressRange{block->slot.begin, each.pages}));
    EXPECT_EQ(block->slot.size, each.pages + each.gap);
    EXPECT_TRUE(is_aligned(block->slot.begin, kPage));
    AddressRange mapped;
    EXPECT_EQ(sim.mem_get_address_range(ptr, mapped), CuResult::success);
    EXPECT_EQ(mapped, block->mapped);
    EXPECT_FALSE(is_mapped(block->mapped.end()));
    EXPECT_FALSE(is_mapped(block->mapped.begin - 1));
    EXPECT_TRUE(is_null(reached) || block->slot.begin == reached) << "the next addresses";
    reached = block->slot.end();
  }
}

TEST_F(GuardedTest, counts_what_is_live_mapped_and_made) {
  const StreamHandle a = stream();
  EXPECT_EQ(figures(),
            "0 of 0 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, 0 chunks of 0 "
            "released; 0 unguarded, 0 damaged");
  const DevicePtr first = allocate(1000, a);
  const DevicePtr second = allocate(kPage + 1);
  EXPECT_EQ(figures(),
            "2 of 2 live, 2098153 bytes in 6144 KiB; 6144 KiB in 2 mappings, 0 chunks "
            "of 2 released; 0 unguarded, 0 damaged");
  EXPECT_FALSE(guarded.has_freed());
  free(second);
  EXPECT_EQ(figures(),
            "1 of 2 live, 1000 bytes in 2048 KiB; 6144 KiB in 2 mappings, 0 chunks of "
            "2 released; 0 unguarded, 0 damaged");
  EXPECT_TRUE(guarded.has_freed());
  prove();
  settle();
  EXPECT_EQ(figures(),
            "1 of 2 live, 1000 bytes in 2048 KiB; 2048 KiB in 1 mappings, 1 chunks of "
            "2 released; 0 unguarded, 0 damaged");
  EXPECT_FALSE(guarded.has_freed());
  guarded.count_unguarded();
  end(first, a);
  EXPECT_EQ(figures(),
            "0 of 2 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, 2 chunks of 2 "
            "released; 1 unguarded, 0 damaged");
  EXPECT_EQ(sim.census().chunks, 0u);
}

TEST_F(GuardedTest, a_block_says_when_by_which_stream_and_from_where_it_came_and_went) {
  const StreamHandle a = stream(), b = stream();
  pool::Request request{1000, 0, a, {}, 7};
  request.guard_stack = 5;
  sim.advance_host_ns(1'000'000);
  const std::uint64_t before = sim.now_ns();
  const DevicePtr ptr = try_allocate(request).value();
  const Block* const block = around(ptr);
  EXPECT_EQ(block->stage, Block::Stage::live);
  EXPECT_EQ(block->number, 1u);
  EXPECT_EQ(block->tag, 7u);
  EXPECT_EQ(block->timeline, of(a).id);
  EXPECT_GE(block->allocated.at_ns, before);
  EXPECT_LE(block->allocated.at_ns, sim.now_ns());
  EXPECT_EQ(block->allocated.stream, of(a).stream);
  EXPECT_EQ(block->allocated.stack, 5u);
  EXPECT_EQ(block->freed.at_ns, 0u);
  EXPECT_EQ(block->freed.stream, std::nullopt);
  sim.advance_host_ns(1'000'000);
  free(ptr, b, 9);
  EXPECT_EQ(block->stage, Block::Stage::freed);
  EXPECT_GE(block->freed.at_ns, before + 1'000'000);
  EXPECT_EQ(block->freed.stream, of(b).stream);
  EXPECT_EQ(block->freed.stack, 9u);
  EXPECT_TRUE(of(b).wanted) << "an event at its next call";
  EXPECT_FALSE(of(a).wanted);
  prove();
  settle();
  EXPECT_EQ(block->stage, Block::Stage::gone);
  const Block* const next = around(allocate(1000));
  EXPECT_EQ(next->number, 2u);
  EXPECT_EQ(next->timeline, std::nullopt);
  EXPECT_EQ(next->allocated.stream, std::nullopt);
}

TEST_F(GuardedTest, holds_the_timelines_of_its_streams_while_it_is_live) {
  const StreamHandle a = stream(), b = stream();
  const DevicePtr ptr = allocate(1000, a);
  EXPECT_EQ(of(a).references, 1u);
  time::add_use(guarded.live_around(ptr)->other_uses, of(b));
  EXPECT_EQ(of(b).references, 1u);
  free(ptr, a);
  EXPECT_EQ(of(a).references, 0u);
  EXPECT_EQ(of(b).references, 0u);
}

TEST_F(GuardedTest, is_found_by_the_addresses_of_its_user_while_it_is_live) {
  EXPECT_EQ(guarded.live_around(DevicePtr{4096}), nullptr);
  const DevicePtr first = allocate(1000);
  const DevicePtr second = allocate(kPage);
  for (const auto& [ptr, bytes] : {std::pair(first, Bytes{1000}), std::pair(second, kPage)}) {
    Block* const block = guarded.live_around(ptr);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(block->range.begin, ptr);
    EXPECT_EQ(guarded.live_around(ptr + bytes - 1), block);
    EXPECT_EQ(guarded.live_around(ptr + bytes), nullptr);
    EXPECT_EQ(guarded.live_around(ptr - 1), nullptr);
  }
  free(first);
  EXPECT_EQ(guarded.live_around(first), nullptr);
}

TEST_F(GuardedTest, is_known_by_its_slot_dead_or_alive) {
  EXPECT_EQ(around(DevicePtr{4096}), nullptr);
  EXPECT_EQ(guarded.known_behind(DevicePtr{4096}), nullptr);
  const DevicePtr first = allocate(1000), second = allocate(1000);
  for (const bool is_freed : {false, true}) {
    if (is_freed) end(first);
    const Block* const block = around(first);
    ASSERT_NE(block, nullptr);
    const AddressRange slot = block->slot;
    EXPECT_TRUE(slot.contains(first));
    for (const DevicePtr in : {slot.begin, slot.end() - 1}) EXPECT_EQ(around(in), block);
    EXPECT_EQ(around(slot.begin - 1), nullptr);
    EXPECT_EQ(around(slot.end()), around(second));
    EXPECT_EQ(around(around(second)->slot.end()), nullptr);
    EXPECT_EQ(guarded.known_behind(slot.begin - 1), block);
    EXPECT_EQ(guarded.known_behind(slot.begin), around(second));
    EXPECT_EQ(guarded.known_behind(slot.end()), nullptr);
  }
}

TEST_F(GuardedTest, the_newest_are_listed_first) {
  for (int i = 0; i < 4; ++i) allocate(1000);
  const auto numbers = [&](std::size_t most) {
    std::vector<std::uint64_t> found;
    for (const Block* const block : guarded.newest(most)) found.push_back(block->number);
    return found;
  };
  EXPECT_EQ(numbers(0), std::vector<std::uint64_t>{});
  EXPECT_EQ(numbers(2), (std::vector<std::uint64_t>{4, 3}));
  EXPECT_EQ(numbers(5), (std::vector<std::uint64_t>{4, 3, 2, 1}));
}

TEST_F(GuardedTest, is_not_known_while_it_comes) {
  const DevicePtr first = allocate(1000);
  const DevicePtr next = around(first)->slot.end();
  bool has_come = false;
  hooks.on[Call::mem_map] = [&] {
    const PoolLock lock(mutex);
    has_come = true;
    EXPECT_EQ(guarded.known_around(next), nullptr);
    EXPECT_EQ(guarded.live_around(next + kPage - 1000), nullptr);
    EXPECT_EQ(guarded.known_behind(first), nullptr);
    EXPECT_EQ(guarded.newest(5).size(), 1u);
    EXPECT_EQ(guarded.validate(), "");
    EXPECT_EQ(guarded.figures().mapped, 2 * kPage) << "counts already";
    EXPECT_EQ(guarded.figures().live, 1u);
    return CuResult::success;
  };
  allocate(1000);
  EXPECT_TRUE(has_come);
  EXPECT_NE(around(next), nullptr);
}

// --- settle

TEST_F(GuardedTest, freed_memory_stays_mapped_until_its_work_is_complete) {
  const StreamHandle a = stream();
  const DevicePtr pending = allocate(1000, a), done = allocate(1000);
  work(a);
  free(pending, a);
  ASSERT_TRUE(timelines.close(of(a), a).ok());
  std::uint64_t before = calls.total_count();
  settle();
  EXPECT_EQ(calls.total_count(), before) << "nothing is complete";
  {
    const PoolLock lock(mutex);
    guarded.free(*guarded.live_around(done), time::Stamp(), caller(std::nullopt));
  }
  settle();
  EXPECT_FALSE(is_mapped(done));
  EXPECT_TRUE(is_mapped(pending));
  EXPECT_TRUE(guarded.has_freed());
  prove();
  settle();
  EXPECT_FALSE(is_mapped(pending));
  EXPECT_FALSE(guarded.has_freed());
  before = calls.total_count();
  settle();
  EXPECT_EQ(calls.total_count(), before) << "nothing is left";
}

TEST_F(GuardedTest, says_once_if_freed_memory_waits_long_for_a_stream_without_an_event) {
  const auto takes = [&] {
    const PoolLock lock(mutex);
    return guarded.takes_lack_of_proof();
  };
  const StreamHandle a = stream(), b = stream();
  const DevicePtr silent = allocate(1000, a), provable = allocate(1000, b);
  work(b);
  free(provable, b);
  ASSERT_TRUE(timelines.close(of(b), b).ok());
  for (int i = 0; i < 20; ++i) settle();
  EXPECT_FALSE(takes());
  free(silent, a);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 7; ++i) settle();
    EXPECT_FALSE(takes());
    settle();
    EXPECT_TRUE(takes());
    EXPECT_FALSE(takes());
  }
}

TEST_F(GuardedTest, settles_as_many_as_it_may_the_oldest_first) {
  std::vector<DevicePtr> all;
  for (int i = 0; i < 40; ++i) all.push_back(allocate(1000));
  for (const DevicePtr each : all) free(each);
  prove();
  std::size_t gone = 0;
  for (const std::size_t most :
       {std::size_t{0}, std::size_t{1}, Guarded::kPerCall, std::size_t{17}, Guarded::kAll}) {
    settle(most);
    gone = std::min(all.size(), most == Guarded::kAll ? all.size() : gone + most);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(is_mapped(all[i]), i >= gone) << i << " of " << gone;
  }
  EXPECT_EQ(gone, 40u);
}

// The other thread unmaps meanwhile, without the lock.
TEST_F(GuardedTest, while_a_thread_settles_others_leave_it_alone_or_wait_for_it) {
  for (int i = 0; i < 20; ++i) free(allocate(1000));
  prove();
  std::thread other;
  std::atomic<bool> is_over_there{false};
  Bytes mapped = 0;
  hooks.on[Call::mem_unmap] = [&] {
    if (other.joinable()) return CuResult::success;
    settle(Guarded::kPerCall);
    {
      const PoolLock lock(mutex);
      EXPECT_EQ(guarded.figures().mappings, 20u) << "another batch was begun";
      EXPECT_TRUE(guarded.has_freed());
    }
    other = std::thread([&] {
      EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
      settle(Guarded::kAll);
      const PoolLock lock(mutex);
      mapped = guarded.figures().mapped;
      is_over_there = true;
    });
    for (int i = 0; i < 50 && !is_over_there; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return CuResult::success;
  };
  settle(Guarded::kPerCall);
  ASSERT_TRUE(other.joinable());
  other.join();
  EXPECT_EQ(mapped, 0u) << "it waited, and settled the rest";
  EXPECT_EQ(figures(),
            "0 of 20 live, 0 bytes in 0 KiB; 0 KiB in 0 mappings, 20 chunks of 20 "
            "released; 0 unguarded, 0 damaged");
}

// What is being unmapped is not listed as freed, and is not over.
TEST_F(GuardedTest, has_freed_memory_until_the_last_is_unmapped) {
  const DevicePtr ptr = allocate(1000);
  free(ptr);
  prove();
  bool has_come = false;
  hooks.on[Call::mem_release] = [&] {
    const PoolLock lock(mutex);
    has_come = true;
    EXPECT_TRUE(guarded.has_freed());
    EXPECT_EQ(guarded.validate(), "");
    EXPECT_THAT(explain(guarded, ptr, 0)[0].text, HasSubstr("freed, and not unmapped yet"));
    return CuResult::success;
  };
  settle();
  EXPECT_TRUE(has_come);
  EXPECT_FALSE(guarded.has_freed());
}

// --- the end

TEST_F(GuardedTest, everything_goes_at_the_end) {
  const StreamHandle a = stream();
  allocate(1000, a);
  end(allocate(1000, a), a);
  free(allocate(1000, a), a);
  wait();
  const PoolLock lock(mutex);
  const std::uint64_t unmapped = calls.count(Call::mem_unmap);
  guarded.release_everything();
  is_over = true;
  EXPECT_EQ(calls.count(Call::mem_unmap), unmapped + 2) << "not the one that had gone";
  EXPECT_EQ(calls.count(Call::stream_destroy), 1u);
  EXPECT_EQ(sim.census().reservations, 0u);
}

TEST_F(GuardedTest, without_an_allocation_the_end_calls_nobody) {
  const std::uint64_t before = calls.total_count();
  guarded.release_everything();
  is_over = true;
  EXPECT_EQ(calls.total_count(), before);
}

TEST_F(GuardedTest, a_stream_that_went_with_its_context_is_not_destroyed_and_made_anew) {
  const DevicePtr ptr = allocate(1000);
  EXPECT_EQ(sim.census().streams, 1u);
  guarded.forget_context();
  end(ptr);
  EXPECT_EQ(calls.count(Call::stream_create), 2u);
  guarded.forget_context();
  guarded.release_everything();
  is_over = is_broken = true;  // its streams cannot go any more
  EXPECT_EQ(calls.count(Call::stream_destroy), 0u);
  EXPECT_EQ(sim.census().reservations, 0u);
  timelines.destroy_events();
}

TEST_F(GuardedTest, visits_every_known_block) {
  const DevicePtr live = allocate(1000), gone = allocate(1000);
  end(gone);
  std::vector<DevicePtr> seen;
  guarded.for_each([&](const Block& block) { seen.push_back(block.range.begin); });
  EXPECT_EQ(seen, (std::vector<DevicePtr>{live, gone}));
}

// --- address space

// Room for three allocations of a page.
class GuardedInLittleSpace : public GuardedTest {
 protected:
  explicit GuardedInLittleSpace(std::size_t remembered = 65'536)
      : GuardedTest(Options{kPage, 7 * kPage, 1, false, remembered}) {}
  std::uint64_t number_at(DevicePtr ptr) {
    const Block* const block = around(ptr);
    return block == nullptr ? 0 : block->number;
  }
};

TEST_F(GuardedInLittleSpace, addresses_serve_again_once_all_have_been_used) {
  std::vector<DevicePtr> first;
  for (int i = 0; i < 3; ++i) {
    first.push_back(allocate(1000));
    end(first.back());
  }
  EXPECT_EQ(first[1], first[0] + 2 * kPage);
  EXPECT_EQ(first[2], first[0] + 4 * kPage);
  for (int round = 0; round < 2; ++round)
    for (const DevicePtr each : first) {
      const DevicePtr again = allocate(1000);
      EXPECT_EQ(again, each);
      end(again);
    }
}

TEST_F(GuardedInLittleSpace, addresses_in_use_are_passed_over) {
  const DevicePtr kept = allocate(1000), second = allocate(1000), third = allocate(1000);
  EXPECT_EQ(allocate(1000), DevicePtr{}) << "nothing is left";
  free(second);
  EXPECT_EQ(allocate(1000), DevicePtr{}) << "it is mapped";
  prove();
  settle();
  EXPECT_EQ(allocate(1000), second) << "between two that live";
  end(third);
  EXPECT_EQ(number_at(third), 3u);
  EXPECT_EQ(allocate(1000), third);
  EXPECT_EQ(number_at(kept), 1u);
  EXPECT_EQ(allocate(1000), DevicePtr{});
  EXPECT_EQ(figures().substr(0, 13), "3 of 5 live, ");
}

TEST_F(GuardedInLittleSpace, a_block_whose_addresses_do_not_suffice_stays_known) {
  const DevicePtr first = allocate(1000);
  allocate(1000);
  end(first);
  EXPECT_EQ(allocate(kPage + 1), DevicePtr{}) << "it reaches into the second one's";
  EXPECT_EQ(number_at(first), 1u);
}

TEST_F(GuardedInLittleSpace, only_blocks_at_its_addresses_give_way_to_a_new_one) {
  const DevicePtr first = allocate(1000), second = allocate(1000);
  end(first);
  end(second);
  end(allocate(1000));
  EXPECT_EQ(allocate(1000), first);
  EXPECT_EQ(number_at(first), 4u);
  EXPECT_EQ(number_at(second), 2u);
  end(first);
  // Its slot is as long as the first two together.
  const DevicePtr large = allocate(kPage + 1);
  EXPECT_EQ(number_at(large), 5u);
  EXPECT_EQ(around(large)->slot.begin, around(first)->slot.begin + 2 * kPage)
      << "the next addresses, before those used last";
  EXPECT_EQ(number_at(first), 4u);
}

TEST_F(GuardedInLittleSpace, all_of_it_serves_one_allocation_and_none_that_is_larger) {
  EXPECT_EQ(allocate(4 * kPage), DevicePtr{});
  const DevicePtr first = allocate(1000);
  EXPECT_EQ(allocate(3 * kPage), DevicePtr{}) << "one lives";
  end(first);
  const DevicePtr large = allocate(3 * kPage);
  ASSERT_NE(large, DevicePtr{});
  EXPECT_EQ(around(large)->slot.size, 6 * kPage);
  end(large);
  EXPECT_EQ(allocate(4 * kPage), DevicePtr{});
  EXPECT_NE(allocate(3 * kPage), DevicePtr{});
}

// --- memory of those that are gone

class GuardedForgetful : public GuardedInLittleSpace {
 protected:
  GuardedForgetful() : GuardedInLittleSpace(2) {}
};

TEST_F(GuardedForgetful, knows_the_last_ones_that_went) {
  const DevicePtr first = allocate(1000), second = allocate(1000), third = allocate(1000);
  end(second);
  end(third);
  EXPECT_EQ(number_at(second), 2u);
  end(first);
  EXPECT_EQ(number_at(second), 0u) << "the one that went first";
  EXPECT_EQ(number_at(third), 3u);
  EXPECT_EQ(number_at(first), 1u);
}

TEST_F(GuardedForgetful, those_at_addresses_of_forgotten_ones_stay_known) {
  const DevicePtr first = allocate(1000), second = allocate(1000), third = allocate(1000);
  end(first);
  EXPECT_EQ(allocate(1000), first);  // number 4 lives where 1 was
  end(second);
  end(third);
  EXPECT_EQ(number_at(first), 4u);
  EXPECT_NE(guarded.live_around(first), nullptr);
  EXPECT_EQ(allocate(1000), second);
  end(first);   // 2 has given way, 3 and 4 are known
  end(second);  // 5, for 3
  EXPECT_EQ(number_at(third), 0u);
  EXPECT_EQ(number_at(first), 4u);
  EXPECT_EQ(number_at(second), 5u);
}

// The same address went twice among those that are remembered.
TEST_F(GuardedForgetful, a_block_is_not_forgotten_in_place_of_an_earlier_one) {
  const DevicePtr first = allocate(1000), second = allocate(1000), third = allocate(1000);
  end(first);
  EXPECT_EQ(allocate(1000), first);
  end(first);
  EXPECT_EQ(number_at(first), 4u);
  end(second);  // 1 would be forgotten, which gave way already
  EXPECT_EQ(number_at(first), 4u);
  EXPECT_EQ(number_at(second), 2u);
  end(third);
  EXPECT_EQ(number_at(first), 0u);
  EXPECT_EQ(number_at(second), 2u);
  EXPECT_EQ(number_at(third), 3u);
}

}  // namespace
}  // namespace vpmm::guard
