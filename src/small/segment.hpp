// SPDX-License-Identifier: Apache-2.0
// small: a stretch of units in a run of pages that one cache cuts slabs and spans from.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"
#include "small/free_stretches.hpp"
#include "small/page_run.hpp"

namespace vpmm::small {

// The span that begins in eight units. Spans have eight units at least, so no two begin there.
struct SpanStart {
  static constexpr std::uint64_t kUnits = kLeastSpan / kUnit;

  std::uint32_t requested = 0;     // by its user; 0: no span begins here
  std::uint8_t at = 0;             // which of the eight units
  bool is_used_elsewhere = false;  // record_use named another stream
};
static_assert(kLeastPage / kUnit % SpanStart::kUnits == 0, "pages of a segment share none");

using SpanStarts = std::vector<SpanStart, LineAllocator<SpanStart>>;

// Host memory for a segment of `units`, taken before the lock of its cache and given back after it.
struct SegmentRoom {
  explicit SegmentRoom(std::uint64_t units) : spans(span_starts(units)) { free.clear(units); }
  static std::size_t span_starts(std::uint64_t units) {
    return (units + SpanStart::kUnits - 1) / SpanStart::kUnits;
  }

  FreeStretches free;
  SpanStarts spans;
};

// Link in one of a cache's lists.
struct SegmentLink {
  SegmentLink* previous = nullptr;
  SegmentLink* next = nullptr;
};

// Neighbouring units of one cache. All fields change under the cache's lock; the cache and the
// range under the pool's lock as well. The cache is read without a lock and checked again under the
// cache's. A segment ends only while it is all free. If larger than a page, it is whole pages.
struct alignas(kCacheLine) Segment : SegmentLink {
  // Fields of every call, on one line. `begin`, `units` and `run` change under both locks and are
  // read under either.
  std::atomic<StreamCache*> of_cache{nullptr};  // null: not in use
  DevicePtr begin{};
  std::uint64_t number VPMM_GUARDED_BY(cache_lock) = 0;  // latest of a free here; 0: none
  std::uint32_t units = 0;

 private:
  FreeStretches free_ VPMM_GUARDED_BY(cache_lock);
  SpanStarts spans_ VPMM_GUARDED_BY(cache_lock);

 public:
  PageRun* run = nullptr;
  std::array<std::atomic<Content>, 2 * (kContentsInLine - 1)> contents{};
  Segment* chained VPMM_GUARDED_BY(pool_lock) = nullptr;  // behind it in a SegmentChain

  // Takes free units of the run; all of the segment is free.
  void enter(PageRun& in, AddressRange range) VPMM_REQUIRES(pool_lock) {
    run = &in;
    begin = range.begin;
    units = static_cast<std::uint32_t>(range.size / kUnit);
    set_all_free();
    const std::uint64_t first = run->unit_of(begin);
    const std::uint64_t first_of_whole_line = round_up(first, kContentsInLine);
    const std::uint64_t end_of_whole_lines = round_down(first + units, kContentsInLine);
    for (std::atomic<Content>& content : contents)
      content.store(Content(this), std::memory_order_relaxed);
    std::atomic<Content>* place = contents.data();
    for (std::uint64_t unit = first; unit < first + units; ++unit) {
      const bool is_in_whole_line = first_of_whole_line <= unit && unit < end_of_whole_lines;
      run->contents[unit].store(is_in_whole_line ? Content(this) : Content(place++),
                                std::memory_order_release);
    }
    run->for_each_entry(range, [&](PagemapEntry& entry, std::size_t) { entry.enter(*this); });
  }
  void leave() const VPMM_REQUIRES(pool_lock) {
    run->for_each_entry(range(),
                        [&](PagemapEntry& entry, std::size_t page) { entry.enter(*run, page); });
    const std::uint64_t first = run->unit_of(begin);
    for (std::uint64_t unit = first; unit < first + units; ++unit)
      run->contents[unit].store(Content{}, std::memory_order_relaxed);
  }

  StreamCache* cache() const { return of_cache.load(std::memory_order_relaxed); }
  void set_cache(StreamCache* cache) { of_cache.store(cache, std::memory_order_relaxed); }
  bool is_free() const VPMM_REQUIRES(cache_lock) { return longest() == units; }
  AddressRange range() const { return {begin, units * kUnit}; }
  DevicePtr at(std::uint64_t unit) const { return begin + unit * kUnit; }
  // Requires: p is in the segment.
  std::uint64_t unit_of(DevicePtr p) const { return (p - begin) / kUnit; }

  // Requires: no cache has it.
  void set_all_free() VPMM_NO_THREAD_SAFETY_ANALYSIS {
    SegmentRoom room(units);
    std::swap(free_, room.free);
    std::swap(spans_, room.spans);
    free_.give({0, units});
  }
  // Requires: no cache has it, so no other call writes.
  std::uint64_t last_number() const VPMM_NO_THREAD_SAFETY_ANALYSIS { return number; }

  std::uint32_t longest() const VPMM_REQUIRES(cache_lock) {
    return free_.longest();
  }  // most free units side by side
  // `alignment`: of addresses, in units.
  FreeStretches::UnitPlace find(std::uint64_t wanted, std::uint64_t alignment = 1) const
      VPMM_REQUIRES(cache_lock) {
    return free_.find({wanted, alignment, to_integer(begin) / kUnit});
  }
  // Returns the first.
  std::uint64_t take(const FreeStretches::UnitPlace& place) VPMM_REQUIRES(cache_lock) {
    return free_.take(place);
  }
  void give(std::uint64_t first, std::uint64_t count) VPMM_REQUIRES(cache_lock) {
    free_.give({first, count});
  }

  std::uint64_t free_units() const VPMM_REQUIRES(cache_lock) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < free_.count(); ++i) sum += free_[i].length;
    return sum;
  }

  // Units that are in an all-free segment after a free of `more` units: none, or all.
  std::uint64_t kept_after(std::uint64_t more) const VPMM_REQUIRES(cache_lock) {
    return free_units() + more == units ? units : 0;
  }

  // --- pages, in a segment of whole pages ---
  // Adds the units behind the segment, as used ones. Requires: `room` is for all units.
  void grow(std::uint64_t more, SegmentRoom& room) VPMM_REQUIRES(pool_lock, cache_lock) {
    free_.grow(room.free);
    std::copy(spans_.begin(), spans_.end(), room.spans.begin());
    std::swap(spans_, room.spans);
    const std::uint64_t first = run->unit_of(begin) + units;
    units += static_cast<std::uint32_t>(more);
    for (std::uint64_t unit = first; unit < first + more; ++unit)
      run->contents[unit].store(Content(this), std::memory_order_release);
    const AddressRange added{run->range.begin + first * kUnit, more * kUnit};
    run->for_each_entry(added, [&](PagemapEntry& entry, std::size_t) { entry.enter(*this); });
  }
  // Units of whole pages that are free.
  std::uint64_t free_page_units(std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    const auto whole_pages = [&](const UnitRun& free) {
      const std::uint64_t first = round_up(free.first, page_units);
      return round_down(std::max(first, free.end()) - first, page_units);
    };
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < free_.count(); ++i) sum += whole_pages(free_[i]);
    return sum;
  }
  // First border of pages at which free pages begin or end; 0 if none.
  std::uint64_t first_border(std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    const bool is_free_at_front = is_free_page(0, page_units);
    for (std::uint64_t unit = page_units; unit < units; unit += page_units)
      if (is_free_page(unit, page_units) != is_free_at_front) return unit;
    return 0;
  }
  // Moves the part from `at` on, with its slabs and spans, to `back`. Requires: `back` is unused,
  // `at` is a border of pages that no slab or span crosses, and the rooms are for both parts.
  void split(std::uint64_t at, Segment& back, SegmentRoom& front_room, SegmentRoom& back_room)
      VPMM_REQUIRES(pool_lock, cache_lock) {
    for (std::size_t i = 0; i < free_.count(); ++i) {
      const UnitRun free = free_[i];
      if (free.first < at)
        front_room.free.give({free.first, std::min(free.end(), at) - free.first});
      const std::uint64_t behind = std::max(free.first, at);
      if (free.end() > at) back_room.free.give({behind - at, free.end() - behind});
    }
    const auto border = spans_.begin() + static_cast<std::ptrdiff_t>(SegmentRoom::span_starts(at));
    std::copy(spans_.begin(), border, front_room.spans.begin());
    std::copy(border, spans_.end(), back_room.spans.begin());
    std::swap(free_, front_room.free);
    std::swap(spans_, front_room.spans);
    std::swap(back.free_, back_room.free);
    std::swap(back.spans_, back_room.spans);
    back.run = run;
    back.begin = this->at(at);
    back.units = static_cast<std::uint32_t>(units - at);
    back.number = number;
    back.set_cache(cache());
    units = static_cast<std::uint32_t>(at);
    for (std::uint64_t unit = 0; unit < back.units; ++unit) {
      std::atomic<Content>& content = run->contents[run->unit_of(back.begin) + unit];
      if (Slab* const slab = content.load(std::memory_order_relaxed).slab())
        slab->segment = &back;
      else
        content.store(Content(&back), std::memory_order_release);  // `back` is written before
    }
    run->for_each_entry(back.range(), [&](PagemapEntry& entry, std::size_t) {
      if (entry.content().segment() == this) entry.enter(back);
    });
  }

  // --- spans, by their first unit ---
  void begin_span(std::uint64_t unit, Bytes requested) VPMM_REQUIRES(cache_lock) {
    around(unit) = {static_cast<std::uint32_t>(requested),
                    static_cast<std::uint8_t>(unit % SpanStart::kUnits)};
  }
  void end_span(std::uint64_t unit) VPMM_REQUIRES(cache_lock) { around(unit) = {}; }
  void set_used_elsewhere(std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    around(unit).is_used_elsewhere = true;
  }
  bool has_span_at(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).requested != 0 && around(unit).at == unit % SpanStart::kUnits;
  }
  // Require: a span begins there.
  bool is_used_elsewhere(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).is_used_elsewhere;
  }
  Bytes requested(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).requested;
  }  // by its user
  // First unit of the last span that begins at `unit` or before; nullopt if none.
  std::optional<std::uint64_t> span_until(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    for (std::uint64_t eight = unit / SpanStart::kUnits + 1; eight-- > 0;) {
      const std::uint64_t first = eight * SpanStart::kUnits + spans_[eight].at;
      if (spans_[eight].requested != 0 && first <= unit) return first;
    }
    return std::nullopt;
  }

  // The first broken invariant as text; empty when all hold.
  std::string validate() const VPMM_REQUIRES(cache_lock) {
    for (const SpanStart& span : spans_)
      if (span.is_used_elsewhere && span.requested == 0) return "what is used elsewhere is no span";
    std::vector<bool> is_free(units + 1);  // and none behind the last
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < free_.count(); ++i) {
      const UnitRun free = free_[i];
      most = std::max(most, free.length);
      if (free.length == 0 || free.end() > units)
        return "a free stretch is empty, or reaches beyond its segment";
      for (std::uint64_t unit = free.first; unit < free.end(); ++unit) {
        if (is_free[unit]) return "two free stretches overlap";
        if (has_span_at(unit)) return "a span begins in free units";
        is_free[unit] = true;
      }
    }
    for (std::size_t i = 0; i < free_.count(); ++i)
      if (is_free[free_[i].end()]) return "two free stretches are one";
    if (most == longest()) return {};
    return "a segment says that " + std::to_string(longest()) +
           " units are its longest stretch, which has " + std::to_string(most);
  }

 private:
  bool is_free_page(std::uint64_t first, std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    for (std::size_t i = 0; i < free_.count(); ++i)
      if (free_[i].first <= first && first + page_units <= free_[i].end()) return true;
    return false;
  }
  SpanStart& around(std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    return spans_[unit / SpanStart::kUnits];
  }
  const SpanStart& around(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return spans_[unit / SpanStart::kUnits];
  }
};

// Segments that a call under the pool's lock has picked, in order.
class SegmentChain {
 public:
  std::uint64_t count() const { return count_; }
  // Called by functions that visit lists under the cache's lock, which the analysis cannot see.
  void add(Segment* segment) VPMM_NO_THREAD_SAFETY_ANALYSIS {
    segment->chained = nullptr;
    (first_ == nullptr ? first_ : last_->chained) = segment;
    last_ = segment;
    ++count_;
  }
  // Null: there are none.
  Segment* first() const { return first_; }
  Segment* take_first() VPMM_REQUIRES(pool_lock) {
    Segment* const first = first_;
    if (first == nullptr) return nullptr;
    first_ = first->chained;
    --count_;
    return first;
  }

 private:
  Segment* first_ = nullptr;
  Segment* last_ = nullptr;
  std::uint64_t count_ = 0;
};

// Segments of one cache by their longest free stretch; the first list has the full ones. A list is
// a ring with its head, so its ends need no branch (Note [Nothing is jumped over]).
class SegmentLists {
 public:
  SegmentLists() {
    for (SegmentLink& head : heads_) head.previous = head.next = &head;
  }
  SegmentLists(const SegmentLists&) = delete;
  SegmentLists& operator=(const SegmentLists&) = delete;

  void file(Segment* segment) VPMM_REQUIRES(cache_lock) {
    const std::size_t list = list_of(segment->longest());
    SegmentLink& head = heads_[list];
    segment->previous = &head;
    segment->next = head.next;
    head.next->previous = segment;
    head.next = segment;
    occupied_[list / 64] |= std::uint64_t{1} << list % 64;
  }
  // Moves a segment with a new longest stretch to its list.
  void refile(Segment* segment, std::uint32_t longest_before) VPMM_REQUIRES(cache_lock) {
    if (list_of(segment->longest()) == list_of(longest_before)) return;
    remove(segment, longest_before);
    file(segment);
  }
  // Requires: it was filed with this longest stretch.
  void remove(Segment* segment, std::uint32_t longest) VPMM_REQUIRES(cache_lock) {
    const std::size_t list = list_of(longest);
    segment->previous->next = segment->next;
    segment->next->previous = segment->previous;
    const bool is_empty = heads_[list].next == &heads_[list];
    occupied_[list / 64] &= ~(std::uint64_t{is_empty} << list % 64);
  }
  struct Found {
    Segment* segment = nullptr;  // null: none
    FreeStretches::UnitPlace place;
  };
  // Finds room in a segment with the shortest sufficient longest stretch. If stretches fail only by
  // their alignment, looks for one that is long enough at any address.
  Found find(std::uint64_t units, std::uint64_t alignment = 1) const VPMM_REQUIRES(cache_lock) {
    Found found;
    const auto look_from = [&](std::uint64_t least) VPMM_REQUIRES(cache_lock) {
      std::uint64_t misfits = 0;
      for_each_from(least, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
        if (segment->longest() < least) return true;
        const FreeStretches::UnitPlace place = segment->find(units, alignment);
        if (place) found = {segment, place};
        return !place && ++misfits < kMostMisfits;
      });
    };
    look_from(units);
    if (found.segment == nullptr && alignment > 1) look_from(units + alignment - 1);
    return found;
  }
  // Visits segments with free units.
  template <typename Visit>
  void for_each(Visit&& visit) const VPMM_REQUIRES(cache_lock) {
    for_each_from(1, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      visit(segment);
      return true;
    });
  }
  // Visits segments that may have a stretch of `units`. `visit` returns false to stop.
  template <typename Visit>
  void for_each_from(std::uint64_t units, Visit&& visit) const VPMM_REQUIRES(cache_lock) {
    for (std::size_t list = list_of(units); list < kLists; ++list) {
      const std::uint64_t rest = occupied_[list / 64] >> list % 64;
      if (rest == 0) {
        list |= 63;
        continue;
      }
      list += static_cast<std::size_t>(std::countr_zero(rest));
      const SegmentLink* const head = &heads_[list];
      for (SegmentLink *link = head->next, *next = nullptr; link != head; link = next) {
        next = link->next;
        if (!visit(static_cast<Segment*>(link))) return;
      }
    }
  }

 private:
  // A list for each length below 32 units, for each class of spans from there on, and for all
  // longer stretches: every segment in the list of a span's length is long enough.
  static constexpr std::size_t kLists = 192;
  static constexpr std::uint64_t kMostMisfits = 8;
  static std::size_t list_of(std::uint64_t longest) {
    const auto shift = static_cast<std::uint64_t>(std::bit_width(longest | 31)) - 5;
    return std::min<std::size_t>(16 * shift + (longest >> shift), kLists - 1);
  }

  std::array<SegmentLink, kLists> heads_;
  std::array<std::uint64_t, (kLists + 63) / 64> occupied_{};
};

}  // namespace vpmm::small
