// SPDX-License-Identifier: Apache-2.0
// small: sums over users' memory beside the caches.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "region/region.hpp"
#include "small/tally.hpp"

namespace vpmm::small {

// Corrects the counts of the pool's index, as the tallies of caches do.
class alignas(kCacheLine) Ledger {
 public:
  // A cut page, which the pool's index counts as an allocation of a user, begins or ends.
  void page_is_cut(Bytes size) VPMM_REQUIRES(pool_lock) { of_pages_.index_begins(size, size); }
  void page_goes_back(Bytes size) VPMM_REQUIRES(pool_lock) { of_pages_.index_ends(size, size); }
  // A stretch, the pool's allocation that an arena divides, and the blocks of users in it.
  void stretch_begins(const region::Region& pages) VPMM_REQUIRES(pool_lock) {
    of_stretches_.index_begins(pages.owner.requested, pages.range.size);
  }
  void stretch_ends(const region::Region& pages) VPMM_REQUIRES(pool_lock) {
    of_stretches_.index_ends(pages.owner.requested, pages.range.size);
  }
  void stretch_is_divided() VPMM_REQUIRES(pool_lock) { of_stretches_.index_begins(0, 0); }
  void block_begins(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.begin(asked, size);
  }
  void block_ends(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    of_stretches_.end(asked, size);
  }
  // A live block is suspended: the sums of live memory leave it out.
  void block_sleeps(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    asleep_.requested += asked;
    asleep_.allocated += size;
    ++asleep_.blocks;
  }
  void block_wakes(Bytes asked, Bytes size) VPMM_REQUIRES(pool_lock) {
    asleep_.requested -= asked;
    asleep_.allocated -= size;
    --asleep_.blocks;
  }
  // Live blocks of suspended stretches, which of_stretches() includes.
  struct Asleep {
    Bytes requested = 0;
    Bytes allocated = 0;
    std::uint64_t blocks = 0;
  };
  const Asleep& asleep() const VPMM_REQUIRES(pool_lock) { return asleep_; }
  const Tally& of_stretches() const VPMM_REQUIRES(pool_lock) { return of_stretches_; }
  // An allocation of whole pages ends, of which the index counts the request of its first user.
  void pages_end(Bytes first, Bytes present) VPMM_REQUIRES(pool_lock) {
    of_pages_.index_omits(first - present);
  }
  const Tally& of_pages() const VPMM_REQUIRES(pool_lock) { return of_pages_; }

 private:
  Tally of_pages_ VPMM_GUARDED_BY(pool_lock);
  Tally of_stretches_ VPMM_GUARDED_BY(pool_lock);
  Asleep asleep_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::small
