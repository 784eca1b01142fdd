// context: from the id of a stream to what it has cached, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/line_allocator.hpp"
#include "small/stream_cache.hpp"

namespace vpmm::context {

// The streams that called last. Ids that end alike share four places, so that a few of them do not drive each other
// out. What is found may be out of date: a cache says itself, under its lock, whose it is.
class StreamTable {
 public:
  // Any thread, without a lock. `stream` is not 0. Null: not here.
  small::StreamCache* find(std::uint64_t stream) const {
    for (const Entry& entry : sets_[stream % kSets].entries)
      if (entry.stream.load(std::memory_order_acquire) == stream) return entry.cache.load(std::memory_order_relaxed);
    return nullptr;
  }
  // Drives out one that is no more in service, or else one of the four in turn.
  void note(std::uint64_t stream, small::StreamCache& cache) VPMM_REQUIRES(pool_lock) {
    if (find(stream) == &cache) return;
    Set& set = sets_[stream % kSets];
    Entry* place = nullptr;
    for (Entry& entry : set.entries) {
      const std::uint64_t known = entry.stream.load(std::memory_order_relaxed);
      if (known == stream || known == 0 || entry.cache.load(std::memory_order_relaxed)->stream != known) place = &entry;
      if (known == stream) break;
    }
    if (place == nullptr) place = &set.entries[turn_++ % kPlaces];
    place->stream.store(0, std::memory_order_relaxed);
    place->cache.store(&cache, std::memory_order_relaxed);
    place->stream.store(stream, std::memory_order_release);
  }

 private:
  static constexpr std::size_t kSets = 64;
  static constexpr std::size_t kPlaces = 4;
  struct Entry {
    std::atomic<std::uint64_t> stream{0};
    std::atomic<small::StreamCache*> cache{nullptr};
  };
  struct alignas(kCacheLine) Set {
    std::array<Entry, kPlaces> entries;
  };

  std::array<Set, kSets> sets_{};
  std::size_t turn_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::context
