// SPDX-License-Identifier: Apache-2.0
// small: the free units of a segment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/bytes.hpp"
#include "base/line_allocator.hpp"

namespace vpmm::small {

// Units side by side.
struct UnitRun {
  std::uint64_t first = 0;
  std::uint64_t length = 0;
  std::uint64_t end() const { return first + length; }
};

// Free units of a row, as maximal stretches, unordered. There are few, so comparing all of them
// takes less time than finding one by bits.
//
// Note [Nothing is jumped over]
// The free units of a segment are as good as random, so branches on them are often mispredicted: a
// pair of spans took 140 ns with eleven such mistakes, and takes 99 with two. So stretches are read
// four at a time, including unused entries, which are 0. Results that do not apply are computed as
// well, and written where they do no harm.
class FreeStretches {
 public:
  std::uint32_t longest() const { return longest_; }
  std::size_t count() const { return count_; }
  UnitRun operator[](std::size_t i) const { return stretch(keys_[i]); }

  // Makes it a row of `units` with none free.
  void clear(std::uint64_t units) {
    keys_ = make_line_array<std::uint64_t>(room(units));
    count_ = longest_ = 0;
  }
  // Adds units that are not free. Requires: `room` was cleared for all units. Afterwards `room` has
  // the old memory.
  void grow(FreeStretches& room) {
    std::copy_n(keys_.get(), count_, room.keys_.get());
    room.count_ = count_;
    room.longest_ = longest_;
    std::swap(*this, room);
  }

  // `units` side by side; the first is a multiple of `alignment`, counted from `origin` units
  // before the row.
  struct Wanted {
    std::uint64_t units = 0;
    std::uint64_t alignment = 1;
    std::uint64_t origin = 0;
    std::uint64_t skipped(std::uint64_t first) const {
      return (0 - origin - first) & (alignment - 1);
    }
  };
  // Stretch that they are taken from: the shortest in which they fit, the first among equals.
  struct UnitPlace {
    std::uint64_t key = kNone;
    Wanted wanted;
    explicit operator bool() const { return key != kNone; }  // false: they fit nowhere
  };
  UnitPlace find(const Wanted& wanted) const {
    std::uint64_t best = kNone;
    for_each([&](std::uint64_t, std::uint64_t key) {
      const std::uint64_t least = wanted.units + wanted.skipped(key);
      best = std::min(best, key | all_if(key < least << kLengthShift));
    });
    return {best, wanted};
  }
  // Takes the units and returns the first. Requires: found here, and nothing changed since.
  std::uint64_t take(const UnitPlace& place) {
    std::uint64_t at = 0, longest = 0;
    for_each([&](std::uint64_t i, std::uint64_t key) {
      at |= i & all_if(key == place.key);
      longest = larger(longest, key & all_if(key != place.key));
    });
    const UnitRun from = stretch(place.key);
    const std::uint64_t first = from.first + place.wanted.skipped(from.first);
    const std::uint64_t end = first + place.wanted.units;
    const std::uint64_t before = key({from.first, first - from.first});
    const std::uint64_t behind = key({end, from.end() - end});
    longest_ = static_cast<std::uint32_t>(larger(longest, larger(before, behind)) >> kLengthShift);
    --count_;
    keys_[at] = keys_[count_];
    for (const std::uint64_t rest : {before, behind}) {
      keys_[count_] = rest;
      count_ += rest != 0;
    }
    return first;
  }

  // Makes units free; returns the stretch that they are part of now. Requires: they are not free.
  UnitRun give(UnitRun more) {
    std::uint64_t before = count_, behind = count_;
    for_each([&](std::uint64_t i, std::uint64_t key) {
      const UnitRun other = stretch(key);
      before = other.end() == more.first ? i : before;
      behind = other.first == more.end() ? i : behind;
    });
    // Unused entries seem to end where the units begin.
    before = std::min<std::uint64_t>(before, count_);
    const UnitRun front = stretch(keys_[before]);
    more = {more.first - front.length, front.length + more.length + stretch(keys_[behind]).length};
    longest_ = std::max(longest_, static_cast<std::uint32_t>(more.length));
    // If two become one, the first is written, and the last entry takes the place of the other.
    const std::uint32_t are_two = (before != count_) & (behind != count_);
    const std::uint64_t last = count_ + 1 - 2 * are_two;  // or one that is not used
    keys_[std::min(before, behind)] = key(more);
    keys_[std::max(before, behind) + 1 - are_two] = keys_[last];
    keys_[last] = 0;
    count_ += 1 - static_cast<std::uint32_t>(before != count_) -
              static_cast<std::uint32_t>(behind != count_);
    return more;
  }

 private:
  // Length in the high bits, first unit in the low ones: the order of choice.
  static constexpr int kLengthShift = 32;
  // 0 for an empty stretch.
  static std::uint64_t key(UnitRun of) {
    return (of.length << kLengthShift | of.first) & all_if(of.length != 0);
  }
  static std::uint64_t all_if(bool is_so) {
    return std::uint64_t{0} - std::uint64_t{is_so};
  }  // all bits, or none
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  static std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a < b ? b : a; }
  static UnitRun stretch(std::uint64_t key) {
    return {static_cast<std::uint32_t>(key), key >> kLengthShift};
  }
  // Two stretches have a used unit between them; two unused entries follow the last.
  static std::size_t room(std::uint64_t units) { return round_up(units / 2 + 1 + 2, kAtOnce); }

  static constexpr std::uint64_t kAtOnce = 4;
  template <typename Visit>
  void for_each(Visit&& visit) const {
    std::uint64_t i = 0;
    do {
      for (std::uint64_t j = 0; j < kAtOnce; ++j) visit(i + j, keys_[i + j]);
      i += kAtOnce;
    } while (i < count_);
  }

  LineArray<std::uint64_t> keys_;  // behind the last stretch all 0
  std::uint32_t count_ = 0;
  std::uint32_t longest_ = 0;
};

}  // namespace vpmm::small
