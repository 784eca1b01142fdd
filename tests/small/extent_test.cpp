// small: which units of an extent are taken, and what is known of those that are left.
#include "small/extent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace vpmm::small {
namespace {

struct FreeExtent : Extent {
  explicit FreeExtent(std::uint32_t count) {
    units = count;
    set_all_free();
  }
};

Stretch take(Extent& extent, std::uint64_t units) { return extent.take(extent.find(units)); }

TEST(Extent, begins_as_one_stretch_of_any_length) {
  for (const std::uint32_t units : {1u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4096u}) {
    FreeExtent extent(units);
    EXPECT_EQ(extent.longest(), units);
    EXPECT_TRUE(extent.is_free());
    EXPECT_EQ(extent.validate(), "");
    EXPECT_EQ(take(extent, units).first, 0u);
    EXPECT_EQ(extent.longest(), 0u);
    EXPECT_EQ(extent.free_units, 0u);
    EXPECT_EQ(extent.validate(), "");
  }
}

TEST(Extent, takes_the_front_of_the_shortest_stretch_that_is_long_enough) {
  FreeExtent extent(128);
  take(extent, 128);
  extent.give(10, 20);
  extent.give(60, 8);  // across two words
  extent.give(100, 28);
  EXPECT_EQ(extent.longest(), 28u);
  EXPECT_EQ(take(extent, 8).first, 60u);
  EXPECT_EQ(take(extent, 8).first, 10u);
  EXPECT_EQ(take(extent, 21).first, 100u);
  EXPECT_EQ(extent.longest(), 12u);
  EXPECT_EQ(take(extent, 12).first, 18u);
  EXPECT_EQ(extent.longest(), 7u);
  EXPECT_EQ(extent.validate(), "");
}

struct ExtentInArena : ::testing::Test {
  static constexpr std::uint64_t kPageUnits = 128;
  std::vector<std::atomic<Owner>> owners{4 * kPageUnits};
  std::vector<PageEntry> entries{4};
  Arena arena;
  Extent extent;
  ExtentInArena() {
    arena.range = {DevicePtr{1} + (kUnit - 1), 4 * kPageUnits * kUnit};
    arena.page_size = kPageUnits * kUnit;
    arena.owners = owners.data();
    arena.entries = entries.data();
    for (std::size_t page = 0; page < entries.size(); ++page) entries[page].enter(arena, page);
    extent.enter(arena, {arena.range.begin, kPageUnits * kUnit});
    extent.set_all_free();
  }
};

TEST_F(ExtentInArena, grows_with_the_pages_behind_it) {
  take(extent, 100);
  extent.make_room(2 * kPageUnits);
  extent.grow(2 * kPageUnits);
  EXPECT_EQ(extent.units, 3 * kPageUnits);
  EXPECT_EQ(extent.free_units, 28u) << "what it grew by is in use until it is given";
  EXPECT_EQ(extent.give(kPageUnits, 2 * kPageUnits).length, 28 + 2 * kPageUnits);
  EXPECT_EQ(extent.longest(), 28 + 2 * kPageUnits);
  EXPECT_EQ(extent.paged_units(kPageUnits), 2 * kPageUnits);
  for (std::uint64_t unit = 0; unit < 4 * kPageUnits; ++unit)
    EXPECT_EQ(owners[unit].load(), unit < 3 * kPageUnits ? Owner(&extent) : Owner{});
  for (std::size_t page = 0; page < entries.size(); ++page)
    EXPECT_EQ(entries[page].owner(), page < 3 ? Owner(&extent) : Owner(&arena));
  EXPECT_EQ(extent.validate(), "");
}

TEST_F(ExtentInArena, is_split_where_free_pages_begin_and_end) {
  extent.make_room(3 * kPageUnits);
  extent.grow(3 * kPageUnits);
  extent.give(kPageUnits, 3 * kPageUnits);
  take(extent, 4 * kPageUnits);
  const Bytes requested = 20 * kUnit - 1;
  for (const std::uint64_t first : {std::uint64_t{90}, 3 * kPageUnits + 5}) {
    extent.begin_run(first, requested);
    extent.set_used_elsewhere(first);
  }
  extent.give(110, 2 * kPageUnits - 110 + 7);  // from the first page to the third
  extent.give(3 * kPageUnits + 30, 98);
  EXPECT_EQ(extent.paged_units(kPageUnits), kPageUnits);
  ASSERT_EQ(extent.first_border(kPageUnits), kPageUnits);
  Extent middle, back;
  extent.split(kPageUnits, middle);
  ASSERT_EQ(middle.first_border(kPageUnits), kPageUnits);
  middle.split(kPageUnits, back);
  EXPECT_TRUE(middle.is_free());
  EXPECT_EQ(middle.begin, arena.range.begin + kPageUnits * kUnit);
  EXPECT_EQ(extent.free_units, 18u);
  EXPECT_EQ(back.free_units, 7u + 98);
  EXPECT_EQ(back.units, 2 * kPageUnits);
  EXPECT_EQ(back.first_border(kPageUnits), 0u);
  for (const auto& [part, first] : {std::pair{&extent, std::uint64_t{90}}, {&back, kPageUnits + 5}}) {
    EXPECT_TRUE(part->has_run_at(first));
    EXPECT_TRUE(part->is_used_elsewhere(first));
    EXPECT_EQ(part->requested(first), requested);
  }
  for (const Extent* part : {&extent, &middle, &back}) {
    EXPECT_EQ(part->validate(), "");
    for (std::uint64_t unit = 0; unit < part->units; ++unit)
      EXPECT_EQ(owners[arena.unit_of(part->begin) + unit].load(), Owner(part));
  }
  for (const auto& [page, part] : {std::pair{0, &extent}, {1, &middle}, {2, &back}, {3, &back}})
    EXPECT_EQ(entries[static_cast<std::size_t>(page)].owner(), Owner(part));
}

TEST_F(ExtentInArena, is_named_by_the_entries_of_its_pages_until_a_slab_is_cut_there) {
  extent.make_room(3 * kPageUnits);
  extent.grow(3 * kPageUnits);
  Slab slab;
  slab.extent = &extent;
  slab.units = 8;
  slab.begin = extent.at(2 * kPageUnits - 4);  // across a border of pages
  arena.set_owner(slab);
  for (std::size_t page = 0; page < entries.size(); ++page) {
    const bool is_cut = page == 1 || page == 2;
    EXPECT_EQ(entries[page].owner(), is_cut ? Owner(&arena) : Owner(&extent));
    EXPECT_EQ(entries[page].unit_owners(), is_cut ? owners.data() + page * kPageUnits : nullptr);
  }
  Slab whole;
  whole.extent = &extent;
  whole.units = kPageUnits;
  whole.begin = extent.at(3 * kPageUnits);
  arena.set_owner(whole);
  EXPECT_EQ(entries[3].owner(), Owner(whole, 0));
  arena.set_owner(slab.begin, slab.units, extent);
  extent.leave();
  for (const PageEntry& entry : entries) EXPECT_EQ(entry.owner(), Owner(&arena));
  for (const std::atomic<Owner>& owner : owners) EXPECT_EQ(owner.load(), Owner{});
}

TEST(Extent, neighbours_that_come_back_are_one_stretch) {
  FreeExtent extent(128);
  take(extent, 128);
  extent.give(0, 50);
  extent.give(70, 58);
  EXPECT_EQ(extent.longest(), 58u);
  extent.give(50, 20);
  EXPECT_EQ(extent.longest(), 128u);
  EXPECT_TRUE(extent.is_free());
}

// Against a set of units.
TEST(Extent, agrees_with_a_set_of_units_whatever_is_taken_and_given) {
  for (const std::uint32_t units : {100u, 128u, 300u}) {
    FreeExtent extent(units);
    std::set<std::uint64_t> free;
    for (std::uint64_t unit = 0; unit < units; ++unit) free.insert(unit);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    std::mt19937_64 random(units);
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t wanted = 1 + random() % 24;
      if (extent.longest() >= wanted && random() % 2 == 0) {
        const auto [first, length] = take(extent, wanted);
        ASSERT_LE(wanted, length);
        for (std::uint64_t unit = first; unit < first + wanted; ++unit)
          ASSERT_EQ(free.erase(unit), 1u) << "unit " << unit << " was taken already";
        taken.emplace_back(first, wanted);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        const auto [first, count] = taken.back();
        taken.pop_back();
        extent.give(first, count);
        for (std::uint64_t unit = first; unit < first + count; ++unit) free.insert(unit);
      }
      std::uint64_t longest = 0, length = 0, last = units;
      for (const std::uint64_t unit : free) {
        length = unit == last + 1 ? length + 1 : 1;
        last = unit;
        longest = std::max(longest, length);
      }
      ASSERT_EQ(extent.longest(), longest);
      ASSERT_EQ(extent.free_units, free.size());
      ASSERT_EQ(extent.validate(), "");
    }
  }
}

// Against a map from first units to runs.
TEST(Extent, knows_of_every_run_where_it_begins_and_what_its_user_asked_for) {
  struct Run {
    std::uint64_t units = 0;
    Bytes requested = 0;
    bool is_used_elsewhere = false;
  };
  for (const std::uint32_t units : {8u, 100u, 128u, 300u}) {
    FreeExtent extent(units);
    std::map<std::uint64_t, Run> runs;
    std::mt19937_64 random(units);
    for (int step = 0; step < 2000; ++step) {
      const Bytes requested = kLeastRun - kUnit + 1 + random() % (16 * kUnit);
      if (random() % 2 == 0 && extent.longest() >= run_units(requested)) {
        const std::uint64_t first = take(extent, run_units(requested)).first;
        runs[first] = {run_units(requested), requested, random() % 4 == 0};
        extent.begin_run(first, requested);
        if (runs[first].is_used_elsewhere) extent.set_used_elsewhere(first);
      } else if (!runs.empty()) {
        const auto gone = std::next(runs.begin(), static_cast<std::ptrdiff_t>(random() % runs.size()));
        extent.end_run(gone->first);
        extent.give(gone->first, gone->second.units);
        runs.erase(gone);
      }
      for (std::uint64_t unit = 0; unit < units; ++unit) {
        const auto run = runs.find(unit);
        ASSERT_EQ(extent.has_run_at(unit), run != runs.end());
        ASSERT_EQ(extent.is_used_elsewhere(unit), run != runs.end() && run->second.is_used_elsewhere);
        if (run != runs.end()) {
          ASSERT_EQ(extent.requested(unit), run->second.requested);
        }
        const auto behind = runs.upper_bound(unit);
        const auto last = behind == runs.begin() ? std::nullopt : std::optional(std::prev(behind)->first);
        ASSERT_EQ(extent.run_until(unit), last);
      }
      ASSERT_EQ(extent.validate(), "");
    }
  }
}

TEST(ExtentLists, find_one_of_those_with_the_shortest_sufficient_stretch) {
  ExtentLists lists;
  EXPECT_EQ(lists.find(1).extent, nullptr);
  std::deque<FreeExtent> extents;
  for (const std::uint32_t units : {5u, 64u, 128u, 200u, 4096u}) extents.emplace_back((units));
  for (Extent& extent : extents) lists.file(&extent);
  for (const auto& [wanted, found] :
       {std::pair<std::uint64_t, std::uint32_t>{1, 5}, {5, 5}, {6, 64}, {65, 128}, {201, 4096}, {4096, 4096}})
    EXPECT_EQ(lists.find(wanted).extent->units, found) << wanted;
  EXPECT_GE(lists.find(129).extent->units, 200u);
  EXPECT_EQ(lists.find(4097).extent, nullptr);
  lists.remove(&extents[0], 5);
  EXPECT_EQ(lists.find(1).extent->units, 64u);
  std::size_t count = 0;
  lists.for_each([&](const Extent*) { ++count; });
  EXPECT_EQ(count, 4u);
  std::vector<std::uint32_t> long_ones;
  const auto collect = [&](std::size_t most) {
    long_ones.clear();
    lists.for_each_from(128, [&](const Extent* extent) {
      long_ones.push_back(extent->units);
      return long_ones.size() < most;
    });
  };
  collect(100);
  EXPECT_EQ(long_ones.size(), 3u);
  EXPECT_EQ(long_ones.front(), 128u);
  collect(2);
  EXPECT_EQ(long_ones.size(), 2u);
  FreeExtent full(3);
  take(full, 3);
  lists.file(&full);
  lists.for_each([&](const Extent* extent) { EXPECT_NE(extent, &full) << "nothing can be taken from it"; });
}

}  // namespace
}  // namespace vpmm::small
