// SPDX-License-Identifier: Apache-2.0
// capi: statistics, snapshots, dumps and recordings.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Observing = SimPool;

struct LongerStatistics {
  vpmm_statistics known;
  std::uint64_t new_figure;
};

std::string take(char* text) {
  std::string copy = text;
  vpmm_string_free(text);
  return copy;
}

TEST_F(Observing, statistics_carry_size_and_version_first) {
  const vpmm_statistics statistics = statistics_of(pool_);
  EXPECT_EQ(statistics.size, sizeof(vpmm_statistics));
  EXPECT_EQ(statistics.version, 1U);
}

TEST_F(Observing, statistics_follow_allocations) {
  void* const ptr = allocate(5 * kMiB);
  const vpmm_statistics live = statistics_of(pool_);
  EXPECT_EQ(live.live_bytes, 5 * kMiB);
  EXPECT_EQ(live.allocations, 1U);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  const vpmm_statistics freed = statistics_of(pool_);
  EXPECT_EQ(freed.live_bytes, 0U);
  EXPECT_EQ(freed.peak_live_bytes, 5 * kMiB);
  EXPECT_EQ(freed.deallocations, 1U);
  EXPECT_EQ(vpmm_reset_peaks(pool_), VPMM_OK);
  EXPECT_EQ(statistics_of(pool_).peak_live_bytes, 0U);
}

constexpr std::size_t kFirstVersion = offsetof(vpmm_statistics, pauses);

TEST_F(Observing, statistics_refuse_a_struct_too_short_for_any_version) {
  vpmm_statistics statistics{};
  statistics.size = kFirstVersion - 1;
  EXPECT_EQ(vpmm_get_statistics(pool_, &statistics), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("vpmm_statistics.size")) << vpmm_last_error();
  EXPECT_EQ(statistics.version, 0U);
}

TEST_F(Observing, figures_that_an_older_header_does_not_know_are_left_out) {
  vpmm_statistics statistics{};
  statistics.size = kFirstVersion;
  statistics.pauses = 7;
  ASSERT_EQ(vpmm_get_statistics(pool_, &statistics), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics.version, 1U);
  EXPECT_EQ(statistics.pauses, 7U) << "beyond what the caller has";
}

TEST_F(Observing, figures_that_only_a_newer_header_knows_are_zero) {
  LongerStatistics statistics{};
  statistics.known.size = sizeof(statistics);
  statistics.new_figure = 7;
  ASSERT_EQ(vpmm_get_statistics(pool_, &statistics.known), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics.known.version, 1U);
  EXPECT_EQ(statistics.new_figure, 0U);
}

TEST_F(Observing, memory_info_counts_free_memory_of_the_pool_as_free) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t total = 0;
  ASSERT_EQ(vpmm_memory_info(pool_, &before, &total), VPMM_OK) << vpmm_last_error();
  EXPECT_LE(before, total);
  ASSERT_EQ(vpmm_deallocate(pool_, allocate(64 * kMiB), nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_memory_info(pool_, &after, &total), VPMM_OK);
  EXPECT_EQ(after, before);
}

TEST_F(Observing, snapshot_lists_regions_in_ascending_order) {
  allocate(2 * kMiB);
  void* const second = allocate(4 * kMiB);
  allocate(2 * kMiB);
  ASSERT_EQ(vpmm_deallocate(pool_, second, nullptr), VPMM_OK);
  std::size_t count = 0;
  ASSERT_EQ(vpmm_snapshot(pool_, nullptr, 0, &count), VPMM_OK) << vpmm_last_error();
  ASSERT_GE(count, 3U);
  std::vector<vpmm_region> regions(count);
  ASSERT_EQ(vpmm_snapshot(pool_, regions.data(), regions.size(), &count), VPMM_OK);
  std::uint64_t allocated = 0;
  const char* end = nullptr;
  for (const vpmm_region& region : regions) {
    EXPECT_GE(static_cast<const char*>(region.begin), end);
    end = static_cast<const char*>(region.begin) + region.bytes;
    if (region.state == VPMM_REGION_ALLOCATED) allocated += region.requested;
    if (region.begin == second) {
      EXPECT_EQ(region.state, VPMM_REGION_FREE);
    }
  }
  EXPECT_EQ(allocated, 4 * kMiB);
}

TEST_F(Observing, snapshot_and_dump_show_what_is_live_in_a_page_that_is_cut) {
  for (int i = 0; i < 3; ++i) allocate(1000);
  std::size_t count = 0;
  vpmm_region first;
  ASSERT_EQ(vpmm_snapshot(pool_, &first, 1, &count), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(first.state, VPMM_REGION_ALLOCATED);
  EXPECT_EQ(first.bytes, 2 * kMiB);
  EXPECT_EQ(first.requested, 3000U);
  char* text = nullptr;
  ASSERT_EQ(vpmm_dump_text(pool_, &text), VPMM_OK);
  const std::string dump = take(text);
  EXPECT_NE(dump.find("[1]         cut for requests below a page: 3 live, asked for 2.93 KiB\n"),
            std::string::npos)
      << dump;
}

TEST_F(Observing, snapshot_fills_no_more_than_fits_and_says_how_many_there_are) {
  allocate(2 * kMiB);
  std::size_t all = 0;
  ASSERT_EQ(vpmm_snapshot(pool_, nullptr, 0, &all), VPMM_OK);
  ASSERT_GE(all, 1U);
  std::vector<vpmm_region> regions(all + 1);
  regions[1].bytes = 77;
  std::size_t count = 0;
  ASSERT_EQ(vpmm_snapshot(pool_, regions.data(), 1, &count), VPMM_OK);
  EXPECT_EQ(count, all);
  EXPECT_EQ(regions[1].bytes, 77U);
}

TEST_F(Observing, the_text_dump_shows_every_figure_and_region) {
  allocate(4 * kMiB);
  char* text = nullptr;
  ASSERT_EQ(vpmm_dump_text(pool_, &text), VPMM_OK) << vpmm_last_error();
  const std::string dump = take(text);
  EXPECT_NE(dump.find("mapped_bytes"), std::string::npos) << dump;
  EXPECT_NE(dump.find("[2]"), std::string::npos) << dump;
}

TEST_F(Observing, the_json_dump_is_json) {
  allocate(4 * kMiB);
  char* text = nullptr;
  ASSERT_EQ(vpmm_dump_json(pool_, &text), VPMM_OK) << vpmm_last_error();
  const auto dump = nlohmann::json::parse(take(text), nullptr, false);
  ASSERT_FALSE(dump.is_discarded());
  EXPECT_EQ(dump.at("statistics").at("live_bytes"), 4 * kMiB);
}

TEST(StringFree, of_null_does_nothing) { vpmm_string_free(nullptr); }

TEST_F(Observing, a_recording_is_written_where_it_was_asked_for) {
  const auto path = std::filesystem::path(testing::TempDir()) / "vpmm_capi_recording.csv.gz";
  ASSERT_EQ(vpmm_record_start(pool_, path.c_str()), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_deallocate(pool_, allocate(3 * kMiB), nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_record_stop(pool_), VPMM_OK) << vpmm_last_error();
  EXPECT_GT(std::filesystem::file_size(path), 0U);
  std::filesystem::remove(path);
}

TEST_F(Observing, a_recording_that_cannot_be_written_is_an_error_that_names_the_file) {
  EXPECT_EQ(vpmm_record_start(pool_, "/no/such/folder/recording.csv.gz"), VPMM_ERROR_BAD_FILE);
  EXPECT_TRUE(last_error_names("/no/such/folder/recording.csv.gz")) << vpmm_last_error();
}

}  // namespace
}  // namespace vpmm::capi_test
