// SPDX-License-Identifier: Apache-2.0
// context: caches by the id of a stream, found without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/line_allocator.hpp"
#include "small/stream_cache.hpp"

namespace vpmm::context {

// The streams that called last, forgotten ones included. Four places for each set of ids, so that
// few streams do not drive each other out. A result may be out of date: check the cache's stream
// under the cache's lock.
class StreamTable {
 public:
  // Set of an id. Spreads ids at equal distances evenly (multiplication by the golden ratio).
  static constexpr std::size_t set_of(std::uint64_t stream) {
    return static_cast<std::size_t>(stream * 0x9e37'79b9'7f4a'7c15 >> (64 - kSetBits));
  }
  // Any thread, without a lock. Null: not here. Requires: `stream` is not 0.
  small::StreamCache* find(std::uint64_t stream) const {
    for (const StreamEntry& entry : sets_[set_of(stream)].entries)
      if (entry.stream.load(std::memory_order_acquire) == stream)
        return entry.cache.load(std::memory_order_relaxed);
    return nullptr;
  }
  // Replaces a forgotten stream, or else one of the four in turn.
  void note(std::uint64_t stream, small::StreamCache& cache) VPMM_REQUIRES(pool_lock) {
    if (find(stream) == &cache) return;
    StreamSet& set = sets_[set_of(stream)];
    StreamEntry* same = nullptr;
    StreamEntry* empty = nullptr;
    StreamEntry* gone = nullptr;
    for (StreamEntry& entry : set.entries) {
      const std::uint64_t known = entry.stream.load(std::memory_order_relaxed);
      if (known == stream)
        same = &entry;
      else if (known == 0)
        empty = &entry;
      else if (entry.cache.load(std::memory_order_relaxed)->service.stream != known)
        gone = &entry;
    }
    StreamEntry* const place = same != nullptr    ? same
                               : empty != nullptr ? empty
                               : gone != nullptr  ? gone
                                                  : &set.entries[turn_++ % kPlaces];
    place->stream.store(0, std::memory_order_relaxed);
    place->cache.store(&cache, std::memory_order_relaxed);
    place->stream.store(stream, std::memory_order_release);
  }

 private:
  static constexpr int kSetBits = 11;
  static constexpr std::size_t kPlaces = 4;
  struct StreamEntry {
    std::atomic<std::uint64_t> stream{0};
    std::atomic<small::StreamCache*> cache{nullptr};
  };
  struct alignas(kCacheLine) StreamSet {
    std::array<StreamEntry, kPlaces> entries;
  };

  std::array<StreamSet, std::size_t{1} << kSetBits> sets_{};
  std::size_t turn_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::context
