// SPDX-License-Identifier: Apache-2.0
// small: which units of a segment are taken, and what is known of those that are left.
#include "small/segment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "small/stream_cache.hpp"

namespace vpmm::small {
namespace {

struct FreeSegments : Segment {
  explicit FreeSegments(std::uint32_t count) {
    units = count;
    set_all_free();
  }
};

UnitRun take(Segment& segment, std::uint64_t units) {
  return {segment.take(segment.find(units)), units};
}

TEST(Segment, begins_as_one_stretch_of_any_length) {
  for (const std::uint32_t units : {1u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4096u}) {
    FreeSegments segment(units);
    EXPECT_EQ(segment.longest(), units);
    EXPECT_TRUE(segment.is_free());
    EXPECT_EQ(segment.validate(), "");
    EXPECT_EQ(take(segment, units).first, 0u);
    EXPECT_EQ(segment.longest(), 0u);
    EXPECT_EQ(segment.free_units(), 0u);
    EXPECT_EQ(segment.validate(), "");
  }
}

TEST(Segment, takes_the_front_of_the_shortest_stretch_that_is_long_enough) {
  FreeSegments segment(128);
  take(segment, 128);
  segment.give(10, 20);
  segment.give(60, 8);  // across two words
  segment.give(100, 28);
  EXPECT_EQ(segment.longest(), 28u);
  EXPECT_EQ(take(segment, 8).first, 60u);
  EXPECT_EQ(take(segment, 8).first, 10u);
  EXPECT_EQ(take(segment, 21).first, 100u);
  EXPECT_EQ(segment.longest(), 12u);
  EXPECT_EQ(take(segment, 12).first, 18u);
  EXPECT_EQ(segment.longest(), 7u);
  EXPECT_EQ(segment.validate(), "");
}

struct SegmentInRun : ::testing::Test {
  static constexpr std::uint64_t kPageUnits = 128;
  std::vector<std::atomic<Content>> contents{4 * kPageUnits};
  std::vector<PagemapEntry> entries{4};
  PageRun run;
  Segment segment;
  SegmentInRun() {
    run.range = {DevicePtr{1} + (kUnit - 1), 4 * kPageUnits * kUnit};
    run.page_size = kPageUnits * kUnit;
    run.contents = contents.data();
    run.entries = entries.data();
    for (std::size_t page = 0; page < entries.size(); ++page) entries[page].enter(run, page);
    segment.enter(run, {run.range.begin, kPageUnits * kUnit});
  }
  void grow(std::uint64_t units) {
    SegmentRoom room(segment.units + units);
    segment.grow(units, room);
  }
  static void split(Segment& front, std::uint64_t at, Segment& back) {
    SegmentRoom front_room(at), back_room(front.units - at);
    front.split(at, back, front_room, back_room);
  }
};

TEST_F(SegmentInRun, grows_with_the_pages_behind_it) {
  take(segment, 100);
  grow(2 * kPageUnits);
  EXPECT_EQ(segment.units, 3 * kPageUnits);
  EXPECT_EQ(segment.free_units(), 28u) << "what it grew by is in use until it is given";
  segment.give(kPageUnits, 2 * kPageUnits);
  EXPECT_EQ(segment.longest(), 28 + 2 * kPageUnits);
  EXPECT_EQ(segment.free_page_units(kPageUnits), 2 * kPageUnits);
  for (std::uint64_t unit = 0; unit < 4 * kPageUnits; ++unit)
    EXPECT_EQ(contents[unit].load(), unit < 3 * kPageUnits ? Content(&segment) : Content{});
  for (std::size_t page = 0; page < entries.size(); ++page)
    EXPECT_EQ(entries[page].content(), page < 3 ? Content(&segment) : Content(&run));
  EXPECT_EQ(segment.validate(), "");
}

// Whether the part of its growth that comes free is the longer or not.
TEST_F(SegmentInRun, knows_its_longest_stretch_when_it_has_grown) {
  take(segment, 28);
  grow(kPageUnits);
  EXPECT_EQ(segment.longest(), 100u);
  EXPECT_EQ(segment.validate(), "");
  segment.give(kPageUnits + 64, 64);
  EXPECT_EQ(segment.longest(), 100u);
  EXPECT_EQ(take(segment, 100).first, 28u);
  EXPECT_EQ(segment.longest(), 64u);
  grow(kPageUnits);
  segment.give(2 * kPageUnits, kPageUnits);
  EXPECT_EQ(segment.longest(), 64 + kPageUnits) << "side by side";
}

TEST_F(SegmentInRun, is_split_where_free_pages_begin_and_end) {
  grow(3 * kPageUnits);
  segment.give(kPageUnits, 3 * kPageUnits);
  take(segment, 4 * kPageUnits);
  const Bytes requested = 20 * kUnit - 1;
  for (const std::uint64_t first : {std::uint64_t{90}, 3 * kPageUnits + 5}) {
    segment.begin_span(first, requested);
    segment.set_used_elsewhere(first);
  }
  segment.give(110, 2 * kPageUnits - 110 + 7);  // from the first page to the third
  segment.give(3 * kPageUnits + 30, 98);
  EXPECT_EQ(segment.free_page_units(kPageUnits), kPageUnits);
  ASSERT_EQ(segment.first_border(kPageUnits), kPageUnits);
  Segment middle, back;
  split(segment, kPageUnits, middle);
  ASSERT_EQ(middle.first_border(kPageUnits), kPageUnits);
  split(middle, kPageUnits, back);
  EXPECT_TRUE(middle.is_free());
  EXPECT_EQ(middle.begin, run.range.begin + kPageUnits * kUnit);
  EXPECT_EQ(segment.free_units(), 18u);
  EXPECT_EQ(back.free_units(), 7u + 98);
  EXPECT_EQ(back.units, 2 * kPageUnits);
  EXPECT_EQ(back.first_border(kPageUnits), 0u);
  for (const auto& [part, first] :
       {std::pair{&segment, std::uint64_t{90}}, {&back, kPageUnits + 5}}) {
    EXPECT_TRUE(part->has_span_at(first));
    EXPECT_TRUE(part->is_used_elsewhere(first));
    EXPECT_EQ(part->requested(first), requested);
  }
  for (const Segment* part : {&segment, &middle, &back}) {
    EXPECT_EQ(part->validate(), "");
    for (std::uint64_t unit = 0; unit < part->units; ++unit)
      EXPECT_EQ(contents[run.unit_of(part->begin) + unit].load(), Content(part));
  }
  for (const auto& [page, part] : {std::pair{0, &segment}, {1, &middle}, {2, &back}, {3, &back}})
    EXPECT_EQ(entries[static_cast<std::size_t>(page)].content(), Content(part));
}

TEST_F(SegmentInRun, is_split_where_a_free_stretch_ends) {
  grow(kPageUnits);
  ASSERT_EQ(segment.first_border(kPageUnits), kPageUnits);
  Segment back;
  split(segment, kPageUnits, back);
  EXPECT_TRUE(segment.is_free());
  EXPECT_EQ(back.free_units(), 0u);
  for (const Segment* part : {&segment, &back}) EXPECT_EQ(part->validate(), "");
}

TEST_F(SegmentInRun, is_split_where_a_free_stretch_begins) {
  take(segment, kPageUnits);
  grow(kPageUnits);
  segment.give(kPageUnits, kPageUnits);
  ASSERT_EQ(segment.first_border(kPageUnits), kPageUnits);
  Segment back;
  split(segment, kPageUnits, back);
  EXPECT_EQ(segment.free_units(), 0u);
  EXPECT_TRUE(back.is_free());
  for (const Segment* part : {&segment, &back}) EXPECT_EQ(part->validate(), "");
}

TEST_F(SegmentInRun, is_all_free_or_keeps_all_its_units) {
  take(segment, 100);
  EXPECT_EQ(segment.kept_after(60), 0u);
  EXPECT_EQ(segment.kept_after(100), kPageUnits);
}

TEST_F(SegmentInRun, is_named_by_the_entries_of_its_pages_until_a_slab_is_cut_there) {
  grow(3 * kPageUnits);
  Slab slab;
  slab.segment = &segment;
  slab.units = 8;
  slab.begin = segment.at(2 * kPageUnits - 4);  // across a border of pages
  run.set_content(slab);
  for (std::size_t page = 0; page < entries.size(); ++page) {
    const bool is_cut = page == 1 || page == 2;
    EXPECT_EQ(entries[page].content(), is_cut ? Content(&run) : Content(&segment));
    EXPECT_EQ(entries[page].unit_contents(),
              is_cut ? contents.data() + page * kPageUnits : nullptr);
  }
  Slab whole;
  whole.segment = &segment;
  whole.units = kPageUnits;
  whole.begin = segment.at(3 * kPageUnits);
  run.set_content(whole);
  EXPECT_EQ(entries[3].content(), Content(whole, 0));
  run.set_content(whole.begin, whole.units, segment);
  EXPECT_EQ(entries[3].content(), Content(&run)) << "the slab ended";
  EXPECT_EQ(entries[3].unit_contents(), contents.data() + 3 * kPageUnits);
  EXPECT_EQ(content_in(contents[3 * kPageUnits]), Content(&segment));
  run.set_content(slab.begin, slab.units, segment);
  segment.leave();
  for (const PagemapEntry& entry : entries) EXPECT_EQ(entry.content(), Content(&run));
  for (const std::atomic<Content>& content : contents) EXPECT_EQ(content.load(), Content{});
}

// Then calls for memory there take the pool's lock, and find contents in the run's own table.
TEST_F(SegmentInRun, that_the_pagemap_does_not_cover_has_contents_alone) {
  segment.leave();
  run.entries = nullptr;
  segment.enter(run, {run.range.begin, kPageUnits * kUnit});
  take(segment, kPageUnits);
  grow(2 * kPageUnits);
  segment.give(kPageUnits, 2 * kPageUnits);
  Slab slab, whole;
  slab.units = 8;
  slab.begin = segment.at(kPageUnits - 4);
  whole.units = kPageUnits;
  whole.begin = segment.at(2 * kPageUnits);
  for (Slab* const each : {&slab, &whole}) {
    each->segment = &segment;
    run.set_content(*each);
    for (std::uint64_t unit = 0; unit < each->units; ++unit)
      EXPECT_EQ(content_in(contents[run.unit_of(each->begin) + unit]), Content(*each, unit));
    run.set_content(each->begin, each->units, segment);
  }
  Segment back;
  split(segment, kPageUnits, back);
  for (std::uint64_t unit = 0; unit < 3 * kPageUnits; ++unit)
    EXPECT_EQ(content_in(contents[unit]), Content(unit < kPageUnits ? &segment : &back));
  back.leave();
  segment.leave();
  for (const std::atomic<Content>& content : contents) EXPECT_EQ(content.load(), Content{});
  for (const PagemapEntry& entry : entries)
    EXPECT_EQ(entry.content(), Content(&run)) << "as before";
}

// Note [Streams share no line]
TEST_F(SegmentInRun, writes_into_whole_lines_of_the_table_alone) {
  Slab slab;
  slab.units = 1;
  for (const auto& [first, units] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 8}, {0, 3}, {3, 2}, {5, 3}, {3, 20}, {7, 9}, {1, 7}, {1, 14}, {4, 4 + 16 + 7}}) {
    Segment other;
    const std::uint64_t begin = kPageUnits + first;
    other.enter(run, {run.range.begin + begin * kUnit, units * kUnit});
    EXPECT_TRUE(other.is_free());
    for (std::uint64_t unit = begin; unit < begin + units; ++unit) {
      const std::uint64_t line = unit / 8 * 8;
      const bool is_in_whole_line = begin <= line && line + 8 <= begin + units;
      const Content before = contents[unit];
      EXPECT_EQ(before.place() == nullptr, is_in_whole_line) << first << " " << unit;
      EXPECT_EQ(content_in(contents[unit]), Content(&other));
      slab.begin = run.range.begin + unit * kUnit;
      run.set_content(slab);
      EXPECT_EQ(content_in(contents[unit]), Content(slab, 0));
      EXPECT_EQ(contents[unit].load() == before, !is_in_whole_line);
      run.set_content(slab.begin, 1, other);
    }
    EXPECT_EQ(contents[begin - 1].load(), begin == kPageUnits ? Content(&segment) : Content{});
    EXPECT_EQ(contents[begin + units].load(), Content{});
    other.leave();
    for (std::uint64_t unit = kPageUnits; unit < 2 * kPageUnits; ++unit)
      EXPECT_EQ(contents[unit].load(), Content{});
  }
}

TEST(Segment, neighbours_that_come_back_are_one_stretch) {
  FreeSegments segment(128);
  take(segment, 128);
  segment.give(0, 50);
  segment.give(70, 58);
  EXPECT_EQ(segment.longest(), 58u);
  segment.give(50, 20);
  EXPECT_EQ(segment.longest(), 128u);
  EXPECT_TRUE(segment.is_free());
}

// Against a set of units.
TEST(Segment, agrees_with_a_set_of_units_whatever_is_taken_and_given) {
  for (const std::uint32_t units : {100u, 128u, 300u}) {
    FreeSegments segment(units);
    std::set<std::uint64_t> free;
    for (std::uint64_t unit = 0; unit < units; ++unit) free.insert(unit);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    std::mt19937_64 random(units);
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t wanted = 1 + random() % 24;
      if (segment.longest() >= wanted && random() % 2 == 0) {
        const auto [first, length] = take(segment, wanted);
        ASSERT_LE(wanted, length);
        for (std::uint64_t unit = first; unit < first + wanted; ++unit)
          ASSERT_EQ(free.erase(unit), 1u) << "unit " << unit << " was taken already";
        taken.emplace_back(first, wanted);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        const auto [first, count] = taken.back();
        taken.pop_back();
        segment.give(first, count);
        for (std::uint64_t unit = first; unit < first + count; ++unit) free.insert(unit);
      }
      std::uint64_t longest = 0, length = 0, last = units;
      for (const std::uint64_t unit : free) {
        length = unit == last + 1 ? length + 1 : 1;
        last = unit;
        longest = std::max(longest, length);
      }
      ASSERT_EQ(segment.longest(), longest);
      ASSERT_EQ(segment.free_units(), free.size());
      ASSERT_EQ(segment.validate(), "");
    }
  }
}

// Against a map from first units to spans.
TEST(Segment, knows_of_every_run_where_it_begins_and_what_its_user_asked_for) {
  struct Span {
    std::uint64_t units = 0;
    Bytes requested = 0;
    bool is_used_elsewhere = false;
  };
  for (const std::uint32_t units : {8u, 100u, 128u, 300u}) {
    FreeSegments segment(units);
    std::map<std::uint64_t, Span> spans;
    std::mt19937_64 random(units);
    for (int step = 0; step < 2000; ++step) {
      const Bytes requested = kLeastSpan - kUnit + 1 + random() % (16 * kUnit);
      if (random() % 2 == 0 && segment.longest() >= span_units(requested)) {
        const std::uint64_t first = take(segment, span_units(requested)).first;
        spans[first] = {span_units(requested), requested, random() % 4 == 0};
        segment.begin_span(first, requested);
        if (spans[first].is_used_elsewhere) segment.set_used_elsewhere(first);
      } else if (!spans.empty()) {
        const auto gone =
            std::next(spans.begin(), static_cast<std::ptrdiff_t>(random() % spans.size()));
        segment.end_span(gone->first);
        segment.give(gone->first, gone->second.units);
        spans.erase(gone);
      }
      for (std::uint64_t unit = 0; unit < units; ++unit) {
        const auto span = spans.find(unit);
        ASSERT_EQ(segment.has_span_at(unit), span != spans.end());
        if (span != spans.end()) {
          ASSERT_EQ(segment.is_used_elsewhere(unit), span->second.is_used_elsewhere);
          ASSERT_EQ(segment.requested(unit), span->second.requested);
        }
        const auto behind = spans.upper_bound(unit);
        const auto last =
            behind == spans.begin() ? std::nullopt : std::optional(std::prev(behind)->first);
        ASSERT_EQ(segment.span_until(unit), last);
      }
      ASSERT_EQ(segment.validate(), "");
    }
  }
}

// A stretch that is long enough at any address is found behind any number of others, of the length
// alone, that begin elsewhere.
TEST(SegmentLists, find_an_aligned_place_whatever_does_not_fit_before_it) {
  SegmentLists lists;
  std::deque<FreeSegments> segments;
  for (int i = 0; i < 50; ++i) {
    segments.emplace_back(9u);
    take(segments.back(), 1);
    lists.file(&segments.back());
  }
  EXPECT_NE(lists.find(8).segment, nullptr);
  EXPECT_EQ(lists.find(8, 8).segment, nullptr) << "all begin at the second unit";
  segments.emplace_back(64u);
  take(segments.back(), 1);
  lists.file(&segments.back());
  const SegmentLists::Found found = lists.find(8, 8);
  ASSERT_EQ(found.segment, &segments.back());
  EXPECT_EQ(segments.back().take(found.place), 8u);
}

// Of addresses, wherever the segment begins.
TEST(Segment, takes_the_first_place_at_an_aligned_address) {
  for (const std::uint64_t origin : {0u, 1u, 2u, 3u, 5u, 31u})
    for (const std::uint64_t alignment : {1u, 4u, 8u, 32u}) {
      FreeSegments segment(64u);
      segment.begin = DevicePtr{} + origin * kUnit;
      const std::uint64_t first = segment.take(segment.find(8, alignment));
      EXPECT_EQ(origin + first, round_up(origin, alignment)) << origin << ", " << alignment;
      EXPECT_EQ(segment.free_units(), 56u);
      EXPECT_EQ(segment.longest(), std::max(first, 56 - first)) << "before it, or behind";
      EXPECT_EQ(segment.validate(), "");
    }
}

// Up to eight, all of the least length; then only where it fits at any address.
TEST(SegmentLists, look_at_few_segments_in_which_an_aligned_place_is_not) {
  for (const auto& [misfits, is_found] : {std::pair{0, true}, {7, true}, {8, false}, {20, false}}) {
    SegmentLists lists;
    FreeSegments fits(8u);
    lists.file(&fits);
    std::deque<FreeSegments> others;
    for (int i = 0; i < misfits; ++i) {
      others.emplace_back(9u);
      take(others.back(), 1);
      lists.file(&others.back());  // in front of those before
    }
    EXPECT_EQ(lists.find(8, 8).segment, is_found ? &fits : nullptr) << misfits;
    FreeSegments long_one(15u);
    lists.file(&long_one);
    EXPECT_EQ(lists.find(8, 8).segment, is_found ? &fits : &long_one) << misfits;
  }
}

TEST(SegmentLists, find_stretches_of_any_length) {
  constexpr std::uint32_t kLong = 32768;  // the shortest that share a list with all longer ones
  for (const std::uint32_t units : {31u, 32u, 33u, 1000u, kLong - 1, kLong, kLong + 1, 8 * kLong}) {
    SegmentLists lists;
    FreeSegments segment(units);
    lists.file(&segment);
    EXPECT_EQ(lists.find(units).segment, &segment);
    EXPECT_EQ(lists.find(units + 1).segment, nullptr);
    FreeSegments longer(2 * units);
    lists.file(&longer);
    EXPECT_EQ(lists.find(units + 1).segment, &longer);
    EXPECT_EQ(lists.find(2 * units + 1).segment, nullptr);
    take(longer, 2 * units - 1);
    lists.refile(&longer, 2 * units);
    EXPECT_EQ(lists.find(2).segment, &segment);
    EXPECT_EQ(lists.find(1).segment, &longer) << "what is left of it";
    lists.remove(&segment, units);
    EXPECT_EQ(lists.find(2).segment, nullptr);
    lists.remove(&longer, 1);
    EXPECT_EQ(lists.find(1).segment, nullptr);
  }
}

// So those that differ in a span's class share no list, below 32768 units.
TEST(SegmentLists, find_the_shortest_of_all_classes_of_spans) {
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t units = 1; units < 32; ++units) lengths.push_back(units);
  for (std::uint32_t step = 2; step <= 1024; step *= 2)
    for (std::uint32_t steps = 16; steps < 32; ++steps) lengths.push_back(steps * step);
  SegmentLists lists;
  std::deque<FreeSegments> segments;
  for (const std::uint32_t units : lengths) {
    segments.emplace_back(units);
    lists.file(&segments.back());  // the longer one would come first in a list of both
  }
  for (std::size_t i = 0; i < lengths.size(); ++i)
    EXPECT_EQ(lists.find(lengths[i]).segment, &segments[i]) << lengths[i];
}

TEST(SegmentLists, find_an_aligned_place_in_the_shortest_sufficient_stretch) {
  SegmentLists lists;
  std::deque<FreeSegments> segments;
  for (const std::uint32_t units : {8u, 15u, 64u}) segments.emplace_back(units);
  for (Segment& segment : segments) lists.file(&segment);
  EXPECT_EQ(lists.find(8, 8).segment, &segments[0]);
  EXPECT_EQ(lists.find(9, 8).segment, &segments[1]);
  EXPECT_EQ(lists.find(16, 8).segment, &segments[2]);
}

TEST(SegmentChain, has_what_was_added_in_order_until_it_is_taken) {
  std::deque<Segment> segments(3);
  SegmentChain chain;
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(chain.first(), nullptr);
    EXPECT_EQ(chain.take_first(), nullptr);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(chain.count(), i);
      chain.add(&segments[i]);
    }
    EXPECT_EQ(segments[0].chained, &segments[1]);
    EXPECT_EQ(segments[2].chained, nullptr);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(chain.count(), 3 - i);
      EXPECT_EQ(chain.first(), &segments[i]);
      EXPECT_EQ(chain.take_first(), &segments[i]);
    }
    EXPECT_EQ(chain.count(), 0u);
  }
}

// A stream's free pages are those of segments that it uses otherwise; the others go as a whole.
TEST(StreamSegments, of_several_pages_in_use_have_free_pages) {
  StreamCache cache(kLeastPage);
  StreamSegments& segments = cache.segments;
  const std::uint64_t page = segments.page_units();
  FreeSegments several(static_cast<std::uint32_t>(4 * page)), one(static_cast<std::uint32_t>(page));
  const auto expect_free = [&](std::uint64_t pages, bool is_many) {
    EXPECT_EQ(segments.many_free_page_units(), is_many ? pages * page : 0);
    EXPECT_EQ(segments.of_several_pages().count(), pages == 0 ? 0u : 1u);
  };
  EXPECT_FALSE(segments.may_have_free_pages());
  segments.attach(&one, &cache, 0);
  EXPECT_FALSE(segments.may_have_free_pages());
  segments.attach(&several, &cache, 0);
  EXPECT_TRUE(segments.may_have_free_pages());
  expect_free(0, false);
  const auto take_page = [&] {
    const auto [segment, place] = segments.lists().find(page + 1);
    ASSERT_EQ(segment, &several);
    segments.take(*segment, segment->find(page));
  };
  take_page();
  expect_free(3, true);
  take_page();
  expect_free(2, true);
  take_page();
  segments.take(several, several.find(page));
  expect_free(0, false);
  segments.give(several, 2 * page, page, 1);
  expect_free(1, false);
  for (const std::uint64_t first : {std::uint64_t{0}, page, 3 * page})
    segments.give(several, first, page, 1);
  expect_free(0, false);
  segments.detach(&several);
  segments.detach(&one);
  EXPECT_FALSE(segments.may_have_free_pages());
}

// Three quarters of the units in use are in spans of more than half a page.
TEST(StreamSegments, of_a_stream_that_uses_mostly_large_spans_cross_borders_of_pages) {
  StreamCache cache(kLeastPage);
  StreamSegments& segments = cache.segments;
  const std::uint64_t page = segments.page_units();
  const std::uint64_t large = page / 4 * 3;
  FreeSegments segment(static_cast<std::uint32_t>(4 * page));
  segments.attach(&segment, &cache, 0);
  const auto expect = [&](bool is_mostly_large, const char* when) {
    EXPECT_FALSE(segments.crosses_pages(page / 2)) << when;
    EXPECT_EQ(segments.crosses_pages(page / 2 + 1), is_mostly_large) << when;
    EXPECT_EQ(segments.crosses_pages(page), is_mostly_large) << when;
    EXPECT_TRUE(segments.crosses_pages(page + 1)) << when;
  };
  const auto begin = [&](std::uint64_t units) {
    segments.count_span(units, +1);
    return segments.take(segment, segment.find(units));
  };
  const auto end = [&](std::uint64_t first, std::uint64_t units) {
    segments.count_span(units, -1);
    segments.give(segment, first, units, 0);
  };
  expect(true, "of nothing, all are large");
  const std::uint64_t half = begin(page / 2);
  expect(false, "a half is not large");
  end(half, page / 2);
  const std::uint64_t first = begin(large);
  expect(true, "alone");
  const std::uint64_t rest = begin(page / 4);
  expect(true, "three quarters");
  const std::uint64_t unit = begin(1);
  expect(false, "less than three quarters");
  end(unit, 1);
  expect(true, "three quarters again");
  end(first, large);
  expect(false, "none is large");
  end(rest, page / 4);
  segments.detach(&segment);
}

TEST(SegmentLists, find_one_of_those_with_the_shortest_sufficient_stretch) {
  SegmentLists lists;
  EXPECT_EQ(lists.find(1).segment, nullptr);
  std::deque<FreeSegments> segments;
  for (const std::uint32_t units : {5u, 64u, 128u, 200u, 4096u}) segments.emplace_back((units));
  for (Segment& segment : segments) lists.file(&segment);
  for (const auto& [wanted, found] : {std::pair<std::uint64_t, std::uint32_t>{1, 5},
                                      {5, 5},
                                      {6, 64},
                                      {65, 128},
                                      {201, 4096},
                                      {4096, 4096}})
    EXPECT_EQ(lists.find(wanted).segment->units, found) << wanted;
  EXPECT_GE(lists.find(129).segment->units, 200u);
  EXPECT_EQ(lists.find(4097).segment, nullptr);
  lists.remove(&segments[0], 5);
  EXPECT_EQ(lists.find(1).segment->units, 64u);
  std::size_t count = 0;
  lists.for_each([&](const Segment*) { ++count; });
  EXPECT_EQ(count, 4u);
  std::vector<std::uint32_t> long_ones;
  const auto collect = [&](std::size_t most) {
    long_ones.clear();
    lists.for_each_from(128, [&](const Segment* segment) {
      long_ones.push_back(segment->units);
      return long_ones.size() < most;
    });
  };
  collect(100);
  EXPECT_EQ(long_ones.size(), 3u);
  EXPECT_EQ(long_ones.front(), 128u);
  collect(2);
  EXPECT_EQ(long_ones.size(), 2u);
  FreeSegments full(3);
  take(full, 3);
  lists.file(&full);
  lists.for_each(
      [&](const Segment* segment) { EXPECT_NE(segment, &full) << "nothing can be taken from it"; });
}

}  // namespace
}  // namespace vpmm::small
