// SPDX-License-Identifier: Apache-2.0
// tests: the smallest GPU on which a trace runs is found, whatever the allocator needs beyond what
// lives.
#include <gtest/gtest.h>

#include <vector>

#include "replay/fit.hpp"
#include "replay/live_memory.hpp"

namespace vpmm::replay {
namespace {

TEST(LiveMemory, is_rounded_to_pages_from_a_page_up_and_to_256_bytes_below) {
  constexpr Bytes kPage = 2 * kMiB;
  EXPECT_EQ(page_rounded(0, kPage), 0u);
  EXPECT_EQ(page_rounded(1, kPage), 256u);
  EXPECT_EQ(page_rounded(kPage - 1, kPage), kPage);
  EXPECT_EQ(page_rounded(kPage, kPage), kPage);
  EXPECT_EQ(page_rounded(kPage + 1, kPage), 2 * kPage);
}

TEST(LiveMemory, has_a_peak_of_each_kind_of_its_own) {
  LiveMemory live(2 * kMiB);
  live.allocate(3 * kMiB);
  live.allocate(3 * kMiB);
  live.deallocate(3 * kMiB);
  live.deallocate(3 * kMiB);
  live.allocate(7 * kMiB);
  EXPECT_EQ(live.peak(), 7 * kMiB);
  EXPECT_EQ(live.rounded_peak(), 8 * kMiB);
  live.allocate(100);
  EXPECT_EQ(live.rounded_peak(), 8 * kMiB + 256);
}

ReplayResult roomy(Bytes live, Bytes mapped) {
  ReplayResult result;
  result.page_size = 2 * kMiB;
  result.peak_live_bytes = live;
  result.peak_rounded_bytes = live;
  result.peak_mapped_bytes = mapped;
  return result;
}

// An allocator that fits from `needs` on, and the capacities that were tried.
struct Needs {
  Bytes needs;
  std::vector<Bytes> tried;

  std::optional<SmallestGpu> find(const ReplayResult& room, Bytes largest) {
    const auto fit = find_fit(room, largest, [this](Bytes capacity) -> Result<ReplayResult> {
      tried.push_back(capacity);
      ReplayResult result;
      result.failed_allocations = capacity < needs ? 1 : 0;
      return result;
    });
    EXPECT_TRUE(fit.ok());
    return fit.ok() ? fit.value() : std::nullopt;
  }
};

TEST(FindFit, is_exact_to_a_page_where_a_thousandth_is_less) {
  for (Bytes pages = 500; pages <= 700; ++pages) {
    Needs allocator{pages * 2 * kMiB, {}};
    const auto fit = allocator.find(roomy(500 * 2 * kMiB, 700 * 2 * kMiB), kGiB * 139);
    ASSERT_TRUE(fit.has_value());
    ASSERT_EQ(fit->capacity, allocator.needs);
    ASSERT_EQ(fit->replays, allocator.tried.size());
    ASSERT_LE(fit->replays, 10u);
  }
}

TEST(FindFit, is_within_a_thousandth_of_what_a_large_trace_needs) {
  for (const Bytes needs : {40 * kGiB, 41 * kGiB, 43 * kGiB + 7 * 2 * kMiB}) {
    Needs allocator{needs, {}};
    const auto fit = allocator.find(roomy(40 * kGiB, 44 * kGiB), kGiB * 139);
    ASSERT_TRUE(fit.has_value());
    EXPECT_GE(fit->capacity, needs);
    EXPECT_LE(fit->capacity, needs + 40 * kGiB / 1000);
  }
}

TEST(FindFit, ends_after_two_replays_where_all_that_was_held_is_needed) {
  for (const Bytes held : {2 * kGiB, 200 * kGiB / 3}) {
    Needs allocator{round_up(held, 2 * kMiB), {}};
    const auto fit = allocator.find(roomy(kGiB, held), kGiB * 139);
    ASSERT_TRUE(fit.has_value());
    EXPECT_EQ(fit->capacity, allocator.needs);
    EXPECT_EQ(fit->replays, 2u);
  }
}

TEST(FindFit, never_tries_a_gpu_that_is_smaller_than_what_lives) {
  Needs allocator{kGiB + 5, {}};
  const auto fit = allocator.find(roomy(kGiB + 5, 2 * kGiB), kGiB * 139);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->capacity, kGiB + 2 * kMiB);
  for (const Bytes capacity : allocator.tried) EXPECT_GE(capacity, kGiB + 5);
}

// An allocator that cuts chunks anywhere may fit on less than what lives takes in whole pages.
TEST(FindFit, finds_a_gpu_that_is_smaller_than_what_lives_in_pages) {
  ReplayResult room = roomy(kGiB, 2 * kGiB);
  room.peak_rounded_bytes = kGiB + 200 * kMiB;
  Needs allocator{kGiB + 100 * kMiB, {}};
  const auto fit = allocator.find(room, kGiB * 139);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->capacity, allocator.needs);
}

TEST(FindFit, looks_further_up_when_the_peak_of_a_roomy_run_does_not_do) {
  Needs allocator{9 * kGiB, {}};
  const auto fit = allocator.find(roomy(kGiB, kGiB), kGiB * 139);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->capacity, 9 * kGiB);
}

TEST(FindFit, goes_no_further_than_the_gpu_that_is_known_to_do) {
  constexpr Bytes kLargest = 3 * kGiB + 100;
  Needs allocator{kLargest, {}};
  const auto fit = allocator.find(roomy(kGiB, kGiB), kLargest);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->capacity, kLargest);
  for (const Bytes capacity : allocator.tried) EXPECT_LT(capacity, kLargest);
}

TEST(FindFit, is_none_where_even_the_roomy_run_was_refused_something) {
  ReplayResult room = roomy(kGiB, kGiB);
  room.failed_allocations = 1;
  Needs allocator{0, {}};
  EXPECT_FALSE(allocator.find(room, 4 * kGiB).has_value());
  EXPECT_TRUE(allocator.tried.empty());
}

TEST(FindFit, passes_on_that_a_replay_could_not_go_on) {
  const auto fit = find_fit(roomy(kGiB, 2 * kGiB), 4 * kGiB, [](Bytes) -> Result<ReplayResult> {
    return Error{ErrorCode::poisoned, "broken"};
  });
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.error().code, ErrorCode::poisoned);
}

}  // namespace
}  // namespace vpmm::replay
