// SPDX-License-Identifier: Apache-2.0
// small: spans that begin in one page and end in the next.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

class Crossing : public SmallTest {
 protected:
  static constexpr Bytes kRun = kMiB + 1;
  std::vector<DevicePtr> spans;

  void allocate(std::size_t count, StreamHandle stream) {
    for (std::size_t i = 0; i < count; ++i) {
      spans.push_back(world.allocate(kRun, stream));
      world.use(spans.back(), kRun, stream);
    }
  }
  void deallocate_all(pool::Stream stream) {
    for (const DevicePtr span : spans) world.deallocate(span, stream);
    spans.clear();
  }
  static bool crosses(DevicePtr span) {
    return to_integer(span) / kPage != (to_integer(span) + kRun - 1) / kPage;
  }
  Bytes mapped() { return world.statistics().mapped_bytes; }
};

class InPageMode : public Crossing {};

// A segment keeps what its stream has of it: where one crosses, that may be a page in which nothing
// lives any more.
TEST_P(InPageMode, none_crosses_and_every_page_goes_back_with_the_last_request_in_it) {
  allocate(20, a);
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), crosses), 0);
  for (const DevicePtr span : spans) world.deallocate(span, a);
  spans.clear();
  for (int i = 0; i < 30; ++i) spans.push_back(world.allocate(700 * kKiB, a));
  std::set<std::uint64_t> pages;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i % 5 == 0)
      pages.insert(to_integer(spans[i]) / kPage);
    else
      world.deallocate(spans[i], a);
  }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), pages.size() * kPage);
}

TEST_P(Crossing, runs_of_little_more_than_half_a_page_hold_hardly_more_than_is_live) {
  allocate(200, a);
  EXPECT_LE(mapped(), 200 * kRun / 8 * 9);
  EXPECT_GT(std::count_if(spans.begin(), spans.end(), crosses), 50);
}

TEST_P(Crossing, a_run_in_two_pages_is_known_by_all_its_addresses_and_its_memory_is_its_own) {
  allocate(40, a);
  std::set<DevicePtr> begins(spans.begin(), spans.end());
  for (auto span = begins.begin(); span != begins.end(); ++span) {
    for (const Bytes offset : {Bytes{0}, kRun / 2, kRun - 1}) {
      const auto info = world.pool().query(*span + offset);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, *span);
      EXPECT_EQ(info.value().requested, kRun);
    }
    if (std::next(span) != begins.end()) {
      EXPECT_GE(*std::next(span) - *span, kRun);
    }
  }
  std::uint64_t live = 0;
  for (const auto& region : world.pool().reports().snapshot().regions)
    live += region.small_allocations.value_or(0);
  EXPECT_EQ(live, 40u);
}

TEST_P(Crossing, it_keeps_its_two_pages_and_no_other) {
  allocate(200, a);
  const DevicePtr kept = *std::find_if(spans.begin(), spans.end(), crosses);
  for (const DevicePtr span : spans)
    if (span != kept) world.deallocate(span, a);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 2 * kPage);
  world.deallocate(kept, a);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

TEST_P(Crossing, freed_by_whom_ever_it_serves_another_stream) {
  allocate(60, a);
  for (std::size_t i = 0; i < spans.size(); ++i)
    world.deallocate(spans[i], i % 2 == 0 ? pool::Stream(b) : std::nullopt);
  world.wait();
  const Bytes before = mapped();
  allocate(60, b);
  EXPECT_LE(mapped(), before + kPage);
}

TEST_P(Crossing, where_smaller_requests_use_the_rest_of_a_page_a_run_stays_in_it) {
  for (int i = 0; i < 60; ++i) {
    for (int block = 0; block < 8; ++block) world.allocate(100 * kKiB, a);
    allocate(1, a);
  }
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), crosses), 0);
}

// Every 16th span keeps the page or pages it lies in: what is free between them leaves the segment.
TEST_P(Crossing, free_pages_between_runs_that_live_go_back) {
  allocate(640, a);
  std::set<std::uint64_t> pages;
  std::vector<DevicePtr> kept;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i % 16 != 0) {
      world.deallocate(spans[i], a);
      continue;
    }
    kept.push_back(spans[i]);
    pages.insert(to_integer(spans[i]) / kPage);
    pages.insert((to_integer(spans[i]) + kRun - 1) / kPage);
  }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().allocated_bytes,
            kept.size() * small::span_units(kRun) * small::kUnit);
  EXPECT_EQ(world.statistics().allocated_bytes + world.statistics().small_free_bytes,
            pages.size() * kPage);
  for (const DevicePtr span : kept) {
    world.use(span, kRun, a);
    world.deallocate(span, a);
  }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

TEST_P(Crossing, another_stream_gets_free_pages_before_memory_is_created) {
  allocate(640, a);
  for (std::size_t i = 0; i < spans.size(); ++i)
    if (i % 16 != 0) world.deallocate(spans[i], a);
  world.wait();
  const Bytes before = mapped();
  for (int i = 0; i < 200; ++i) world.use(world.allocate(kPage, b), kPage, b);
  EXPECT_LE(mapped(), before + 20 * kPage);
}

TEST_P(Crossing, a_few_free_pages_stay_with_their_stream) {
  allocate(100, a);
  const Bytes before = mapped();
  for (int round = 0; round < 50; ++round) {
    std::vector<DevicePtr> again(spans.begin(), spans.begin() + 8);
    for (const DevicePtr span : again) world.deallocate(span, a);
    spans.erase(spans.begin(), spans.begin() + 8);
    allocate(8, a);
  }
  EXPECT_LE(mapped(), before + kPage);
}

// What others used waits where it lies while the pages around it leave.
TEST_P(Crossing, a_run_that_waits_for_another_stream_outlives_its_segment_being_parted) {
  allocate(128, a);
  for (std::size_t i = 0; i < spans.size(); i += 8) {
    order(world, a, b);
    ASSERT_TRUE(world.pool().record_use(spans[i], b).ok());
    world.use(spans[i], kRun, b, kLongNs);
  }
  deallocate_all(a);
  world.sim().advance_host_ns(1'000'000);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.pool().reports().validate(), "");
  for (const StreamHandle stream : {a, b}) allocate(128, stream);
  deallocate_all(std::nullopt);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

// Blocks, spans and slabs that fill pages move with their part of the segment.
TEST_P(Crossing, smaller_requests_in_the_rest_of_an_segment_that_is_parted_survive) {
  std::mt19937_64 random(5);
  std::map<DevicePtr, Bytes> live;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 150; ++i) {
      const Bytes bytes = i % 3 != 0 ? kRun + random() % (kPage / 4) : 1 + random() % (400 * kKiB);
      const DevicePtr ptr = world.allocate(bytes, a);
      world.use(ptr, bytes, a);
      live.emplace(ptr, bytes);
    }
    for (auto it = live.begin(); it != live.end();) {
      if (random() % 8 == 0) {
        ++it;
        continue;
      }
      world.deallocate(it->first, random() % 2 == 0 ? pool::Stream(a) : std::nullopt);
      it = live.erase(it);
    }
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    ASSERT_EQ(world.pool().reports().validate(), "");
    for (const auto& [ptr, bytes] : live) {
      const auto info = world.pool().query(ptr);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, ptr);
      EXPECT_EQ(info.value().requested, bytes);
    }
  }
}

TEST_P(Crossing, runs_that_fail_for_want_of_memory_lose_nothing) {
  WorldOptions options = options_of(GetParam());
  options.config.limits.capacity = 41 * kPage;
  PoolWorld limited(options);
  const StreamHandle stream = limited.stream();
  std::vector<DevicePtr> all;
  for (;;) {
    const auto made = limited.pool().allocate({kRun, 0, stream});
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ErrorCode::out_of_memory);
      break;
    }
    all.push_back(made.value());
  }
  EXPECT_GE(all.size(), 70u) << "41 pages have room for 77";
  for (const DevicePtr ptr : all) limited.deallocate(ptr, stream);
  EXPECT_FALSE(is_null(limited.allocate(40 * kPage, stream)));
}

// Where the driver aligns reservations to pages only, arenas are cut off at their ends.
TEST_P(Crossing, runs_lie_in_reservations_that_begin_anywhere) {
  WorldOptions options = options_of(GetParam());
  options.config.va_size = 17 * kPage;
  PoolWorld own(options);
  const StreamHandle stream = own.stream();
  std::vector<DevicePtr> larger;
  for (int i = 0; i < 4; ++i) {
    own.faults().set_plan({{Call::mem_address_reserve}, 1, CuResult::out_of_memory});
    larger.push_back(own.allocate(17 * kPage, stream));
    own.faults().clear_plan();
  }
  const auto reservations = own.pool().reports().snapshot().reservations;
  EXPECT_TRUE(std::any_of(reservations.begin(), reservations.end(), [](const AddressRange& range) {
    return !is_aligned(range.begin, 16 * kPage);
  }));
  for (const DevicePtr ptr : larger) own.deallocate(ptr, stream);
  std::mt19937_64 random(6);
  std::vector<std::pair<DevicePtr, Bytes>> live;
  for (int i = 0; i < 100; ++i) {
    const Bytes bytes = i % 4 != 0 ? kRun + random() % (kPage / 4) : 1 + random() % kPage;
    live.emplace_back(own.allocate(bytes, stream), bytes);
    own.use(live.back().first, bytes, stream);
    if (i % 3 != 0) continue;
    std::swap(live[random() % live.size()], live.back());
    own.deallocate(live.back().first, stream);
    live.pop_back();
  }
  for (const auto& [ptr, bytes] : live) {
    EXPECT_EQ(own.pool().query(ptr + (bytes - 1)).value().begin, ptr);
    own.deallocate(ptr, stream);
  }
  own.wait();
  ASSERT_TRUE(own.pool().limits().trim(0).ok());
  EXPECT_EQ(own.statistics().mapped_bytes, 0u);
}

// Streams cut what others gave back, so that cuts begin anywhere.
TEST_P(Crossing, a_block_keeps_at_most_one_page_beside_its_own) {
  std::mt19937_64 random(1);
  const auto bytes = [&] {
    return random() % 3 == 0 ? 1 + random() % 1000 : kPage / 4 + random() % (3 * kPage / 4);
  };
  Bytes most = 0;
  for (int round = 0; round < 700; ++round) {
    std::vector<std::pair<DevicePtr, StreamHandle>> live;
    const auto free_one = [&] {
      std::swap(live[random() % live.size()], live.back());
      world.deallocate(live.back().first, live.back().second);
      live.pop_back();
    };
    for (int i = 0; i < 60; ++i) {
      const StreamHandle stream = random() % 2 == 0 ? a : b;
      live.emplace_back(world.allocate(bytes(), stream), stream);
      while (live.size() > 1 && random() % 2 == 0) free_one();
      if (random() % 8 == 0) {
        ASSERT_TRUE(world.pool().limits().trim(0).ok());
      }
    }
    while (live.size() > 1) free_one();
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    const AddressRange last{live.front().first,
                            world.pool().query(live.front().first).value().requested};
    const Bytes own =
        round_up(to_integer(last.end()), kPage) - to_integer(last.begin) / kPage * kPage;
    ASSERT_LE(mapped() - own, kPage) << "round " << round;
    most = std::max(most, mapped() - own);
    free_one();
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    ASSERT_EQ(mapped(), 0u) << "round " << round;
  }
  EXPECT_EQ(most, kPage);
}

TEST_P(Crossing, pages_of_no_power_of_two_hold_what_they_begin) {
  WorldOptions options = options_of(GetParam());
  options.config.page_size = 3 * kPage;
  PoolWorld odd(options);
  const StreamHandle stream = odd.stream();
  const Bytes bytes = 3 * kPage / 2 + 1;
  const DevicePtr first = odd.allocate(bytes, stream);
  const DevicePtr origin = first - to_integer(first) % kPage;
  for (int i = 0; i < 40; ++i) {
    const DevicePtr span = odd.allocate(bytes, stream);
    odd.use(span, bytes, stream);
    const Bytes apart = span > origin ? span - origin : origin - span;
    EXPECT_TRUE(is_multiple(apart, 3 * kPage))
        << "each in a page of its own, from its beginning on";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Crossing, ::testing::Values(false), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, InPageMode, ::testing::Values(true), name_of_policy);

}  // namespace
}  // namespace vpmm::test
