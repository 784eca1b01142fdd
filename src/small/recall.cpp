// small: what shards keep comes back, and what the figures are meanwhile.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

constexpr std::uint64_t kClosingsPerMiss = 64;

}  // namespace

// --- allocations of whole pages
// -----------------------------------------------------------------------------------------

void SmallPool::enlist(const Region& pages, Bytes requested) {
  PageEntry* entry = directory_.at(pages.range.begin);
  if (entry == nullptr) {
    for (const AddressRange& reservation : pool_.reservations())
      if (reservation.contains(pages.range.begin)) directory_.cover(reservation);
    entry = directory_.at(pages.range.begin);
    if (entry == nullptr) return;
  }
  entry->requested = requested;
  entry->owner.store(PageEntry::of(&pages), std::memory_order_relaxed);
}

// The index counts what the first user asked for; from here on nobody does.
void SmallPool::delist(const Region& pages) {
  PageEntry* entry = directory_.at(pages.range.begin);
  if (entry == nullptr || entry->owner.load(std::memory_order_relaxed) == 0) return;
  pages_.requested += static_cast<std::int64_t>(pages.tenant.requested) - static_cast<std::int64_t>(entry->requested);
  entry->owner.store(0, std::memory_order_relaxed);
}

Bytes SmallPool::requested_of(const Region& pages) const {
  const PageEntry* entry = directory_.at(pages.range.begin);
  const bool is_listed = entry != nullptr && entry->owner.load(std::memory_order_relaxed) == PageEntry::of(&pages);
  return is_listed ? entry->requested : pages.tenant.requested;
}

// --- taking back
// --------------------------------------------------------------------------------------------------------

bool SmallPool::recall() {
  const Bytes idle = spans_.bytes(region::RegionState::free) + pool_.idle_bytes();
  for (Shard& shard : shards_) recall(shard);
  return spans_.bytes(region::RegionState::free) + pool_.idle_bytes() != idle;
}

bool SmallPool::recall_one(const Caller& caller, Bytes size) {
  if (caller.timeline == nullptr) return false;
  Shard& shard = shard_of(*caller.timeline);
  const bool is_run = size < page_size_;
  Kept kept;
  {
    const SpinGuard guard(shard.lock);
    const std::size_t first = is_run ? run_bin(run_units(size)) : page_bin((size + page_size_ - 1) / page_size_);
    const std::size_t last = is_run ? kRunBins : kBins;
    for (std::size_t bin = first; bin < last && kept.region == nullptr; ++bin) {
      if (shard.kept[bin].empty()) continue;
      const std::uint64_t number = shard.kept[bin].back().number;
      kept = {shard.take_kept(bin), number};
    }
    if (kept.region != nullptr && !is_run) leave_hand(shard, kept);
  }
  if (kept.region == nullptr) return false;
  timelines_.claim(*caller.timeline, kept.number, kept.region->range.size);
  const time::Stamp stamp({caller.timeline->id, kept.number});
  if (is_run) {
    end_run(kept.region, stamp);
  } else {
    pool_.deallocate(kept.region, stamp);
  }
  return true;
}

// Whole pages: the index counts them as allocated until the pool has them back. Holds: the shard's lock.
void SmallPool::leave_hand(Shard& shard, const Kept& pages) {
  shard.tally.begin(pages.region->tenant.requested, pages.region->range.size);
  --shard.tally.deallocations;
  if (PageEntry* entry = directory_.at(pages.region->range.begin)) entry->owner.store(0, std::memory_order_relaxed);
}

// Note [What leaves a hand is stamped as it was freed]
// Not later: an event that was recorded since the free proves it.
void SmallPool::recall(Shard& shard) {
  std::vector<Kept> freed;
  std::vector<Slab*> slabs;
  Bytes bytes = 0;
  {
    const SpinGuard guard(shard.lock);
    for (std::size_t c = 0; c < kSlabClasses; ++c) {
      Slab* only = shard.open[c].first;
      if (only != nullptr && only->is_empty()) {
        shard.open[c].remove(only);
        slabs.push_back(only);
      }
      while (Slab* slab = shard.empty[c].first) {
        shard.empty[c].remove(slab);
        slabs.push_back(slab);
      }
    }
    if (shard.kept_bytes > 0) {
      for (std::vector<Kept>& bin : shard.kept) {
        freed.insert(freed.end(), bin.begin(), bin.end());
        bin.clear();
      }
    }
    bytes = std::exchange(shard.kept_bytes, 0);
    shard.kept_pages_bytes = 0;
    for (const Kept& kept : freed) {
      set_holder(*kept.region, nullptr);
      if (kept.region->range.size >= page_size_) leave_hand(shard, kept);
    }
    if (!freed.empty() || !slabs.empty()) shard.wants_attention.store(true, std::memory_order_relaxed);
  }
  if (freed.empty() && slabs.empty()) return;
  time::Timeline* timeline = shard.timeline ? timelines_.find(*shard.timeline) : nullptr;
  std::uint64_t latest = 0;
  const auto stamp_of = [&](std::uint64_t number) {
    latest = std::max(latest, number);
    return timeline == nullptr || number == 0 ? time::Stamp{} : time::Stamp({timeline->id, number});
  };
  for (const Slab* slab : slabs) bytes += slab->span->range.size;
  for (const Kept& kept : freed) latest = std::max(latest, kept.number);
  for (const Slab* slab : slabs) latest = std::max(latest, slab->number);
  if (timeline != nullptr) timelines_.claim(*timeline, latest, bytes);
  for (Slab* slab : slabs) end_slab(slab, stamp_of(slab->number));
  for (const Kept& kept : freed) {
    if (kept.region->range.size < page_size_) {
      end_run(kept.region, stamp_of(kept.number));
    } else {
      pool_.deallocate(kept.region, stamp_of(kept.number));
    }
  }
}

void SmallPool::want_events(const time::Timeline* except) {
  for (Shard& shard : shards_) {
    const SpinGuard guard(shard.lock);
    if (shard.timeline && (except == nullptr || *shard.timeline != except->id)) shard.closings_left = kClosingsPerMiss;
  }
}

void SmallPool::retire_idle() {
  for (auto it = by_timeline_.begin(); it != by_timeline_.end();) {
    Shard& shard = *it->second;
    bool is_idle = false;
    {
      const SpinGuard guard(shard.lock);
      is_idle = shard.activity == shard.activity_seen;
      shard.activity_seen = shard.activity;
    }
    time::Timeline* timeline = timelines_.find(it->first);
    const bool is_over = timeline == nullptr || timeline->is_over;
    const bool is_empty = shard.slab_count == 0;
    if (is_over) end_shard(shard);
    if (is_idle || is_over) recall(shard);
    if (is_over && is_empty) unused_shards_.push_back(&shard);  // else it is, when its last slab ends
    if (is_over && timeline != nullptr) timeline->in_hand = nullptr;
    it = is_over ? by_timeline_.erase(it) : std::next(it);
  }
}

// No call finds it any more, and what it has is complete: its stream's context is gone, or nothing was left to do.
void SmallPool::end_shard(Shard& shard) {
  const SpinGuard guard(shard.lock);
  shard.stream.store(0, std::memory_order_relaxed);
  shard.timeline.reset();
}

// --- figures
// ------------------------------------------------------------------------------------------------------------

Tally SmallPool::tally() {
  Tally sum = pages_;
  sum.requested_high = sum.requested;
  for (Shard& shard : shards_) {
    const SpinGuard guard(shard.lock);
    sum.requested += shard.tally.requested;
    sum.allocated += shard.tally.allocated;
    sum.live += shard.tally.live;
    sum.allocations += shard.tally.allocations;
    sum.deallocations += shard.tally.deallocations;
    sum.requested_high += shard.tally.requested_high;
  }
  return sum;
}

std::int64_t SmallPool::take_high() {
  std::int64_t high = pages_.requested;
  for (Shard& shard : shards_) {
    const SpinGuard guard(shard.lock);
    high += std::exchange(shard.tally.requested_high, shard.tally.requested);
  }
  return high;
}

Bytes SmallPool::kept_pages_bytes() {
  Bytes bytes = 0;
  for (Shard& shard : shards_) {
    const SpinGuard guard(shard.lock);
    bytes += shard.kept_pages_bytes;
  }
  return bytes;
}

// What the pool's index calls allocated, less what is.
Bytes SmallPool::idle_bytes() { return static_cast<Bytes>(-tally().allocated); }

Bytes SmallPool::pending_bytes(time::TimelineId timeline) const {
  const auto found = waiting_on_.find(timeline);
  return (found == waiting_on_.end() ? 0 : found->second) + spans_.pending_bytes(timeline);
}

// --- invariants
// ---------------------------------------------------------------------------------------------------------

std::string SmallPool::validate() {
  if (std::string broken = spans_.validate(); !broken.empty()) return "small: " + broken;
  for (Shard& shard : shards_)
    if (std::string broken = validate_shard(shard); !broken.empty()) return "small: " + broken;
  std::uint64_t occupied = 0;
  std::uint64_t spans = 0;
  for (const Arena* arena : arenas_.all()) occupied += arena->page != nullptr ? arena->occupied : 0;
  spans_.for_each([&](const Region& span) { spans += span.state == region::RegionState::allocated ? 1 : 0; });
  if (occupied != spans) return fmt::format("small: {} spans, but arenas count {}", spans, occupied);
  Bytes waiting = 0;
  for (const auto& [part, blocks] : waiting_)
    for (const Waiting& block : blocks) waiting += block.slab->shape().block;
  if (waiting != waiting_bytes_) return fmt::format("small: {} bytes wait, {} are counted", waiting, waiting_bytes_);
  return {};
}

std::string SmallPool::validate_shard(Shard& shard) {
  const SpinGuard guard(shard.lock);
  Bytes kept = 0;
  for (const std::vector<Kept>& bin : shard.kept)
    for (const auto& [region, number] : bin) {
      kept += region->range.size;
      if (holder_of(*region) != &shard) return "a kept region names another holder";
      if (region->state != region::RegionState::allocated) return "a kept region is not allocated";
    }
  if (kept != shard.kept_bytes) return fmt::format("{} bytes kept, {} counted", kept, shard.kept_bytes);
  for (std::size_t c = 0; c < kSlabClasses; ++c) {
    for (const Slab* slab = shard.open[c].first; slab != nullptr; slab = slab->next) {
      if (slab->free == 0) return "a full slab is listed as open";
      if (slab->shard != &shard || slab->slab_class != c) return "a slab stands in a list that is not its own";
      if ((slab->free & slab->waiting) != 0) return "a block is free and waiting";
      if (slab->is_empty() && (slab->next != nullptr || slab->previous != nullptr))
        return "an empty slab stands among open ones";
    }
    for (const Slab* slab = shard.empty[c].first; slab != nullptr; slab = slab->next)
      if (!slab->is_empty() || slab->shard != &shard) return "a slab listed as empty is not";
  }
  return {};
}

}  // namespace vpmm::small
