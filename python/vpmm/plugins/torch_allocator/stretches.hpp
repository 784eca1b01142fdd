// torch_allocator: the stretches of private pools, which are PyTorch's segments, and their idle
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "history.hpp"

namespace vpmm::torch_plugin {

inline constexpr std::size_t kAll = static_cast<std::size_t>(StatType::AGGREGATE);
inline constexpr std::size_t kSmall = static_cast<std::size_t>(StatType::SMALL_POOL);
inline constexpr std::size_t kLarge = static_cast<std::size_t>(StatType::LARGE_POOL);

inline void set(c10::CachingAllocator::Stat& stat, std::int64_t now) {
  if (now > stat.current)
    stat.increase(static_cast<std::size_t>(now - stat.current));
  else
    stat.decrease(static_cast<std::size_t>(stat.current - now));
}

// Private pools count as large.
inline void add_large(StatArray& stats, std::int64_t change) {
  for (const std::size_t i : {kAll, kLarge}) set(stats.at(i), stats.at(i).current + change);
}

// Counted at every change, so that nothing between two looks at the figures is lost.
class Stretches {
 public:
  struct Stretch {
    std::size_t bytes = 0;
    std::int32_t order = 0;
    bool is_foreign = false;                     // from another allocator than the pool
    std::map<std::uintptr_t, std::size_t> live;  // sizes by address
    std::size_t live_bytes = 0;
    std::size_t gaps = 1;  // idle pieces between them; 1 while nothing is live
    // The native allocator calls a segment split if only a part of it is in use.
    std::size_t split_gaps() const { return live.empty() ? 0 : gaps; }
    std::size_t split_bytes() const { return live.empty() ? 0 : bytes - live_bytes; }
  };

  void add(const void* begin, std::size_t bytes) {
    Stretch& stretch = by_address_[address(begin)];
    stretch.bytes = bytes;
    stretch.order = ++made_;
    add_large(segments, 1);
  }
  // Null: unknown, because it was added before anybody listened.
  const Stretch* find(const void* begin) const {
    const auto found = by_address_.find(address(begin));
    return found == by_address_.end() ? nullptr : &found->second;
  }
  void set_foreign(const void* begin) {
    const auto found = by_address_.find(address(begin));
    if (found != by_address_.end()) found->second.is_foreign = true;
  }
  // Returns the bytes that came from another allocator, or 0.
  std::size_t remove(const void* begin) {
    const auto found = by_address_.find(address(begin));
    if (found == by_address_.end()) return 0;
    const std::size_t given = found->second.is_foreign ? found->second.bytes : 0;
    add_large(inactive_split, -static_cast<std::int64_t>(found->second.split_gaps()));
    add_large(inactive_split_bytes, -static_cast<std::int64_t>(found->second.split_bytes()));
    by_address_.erase(found);
    add_large(segments, -1);
    return given;
  }

  void enter(const void* ptr, std::size_t bytes) {
    change(ptr, [&](Stretch& stretch, std::uintptr_t first, std::uintptr_t begin) {
      stretch.gaps += gaps_around(stretch, first, begin, bytes) - 1;
      stretch.live.emplace(begin, bytes);
      stretch.live_bytes += bytes;
    });
  }
  void leave(const void* ptr, std::size_t bytes) {
    change(ptr, [&](Stretch& stretch, std::uintptr_t first, std::uintptr_t begin) {
      stretch.live.erase(begin);
      stretch.live_bytes -= bytes;
      stretch.gaps -= gaps_around(stretch, first, begin, bytes) - 1;
    });
  }

  StatArray segments;
  StatArray inactive_split;
  StatArray inactive_split_bytes;

 private:
  static std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

  template <class Change>
  void change(const void* ptr, Change change_it) {
    auto around = by_address_.upper_bound(address(ptr));
    if (around == by_address_.begin()) return;
    --around;
    auto& [begin, stretch] = *around;
    if (address(ptr) - begin >= stretch.bytes) return;
    const auto gaps = static_cast<std::int64_t>(stretch.split_gaps());
    const auto bytes = static_cast<std::int64_t>(stretch.split_bytes());
    change_it(stretch, begin, address(ptr));
    add_large(inactive_split, static_cast<std::int64_t>(stretch.split_gaps()) - gaps);
    add_large(inactive_split_bytes, static_cast<std::int64_t>(stretch.split_bytes()) - bytes);
  }

  // How many sides of [begin, begin + bytes) are idle; a block that lives there is ignored.
  static std::size_t gaps_around(const Stretch& stretch, std::uintptr_t first, std::uintptr_t begin,
                                 std::size_t bytes) {
    const auto next = stretch.live.lower_bound(begin);
    const std::uintptr_t after = next == stretch.live.end() ? first + stretch.bytes : next->first;
    std::uintptr_t before = first;
    if (next != stretch.live.begin()) before = std::prev(next)->first + std::prev(next)->second;
    return (before < begin ? 1U : 0U) + (begin + bytes < after ? 1U : 0U);
  }

  std::map<std::uintptr_t, Stretch> by_address_;
  std::int32_t made_ =
      0;  // NCCL registers segments in the order in which they were made, on every rank
};

}  // namespace vpmm::torch_plugin
