// SPDX-License-Identifier: Apache-2.0
// small: requests below a page, and of a few pages where streams crowd: blocks and spans cut from
// pages of the pool, cached by the streams that use them.
//
// Top-down: runs (of pages of the pool), segments (units of a run, of one stream), slabs and spans
// (cut from a segment) and caches (memory that a stream keeps). Units in no segment have stamps
// like the pool's ranges, so memory moves between streams in the same way; a block or span that
// other streams used waits for its stamp here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "driver/driver.hpp"
#include "pool/pool.hpp"
#include "small/allocation.hpp"
#include "small/cache_bounds.hpp"
#include "small/cut_pages.hpp"
#include "small/figures.hpp"
#include "small/flusher.hpp"
#include "small/ledger.hpp"
#include "small/ownership.hpp"
#include "small/serving.hpp"
#include "small/stream_caches.hpp"
#include "small/waiting_frees.hpp"
#include "small/warm_calls.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Serves a request below a page, and its free, with parts that callers also name directly. Calls no
// room above, and keeps the lock throughout.
class SmallPool {
 public:
  SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines,
            const ServingOptions& options);

  // Takes host memory that the first request would need.
  void prepare() VPMM_REQUIRES(pool_lock);

  const Serving& serving() const { return serving_; }
  Ledger& ledger() { return ledger_; }
  StreamCaches& caches() { return caches_; }
  Ownership& ownership() { return ownership_; }
  CutPages& cut_pages() { return cut_pages_; }
  Flusher& flusher() { return flusher_; }
  CacheBounds& bounds() { return bounds_; }
  WarmCalls& warm_calls() { return warm_calls_; }
  const Figures& figures() const { return figures_; }

  // Tells if a request of a page and more is cut like a smaller one (Note [Streams that crowd cut
  // their own]).
  bool cuts_pages_for(const pool::Caller& caller, Bytes bytes, Bytes alignment)
      VPMM_REQUIRES(pool_lock);
  // Takes memory for later work of the caller's stream from pages that are cut; null if that needs
  // more of them.
  DevicePtr take(Bytes bytes, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Tells if the pages are to be cut at once: the pool has them without a mapping, and little of
  // the cut pages is idle. Otherwise caches give memory back first.
  bool should_cut(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Cuts more idle pages, up to the caller's share; maps nothing.
  void cut_more(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Frees the memory of an allocation that Ownership::end() returned. Its own stream may have it at
  // once if `stamp` names that stream alone, otherwise when the stamp is complete. Requires: it is
  // not complete yet.
  void deallocate(const Allocation& ended, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);

  // The first broken invariant as text; empty when all hold.
  std::string validate() VPMM_REQUIRES(pool_lock);

 private:
  DevicePtr take_block(std::size_t slab_class, Bytes requested, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  DevicePtr take_span(Bytes requested, Bytes alignment, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool take_segments(std::uint64_t units, StreamCache& cache, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool take_whole_pages(Bytes least, StreamCache& cache, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool is_crowded(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  enum class UsedBy { own_stream, nobody };
  void set_free(const Allocation& ended, UsedBy used_by) VPMM_REQUIRES(pool_lock);
  std::string validate_pages(const StreamCache& cache) const VPMM_REQUIRES(pool_lock, cache_lock);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  const Serving serving_;
  Ledger ledger_;
  StreamCaches caches_;
  Ownership ownership_;
  CutPages cut_pages_;
  WaitingFrees waiting_;
  Flusher flusher_;
  CacheBounds bounds_;
  WarmCalls warm_calls_;
  Figures figures_;
};

}  // namespace vpmm::small
