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

// A part of a page that is cut. Neighbours that are not live are one part.
struct PagePart {
  AddressRange range;
  bool is_live = false;
  Bytes requested = 0;                       // live: by its user
  std::optional<time::TimelineId> timeline;  // of the stream that uses it or keeps it
  bool is_kept = false;  // not live: a stream keeps it for its own next requests
  time::Stamp stamp{};   // not live and not kept
};

// Sums are read without the locks of caches, so they are those of about now while others call.
class Figures {
 public:
  Figures(const CutPages& cut_pages, const StreamCaches& caches, const Ledger& ledger,
          const WaitingFrees& waiting, Bytes page_size)
      : cut_pages_(cut_pages),
        caches_(caches),
        ledger_(ledger),
        waiting_(waiting),
        page_size_(page_size) {}

  // Corrects the pool's index: of caches and of pages that are cut.
  Tally tally() const VPMM_REQUIRES(pool_lock);
  // Of pages that are cut, neither live nor kept as whole pages.
  Bytes idle_in_cut_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes() + cut_pages_.pending_bytes();
  }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes(timeline) + cut_pages_.pending_bytes(timeline);
  }
  // Blocks and spans there can be without a call under the pool's lock.
  std::uint64_t most_live() const VPMM_REQUIRES(pool_lock);
  // The numbers (address / page size) of the pages that are cut and in use. Looks at each slab and
  // span.
  Set<Bytes> used_pages() const VPMM_REQUIRES(pool_lock);
  // Live blocks and spans, by the page of the pool in which they begin, and the bytes requested of
  // each page. Pages without any are left out.
  struct Live {
    std::uint64_t allocations = 0;
    Bytes requested = 0;
  };
  HashMap<const region::Region*, Live> live_by_page() const VPMM_REQUIRES(pool_lock);
  // All parts of the pages that are cut, in no order.
  void for_each_part(FunctionRef<void(const PagePart&)> visit) const VPMM_REQUIRES(pool_lock);

 private:
  const CutPages& cut_pages_;
  const StreamCaches& caches_;
  const Ledger& ledger_;
  const WaitingFrees& waiting_;
  const Bytes page_size_;
};

}  // namespace vpmm::small
