// SPDX-License-Identifier: Apache-2.0
// small: figures are read from sums and from segments.
#include "small/figures.hpp"

#include "small/live_parts.hpp"

namespace vpmm::small {

using region::Region;

Tally Figures::tally() const {
  Tally sum = caches_.tally();
  sum += ledger_.of_pages();
  return sum;
}

Bytes Figures::idle_in_cut_bytes() const {
  const std::int64_t idle =
      -tally().allocated - static_cast<std::int64_t>(caches_.cached_pages_bytes());
  return static_cast<Bytes>(std::max<std::int64_t>(0, idle));
}

std::uint64_t Figures::most_live() const {
  const Bytes cut = cut_pages_.segment_bytes();
  return std::min(caches_.slab_count() * kMostBlocks, cut / kGrain) + cut / kLeastSpan;
}

Set<Bytes> Figures::used_pages() const {
  Set<Bytes> used;
  for (const Segment* segment : cut_pages_.segments())
    for_each_live(*segment, [&](const LivePart& live) {
      const Bytes first = to_integer(live.whole.begin) / page_size_,
                  last = (to_integer(live.whole.end()) - 1) / page_size_;
      for (Bytes page = first; page <= last; ++page) used.insert(page);
    });
  return used;
}

HashMap<const Region*, Figures::Live> Figures::live_by_page() const {
  HashMap<const Region*, Live> pages;
  for (const Segment* segment : cut_pages_.segments())
    for_each_live(*segment, [&](const LivePart& part) {
      const PageRun& run = *segment->run;
      const AddressRange live{part.range.begin, part.requested};
      const std::size_t first = run.page_of(live.begin),
                        last = run.page_of(live.begin + (live.size - 1));
      for (std::size_t page = first; page <= last; ++page) {
        const AddressRange whole = run.pages[page]->range;
        Live& found = pages[run.pages[page]];
        found.allocations += page == first ? 1 : 0;
        found.requested += std::min(live.end(), whole.end()) - std::max(live.begin, whole.begin);
      }
    });
  return pages;
}

void Figures::for_each_part(FunctionRef<void(const PagePart&)> visit) const {
  cut_pages_.for_each_free([&](const Region& free) {
    visit({free.range, false, 0, {}, false, free.stamp});
  });
  for (const Segment* segment : cut_pages_.segments()) {
    StreamCache* const cache = segment->cache();
    if (cache == nullptr) continue;
    const std::optional<time::TimelineId> timeline = cache->timeline_now();
    DevicePtr idle_from = segment->begin;
    const auto end_idle = [&](DevicePtr end) {
      if (end > idle_from) visit({{idle_from, end - idle_from}, false, 0, timeline, true});
    };
    for_each_live(*segment, [&](const LivePart& live) {
      end_idle(live.range.begin);
      visit({live.range, true, live.requested, timeline});
      idle_from = live.range.end();
    });
    end_idle(segment->range().end());
  }
}

}  // namespace vpmm::small
