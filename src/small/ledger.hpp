// small: what users have of all caches together, and the most they had at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "pool/pool.hpp"
#include "small/stream_cache.hpp"

namespace vpmm::small {

// What a cache counts is noted here when its stream, or somebody else, comes through the pool's
// lock. So of other streams the peak knows what they had at the end of their own last such call,
// and when the last of their allocations was freed by others.
class Ledger {
 public:
  explicit Ledger(pool::Pool& pool) : pool_(pool) {}

  // The pool's index counts a page that is cut as an allocation of a user.
  void page_is_cut(Bytes size) VPMM_REQUIRES(pool_lock) { of_pages_.index_begins(size, size); }
  void page_goes_back(Bytes size) VPMM_REQUIRES(pool_lock) { of_pages_.index_ends(size, size); }
  // Pages that an arena of the program divides, and what users have of them: beside what is cut
  // here.
  void stretch_begins(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.index_begins(asked, size);
  }
  void stretch_ends(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.index_ends(asked, size);
  }
  void block_begins(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.begin_noted(asked, size);
  }
  void block_ends(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.end_noted(asked, size);
  }
  const Tally& of_stretches() const VPMM_REQUIRES(pool_lock) { return of_stretches_; }
  // Pages of a user, of which the index counts what their first user asked for.
  void pages_end(Bytes first, Bytes present) VPMM_REQUIRES(pool_lock) {
    of_pages_.shift(first - present);
  }
  // Correct what the pool's index counts, beside what the caches do.
  const Tally& of_pages() const VPMM_REQUIRES(pool_lock) { return of_pages_; }

  void note(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock) {
    requested_ += cache.tally.requested - std::exchange(cache.noted, cache.tally.requested);
  }
  // Before something of the cache ends through the pool's lock.
  void note_peak(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock) {
    note(cache);
    raise_peak(requested_ + static_cast<std::int64_t>(cache.tally.take_high()));
  }
  // The caches have as much, or had at most.
  void raise_peak(std::int64_t requested) VPMM_REQUIRES(pool_lock) {
    peak_ = std::max(peak_, total(requested));
  }
  Bytes peak() const VPMM_REQUIRES(pool_lock) { return peak_; }
  Bytes take_peak() VPMM_REQUIRES(pool_lock) {
    return std::max(std::exchange(peak_, 0), total(requested_));
  }

 private:
  // What users of pages and parts of pages asked for, with so much in the caches.
  Bytes total(std::int64_t requested) const VPMM_REQUIRES(pool_lock) {
    return pool_.requested_bytes() +
           static_cast<Bytes>(of_pages_.requested + of_stretches_.requested + requested);
  }

  pool::Pool& pool_;
  Tally of_pages_ VPMM_GUARDED_BY(pool_lock);
  Tally of_stretches_ VPMM_GUARDED_BY(pool_lock);
  std::int64_t requested_ VPMM_GUARDED_BY(pool_lock) = 0;  // sum of what was noted of the caches
  Bytes peak_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::small
