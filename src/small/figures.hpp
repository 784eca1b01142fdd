// SPDX-License-Identifier: Apache-2.0
// small: sums over users' memory, and the parts that pages are divided into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "small/cut_pages.hpp"
#include "small/ledger.hpp"
#include "small/stream_caches.hpp"
#include "small/waiting_frees.hpp"

namespace vpmm::small {

// Part of a page that is cut. Neighbours that are not live are one part.
struct PagePart {
  AddressRange range;
  bool is_live = false;
  Bytes requested = 0;                       // live: by its user
  std::optional<time::TimelineId> timeline;  // of the stream that uses it or keeps it
  bool is_kept = false;  // not live: a stream keeps it for its own next requests
  time::Stamp stamp{};   // not live and not kept
};

// Sums are read without the locks of caches, so they are approximate while other threads call.
class Figures {
 public:
  Figures(const CutPages& cut_pages, const StreamCaches& caches, const Ledger& ledger,
          const WaitingFrees& waiting, Bytes page_size)
      : cut_pages_(cut_pages),
        caches_(caches),
        ledger_(ledger),
        waiting_(waiting),
        page_size_(page_size) {}

  // Corrections to the pool's index, for caches and for pages that are cut.
  Tally tally() const VPMM_REQUIRES(pool_lock);
  // Bytes of cut pages that are neither live nor kept as whole pages.
  Bytes idle_in_cut_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes() + cut_pages_.pending_bytes();
  }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes(timeline) + cut_pages_.pending_bytes(timeline);
  }
  // Most blocks and spans that warm calls can bring to life.
  std::uint64_t most_live() const VPMM_REQUIRES(pool_lock);
  // Numbers (address / page size) of the cut pages in use. Reads each slab and span.
  Set<Bytes> used_pages() const VPMM_REQUIRES(pool_lock);
  // Live blocks and spans by the page of the pool in which they begin, with the bytes requested of
  // each page. Leaves out pages without any.
  struct Live {
    std::uint64_t allocations = 0;
    Bytes requested = 0;
  };
  HashMap<const region::Region*, Live> live_by_page() const VPMM_REQUIRES(pool_lock);
  // Visits all parts of the cut pages, unordered.
  void for_each_part(FunctionRef<void(const PagePart&)> visit) const VPMM_REQUIRES(pool_lock);

 private:
  const CutPages& cut_pages_;
  const StreamCaches& caches_;
  const Ledger& ledger_;
  const WaitingFrees& waiting_;
  const Bytes page_size_;
};

}  // namespace vpmm::small
