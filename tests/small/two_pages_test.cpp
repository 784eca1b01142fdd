// small: requests of one to two pages, which are runs where whole pages would lose much.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "small/small_world.hpp"

namespace vpmm::testing {
namespace {

constexpr Bytes kSlice = kPage / 8;

class TwoPages : public SmallTest {
 protected:
  std::vector<DevicePtr> runs;

  // Of so many bytes each, used at once.
  void allocate(std::size_t count, Bytes bytes, StreamHandle stream) {
    for (std::size_t i = 0; i < count; ++i) {
      runs.push_back(world.allocate(bytes, stream));
      world.use(runs.back(), bytes, stream);
    }
  }
  void deallocate_all(context::Stream stream) {
    for (const DevicePtr run : runs) world.deallocate(run, stream);
    runs.clear();
  }
  // Whether it is cut from pages that others may be cut from, too.
  bool is_run(DevicePtr ptr) {
    const auto snapshot = world.pool().snapshot();
    for (const auto& region : snapshot.regions)
      if (region.range.contains(ptr)) return region.small_allocations.has_value();
    ADD_FAILURE() << "no region there";
    return false;
  }
  Bytes mapped() { return world.statistics().mapped_bytes; }
};

TEST_P(TwoPages, of_one_size_hold_hardly_more_than_they_asked_for) {
  for (const double pages : {1.05, 1.3, 1.5, 1.7}) {
    PoolWorld own(options_of(GetParam()));
    const StreamHandle stream = own.stream();
    const auto bytes = static_cast<Bytes>(pages * static_cast<double>(kPage));
    for (int i = 0; i < 300; ++i) own.use(own.allocate(bytes, stream), bytes, stream);
    EXPECT_LE(own.statistics().mapped_bytes, 300 * bytes / 8 * 9) << pages;
  }
}

TEST_P(TwoPages, of_random_sizes_hold_little_more_than_what_lives) {
  std::mt19937_64 random(3);
  std::vector<std::pair<DevicePtr, Bytes>> live;
  Bytes sum = 0, most = 0;
  for (int i = 0; i < 4000; ++i) {
    if (random() % 4 != 0 || live.empty()) {
      const Bytes bytes = 1 + random() % (2 * kPage);
      live.emplace_back(world.allocate(bytes, a), bytes);
      world.use(live.back().first, bytes, a);
      sum += bytes;
    } else {
      std::swap(live[random() % live.size()], live.back());
      world.deallocate(live.back().first, a);
      sum -= live.back().second;
      live.pop_back();
    }
    most = std::max(most, sum);
  }
  EXPECT_LE(world.statistics().peak_mapped_bytes, most / 100 * 110);
}

TEST_P(TwoPages, are_aligned_to_an_eighth_of_a_page_as_whole_pages_are) {
  std::mt19937_64 random(4);
  std::set<Bytes> seen;
  for (int i = 0; i < 400; ++i) {
    const Bytes bytes = random() % 2 == 0 ? kPage + 1 + random() % kPage : 1 + random() % kPage;
    const DevicePtr ptr = world.allocate(bytes, a);
    if (bytes < kPage) continue;
    ASSERT_TRUE(is_aligned(ptr, kSlice)) << bytes;
    seen.insert(to_integer(ptr) % kPage);
  }
  EXPECT_GT(seen.size(), 2u) << "or they all begin pages";
}

TEST_P(TwoPages, aligned_to_more_than_a_unit_or_nearly_two_pages_are_whole_ones) {
  allocate(20, kPage + kPage / 4, a);
  EXPECT_TRUE(is_run(runs.back()));
  EXPECT_FALSE(is_run(world.allocate(kPage + 1, a, kPage)));
  EXPECT_FALSE(is_run(world.allocate(2 * kPage - kPage / 16, a)));
  EXPECT_FALSE(is_run(world.allocate(kPage, a)));
  EXPECT_FALSE(is_run(world.allocate(2 * kPage, a)));
}

TEST_P(TwoPages, are_whole_pages_while_little_would_be_lost_of_what_is_mapped) {
  const DevicePtr large = world.allocate(200 * kPage, a);
  allocate(10, kPage + kPage / 2, a);
  for (const DevicePtr ptr : runs) EXPECT_FALSE(is_run(ptr));
  allocate(60, kPage + kPage / 2, a);
  EXPECT_TRUE(is_run(runs.back())) << "a sixteenth would be lost by now";
  const std::size_t many = runs.size();
  world.deallocate(large, a);
  allocate(1, kPage + kPage / 2, a);
  EXPECT_TRUE(is_run(runs.back()));
  const DevicePtr larger = world.allocate(2000 * kPage, a);
  allocate(1, kPage + kPage / 2, a);  // may lie in what is left of the others
  allocate(4, kPage + kPage / 2, a);
  EXPECT_FALSE(is_run(runs.back())) << "and less than a 32nd now";
  EXPECT_EQ(runs.size(), many + 6);
  world.deallocate(larger, a);
  deallocate_all(a);
  EXPECT_EQ(world.statistics().live_bytes, 0u);
}

TEST_P(TwoPages, a_run_in_several_pages_is_known_by_all_its_addresses) {
  constexpr Bytes kRun = kPage + kPage / 3;
  allocate(40, kRun, a);
  ASSERT_TRUE(is_run(runs.back()));
  for (const DevicePtr run : runs)
    for (const Bytes offset : {Bytes{0}, kPage - 1, kPage, kRun - 1}) {
      const auto info = world.pool().query(run + offset);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, run);
      EXPECT_EQ(info.value().requested, kRun);
    }
  for (const DevicePtr run : runs) {
    EXPECT_FALSE(world.pool().deallocate(run + kPage, a).ok()) << "an address inside";
    world.deallocate(run, a);
    EXPECT_FALSE(world.pool().deallocate(run, a).ok()) << "twice";
  }
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

// Every 16th run keeps the page or pages it lies in: what is free between them leaves the extent.
TEST_P(TwoPages, free_pages_between_runs_that_live_go_back) {
  allocate(320, kPage + kPage / 4, a);
  std::set<std::uint64_t> pages;
  std::vector<DevicePtr> kept;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i % 16 != 0) {
      world.deallocate(runs[i], a);
      continue;
    }
    kept.push_back(runs[i]);
    if (!is_run(runs[i])) continue;
    pages.insert(to_integer(runs[i]) / kPage);
    pages.insert((to_integer(runs[i]) + kPage + kPage / 4 - 1) / kPage);
  }
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_LE(world.statistics().allocated_bytes, 20 * 2 * kPage);
  EXPECT_LE(mapped(), 3 * pages.size() * kPage) << "of chunks that are partly in use the rest stays";
  for (const DevicePtr run : kept) {
    world.use(run, kPage + kPage / 4, a);
    world.deallocate(run, a);
  }
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

TEST_P(TwoPages, another_stream_gets_them_before_memory_is_created) {
  allocate(320, kPage + kPage / 4, a);
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (i % 16 != 0) world.deallocate(runs[i], a);
  world.wait();
  const Bytes before = mapped();
  for (int i = 0; i < 200; ++i) world.use(world.allocate(kPage, b), kPage, b);
  EXPECT_LE(mapped(), before + 20 * kPage);
}

TEST_P(TwoPages, a_few_free_pages_stay_with_their_stream) {
  allocate(100, kPage + kPage / 4, a);
  const Bytes before = mapped();
  for (int round = 0; round < 50; ++round) {
    std::vector<DevicePtr> again(runs.begin(), runs.begin() + 8);
    for (const DevicePtr run : again) world.deallocate(run, a);
    runs.erase(runs.begin(), runs.begin() + 8);
    allocate(8, kPage + kPage / 4, a);
  }
  EXPECT_LE(mapped(), before + kPage);
}

// What others used waits where it lies while the pages around it leave.
TEST_P(TwoPages, a_run_that_waits_for_another_stream_outlives_its_extent_being_parted) {
  constexpr Bytes kRun = kPage + kPage / 4;
  allocate(64, kRun, a);
  for (std::size_t i = 0; i < runs.size(); i += 8) {
    order(world, a, b);
    ASSERT_TRUE(world.pool().record_use(runs[i], b).ok());
    world.use(runs[i], kRun, b, kLongNs);
  }
  deallocate_all(a);
  world.sim().advance_host_ns(1'000'000);
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(world.pool().validate(), "");
  for (const StreamHandle stream : {a, b}) allocate(64, kRun, stream);
  deallocate_all(std::nullopt);
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

// Blocks, runs and slabs that fill pages move with their part of the extent.
TEST_P(TwoPages, smaller_requests_in_the_rest_survive_as_well) {
  std::mt19937_64 random(5);
  std::map<DevicePtr, Bytes> live;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 150; ++i) {
      const Bytes bytes = i % 3 == 0 ? kPage + 1 + random() % (kPage / 2) : 1 + random() % (400 * kKiB);
      const DevicePtr ptr = world.allocate(bytes, a);
      world.use(ptr, bytes, a);
      live.emplace(ptr, bytes);
    }
    for (auto it = live.begin(); it != live.end();) {
      if (random() % 8 == 0) {
        ++it;
        continue;
      }
      world.deallocate(it->first, random() % 2 == 0 ? context::Stream(a) : std::nullopt);
      it = live.erase(it);
    }
    world.wait();
    ASSERT_TRUE(world.pool().trim(0).ok());
    ASSERT_EQ(world.pool().validate(), "");
    for (const auto& [ptr, bytes] : live) {
      const auto info = world.pool().query(ptr);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, ptr);
      EXPECT_EQ(info.value().requested, bytes);
    }
  }
}

TEST_P(TwoPages, that_fail_for_want_of_memory_lose_nothing) {
  WorldOptions options = options_of(GetParam());
  options.config.capacity = 41 * kPage;
  PoolWorld small(options);
  const StreamHandle stream = small.stream();
  std::vector<DevicePtr> all;
  for (;;) {
    const auto made = small.pool().allocate({kPage + kPage / 3, 0, stream});
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ErrorCode::out_of_memory);
      break;
    }
    all.push_back(made.value());
  }
  EXPECT_GE(all.size(), 26u) << "41 pages have room for 30";
  for (const DevicePtr ptr : all) small.deallocate(ptr, stream);
  EXPECT_FALSE(is_null(small.allocate(40 * kPage, stream)));
}

TEST_P(TwoPages, are_whole_pages_where_several_streams_keep_memory_unless_footprint_is_preferred) {
  constexpr Bytes kRun = kPage + kPage / 4;
  for (const pool::Prefer prefer : {pool::Prefer::balanced, pool::Prefer::footprint}) {
    WorldOptions options = options_of(GetParam());
    options.config.prefer = prefer;
    PoolWorld own(options);
    const StreamHandle first = own.stream(), second = own.stream();
    std::vector<std::pair<DevicePtr, StreamHandle>> all;
    for (int i = 0; i < 40; ++i)
      for (const StreamHandle stream : {first, second}) {
        all.emplace_back(own.allocate(kRun, stream), stream);
        own.use(all.back().first, kRun, stream);
      }
    const Bytes mapped = own.statistics().mapped_bytes;
    if (prefer == pool::Prefer::balanced) {
      EXPECT_GE(mapped, 79 * 2 * kPage);
    } else {
      EXPECT_LE(mapped, 80 * kRun / 8 * 9);
    }
    for (const auto& [ptr, stream] : all) own.deallocate(ptr, stream);
    EXPECT_EQ(own.statistics().live_bytes, 0u);
  }
}

// Where the driver aligns reservations to pages only, groups of sixteen pages are cut off at their ends.
TEST_P(TwoPages, lie_in_reservations_that_begin_anywhere) {
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
  const auto reservations = own.pool().snapshot().reservations;
  EXPECT_TRUE(std::any_of(reservations.begin(), reservations.end(),
                          [](const AddressRange& range) { return !is_aligned(range.begin, 16 * kPage); }));
  for (const DevicePtr ptr : larger) own.deallocate(ptr, stream);
  std::mt19937_64 random(6);
  std::vector<std::pair<DevicePtr, Bytes>> live;
  for (int i = 0; i < 60; ++i) {
    const Bytes bytes = i % 2 == 0 ? kPage + 1 + random() % (kPage / 2) : 1 + random() % kPage;
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
  ASSERT_TRUE(own.pool().trim(0).ok());
  EXPECT_EQ(own.statistics().mapped_bytes, 0u);
}

class TwoPagesInPageMode : public TwoPages {};

TEST_P(TwoPagesInPageMode, are_whole_pages) {
  allocate(50, kPage + 1, a);
  for (const DevicePtr ptr : runs) EXPECT_FALSE(is_run(ptr));
  EXPECT_EQ(mapped(), 100 * kPage);
}

INSTANTIATE_TEST_SUITE_P(Policies, TwoPages, ::testing::Values(false), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, TwoPagesInPageMode, ::testing::Values(true), name_of_policy);

}  // namespace
}  // namespace vpmm::testing
