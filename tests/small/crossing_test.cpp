// small: runs that begin in one page and end in the next.
#include <algorithm>
#include <set>

#include "small/small_world.hpp"

namespace vpmm::testing {
namespace {

class Crossing : public SmallTest {
 protected:
  static constexpr Bytes kRun = kMiB + 1;
  std::vector<DevicePtr> runs;

  void allocate(std::size_t count, StreamHandle stream) {
    for (std::size_t i = 0; i < count; ++i) {
      runs.push_back(world.allocate(kRun, stream));
      world.use(runs.back(), kRun, stream);
    }
  }
  static bool crosses(DevicePtr run) { return to_integer(run) / kPage != (to_integer(run) + kRun - 1) / kPage; }
  Bytes mapped() { return world.statistics().mapped_bytes; }
};

class InPageMode : public Crossing {};

// An extent keeps what its stream has of it: where one crosses, that may be a page in which nothing lives any more.
TEST_P(InPageMode, none_crosses_and_every_page_goes_back_with_the_last_request_in_it) {
  allocate(20, a);
  EXPECT_EQ(std::count_if(runs.begin(), runs.end(), crosses), 0);
  for (const DevicePtr run : runs) world.deallocate(run, a);
  runs.clear();
  for (int i = 0; i < 30; ++i) runs.push_back(world.allocate(700 * kKiB, a));
  std::set<std::uint64_t> pages;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i % 5 == 0)
      pages.insert(to_integer(runs[i]) / kPage);
    else
      world.deallocate(runs[i], a);
  }
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(mapped(), pages.size() * kPage);
}

TEST_P(Crossing, runs_of_little_more_than_half_a_page_hold_hardly_more_than_is_live) {
  allocate(200, a);
  EXPECT_LE(mapped(), 200 * kRun / 8 * 9);
  EXPECT_GT(std::count_if(runs.begin(), runs.end(), crosses), 50);
}

TEST_P(Crossing, a_run_in_two_pages_is_known_by_all_its_addresses_and_its_memory_is_its_own) {
  allocate(40, a);
  std::set<DevicePtr> begins(runs.begin(), runs.end());
  for (auto run = begins.begin(); run != begins.end(); ++run) {
    for (const Bytes offset : {Bytes{0}, kRun / 2, kRun - 1}) {
      const auto info = world.pool().query(*run + offset);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, *run);
      EXPECT_EQ(info.value().requested, kRun);
    }
    if (std::next(run) != begins.end()) {
      EXPECT_GE(*std::next(run) - *run, kRun);
    }
  }
  std::uint64_t live = 0;
  for (const auto& region : world.pool().snapshot().regions) live += region.small_allocations.value_or(0);
  EXPECT_EQ(live, 40u);
}

TEST_P(Crossing, it_keeps_its_two_pages_and_no_other) {
  allocate(200, a);
  const DevicePtr kept = *std::find_if(runs.begin(), runs.end(), crosses);
  for (const DevicePtr run : runs)
    if (run != kept) world.deallocate(run, a);
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(mapped(), 2 * kPage);
  world.deallocate(kept, a);
  world.wait();
  ASSERT_TRUE(world.pool().trim(0).ok());
  EXPECT_EQ(mapped(), 0u);
}

TEST_P(Crossing, freed_by_whom_ever_it_serves_another_stream) {
  allocate(60, a);
  for (std::size_t i = 0; i < runs.size(); ++i)
    world.deallocate(runs[i], i % 2 == 0 ? context::Stream(b) : std::nullopt);
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
  EXPECT_EQ(std::count_if(runs.begin(), runs.end(), crosses), 0);
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
    const DevicePtr run = odd.allocate(bytes, stream);
    odd.use(run, bytes, stream);
    const Bytes apart = run > origin ? run - origin : origin - run;
    EXPECT_TRUE(is_multiple(apart, 3 * kPage)) << "each in a page of its own, from its beginning on";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Crossing, ::testing::Values(false), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, InPageMode, ::testing::Values(true), name_of_policy);

}  // namespace
}  // namespace vpmm::testing
