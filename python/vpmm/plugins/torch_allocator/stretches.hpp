// SPDX-License-Identifier: Apache-2.0
// torch_allocator: facts by mapped address: stacks of growths, and stretches of private pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "history.hpp"

namespace vpmm::torch_plugin {

inline constexpr std::size_t kAll = static_cast<std::size_t>(StatType::AGGREGATE);
inline constexpr std::size_t kSmall = static_cast<std::size_t>(StatType::SMALL_POOL);
inline constexpr std::size_t kLarge = static_cast<std::size_t>(StatType::LARGE_POOL);

void set(Stat& stat, std::int64_t now);

// The stack of each mapped address: that of the call that mapped it, or gave it to a private pool.
class Growths {
 public:
  // Null: no stack is recorded.
  void add(std::size_t begin, std::size_t bytes, Context stack);
  void remove(std::size_t begin, std::size_t bytes);
  // The first stack in [begin, begin + bytes).
  Context stack_in(std::size_t begin, std::size_t bytes);

 private:
  struct Growth {
    std::size_t end;
    Context stack;
  };
  using ByBegin = std::map<std::size_t, Growth>;
  ByBegin::iterator first_after(std::size_t begin);

  ByBegin by_begin_;  // they do not overlap
};

// Stretches of private pools and of tags, which are PyTorch's segments, and their idle memory.
// Counted at every change, so that nothing between two looks at the figures is lost.
class Stretches {
 public:
  struct Stretch {
    std::size_t bytes = 0;
    std::int32_t order = 0;
    bool is_foreign = false;                     // from another allocator than the pool
    std::map<std::uintptr_t, std::size_t> live;  // sizes by address
    std::int64_t live_bytes = 0;
    std::int64_t gaps = 1;  // idle pieces between them; 1 while nothing is live
    // The native allocator calls a segment split if only a part of it is in use.
    std::int64_t split_gaps() const { return live.empty() ? 0 : gaps; }
    std::int64_t split_bytes() const {
      return live.empty() ? 0 : static_cast<std::int64_t>(bytes) - live_bytes;
    }
  };

  void add(const void* begin, std::size_t bytes);
  // Null: unknown, because it was added before the pool's events were subscribed to.
  Stretch* find(const void* begin);
  // The one that an address is in; null: none.
  Stretch* around(const void* ptr);
  // Removes a stretch, or a part of one in which nothing is live; what is left are stretches.
  // Returns the bytes that came from another allocator, or 0.
  std::size_t remove(const void* begin, std::size_t bytes);
  void enter(const void* ptr, std::size_t bytes);
  void leave(const void* ptr, std::size_t bytes);

  StatArray segments;
  StatArray inactive_split;
  StatArray inactive_split_bytes;

 private:
  using ByAddress = std::map<std::uintptr_t, Stretch>;
  template <class Change>
  void change(const void* ptr, Change change_it);
  ByAddress::iterator find_around(const void* ptr);
  // Adds the part of a former stretch from `first` to `end`.
  void keep(const Stretch& of, std::uintptr_t first, std::uintptr_t end);
  static int gaps_around(const Stretch& stretch, std::uintptr_t first, std::uintptr_t begin,
                         std::size_t bytes);

  ByAddress by_address_;
  std::int32_t made_ = 0;  // NCCL registers segments in the order of their making, on every rank
};

}  // namespace vpmm::torch_plugin
