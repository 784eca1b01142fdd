// SPDX-License-Identifier: Apache-2.0
// region tests: how many timelines have files, which cost host memory.
#include "region/timeline_files.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>

#include "region/region_words.hpp"

namespace vpmm::region {
namespace {

class TimelineFilesTest : public testing::Test {
 protected:
  ~TimelineFilesTest() override {
    for (Region& region : pending) delist_parts(&region);
  }
  // A region of the timeline is freed; what it waits for is over, or not.
  void come_and_go(std::uint64_t timeline) {
    Region region;
    enlist(region, timeline);
    delist_parts(&region);
  }
  void stay(std::uint64_t timeline) { enlist(pending.emplace_back(), timeline); }
  // Of the timelines from 1 to `last`, those with a file.
  std::uint64_t count(std::uint64_t last) const {
    const SizeIndex* const none = &files.single_on(std::nullopt);
    std::uint64_t count = 0;
    for (std::uint64_t id = 1; id <= last; ++id)
      count += &files.single_on(time::TimelineId{id}) != none;
    return count;
  }

  TimelineFiles files{PageUnit(kPage)};
  std::deque<Region> pending;

 private:
  void enlist(Region& region, std::uint64_t timeline) {
    region.range = pages(timeline, 1);
    region.stamp = on(time::TimelineId{timeline}, 1);
    files.enlist(&region);
  }
};

// A loop on a few streams makes no file each time.
TEST_F(TimelineFilesTest, of_a_few_timelines_stay_without_a_region) {
  for (int round = 0; round < 3; ++round)
    for (std::uint64_t id = 1; id <= 10; ++id) {
      come_and_go(id);
      EXPECT_EQ(count(10), round == 0 ? id : 10u);
    }
}

TEST_F(TimelineFilesTest, of_past_timelines_do_not_pile_up) {
  std::uint64_t most = 0;
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    come_and_go(id);
    most = std::max(most, count(id));
  }
  EXPECT_EQ(most, 16u);
}

// As many as have regions stay beside them.
TEST_F(TimelineFilesTest, without_a_region_are_no_more_than_those_with_one) {
  for (std::uint64_t id = 1; id <= 100; ++id) stay(id);
  std::uint64_t most = 0;
  for (std::uint64_t id = 101; id <= 1000; ++id) {
    come_and_go(id);
    most = std::max(most, count(id));
  }
  EXPECT_GT(most, 150u);
  EXPECT_LE(most, 256u) << "the table doubles before a look at all of them";
  EXPECT_GE(count(1000), 100u);
}

}  // namespace
}  // namespace vpmm::region
