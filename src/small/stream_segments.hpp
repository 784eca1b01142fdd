// SPDX-License-Identifier: Apache-2.0
// small: the segments of one stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/host_memory.hpp"
#include "small/segment.hpp"
#include "small/tally.hpp"

namespace vpmm::small {

// Note [Free pages of segments in use]
// Spans that cross pages need pages side by side, and a page taken later rarely lies there. So free
// pages of a segment in use stay with the stream until they are a quarter of its units, or until a
// shortage. Then they become segments of their own, which can leave.
class StreamSegments {
 public:
  explicit StreamSegments(std::uint64_t page_units) : page_units_(page_units) {}

  std::uint64_t page_units() const { return page_units_; }
  bool empty() const VPMM_REQUIRES(cache_lock) { return count_ == 0; }
  // Any thread, without a lock.
  std::uint64_t units() const { return units_.now(); }
  Bytes free_bytes() const {
    return free_segment_units_.now() * kUnit;
  }  // in segments that are all free
  // Bytes that the stream takes at a time: a share of those it has. Large streams seldom ask, and
  // many small ones share a page.
  Bytes share_bytes() const { return units() / kShareOfSegments * kUnit; }
  bool may_have_free_pages() const {
    return has_several_pages_.load(std::memory_order_relaxed);
  }  // in others

  // --- units ---
  // Finds room for a span of `units`.
  SegmentLists::Found find(std::uint64_t units) const VPMM_REQUIRES(cache_lock) {
    return lists_.find(units, alignment_of(units));
  }
  // Alignment of a span in units: 64 KiB from 512 KiB up, a 32nd of a page from a page up.
  std::uint64_t alignment_of(std::uint64_t units) const {
    const std::uint64_t least = units >= kLeastAligned ? kAlignment : 1;
    return units >= page_units_ ? std::max(least, page_units_ / 32) : least;
  }
  // Returns the first.
  std::uint64_t take(Segment& segment, const FreeStretches::UnitPlace& place)
      VPMM_REQUIRES(cache_lock) {
    const std::uint32_t longest = segment.longest();
    if (segment.is_free()) free_segment_units_.add(-std::uint64_t{segment.units});
    const std::uint64_t first = segment.take(place);
    free_units_ -= place.wanted.units;
    lists_.refile(&segment, longest);
    return first;
  }
  // Makes the units free. `number`: of the free that ended the last use; 0: complete.
  void give(Segment& segment, std::uint64_t first, std::uint64_t units, std::uint64_t number)
      VPMM_REQUIRES(cache_lock) {
    const std::uint32_t longest = segment.longest();
    segment.give(first, units);
    if (segment.is_free()) free_segment_units_.add(segment.units);
    free_units_ += units;
    segment.number = std::max(segment.number, number);
    lists_.refile(&segment, longest);
  }

  // --- large spans: of more than half a page ---
  bool is_large(std::uint64_t units) const { return 2 * units > page_units_; }
  // Counts a span of `units` that begins (1) or ends (-1).
  void count_span(std::uint64_t units, std::int64_t change) VPMM_REQUIRES(cache_lock) {
    large_units_ += units * static_cast<std::uint64_t>(change * is_large(units));
  }
  // Tells if spans of `units` may cross a border of pages (Note [Small requests may cross pages]).
  bool crosses_pages(std::uint64_t units) const VPMM_REQUIRES(cache_lock) {
    return units > page_units_ ||
           (is_large(units) && 4 * large_units_ >= 3 * (this->units() - free_units_));
  }

  // --- segments ---
  // Adds a segment that is all free. `number`: of the last free there; 0: complete.
  void attach(Segment* segment, StreamCache* to, std::uint64_t number)
      VPMM_REQUIRES(pool_lock, cache_lock) {
    segment->number = number;
    segment->set_cache(to);
    add(*segment);
    ++count_;
    units_.add(segment->units);
    free_units_ += segment->units;
  }
  // Removes a segment that is all free.
  void detach(Segment* segment) VPMM_REQUIRES(pool_lock, cache_lock) {
    lists_.remove(segment, segment->longest());
    segment->set_cache(
        nullptr);  // a call that found it for a dead address sees this under the lock
    --count_;
    if (count_ == 0) has_several_pages_.store(false, std::memory_order_relaxed);
    units_.add(-std::uint64_t{segment->units});
    free_units_ -= segment->units;
    free_segment_units_.add(-std::uint64_t{segment->units});
  }
  // Extends the segment by the free pages of the run behind it. `number`: as in attach().
  void grow(Segment& segment, std::uint64_t units, std::uint64_t number, SegmentRoom& room)
      VPMM_REQUIRES(pool_lock, cache_lock) {
    const std::uint64_t first = segment.units;
    if (segment.is_free()) free_segment_units_.add(-first);
    segment.grow(units, room);
    has_several_pages_.store(true, std::memory_order_relaxed);
    units_.add(units);
    give(segment, first, units, number);
  }

  // --- free pages of segments that are in use otherwise ---
  // Units of free pages, if these are many; 0: few. Reads each segment of several pages with a free
  // one. To keep a counter, every warm call would read all free stretches of its segment.
  std::uint64_t many_free_page_units() const VPMM_REQUIRES(cache_lock) {
    std::uint64_t sum = 0;
    for_each_of_several_pages([&](const Segment* segment) VPMM_REQUIRES(cache_lock) {
      sum += segment->free_page_units(page_units_);
    });
    return kFreePagesDivisor * sum > units() ? sum : 0;
  }
  SegmentChain of_several_pages() const VPMM_REQUIRES(pool_lock, cache_lock) {
    SegmentChain several;
    for_each_of_several_pages([&](Segment* segment) { several.add(segment); });
    return several;
  }
  // Splits a segment of the stream (Segment::split()).
  void split(Segment& segment, std::uint64_t at, Segment& back, SegmentRoom& front_room,
             SegmentRoom& back_room) VPMM_REQUIRES(pool_lock, cache_lock) {
    const std::uint32_t longest = segment.longest();
    segment.split(at, back, front_room, back_room);
    ++count_;
    lists_.refile(&segment, longest);
    if (segment.is_free()) free_segment_units_.add(segment.units);
    add(back);
  }
  // Removes all segments that are all free, and returns them.
  SegmentChain detach_free() VPMM_REQUIRES(pool_lock, cache_lock) {
    SegmentChain free;
    lists_.for_each([&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->is_free()) free.add(segment);
    });
    for (Segment* segment = free.first(); segment != nullptr; segment = segment->chained)
      detach(segment);
    return free;
  }

  const SegmentLists& lists() const VPMM_REQUIRES(cache_lock) { return lists_; }
  // The first broken invariant as text; empty when all hold. `all`: those that name the cache.
  std::string validate(const StreamCache* owner, const Vector<const Segment*>& all) const
      VPMM_REQUIRES(cache_lock);

 private:
  static constexpr std::uint64_t kFreePagesDivisor = 4;
  static constexpr std::uint64_t kShareOfSegments = 64;
  static constexpr std::uint64_t kLeastAligned = 512 * kKiB / kUnit;
  static constexpr std::uint64_t kAlignment = 64 * kKiB / kUnit;

  void add(Segment& segment) VPMM_REQUIRES(cache_lock) {
    lists_.file(&segment);
    if (segment.is_free()) free_segment_units_.add(segment.units);
    if (segment.units > page_units_) has_several_pages_.store(true, std::memory_order_relaxed);
  }
  template <typename Visit>
  void for_each_of_several_pages(Visit&& visit) const VPMM_REQUIRES(cache_lock) {
    if (!may_have_free_pages()) return;
    lists_.for_each_from(page_units_, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->units > page_units_ && !segment->is_free()) visit(segment);
      return true;
    });
  }

  SegmentLists lists_ VPMM_GUARDED_BY(cache_lock);
  std::uint64_t count_ VPMM_GUARDED_BY(cache_lock) = 0;
  std::uint64_t free_units_ VPMM_GUARDED_BY(cache_lock) = 0;
  std::uint64_t large_units_ VPMM_GUARDED_BY(cache_lock) = 0;  // in large spans
  Sum units_;
  Sum free_segment_units_;
  std::atomic<bool> has_several_pages_{false};  // some segment has, or had since there was none
  const std::uint64_t page_units_;
};

}  // namespace vpmm::small
