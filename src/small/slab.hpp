// SPDX-License-Identifier: Apache-2.0
// small: equal blocks in a row, and their record.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/address.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "small/size_class.hpp"

namespace vpmm::small {

class StreamCache;
struct Segment;

// Set of numbers below Most, a bit for each.
template <std::uint64_t Most>
class IndexSet {
 public:
  bool contains(std::uint64_t index) const { return (words_[index / 64] >> index % 64 & 1) != 0; }
  void add(std::uint64_t index) { words_[index / 64] |= std::uint64_t{1} << index % 64; }
  void remove(std::uint64_t index) { words_[index / 64] &= ~(std::uint64_t{1} << index % 64); }
  // Makes it the first `count` numbers.
  void fill(std::uint64_t count) {
    for (std::uint64_t& word : words_) {
      word = count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
      count -= std::min<std::uint64_t>(count, 64);
    }
  }
  // Requires: not empty.
  std::uint64_t first() const {
    std::uint64_t word = 0;
    while (words_[word] == 0) ++word;
    return word * 64 + static_cast<std::uint64_t>(std::countr_zero(words_[word]));
  }
  bool empty() const { return count() == 0; }
  std::uint64_t count() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words_) sum += static_cast<std::uint64_t>(std::popcount(word));
    return sum;
  }
  bool overlaps(const IndexSet& other) const {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if ((words_[i] & other.words_[i]) != 0) return true;
    return false;
  }

 private:
  std::array<std::uint64_t, Most / 64> words_{};
};
using BlockSet = IndexSet<kMostBlocks>;

// Equal blocks cut from units of one segment. Belongs to one cache; all fields change under the
// cache's lock, cache and size only without a live block. The cache is read without the lock and
// checked again under it. live = not free and not waiting
struct alignas(kCacheLine) Slab {
  // --- fields of every call, on one line ---
  BlockSet free VPMM_GUARDED_BY(cache_lock);                 // may be given to the cache's stream
  std::uint16_t free_count VPMM_GUARDED_BY(cache_lock) = 0;  // of them
  std::uint16_t blocks VPMM_GUARDED_BY(cache_lock) = 0;
  std::uint16_t units VPMM_GUARDED_BY(cache_lock) = 0;
  std::uint8_t slab_class VPMM_GUARDED_BY(cache_lock) = 0;
  bool has_exceptions VPMM_GUARDED_BY(cache_lock) = false;  // some block is in `exceptions`
  DevicePtr begin VPMM_GUARDED_BY(cache_lock){};
  std::atomic<StreamCache*> of_cache{nullptr};           // null: not in use
  std::uint64_t number VPMM_GUARDED_BY(cache_lock) = 0;  // latest of a free here; 0: none
  // --- the next lines ---
  Slab* previous VPMM_GUARDED_BY(cache_lock) = nullptr;  // in one of the cache's lists
  Slab* next VPMM_GUARDED_BY(cache_lock) = nullptr;
  std::array<std::uint16_t, kMostBlocks> slack
      VPMM_GUARDED_BY(cache_lock){};  // block size less the request
  // --- fields of few calls ---
  Segment* segment VPMM_GUARDED_BY(cache_lock) = nullptr;
  struct {
    BlockSet waiting;         // freed, and its stamp is not complete
    BlockSet used_elsewhere;  // live, and record_use named another stream
  } exceptions VPMM_GUARDED_BY(cache_lock);

  StreamCache* cache() const { return of_cache.load(std::memory_order_relaxed); }
  void set_cache(StreamCache* cache) { of_cache.store(cache, std::memory_order_relaxed); }
  // Address only, so no lock is needed.
  const void* place_of_slack(std::uint64_t index) const VPMM_NO_THREAD_SAFETY_ANALYSIS {
    return &slack[index % kMostBlocks];
  }

  // Requires: nothing live or waiting.
  void set_all_free() VPMM_REQUIRES(cache_lock) {
    free.fill(blocks);
    free_count = blocks;
    number = 0;
  }
  // Requires: not full.
  std::uint64_t take_first() VPMM_REQUIRES(cache_lock) {
    const std::uint64_t index = free.first();
    free.remove(index);
    --free_count;
    return index;
  }
  void give(std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    free.add(index);
    ++free_count;
  }

  Bytes block_bytes() const VPMM_REQUIRES(cache_lock) { return kShapes[slab_class].block; }
  std::uint64_t index_of(DevicePtr p) const VPMM_REQUIRES(cache_lock) {
    return kShapes[slab_class].index_of(p - begin);
  }
  DevicePtr block(std::uint64_t index) const VPMM_REQUIRES(cache_lock) {
    return begin + index * block_bytes();
  }
  Bytes bytes() const VPMM_REQUIRES(cache_lock) { return units * kUnit; }
  Bytes requested(std::uint64_t index) const VPMM_REQUIRES(cache_lock) {
    return block_bytes() - slack[index];
  }
  bool is_live(std::uint64_t index) const VPMM_REQUIRES(cache_lock) {
    return index < blocks && !free.contains(index) &&
           !(has_exceptions && exceptions.waiting.contains(index));
  }
  bool is_empty() const VPMM_REQUIRES(cache_lock) { return free_count == blocks; }
  bool is_full() const VPMM_REQUIRES(cache_lock) { return free_count == 0; }
  // Tells if the free of one more block makes it empty.
  bool is_last_live() const VPMM_REQUIRES(cache_lock) { return free_count + 1 == blocks; }
  bool is_used_elsewhere(std::uint64_t index) const VPMM_REQUIRES(cache_lock) {
    return has_exceptions && exceptions.used_elsewhere.contains(index);
  }
  void set_used_elsewhere(std::uint64_t index, bool is_used) VPMM_REQUIRES(cache_lock) {
    set(exceptions.used_elsewhere, index, is_used);
  }
  void set_waiting(std::uint64_t index, bool is_waiting) VPMM_REQUIRES(cache_lock) {
    set(exceptions.waiting, index, is_waiting);
  }

 private:
  void set(BlockSet& blocks_of_a_kind, std::uint64_t index, bool is_in) VPMM_REQUIRES(cache_lock) {
    if (is_in)
      blocks_of_a_kind.add(index);
    else
      blocks_of_a_kind.remove(index);
    has_exceptions = !exceptions.waiting.empty() || !exceptions.used_elsewhere.empty();
  }
};

// Linked slabs, unordered. The links of a slab that was removed are arbitrary.
struct SlabList {
  Slab* first VPMM_GUARDED_BY(cache_lock) = nullptr;

  void push(Slab* slab) VPMM_REQUIRES(cache_lock) {
    slab->previous = nullptr;
    slab->next = first;
    if (first != nullptr) first->previous = slab;
    first = slab;
  }
  void remove(Slab* slab) VPMM_REQUIRES(cache_lock) {
    (slab->previous == nullptr ? first : slab->previous->next) = slab->next;
    if (slab->next != nullptr) slab->next->previous = slab->previous;
  }
};

}  // namespace vpmm::small
