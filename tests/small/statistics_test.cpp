// SPDX-License-Identifier: Apache-2.0
// small: figures are exact although warm calls pass the pool by.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "driver/sim/sim_driver.hpp"
#include "small/ledger.hpp"
#include "small/small_world.hpp"
#include "small/tally.hpp"
#include "small/waiting_frees.hpp"
#include "support/layout_tiles.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::test {
namespace {

// What the figures of a user are, counted beside the pool.
class Counted {
 public:
  void allocated(DevicePtr ptr, Bytes requested, Bytes usable) {
    live_.push_back({ptr, requested, usable});
    bytes_ += requested;
    usable_ += usable;
    ++allocations_;
    peak_ = std::max(peak_, bytes_);
  }
  DevicePtr freed(std::size_t index) {
    std::swap(live_[index], live_.back());
    const One one = live_.back();
    live_.pop_back();
    bytes_ -= one.requested;
    usable_ -= one.usable;
    ++deallocations_;
    return one.ptr;
  }
  std::size_t count() const { return live_.size(); }
  void expect_equal(const observe::Statistics& now) const {
    EXPECT_EQ(now.live_bytes, bytes_);
    EXPECT_EQ(now.allocated_bytes, usable_);
    EXPECT_EQ(now.live_allocations, live_.size());
    EXPECT_EQ(now.allocations, allocations_);
    EXPECT_EQ(now.deallocations, deallocations_);
    EXPECT_EQ(now.peak_live_bytes, peak_);
    // All that is mapped is somebody's, the pool's to give, or a small page's to give.
    EXPECT_EQ(now.allocated_bytes + now.free_bytes + now.small_free_bytes, now.mapped_bytes);
    EXPECT_LE(now.small_free_bytes, now.small_bytes);
  }
  // The regions show all that is live, cut from pages or not.
  void expect_equal(const observe::PoolSnapshot& now) const {
    Bytes requested = 0;
    std::uint64_t allocations = 0;
    for (const observe::RegionSnapshot& region : now.regions) {
      if (region.kind != ' ') continue;
      requested += region.requested;
      allocations += region.small_allocations.value_or(1);
    }
    EXPECT_EQ(requested, bytes_);
    EXPECT_EQ(allocations, live_.size());
  }

 private:
  struct One {
    DevicePtr ptr;
    Bytes requested;
    Bytes usable;
  };
  std::vector<One> live_;
  Bytes bytes_ = 0;
  Bytes usable_ = 0;
  Bytes peak_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t deallocations_ = 0;
};

class Figures : public SmallTest {
 protected:
  Counted ledger;

  DevicePtr begin(Bytes bytes, pool::Stream stream) {
    const auto made = world.pool().allocate({bytes, 0, stream});
    EXPECT_TRUE(made.ok());
    ledger.allocated(made.value(), bytes, world.pool().query(made.value()).value().usable);
    return made.value();
  }
  void end(std::size_t index, pool::Stream stream) {
    ASSERT_TRUE(world.pool().deallocate(ledger.freed(index), stream).ok());
  }
  void check() {
    ledger.expect_equal(world.statistics());
    ledger.expect_equal(world.pool().reports().snapshot());
  }
};

TEST_P(Figures, of_one_stream_are_exact_after_every_warm_call) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 3000; ++i) {
    if (ledger.count() > 0 && random() % 2 == 0)
      end(random() % ledger.count(), a);
    else
      begin(1 + random() % (Bytes{1} << (random() % 24)), a);
    check();
    ASSERT_FALSE(HasFailure()) << "at operation " << i;
  }
}

TEST_P(Figures, stay_exact_while_memory_is_recalled_and_other_streams_take_part) {
  std::mt19937_64 random(12);
  const std::array<pool::Stream, 3> streams{a, b, std::nullopt};
  for (int i = 0; i < 2000; ++i) {
    const pool::Stream stream = streams[random() % 3];
    const std::uint64_t what = random() % 40;
    if (what == 0)
      world.wait();
    else if (what == 1)
      ASSERT_TRUE(world.pool().limits().trim(0).ok());
    else if (ledger.count() > 0 && what % 2 == 0)
      end(random() % ledger.count(), stream);
    else
      begin(1 + random() % (Bytes{1} << (random() % 24)), stream);
    check();
    ASSERT_FALSE(HasFailure()) << "at operation " << i;
  }
}

TEST_P(Figures, a_kept_region_counts_as_what_its_present_user_asked_for) {
  for (const auto& [first, second] : {std::pair{200 * kKiB, 199 * kKiB},
                                      {kMiB, kMiB - 5000},
                                      {kPage, kPage - 1},
                                      {3 * kPage, 2 * kPage + 1},
                                      {Bytes{5000}, Bytes{4700}}}) {
    SCOPED_TRACE(first);
    begin(first, a);
    check();
    end(0, a);
    check();
    const DevicePtr ptr = begin(second, a);
    EXPECT_EQ(world.pool().query(ptr).value().requested, second);
    EXPECT_EQ(world.pool().query(ptr + second / 2).value().requested, second);
    check();
    end(0, std::nullopt);  // through the pool
    check();
    begin(first, a);
    check();
    end(0, b);
    check();
    world.wait();
    check();
  }
}

TEST_P(Figures, a_page_that_is_cut_tells_what_is_live_in_it) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(world.allocate(1000, a));
  const DevicePtr span = world.allocate(200 * kKiB, a);
  const DevicePtr shorter = world.allocate(150 * kKiB, a);
  world.use(blocks[1], 1000, a, kLongNs);
  world.use(shorter, 150 * kKiB, a, kLongNs);
  ASSERT_TRUE(world.pool().record_use(span, b).ok()) << "its mark is no part of its size";
  world.deallocate(blocks[0], a);  // cached
  world.deallocate(blocks[1], b);  // these wait for both streams
  world.deallocate(shorter, b);
  const observe::PoolSnapshot snapshot = world.pool().reports().snapshot();
  const observe::RegionSnapshot& page = snapshot.regions.front();
  ASSERT_EQ(page.range.size, kPage);
  EXPECT_EQ(page.kind, ' ');
  EXPECT_EQ(page.small_allocations, 3u);
  EXPECT_EQ(page.requested, 2000 + 200 * kKiB);
  const DevicePtr whole = world.allocate(kPage + 1, a);
  for (const observe::RegionSnapshot& region : world.pool().reports().snapshot().regions) {
    if (region.range.begin == whole) {
      EXPECT_EQ(region.small_allocations, std::nullopt);
    }
  }
}

// Each part of a page that is cut is shown once, whether it is live, kept or nobody's.
TEST_P(Figures, a_layout_tiles_a_page_that_is_cut) {
  std::map<DevicePtr, Bytes> live;
  std::vector<DevicePtr> in_order;
  for (const Bytes bytes : {Bytes{1}, Bytes{1000}, 40 * kKiB, 119 * kKiB, 300 * kKiB})
    for (const StreamHandle stream : {a, b, a}) {
      in_order.push_back(world.allocate(bytes, stream));
      live[in_order.back()] = bytes;
    }
  for (std::size_t i = 0; i < in_order.size(); i += 3) {
    world.deallocate(in_order[i], a);
    live.erase(in_order[i]);
  }
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  std::map<DevicePtr, Bytes> shown;
  Bytes small = 0;
  for (const report::LayoutBlock& block : layout.blocks) {
    small += block.is_small ? block.range.size : 0;
    if (block.state != region::RegionState::allocated) {
      EXPECT_EQ(block.requested, 0u);
      EXPECT_TRUE(block.is_complete || block.stream_id != 0) << "anybody's, or of one stream";
      continue;
    }
    shown[block.range.begin] = block.requested;
    EXPECT_GE(block.range.size, block.requested);
  }
  EXPECT_EQ(shown, live);
  EXPECT_EQ(small, world.statistics().small_bytes);
}

// One look under a cache's lock reads spans, or the blocks of one slab.
TEST_P(Figures, a_layout_shows_a_large_slab_behind_spans) {
  const auto take = [&](Bytes bytes) { return world.pool().allocate({bytes, 0, a}).value(); };
  std::map<DevicePtr, Bytes> live;
  for (int i = 0; i < 20 * 256; ++i) live[take(256)] = 256;  // so the next slabs have 256 blocks
  const DevicePtr room = take(kMiB);
  std::vector<DevicePtr> late;
  world.deallocate(room, a);
  for (int i = 0; i < 5; ++i) live[take(small::kLeastSpan)] = small::kLeastSpan;
  for (int i = 0; i < 2 * 256; ++i) {
    late.push_back(take(256));
    live[late.back()] = 256;
  }
  EXPECT_GT(late.back(), room + 5 * small::kLeastSpan);
  EXPECT_LT(late.back(), room + kMiB);
  const report::Layout layout = world.pool().reports().layout();
  expect_tiled(layout);
  std::map<DevicePtr, Bytes> shown;
  for (const report::LayoutBlock& block : layout.blocks)
    if (block.state == region::RegionState::allocated) shown[block.range.begin] = block.requested;
  EXPECT_EQ(shown, live);
  EXPECT_EQ(world.statistics().live_allocations, live.size());
}

// The first slab of a class is the least there is, and so is the first after all went back.
TEST_P(Figures, a_class_that_has_nothing_begins_with_the_least_slab) {
  for (int round = 0; round < 3; ++round) {
    world.deallocate(world.allocate(5000, a), a);
    EXPECT_EQ(world.statistics().cached_bytes, small::kUnit) << round;
    world.wait();
    EXPECT_EQ(world.statistics().cached_bytes, 0u);
  }
}

// A stream with nothing in its cache has nothing to give, so nobody tells it to come.
TEST_P(Figures, a_flush_of_nothing_leaves_the_next_call_warm) {
  const DevicePtr live = world.allocate(100, a);
  const DevicePtr freed = world.allocate(100, a);
  world.deallocate(world.allocate(100, a), a);
  world.deallocate(freed, a);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  ASSERT_EQ(world.statistics().cached_bytes, 0u) << "free blocks beside a live one";
  EXPECT_FALSE(is_null(world.pool().allocate_if_ready(100, 0, a)));
  world.deallocate(live, a);
}

// The stream that is none has no call that is to come.
TEST_P(Figures, a_flush_of_what_no_stream_freed_leaves_the_next_such_call_warm) {
  for (int round = 0; round < 3; ++round) {
    const DevicePtr block = world.allocate(100, std::nullopt);
    const DevicePtr ready = world.pool().allocate_if_ready(100, 0);
    ASSERT_FALSE(is_null(ready)) << round;
    world.deallocate(ready, std::nullopt);
    world.deallocate(block, std::nullopt);
    world.sim().run_until_idle();
    world.deallocate(world.allocate(9 * kPage, std::nullopt), std::nullopt);
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
  }
}

// A page in which nothing lives counts as free, whoever keeps it.
TEST_P(Figures, free_memory_is_all_but_the_pages_in_which_something_lives) {
  WorldOptions options = options_of(GetParam());
  options.config.limits.capacity = 64 * kPage;
  PoolWorld fresh(options);
  const StreamHandle stream = fresh.stream();
  const auto expect_used = [&](Bytes pages, const char* when) {
    const auto info = fresh.pool().limits().memory_info();
    ASSERT_TRUE(info.ok());
    EXPECT_EQ((64 * kPage - info.value().free) / kPage, pages) << when;
  };
  expect_used(0, "at first");
  for (const Bytes bytes : {Bytes{100}, Bytes{5000}, 200 * kKiB, kPage - kMiB / 2}) {
    SCOPED_TRACE(bytes);
    const DevicePtr first = fresh.allocate(bytes, stream);
    expect_used(1, "live");
    const DevicePtr whole = fresh.allocate(kPage, stream);
    expect_used(2, "beside a whole page");
    fresh.deallocate(whole, stream);
    expect_used(1, "whose free is kept");
    std::vector<DevicePtr> others;
    for (int i = 0; i < 3; ++i) others.push_back(fresh.allocate(kPage - kMiB / 2, fresh.stream()));
    expect_used(4, "of other streams");
    for (const DevicePtr other : others) fresh.deallocate(other, std::nullopt);
    fresh.deallocate(first, stream);
    fresh.wait();
    expect_used(0, "all freed");
  }
  fresh.deallocate(fresh.allocate(5000, stream), stream);
  EXPECT_GT(fresh.statistics().cached_bytes, 0u);
  expect_used(0, "kept by its stream");
}

TEST_P(Figures, the_peak_is_sampled_where_a_call_takes_the_pools_lock) {
  for (const Bytes bytes : {Bytes{5000}, 200 * kKiB}) {
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    world.pool().reports().reset_peaks();
    EXPECT_EQ(world.statistics().peak_live_bytes, 0u);
    world.deallocate(world.allocate(bytes, a), a);
    EXPECT_EQ(world.statistics().peak_live_bytes, 0u) << "no call took it";
    const DevicePtr ptr = world.allocate(bytes, a);
    world.deallocate(ptr, b);
    EXPECT_EQ(world.statistics().peak_live_bytes, bytes);
    world.wait();
  }
}

TEST_P(Figures, the_peak_of_many_streams_is_sampled_where_the_footprint_grows) {
  Bytes live = 0;
  for (int i = 0; i < 100; ++i, live += 5000) world.allocate(5000, world.stream());
  const DevicePtr large = world.allocate(40 * kPage, a);
  world.deallocate(large, a);
  EXPECT_EQ(world.statistics().peak_live_bytes, live + 40 * kPage);
}

TEST_P(Figures, the_peak_is_remembered_when_the_memory_is_recalled_afterwards) {
  for (const Bytes bytes : {Bytes{5000}, 200 * kKiB, kPage, 4 * kPage}) {
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    world.pool().reports().reset_peaks();
    const DevicePtr ptr = world.allocate(bytes, a);
    EXPECT_EQ(world.statistics().peak_live_bytes, bytes);
    world.deallocate(ptr, a);
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().peak_live_bytes, bytes);
  }
}

TEST_P(Figures, the_peak_does_not_count_pages_that_wander_from_one_cache_to_another) {
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(world.allocate(kPage, a));
  for (const DevicePtr page : pages) world.deallocate(page, a);
  warm(5000, b);
  world.wait();
  world.pool().reports().reset_peaks();
  world.allocate(kPage, b);
  EXPECT_EQ(world.statistics().peak_live_bytes, kPage);
}

TEST_P(Figures, small_pages_and_what_is_nobodys_of_them_are_told) {
  EXPECT_EQ(world.statistics().small_bytes, 0u);
  const DevicePtr block = world.allocate(5000, a);
  EXPECT_EQ(world.statistics().small_bytes, kPage);
  EXPECT_EQ(world.statistics().small_free_bytes, kPage - 5120);
  const DevicePtr span = world.allocate(200 * kKiB, a);
  EXPECT_EQ(world.statistics().small_free_bytes, kPage - 5120 - 208 * kKiB);
  world.deallocate(span, a);
  world.deallocate(block, a);
  EXPECT_EQ(world.statistics().small_free_bytes, kPage) << "cached";
  world.wait();
  EXPECT_EQ(world.statistics().small_bytes, 0u)
      << "a page of which nothing is live is the pool's again";
  EXPECT_EQ(world.statistics().small_free_bytes, 0u);
  EXPECT_EQ(world.statistics().free_bytes, kPage);
}

TEST_P(Figures, memory_that_waits_for_other_streams_is_nobodys_too) {
  const DevicePtr block = world.allocate(5000, a);
  world.use(block, 5000, a, kLongNs);
  world.deallocate(block, b);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
  EXPECT_EQ(world.statistics().allocated_bytes, 0u);
  EXPECT_EQ(world.statistics().small_free_bytes, kPage);
}

INSTANTIATE_TEST_SUITE_P(Policies, Figures, ::testing::Bool(), name_of_policy);

// Whether a stream is idle goes by it, so what others take from its cache may not count backwards.
TEST(WaitingFrees, of_a_stream_that_waits_for_none_have_no_bytes) {
  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  const small::WaitingFrees waiting(timelines);
  EXPECT_EQ(waiting.bytes(), 0u);
  EXPECT_EQ(waiting.bytes(time::TimelineId{1}), 0u);
}

TEST(WaitingFrees, count_for_each_stream_that_they_wait_for) {
  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  time::enter_primary(sim, timelines);
  const auto begin = [&] {
    StreamHandle stream{};
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
    return timelines.of(stream).value();
  };
  time::Timeline *const a = begin(), *const b = begin(), *const c = begin();
  const time::StampPart of_a = a->next(0), of_b = b->next(0);
  small::WaitingFrees waiting(timelines);
  small::Allocation both, one;
  both.range = {DevicePtr{kPage}, 100};
  one.range = {DevicePtr{2 * kPage}, 1000};
  waiting.add(both, time::Stamp(of_a, of_b));
  waiting.add(one, time::Stamp(of_b));
  const auto expect = [&](Bytes all, Bytes for_a, Bytes for_b) {
    EXPECT_EQ(waiting.bytes(), all);
    EXPECT_EQ(waiting.bytes(a->id), for_a);
    EXPECT_EQ(waiting.bytes(b->id), for_b);
    EXPECT_EQ(waiting.bytes(c->id), 0u);
    EXPECT_TRUE(waiting.is_counted());
  };
  expect(1100, 100, 1100);
  std::vector<DevicePtr> over;
  const auto advance = [&](time::Timeline& timeline, const time::StampPart& to) {
    timeline.numbers.complete = to.sequence;
    waiting.advance(to, [&](const small::Allocation& of) { over.push_back(of.range.begin); });
  };
  advance(*a, of_a);
  expect(1100, 0, 1100);
  EXPECT_TRUE(over.empty());
  advance(*b, of_b);
  expect(0, 0, 0);
  std::sort(over.begin(), over.end());
  EXPECT_EQ(over, (std::vector{both.range.begin, one.range.begin}));
  timelines.destroy_events();
}

TEST(Ledger, knows_the_blocks_of_suspended_stretches_until_they_wake) {
  small::Ledger ledger;
  ledger.block_begins(100, 256);
  ledger.block_begins(5000, 5120);
  ledger.block_begins(300, 512);
  ledger.block_sleeps(100, 256);
  ledger.block_sleeps(5000, 5120);
  EXPECT_EQ(ledger.asleep().requested, 5100u);
  EXPECT_EQ(ledger.asleep().allocated, 5376u);
  EXPECT_EQ(ledger.asleep().blocks, 2u);
  ledger.block_wakes(100, 256);
  EXPECT_EQ(ledger.asleep().requested, 5000u);
  EXPECT_EQ(ledger.asleep().allocated, 5120u);
  EXPECT_EQ(ledger.asleep().blocks, 1u);
  ledger.block_ends(300, 512);
  EXPECT_EQ(ledger.of_stretches().live(), 2) << "asleep or not";
  EXPECT_EQ(ledger.of_stretches().requested, 5100);
  EXPECT_EQ(ledger.of_stretches().allocated, 5376);
}

// The pool counts a stretch once; parts of it that divide are no more.
TEST(Ledger, takes_stretches_off_the_pools_count_and_counts_their_blocks_instead) {
  small::Ledger ledger;
  region::Region pages;
  pages.range = {DevicePtr{kPage}, 2 * kPage};
  pages.owner.requested = kPage + 1;
  ledger.stretch_begins(pages);
  EXPECT_EQ(ledger.of_stretches().live(), -1);
  EXPECT_EQ(ledger.of_stretches().requested, -static_cast<std::int64_t>(kPage + 1));
  EXPECT_EQ(ledger.of_stretches().allocated, -static_cast<std::int64_t>(2 * kPage));
  ledger.stretch_is_divided();
  EXPECT_EQ(ledger.of_stretches().live(), -2);
  EXPECT_EQ(ledger.of_stretches().requested, -static_cast<std::int64_t>(kPage + 1));
  EXPECT_EQ(ledger.of_stretches().allocated, -static_cast<std::int64_t>(2 * kPage));
  EXPECT_EQ(ledger.of_stretches().requests(), 0) << "of no user";
  ledger.stretch_ends(pages);
  EXPECT_EQ(ledger.of_stretches().live(), -1);
  EXPECT_EQ(ledger.of_stretches().requested, 0);
  EXPECT_EQ(ledger.of_stretches().allocated, 0);
  ledger.page_is_cut(kPage);
  EXPECT_EQ(ledger.of_pages().requested, -static_cast<std::int64_t>(kPage));
  EXPECT_EQ(ledger.of_pages().allocated, -static_cast<std::int64_t>(kPage));
  EXPECT_EQ(ledger.of_pages().live(), -1);
  ledger.page_goes_back(kPage);
  EXPECT_EQ(ledger.of_pages().requested, 0);
  EXPECT_EQ(ledger.of_pages().allocated, 0);
  EXPECT_EQ(ledger.of_pages().live(), 0);
  ledger.pages_end(500, 300);
  EXPECT_EQ(ledger.of_pages().requested, 200) << "of the first user, less those of the present one";
}

TEST(Tally, counts_requests_of_users_alone_and_never_backwards) {
  vpmm::small::Tally tally;
  tally.begin(100, 256);
  tally.end(100, 256);
  EXPECT_EQ(tally.requests(), 1);
  tally.index_ends(kPage, kPage);
  tally.index_begins(kPage, kPage);
  EXPECT_EQ(tally.live(), 0);
  EXPECT_EQ(tally.requests(), 1);
}

}  // namespace
}  // namespace vpmm::test
