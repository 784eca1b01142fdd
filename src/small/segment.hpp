// small: a stretch of units in an arena that one cache cuts slabs and spans from.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"
#include "small/arena.hpp"
#include "small/free_stretches.hpp"

namespace vpmm::small {

// What a segment knows of 64 of its units, on one line.
struct alignas(kCacheLine) Units {
  static constexpr std::uint64_t kCount = 64;
  static constexpr std::uint64_t kPerRequest = kLeastSpan / kUnit;

  IndexSet<kCount> spans;           // a live span begins there
  IndexSet<kCount> used_elsewhere;  // of these, record_use named another stream
  // What the user of a span asked for. None is shorter than eight units, so no two begin in the same eight.
  std::array<std::uint32_t, kCount / kPerRequest> requested{};
};

// In one of a cache's lists.
struct SegmentLink {
  SegmentLink* previous = nullptr;
  SegmentLink* next = nullptr;
};

// Units that belong together. Belongs to one cache, whose lock guards all that changes; whose it is and which units it
// has changes under the pool's lock as well. Whose it is, is read without a lock too, and again under the cache's. It
// ends only while all of it is free. One that has more than a page has whole pages.
struct alignas(kCacheLine) Segment : SegmentLink {
  // What every call touches, on one line. `begin`, `units` and `arena` change under both locks, and are read under
  // either.
  std::atomic<StreamCache*> of_cache{nullptr};  // null: not in use
  DevicePtr begin{};
  std::uint64_t number VPMM_GUARDED_BY(cache_lock) = 0;  // latest that a free of something here carries; 0: none
  std::uint32_t units = 0;
  std::uint32_t free_units VPMM_GUARDED_BY(cache_lock) = 0;

 private:
  FreeStretches free_ VPMM_GUARDED_BY(cache_lock);
  Vector<Units> of_units_ VPMM_GUARDED_BY(cache_lock);

 public:
  Arena* arena = nullptr;
  std::array<std::atomic<Content>, 2 * (kContentsInLine - 1)> contents{};

  // Nobody's units become this.
  void enter(Arena& in, AddressRange range) VPMM_REQUIRES(pool_lock) {
    arena = &in;
    begin = range.begin;
    units = static_cast<std::uint32_t>(range.size / kUnit);
    const std::uint64_t first = arena->unit_of(begin);
    const std::uint64_t first_of_whole_line = round_up(first, kContentsInLine);
    const std::uint64_t end_of_whole_lines = round_down(first + units, kContentsInLine);
    std::atomic<Content>* place = contents.data();
    for (std::uint64_t unit = first; unit < first + units; ++unit) {
      const bool is_in_whole_line = first_of_whole_line <= unit && unit < end_of_whole_lines;
      if (!is_in_whole_line) place->store(Content(this), std::memory_order_relaxed);
      arena->contents[unit].store(is_in_whole_line ? Content(this) : Content(place++), std::memory_order_release);
    }
    arena->for_each_entry(range, [&](PagemapEntry& entry, std::size_t) { entry.enter(*this); });
  }
  void leave() const VPMM_REQUIRES(pool_lock) {
    arena->for_each_entry(range(), [&](PagemapEntry& entry, std::size_t page) { entry.enter(*arena, page); });
    const std::uint64_t first = arena->unit_of(begin);
    for (std::uint64_t unit = first; unit < first + units; ++unit)
      arena->contents[unit].store(Content{}, std::memory_order_relaxed);
  }

  StreamCache* cache() const { return of_cache.load(std::memory_order_relaxed); }
  void set_cache(StreamCache* cache) { of_cache.store(cache, std::memory_order_relaxed); }
  bool is_free() const VPMM_REQUIRES(cache_lock) { return free_units == units; }
  AddressRange range() const { return {begin, units * kUnit}; }
  DevicePtr at(std::uint64_t unit) const { return begin + unit * kUnit; }
  // Requires: p is in the segment.
  std::uint64_t unit_of(DevicePtr p) const { return (p - begin) / kUnit; }

  void set_all_free() VPMM_REQUIRES(cache_lock) {
    set_all_used();
    give(0, units);
  }

  std::uint32_t longest() const VPMM_REQUIRES(cache_lock) { return free_.longest(); }  // most free units side by side
  FreeStretches::Place find(std::uint64_t wanted) const VPMM_REQUIRES(cache_lock) { return free_.find(wanted); }
  // Those at the front of a stretch, which is returned as it was.
  Stretch take(const FreeStretches::Place& place) VPMM_REQUIRES(cache_lock) {
    free_units -= static_cast<std::uint32_t>(place.wanted);
    return free_.take(place);
  }
  // Returns the free stretch that they are part of now.
  Stretch give(std::uint64_t first, std::uint64_t count) VPMM_REQUIRES(cache_lock) {
    free_units += static_cast<std::uint32_t>(count);
    return free_.give({first, count});
  }

  // --- pages, of one that has whole pages ---
  // What grow() takes of the host's memory. It may throw; nothing that anybody can tell has changed then.
  void make_room(std::uint64_t more) VPMM_REQUIRES(cache_lock) {
    free_.grow(units + more);
    of_units_.resize((units + more + Units::kCount - 1) / Units::kCount);
  }
  // Nobody's units behind the last one become part of it, used for now. Requires: make_room(more).
  void grow(std::uint64_t more) VPMM_REQUIRES(pool_lock, cache_lock) {
    const std::uint64_t first = arena->unit_of(begin) + units;
    units += static_cast<std::uint32_t>(more);
    for (std::uint64_t unit = first; unit < first + more; ++unit)
      arena->contents[unit].store(Content(this), std::memory_order_release);
    const AddressRange added{arena->range.begin + first * kUnit, more * kUnit};
    arena->for_each_entry(added, [&](PagemapEntry& entry, std::size_t) { entry.enter(*this); });
  }
  // Units of free stretches that are whole pages; none where there is no more than one.
  std::uint64_t paged_units(std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < free_.count(); ++i) sum += paged_units(free_[i], free_[i], page_units);
    return sum;
  }
  // Of the pages that are free while all of `free` is, how many units are in those of which `part` is a part.
  std::uint64_t paged_units(Stretch free, Stretch part, std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    const int shift = std::countr_zero(page_units);  // more than a page there is only of powers of two
    const std::uint64_t first = (free.first + page_units - 1) >> shift;
    const std::uint64_t end = std::max(first, free.end() >> shift);
    const std::uint64_t before = std::max(first, part.first >> shift) - first;
    const std::uint64_t behind = end - std::min(end, (part.end() + page_units - 1) >> shift);
    return units > page_units ? (end - first - before - behind) << shift : 0;
  }
  // Where, at a border of pages, free pages begin or end for the first time; 0: nowhere.
  std::uint64_t first_border(std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    const bool is_free_at_front = is_free_page(0, page_units);
    for (std::uint64_t unit = page_units; unit < units; unit += page_units)
      if (is_free_page(unit, page_units) != is_free_at_front) return unit;
    return 0;
  }
  // What is from `at` on, with slabs, spans and all, becomes `back`, which is not in use. Requires: no slab and no span
  // begins before `at` and ends behind.
  void split(std::uint64_t at, Segment& back) VPMM_REQUIRES(pool_lock, cache_lock) {
    Part front = part(0, at);  // these may throw, so before anything changes
    back.become(part(at, units - at));
    back.arena = arena;
    back.begin = this->at(at);
    back.number = number;
    back.set_cache(cache());
    become(std::move(front));
    for (std::uint64_t unit = 0; unit < back.units; ++unit) {
      std::atomic<Content>& content = arena->contents[arena->unit_of(back.begin) + unit];
      if (Slab* const slab = content.load(std::memory_order_relaxed).slab())
        slab->segment = &back;
      else
        content.store(Content(&back), std::memory_order_release);  // whoever reads it reads `back` as it is now
    }
    arena->for_each_entry(back.range(), [&](PagemapEntry& entry, std::size_t) {
      if (entry.content().segment() == this) entry.enter(back);
    });
  }

  // --- spans, by their first unit ---
  void begin_span(std::uint64_t unit, Bytes requested) VPMM_REQUIRES(cache_lock) {
    around(unit).spans.add(unit % Units::kCount);
    around(unit).requested[unit % Units::kCount / Units::kPerRequest] = static_cast<std::uint32_t>(requested);
  }
  void end_span(std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    around(unit).spans.remove(unit % Units::kCount);
    around(unit).used_elsewhere.remove(unit % Units::kCount);
  }
  void set_used_elsewhere(std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    around(unit).used_elsewhere.add(unit % Units::kCount);
  }
  bool has_span_at(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).spans.contains(unit % Units::kCount);
  }
  bool is_used_elsewhere(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).used_elsewhere.contains(unit % Units::kCount);
  }
  // What its user asked for. Requires: a span begins there.
  Bytes requested(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    return around(unit).requested[unit % Units::kCount / Units::kPerRequest];
  }
  // The last span that begins at the unit or before.
  std::optional<std::uint64_t> span_until(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) {
    while (!has_span_at(unit))
      if (unit-- == 0) return std::nullopt;
    return unit;
  }

  // The first broken invariant as text; empty when all hold.
  std::string validate() const VPMM_REQUIRES(cache_lock) {
    for (std::uint64_t unit = 0; unit < units; ++unit)
      if (is_used_elsewhere(unit) && !has_span_at(unit)) return "what is used elsewhere is no span";
    Vector<bool> is_free(units + 1);  // and none behind the last
    std::uint64_t sum = 0, most = 0;
    for (std::size_t i = 0; i < free_.count(); ++i) {
      const Stretch free = free_[i];
      sum += free.length;
      most = std::max(most, free.length);
      if (free.length == 0 || free.end() > units) return "a free stretch is empty, or reaches beyond its segment";
      for (std::uint64_t unit = free.first; unit < free.end(); ++unit) {
        if (is_free[unit]) return "two free stretches overlap";
        if (has_span_at(unit)) return "a span begins in free units";
        is_free[unit] = true;
      }
    }
    for (std::size_t i = 0; i < free_.count(); ++i)
      if (is_free[free_[i].end()]) return "two free stretches are one";
    if (sum == free_units && most == longest()) return {};
    return "a segment counts " + std::to_string(free_units) + " free units, the longest stretch " +
           std::to_string(longest()) + ", and has " + std::to_string(sum) + " and " + std::to_string(most);
  }

 private:
  struct Part {
    std::uint32_t units = 0;
    std::uint32_t free_units = 0;
    FreeStretches free;
    Vector<Units> of_units;
  };

  void set_all_used() VPMM_REQUIRES(cache_lock) {
    free_units = 0;
    free_.clear(units);
    of_units_.assign((units + Units::kCount - 1) / Units::kCount, {});
  }
  // What it knows of so many units.
  Part part(std::uint64_t first, std::uint64_t count) const VPMM_REQUIRES(cache_lock) {
    Segment segment;
    segment.units = static_cast<std::uint32_t>(count);
    segment.set_all_used();
    for (std::size_t i = 0; i < free_.count(); ++i) {
      const std::uint64_t begin_of_part = std::max(free_[i].first, first);
      const std::uint64_t end_of_part = std::min(free_[i].end(), first + count);
      if (begin_of_part < end_of_part) segment.give(begin_of_part - first, end_of_part - begin_of_part);
    }
    for (std::uint64_t unit = 0; unit < count; ++unit) {
      if (has_span_at(first + unit)) segment.begin_span(unit, requested(first + unit));
      if (is_used_elsewhere(first + unit)) segment.set_used_elsewhere(unit);
    }
    return {segment.units, segment.free_units, std::move(segment.free_), std::move(segment.of_units_)};
  }
  void become(Part part) VPMM_REQUIRES(cache_lock) {
    units = part.units;
    free_units = part.free_units;
    free_ = std::move(part.free);
    of_units_ = std::move(part.of_units);
  }
  bool is_free_page(std::uint64_t first, std::uint64_t page_units) const VPMM_REQUIRES(cache_lock) {
    for (std::size_t i = 0; i < free_.count(); ++i)
      if (free_[i].first <= first && first + page_units <= free_[i].end()) return true;
    return false;
  }
  Units& around(std::uint64_t unit) VPMM_REQUIRES(cache_lock) { return of_units_[unit / Units::kCount]; }
  const Units& around(std::uint64_t unit) const VPMM_REQUIRES(cache_lock) { return of_units_[unit / Units::kCount]; }
};

// Segments of one cache, by the longest free stretch in them; the first list is of those that have none. A list is a
// ring with its head in it, so that nothing is asked at its ends (Note [Nothing is jumped over]).
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
  // Its longest stretch was another until now.
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
    FreeStretches::Place place;
  };
  // In one of those whose longest stretch is the shortest sufficient.
  Found find(std::uint64_t units) const VPMM_REQUIRES(cache_lock) {
    Found found;
    for_each_from(units, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      if (segment->longest() < units) return true;
      found = {segment, segment->find(units)};
      return false;
    });
    return found;
  }
  // Those with free units.
  template <typename Visit>
  void for_each(Visit&& visit) const VPMM_REQUIRES(cache_lock) {
    for_each_from(1, [&](Segment* segment) VPMM_REQUIRES(cache_lock) {
      visit(segment);
      return true;
    });
  }
  // Those whose longest stretch may be that long. `visit` returns false to stop.
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
  // One for each length below 32 units and for each class of spans from there on, and one for all that is longer: so
  // what is in the list of a span's length is long enough.
  static constexpr std::size_t kLists = 192;
  static std::size_t list_of(std::uint64_t longest) {
    const auto shift = static_cast<std::uint64_t>(std::bit_width(longest | 31)) - 5;
    return std::min<std::size_t>(16 * shift + (longest >> shift), kLists - 1);
  }

  std::array<SegmentLink, kLists> heads_;
  std::array<std::uint64_t, (kLists + 63) / 64> occupied_{};
};

}  // namespace vpmm::small
