// small: what is free of an extent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/line_allocator.hpp"

namespace vpmm::small {

// Units side by side.
struct Stretch {
  std::uint64_t first = 0;
  std::uint64_t length = 0;
  std::uint64_t end() const { return first + length; }
};

// The free ones of a row of units, as the longest stretches there are, in no order: there are few, so to compare them
// all without a branch takes less time than to find one by bits.
class FreeStretches {
 public:
  std::uint32_t longest() const { return longest_; }
  std::size_t count() const { return count_; }
  Stretch operator[](std::size_t i) const { return stretch(keys_[i]); }

  // Of so many units none is free.
  void clear(std::uint64_t units) {
    keys_ = make_line_array<std::uint64_t>(most(units));
    count_ = longest_ = 0;
  }
  // There are more units, none of which is free.
  void grow(std::uint64_t units) {
    auto keys = make_line_array<std::uint64_t>(most(units));
    std::copy_n(keys_.get(), count_, keys.get());
    keys_ = std::move(keys);
  }

  struct Taken {
    Stretch from;  // as it was
    std::uint64_t first = 0;
  };
  // From the shortest in which so many fit, the first among equals: those at its front, at a multiple of `grain`, a
  // power of two. Requires: fits().
  Taken take(std::uint64_t wanted, std::uint64_t grain = 1) {
    std::uint64_t best = kNone;
    std::size_t at = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const bool is_better = fits(keys_[i], wanted, grain) && keys_[i] < best;
      best = is_better ? keys_[i] : best;
      at = is_better ? i : at;
    }
    const Stretch from = stretch(best);
    const std::uint64_t first = from.first + left_over(best, grain);
    const std::uint64_t rest = from.end() - first - wanted;
    keys_[at] = keys_[--count_];
    if (first != from.first) keys_[count_++] = key({from.first, first - from.first});
    if (rest != 0) keys_[count_++] = key({first + wanted, rest});
    if (from.length == longest_) find_longest();
    return {from, first};
  }
  bool fits(std::uint64_t wanted, std::uint64_t grain) const {
    return std::any_of(keys_.get(), keys_.get() + count_, [&](std::uint64_t k) { return fits(k, wanted, grain); });
  }

  // Returns the stretch that they are part of now. Requires: they are not free.
  Stretch give(Stretch more) {
    std::size_t before = count_;
    std::size_t behind = count_;
    for (std::size_t i = 0; i < count_; ++i) {
      const Stretch other = stretch(keys_[i]);
      before = other.end() == more.first ? i : before;
      behind = other.first == more.end() ? i : behind;
    }
    if (before != count_) {
      const Stretch front = stretch(keys_[before]);
      more = {front.first, front.length + more.length};
    }
    const std::size_t at = std::min(before, behind);  // of two that become one the first is written, the other goes
    if (behind != count_) more.length += stretch(keys_[behind]).length;
    keys_[at] = key(more);
    if (before != count_ && behind != count_)
      keys_[std::max(before, behind)] = keys_[--count_];
    else if (at == count_)
      ++count_;
    longest_ = std::max(longest_, static_cast<std::uint32_t>(more.length));
    return more;
  }

 private:
  // The length before the first unit: the order in which they are chosen.
  static constexpr int kLengthShift = 32;
  static std::uint64_t key(Stretch of) { return of.length << kLengthShift | of.first; }
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  static std::uint64_t left_over(std::uint64_t key, std::uint64_t grain) { return (0 - key) & (grain - 1); }
  static bool fits(std::uint64_t key, std::uint64_t wanted, std::uint64_t grain) {
    return key >= (wanted + left_over(key, grain)) << kLengthShift;
  }
  static Stretch stretch(std::uint64_t key) { return {static_cast<std::uint32_t>(key), key >> kLengthShift}; }
  // Between two there is a unit that is not free.
  static std::size_t most(std::uint64_t units) { return static_cast<std::size_t>(units / 2 + 1); }
  void find_longest() {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < count_; ++i) most = std::max(most, keys_[i]);
    longest_ = static_cast<std::uint32_t>(most >> kLengthShift);
  }

  LineArray<std::uint64_t> keys_;
  std::uint32_t count_ = 0;
  std::uint32_t longest_ = 0;
};

}  // namespace vpmm::small
