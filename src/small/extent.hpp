// small: a stretch of units in an arena that one shard cuts slabs and runs from.
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
#include "region/region.hpp"
#include "small/arena.hpp"

namespace vpmm::small {

// What an extent knows of 128 of its units, which is all of them where a page is 2 MiB.
struct alignas(kCacheLine) Units {
  static constexpr std::uint64_t kCount = 128;
  static constexpr std::uint64_t kPerRequest = kLeastRun / kUnit;

  std::array<std::uint64_t, kCount / 64> free{};
  IndexSet<kCount> runs;            // a live run begins there
  IndexSet<kCount> used_elsewhere;  // of these, record_use named another stream
  // What the user of a run asked for. None is shorter than eight units, so no two begin in the same eight.
  std::array<std::uint32_t, kCount / kPerRequest> requested{};
};

// Units that belong together. Belongs to one shard, whose lock guards all that changes; shard and shape change only
// while all of it is free.
struct alignas(kCacheLine) Extent {
  // What every call touches, on one line, with where `of_units_` begins.
  Shard* shard = nullptr;
  Extent* previous = nullptr;  // in one of the shard's lists
  Extent* next = nullptr;
  DevicePtr begin{};
  std::uint64_t number = 0;  // latest that a free of something here carries; 0: none
  std::uint32_t units = 0;
  std::uint32_t free_units = 0;
  std::uint32_t longest = 0;  // most free units side by side

 private:
  std::vector<Units> of_units_;

 public:
  Arena* arena = nullptr;
  region::Region* span = nullptr;  // null: not in use
  std::array<std::atomic<Owner>, 2 * (kOwnersInLine - 1)> owners{};

  // Nobody's units become this. Holds: the pool's lock.
  void enter(Arena& in, AddressRange range) {
    arena = &in;
    begin = range.begin;
    units = static_cast<std::uint32_t>(range.size / kUnit);
    const std::uint64_t first = arena->unit_of(begin);
    const std::uint64_t first_of_whole_line = round_up(first, kOwnersInLine);
    const std::uint64_t end_of_whole_lines = round_down(first + units, kOwnersInLine);
    std::atomic<Owner>* place = owners.data();
    for (std::uint64_t unit = first; unit < first + units; ++unit) {
      const bool is_in_whole_line = first_of_whole_line <= unit && unit < end_of_whole_lines;
      arena->owners[unit].store(is_in_whole_line ? Owner(this) : Owner(place), std::memory_order_relaxed);
      if (!is_in_whole_line) (place++)->store(Owner(this), std::memory_order_relaxed);
    }
  }
  void leave() const {
    const std::uint64_t first = arena->unit_of(begin);
    for (std::uint64_t unit = first; unit < first + units; ++unit)
      arena->owners[unit].store(Owner{}, std::memory_order_relaxed);
  }

  bool is_free() const { return free_units == units; }
  AddressRange range() const { return {begin, units * kUnit}; }
  DevicePtr at(std::uint64_t unit) const { return begin + unit * kUnit; }
  // Requires: p is in the extent.
  std::uint64_t unit_of(DevicePtr p) const { return (p - begin) / kUnit; }

  void set_all_free() {
    free_units = longest = 0;
    of_units_.assign((units + Units::kCount - 1) / Units::kCount, {});
    give(0, units);
  }

  // The front of the shortest free stretch that is long enough. Requires: wanted <= longest.
  std::uint64_t take(std::uint64_t wanted) {
    std::uint64_t best = 0;
    std::uint64_t best_length = 0;
    std::uint64_t others = 0;  // the longest stretch beside the best
    for_each_stretch([&](std::uint64_t first, std::uint64_t length) {
      if (length < wanted || (best_length != 0 && length >= best_length)) {
        others = std::max(others, length);
        return;
      }
      others = std::max(others, best_length);
      best = first;
      best_length = length;
    });
    set(best, wanted, false);
    free_units -= static_cast<std::uint32_t>(wanted);
    longest = static_cast<std::uint32_t>(std::max(others, best_length - wanted));
    return best;
  }

  void give(std::uint64_t first, std::uint64_t count) {
    set(first, count, true);
    free_units += static_cast<std::uint32_t>(count);
    const std::uint64_t length = end_of_free(first + count) - begin_of_free(first);
    longest = std::max(longest, static_cast<std::uint32_t>(length));
  }

  // --- runs, by their first unit ---
  void begin_run(std::uint64_t unit, Bytes requested) {
    around(unit).runs.add(unit % Units::kCount);
    around(unit).requested[unit % Units::kCount / Units::kPerRequest] = static_cast<std::uint32_t>(requested);
  }
  void end_run(std::uint64_t unit) {
    around(unit).runs.remove(unit % Units::kCount);
    around(unit).used_elsewhere.remove(unit % Units::kCount);
  }
  void set_used_elsewhere(std::uint64_t unit) { around(unit).used_elsewhere.add(unit % Units::kCount); }
  bool has_run_at(std::uint64_t unit) const { return around(unit).runs.contains(unit % Units::kCount); }
  bool is_used_elsewhere(std::uint64_t unit) const {
    return around(unit).used_elsewhere.contains(unit % Units::kCount);
  }
  // What its user asked for. Requires: a run begins there.
  Bytes requested(std::uint64_t unit) const {
    return around(unit).requested[unit % Units::kCount / Units::kPerRequest];
  }
  // The last run that begins at the unit or before.
  std::optional<std::uint64_t> run_until(std::uint64_t unit) const {
    while (!has_run_at(unit))
      if (unit-- == 0) return std::nullopt;
    return unit;
  }

  // The first broken invariant as text; empty when all hold.
  std::string validate() const {
    for (std::uint64_t unit = 0; unit < units; ++unit) {
      if (has_run_at(unit) && is_set(unit)) return "a run begins in free units";
      if (is_used_elsewhere(unit) && !has_run_at(unit)) return "what is used elsewhere is no run";
    }
    std::uint64_t sum = 0, most = 0;
    for_each_stretch([&](std::uint64_t, std::uint64_t length) {
      sum += length;
      most = std::max(most, length);
    });
    if (sum == free_units && most == longest) return {};
    return "an extent counts " + std::to_string(free_units) + " free units, the longest stretch " +
           std::to_string(longest) + ", and has " + std::to_string(sum) + " and " + std::to_string(most);
  }

 private:
  Units& around(std::uint64_t unit) { return of_units_[unit / Units::kCount]; }
  const Units& around(std::uint64_t unit) const { return of_units_[unit / Units::kCount]; }
  // The bits of 64 units.
  std::uint64_t& free_around(std::uint64_t unit) { return around(unit).free[unit % Units::kCount / 64]; }
  std::uint64_t free_around(std::uint64_t unit) const { return around(unit).free[unit % Units::kCount / 64]; }
  bool is_set(std::uint64_t unit) const { return (free_around(unit) >> unit % 64 & 1) != 0; }

  void set(std::uint64_t first, std::uint64_t count, bool is_set) {
    while (count > 0) {
      const std::uint64_t here = std::min(count, 64 - first % 64);
      const std::uint64_t mask = (here == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << here) - 1) << first % 64;
      std::uint64_t& free = free_around(first);
      free = is_set ? free | mask : free & ~mask;
      first += here;
      count -= here;
    }
  }

  // Where the free units that end before `unit` begin.
  std::uint64_t begin_of_free(std::uint64_t unit) const {
    while (unit > 0) {
      const std::uint64_t here = (unit - 1) % 64 + 1;  // units of this word before `unit`
      const auto set = static_cast<std::uint64_t>(std::countl_one(free_around(unit - 1) << (64 - here)));
      unit -= set;
      if (set < here) break;
    }
    return unit;
  }
  // Where those that begin at `unit` end. None beyond the last unit is set.
  std::uint64_t end_of_free(std::uint64_t unit) const {
    while (unit < units) {
      const auto set = static_cast<std::uint64_t>(std::countr_one(free_around(unit) >> unit % 64));
      unit += set;
      if (set == 0 || unit % 64 != 0) break;
    }
    return unit;
  }
  // The first free unit from `unit` on; `units` or more: there is none.
  std::uint64_t next_free(std::uint64_t unit) const {
    while (unit < units) {
      const std::uint64_t set = free_around(unit) >> unit % 64;
      if (set != 0) return unit + static_cast<std::uint64_t>(std::countr_zero(set));
      unit = (unit / 64 + 1) * 64;
    }
    return unit;
  }

  template <typename Visit>
  void for_each_stretch(Visit&& visit) const {
    for (std::uint64_t unit = next_free(0); unit < units;) {
      const std::uint64_t first = unit;
      unit = end_of_free(first);
      visit(first, unit - first);
      unit = next_free(unit);
    }
  }
};

// Extents of one shard, by the longest free stretch in them. One without free units stands nowhere.
class ExtentLists {
 public:
  void file(Extent* extent) {
    if (extent->longest == 0) return;
    const std::size_t list = list_of(extent->longest);
    Extent*& first = first_[list];
    extent->previous = nullptr;
    extent->next = first;
    if (first != nullptr) first->previous = extent;
    first = extent;
    occupied_[list / 64] |= std::uint64_t{1} << list % 64;
  }
  // Requires: it was filed with this longest stretch.
  void remove(Extent* extent, std::uint32_t longest) {
    if (longest == 0) return;
    const std::size_t list = list_of(longest);
    (extent->previous == nullptr ? first_[list] : extent->previous->next) = extent->next;
    if (extent->next != nullptr) extent->next->previous = extent->previous;
    extent->previous = extent->next = nullptr;
    if (first_[list] == nullptr) occupied_[list / 64] &= ~(std::uint64_t{1} << list % 64);
  }
  // One of those with the shortest sufficient stretch; null: none.
  Extent* find(std::uint64_t units) const {
    for (std::size_t list = list_of(units); list < kLists;) {
      const std::uint64_t rest = occupied_[list / 64] >> list % 64;
      if (rest == 0) {
        list = (list / 64 + 1) * 64;
        continue;
      }
      list += static_cast<std::size_t>(std::countr_zero(rest));
      for (Extent* extent = first_[list]; extent != nullptr; extent = extent->next)
        if (extent->longest >= units) return extent;
      ++list;
    }
    return nullptr;
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_each_from(0, [&](Extent* extent) {
      visit(extent);
      return true;
    });
  }
  // Those whose longest stretch may be that long. `visit` returns false to stop.
  template <typename Visit>
  void for_each_from(std::uint64_t units, Visit&& visit) const {
    for (std::size_t list = list_of(units); list < kLists; ++list)
      for (Extent *extent = first_[list], *next = nullptr; extent != nullptr; extent = next) {
        next = extent->next;
        if (!visit(extent)) return;
      }
  }

 private:
  static constexpr std::size_t kLists = 130;  // one for each length up to 2 MiB, and one for all that is longer
  static std::size_t list_of(std::uint64_t longest) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(longest, kLists - 1));
  }

  std::array<Extent*, kLists> first_{};
  std::array<std::uint64_t, (kLists + 63) / 64> occupied_{};
};

}  // namespace vpmm::small
