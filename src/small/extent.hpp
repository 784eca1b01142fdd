// small: a stretch of units in an arena that one shard cuts slabs and runs from.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "region/region.hpp"
#include "small/arena.hpp"

namespace vpmm::small {

// Free units that belong together, as a bit for each. Belongs to one shard, whose lock guards all that changes; shard
// and shape change only while all of it is free.
struct alignas(64) Extent {
  Shard* shard = nullptr;
  Extent* previous = nullptr;  // in one of the shard's lists
  Extent* next = nullptr;
  std::uint32_t first = 0;  // unit in the arena
  std::uint32_t units = 0;
  std::uint32_t free_units = 0;
  std::uint32_t longest = 0;  // most free units side by side
  std::uint64_t number = 0;   // latest that a free of something here carries; 0: none
  Arena* arena = nullptr;
  region::Region* span = nullptr;  // null: not in use

  bool is_free() const { return free_units == units; }
  DevicePtr at(std::uint64_t unit) const { return arena->range.begin + (first + unit) * kUnit; }
  bool contains(std::uint64_t unit_in_arena) const { return unit_in_arena - first < units; }

  void set_all_free() {
    free_units = longest = 0;
    few_ = {};
    many_.assign(units <= few_.size() * 64 ? 0 : (units + 63) / 64, 0);
    give(0, units);
  }

  // The front of the shortest free stretch that is long enough. Requires: wanted <= longest.
  std::uint64_t take(std::uint64_t wanted) {
    std::uint64_t best = 0;
    std::uint64_t best_length = 0;
    std::uint64_t others = 0;  // the longest stretch beside the best
    for_each_stretch([&](std::uint64_t begin, std::uint64_t length) {
      if (length < wanted || (best_length != 0 && length >= best_length)) {
        others = std::max(others, length);
        return;
      }
      others = std::max(others, best_length);
      best = begin;
      best_length = length;
    });
    set(best, wanted, false);
    free_units -= static_cast<std::uint32_t>(wanted);
    longest = static_cast<std::uint32_t>(std::max(others, best_length - wanted));
    return best;
  }

  void give(std::uint64_t begin, std::uint64_t count) {
    set(begin, count, true);
    free_units += static_cast<std::uint32_t>(count);
    std::uint64_t end = begin + count;
    while (begin > 0 && is_set(begin - 1)) --begin;
    while (end < units && is_set(end)) ++end;
    longest = std::max(longest, static_cast<std::uint32_t>(end - begin));
  }

  // The first broken invariant as text; empty when all hold.
  std::string validate() const {
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
  std::uint64_t* words() { return many_.empty() ? few_.data() : many_.data(); }
  const std::uint64_t* words() const { return many_.empty() ? few_.data() : many_.data(); }
  bool is_set(std::uint64_t unit) const { return (words()[unit / 64] >> unit % 64 & 1) != 0; }

  void set(std::uint64_t begin, std::uint64_t count, bool is_set) {
    while (count > 0) {
      const std::uint64_t here = std::min(count, 64 - begin % 64);
      const std::uint64_t mask = (here == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << here) - 1) << begin % 64;
      std::uint64_t& word = words()[begin / 64];
      word = is_set ? word | mask : word & ~mask;
      begin += here;
      count -= here;
    }
  }

  template <typename Visit>
  void for_each_stretch(Visit&& visit) const {
    const std::uint64_t* const word = words();
    for (std::uint64_t unit = 0; unit < units;) {
      const std::uint64_t set = word[unit / 64] >> unit % 64;
      if (set == 0) {
        unit = (unit / 64 + 1) * 64;
        continue;
      }
      const std::uint64_t begin = unit + static_cast<std::uint64_t>(std::countr_zero(set));
      unit = begin;
      while (unit < units) {
        const std::uint64_t clear = ~word[unit / 64] >> unit % 64;
        if (clear != 0) {
          unit += static_cast<std::uint64_t>(std::countr_zero(clear));
          break;
        }
        unit = (unit / 64 + 1) * 64;
      }
      visit(begin, std::min<std::uint64_t>(unit, units) - begin);
    }
  }

  std::array<std::uint64_t, 2> few_{};  // the bits of an extent of up to 2 MiB
  std::vector<std::uint64_t> many_;     // of a larger one
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
