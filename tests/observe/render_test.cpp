// SPDX-License-Identifier: Apache-2.0
// tests: pictures, text and JSON of a snapshot say what the snapshot holds.
#include "observe/render.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "observe/statistic_list.hpp"
#include "support/page_size.hpp"

namespace vpmm::observe {
namespace {

// Builds a snapshot region by region, each behind the one before.
class Pool {
 public:
  explicit Pool(DevicePtr begin = DevicePtr{0x1000'0000}) : end_(begin) {
    snapshot_.page_size = kPage;
    snapshot_.driver = "sim";
    snapshot_.policy = "page";
    reserve(begin);
  }
  Pool& add(char kind, Bytes size) {
    RegionSnapshot& region = snapshot_.regions.emplace_back();
    region.range = {end_, size};
    region.kind = kind;
    end_ = end_ + size;
    snapshot_.reservations.back().size += size;
    return *this;
  }
  Pool& pages(char kind, std::uint64_t count) { return add(kind, count * kPage); }
  Pool& reserve(DevicePtr begin) {
    snapshot_.reservations.push_back({begin, 0});
    end_ = begin;
    return *this;
  }
  RegionSnapshot& last() { return snapshot_.regions.back(); }
  PoolSnapshot& snapshot() { return snapshot_; }

 private:
  PoolSnapshot snapshot_;
  DevicePtr end_;
};

TEST(Picture, shows_each_state_with_its_sign) {
  Pool pool;
  pool.pages(' ', 4).pages('-', 6).pages('*', 10).pages('~', 2).pages('#', 3).pages(' ', 1);
  EXPECT_EQ(picture(pool.snapshot()), "[4][-6][*10][~2][#3][1]");
}

TEST(Picture, leaves_out_the_hole_that_ends_a_reservation) {
  Pool pool;
  pool.pages('*', 8).pages(' ', 1).pages('*', 4'000'000);
  EXPECT_EQ(picture(pool.snapshot()), "[*8][1]");
}

TEST(Picture, of_an_empty_pool_is_a_pair_of_brackets) {
  Pool pool;
  EXPECT_EQ(picture(PoolSnapshot{}), "[]");
  EXPECT_EQ(picture(pool.pages('*', 100).snapshot()), "[]");
}

TEST(Picture, separates_reservations_by_a_bar) {
  Pool pool;
  pool.pages(' ', 4).pages('*', 2).reserve(DevicePtr{0x9000'0000}).pages('-', 3);
  EXPECT_EQ(picture(pool.snapshot()), "[4] | [-3]");
}

TEST(Picture, prints_a_broken_page_with_a_unit) {
  Pool pool;
  EXPECT_EQ(picture(pool.add(' ', 100).add(' ', 5 * kMiB).add('-', 3 * kKiB).snapshot()),
            "[100B][5MiB][-3KiB]");
}

TEST(PoolText, names_every_statistic_with_its_value_and_meaning) {
  Statistics statistics;
  std::uint64_t value = 1000;
  for (const StatisticEntry& entry : statistic_list()) statistics.*entry.member = value++;
  const std::string text = to_text(statistics);
  value = 1000;
  for (const StatisticEntry& entry : statistic_list()) {
    const std::size_t line = text.find("  " + std::string(entry.name) + " ");
    ASSERT_NE(line, std::string::npos) << entry.name << " is missing in\n" << text;
    const std::string content = text.substr(line, text.find('\n', line) - line);
    EXPECT_NE(content.find(std::to_string(value++)), std::string::npos) << content;
    EXPECT_NE(content.find(entry.meaning), std::string::npos) << content;
  }
}

TEST(PoolText, lists_every_region_with_address_size_notation_and_stamp) {
  Pool pool;
  pool.pages(' ', 1);
  pool.last().requested = 1234;
  pool.last().stamp = "stream 9";
  pool.pages('-', 2);
  pool.last().complete = false;
  pool.last().stamp = "timeline 3 up to 17 (stream 9)";
  pool.pages('-', 3).pages('*', 4).pages(' ', 1);
  pool.last().requested = 3000;
  pool.last().small_allocations = 3;
  const std::string text = to_text(pool.snapshot());
  const std::string expected =
      "picture, in pages or with a unit: [1][-2][-3][*4][1]\n"
      "5 regions\n"
      "  0x10000000           2097152  [1]         asked for 1.21 KiB (1234 bytes), stream 9\n"
      "  0x10200000           4194304  [-2]        pending: timeline 3 up to 17 (stream 9)\n"
      "  0x10600000           6291456  [-3]        complete\n"
      "  0x10c00000           8388608  [*4]\n"
      "  0x11400000           2097152  [1]         cut for requests below a page: 3 live, asked "
      "for 2.93 KiB\n";
  ASSERT_GE(text.size(), expected.size());
  EXPECT_EQ(text.substr(text.size() - expected.size()), expected);
}

TEST(PoolJson, holds_the_statistics_by_name_and_the_regions_in_order) {
  Pool pool;
  pool.pages(' ', 1);
  pool.last().requested = 7;
  pool.pages('~', 2);
  pool.last().complete = false;
  pool.last().stamp = "timeline 1 up to 2 (stream 5)";
  pool.pages(' ', 1);
  pool.last().small_allocations = 0;
  pool.snapshot().statistics.mapped_bytes = 42;
  const auto json = nlohmann::json::parse(to_json(pool.snapshot()));
  EXPECT_EQ(json["driver"], "sim");
  EXPECT_EQ(json["policy"], "page");
  EXPECT_EQ(json["page_size"], kPage);
  EXPECT_EQ(json["picture"], "[1][~2][1]");
  EXPECT_EQ(json["statistics"]["mapped_bytes"], 42);
  EXPECT_EQ(json["statistics"].size(), statistic_list().size());
  ASSERT_EQ(json["regions"].size(), 3u);
  EXPECT_EQ(json["regions"][0], (nlohmann::json{{"address", "0x10000000"},
                                                {"bytes", kPage},
                                                {"state", "allocated"},
                                                {"requested_bytes", 7}}));
  EXPECT_EQ(json["regions"][1]["state"], "zombie");
  EXPECT_EQ(json["regions"][1]["complete"], false);
  EXPECT_EQ(json["regions"][1]["stamp"], "timeline 1 up to 2 (stream 5)");
  EXPECT_EQ(json["regions"][2]["small_allocations"], 0);
  EXPECT_EQ(json["regions"][2]["requested_bytes"], 0);
}

TEST(PoolJson, survives_a_stamp_that_is_not_text) {
  Pool pool;
  pool.pages(' ', 1);
  pool.last().stamp = "\xff\xfe";
  EXPECT_TRUE(nlohmann::json::accept(to_json(pool.snapshot())));
}

}  // namespace
}  // namespace vpmm::observe
