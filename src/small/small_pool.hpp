// SPDX-License-Identifier: Apache-2.0
// small: requests below a page, and of a few pages where streams crowd: blocks and spans cut from
// pages of the pool, cached by the streams that use them.
//
// Reads top-down as runs (of pages of the pool), segments (stretches of units in them, each of one
// stream), slabs and spans (cut from a segment) and caches (the memory that a stream keeps). Free
// segments keep stamps as the pool's ranges do, so memory moves between streams in the same way; a
// block or span that other streams used waits for its stamp here.
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

// The way of a request below a page, and of its free, over parts that callers name directly. It
// calls no room above, and drops no lock.
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

  // Whether a request of a page and more is cut like a smaller one. Note [Streams that crowd cut
  // their own]
  bool cuts_pages_for(const pool::Caller& caller, Bytes bytes, Bytes alignment)
      VPMM_REQUIRES(pool_lock);
  // Memory that work queued on the caller's stream after the call may use, from pages that are cut
  // already; null: it needs more of them.
  DevicePtr take(Bytes bytes, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Whether the pages are to be cut at once: they can be had without a mapping, and little of the
  // pages that are cut lies idle. Otherwise, and before anything would be mapped, the memory that
  // streams keep comes back first.
  bool should_cut(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // For the rest of the caller's share, as many again and again that lie idle: nothing is mapped
  // for it.
  void cut_more(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // The memory of an allocation that end() gave. May be used again on its own stream at once if
  // nothing but that stream's work is in `stamp`, otherwise once the stamp is complete. Requires:
  // it is not yet.
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
