// small: what shards keep comes back, and what the figures are meanwhile.
#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/host_memory.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

// Less of what all shards together keep is not worth taking it from streams that will soon want it again: for whole
// pages, of what is mapped; for parts of pages, of what is cut.
constexpr Bytes kKeptDivisor = 256;
constexpr Bytes kKeptPartsDivisor = 16;
// Under the lock of the stream that has them.
constexpr std::uint64_t kMostExtentsLookedAt = 64;

// Calls `visit(where it begins, what its user asked for)` for what is live.
template <typename Visit>
void for_each_live(const Extent& extent, Visit&& visit) VPMM_REQUIRES(cache_lock) {
  const std::uint64_t first = extent.arena->unit_of(extent.begin);
  for (std::uint64_t unit = 0; unit < extent.units && !extent.is_free();) {
    if (const Slab* const slab = owner_in(extent.arena->owners[first + unit]).slab()) {
      for (std::uint64_t i = 0; i < slab->blocks; ++i)
        if (slab->is_live(i)) visit(slab->block(i), slab->requested(i));
      unit += slab->units;
      continue;
    }
    if (!extent.has_run_at(unit)) {
      ++unit;
      continue;
    }
    visit(extent.at(unit), extent.requested(unit));
    unit += run_units(extent.requested(unit));
  }
}

}  // namespace

// --- taking back ---------------------------------------------------------------------------------------------------

bool SmallPool::recall() { return recall(FreePages::all); }

bool SmallPool::recall(FreePages which) {
  peak_ = std::max(peak_, high_everywhere());  // while the pool's index still says what it said beside them
  const Bytes idle = given_back_bytes();
  const std::uint64_t pages = page_count_;
  for (Shard& shard : shards_) {
    recall(shard, which);
    retire_if_empty(shard);
  }
  give_idle_pages();
  return given_back_bytes() != idle || page_count_ != pages;
}

bool SmallPool::recall_for_pages(const Caller& caller) {
  return recall_for(caller, std::max(page_size_, pool_.mapped_bytes() / kKeptDivisor));
}

bool SmallPool::recall_for_parts(const Caller& caller) { return recall_for(caller, arena_bytes() / kKeptPartsDivisor); }

bool SmallPool::recall_for(const Caller& caller, Bytes worth) {
  const Bytes idle = given_back_bytes();
  if (caller.timeline != nullptr) recall(shard_of(*caller.timeline), FreePages::where_many);
  recall(*any_, FreePages::where_many);
  if (given_back_bytes() != idle) return true;
  Bytes kept = 0;
  for (const Shard& shard : shards_) {
    kept += shard.kept_bytes.load(std::memory_order_relaxed);
    if (shard.has_many_loose()) kept += shard.loose_units.load(std::memory_order_relaxed) * kUnit;
  }
  return kept > 0 && kept >= worth && recall(FreePages::where_many);
}

bool SmallPool::recall_one(const Caller& caller, Bytes size) {
  if (caller.timeline == nullptr) return false;
  Shard& shard = shard_of(*caller.timeline);
  Kept kept;
  {
    const CacheGuard guard(shard);
    const std::optional<std::uint64_t> pages = shard.pages.least_from(size / page_size_);
    if (!pages) return false;
    kept.number = shard.pages.of(*pages).back().number;
    kept.region = shard.take_pages(*pages);
    leave_hand(shard, kept);
    note(shard);
  }
  timelines_.claim(*caller.timeline, kept.number, kept.region->range.size);
  pool_.deallocate(kept.region, time::Stamp({caller.timeline->id, kept.number}));
  return true;
}

// Note [Who takes one takes half]
// Streams that work side by side would come here for every piece that wanders between them. So whoever keeps most is
// asked first, and of the pieces of a size half of the rest goes into the caller's hand; of pages that were cut, half
// of them into the pool, up to the caller's share.
bool SmallPool::recall_from_others(const Caller& caller, Bytes size) {
  struct Source {
    Bytes kept = 0;
    Shard* shard = nullptr;
    std::uint64_t complete = 0;  // of its timeline
  };
  Vector<Source> sources;
  for (const auto& [id, shard] : by_timeline_) {
    const time::Timeline* const timeline = timelines_.find(id);
    const Bytes kept = shard->kept_bytes.load(std::memory_order_relaxed);
    if (timeline != nullptr && timeline != caller.timeline && kept >= size)
      sources.push_back({kept, shard, timeline->complete});
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.kept > b.kept; });
  const auto any = [&](const auto& takes) VPMM_REQUIRES(pool_lock) {
    for (const Source& source : sources)
      if (takes(*source.shard, source.complete)) return true;
    return false;
  };
  if (size <= page_size_ && any([&](Shard& shard, std::uint64_t complete)
                                    VPMM_REQUIRES(pool_lock) { return recall_extents_of(shard, complete, caller); }))
    return true;
  return any([&](Shard& shard, std::uint64_t complete)
                 VPMM_REQUIRES(pool_lock) { return recall_pages_of(shard, complete, size, caller); });
}

// Those of the least size that is large enough and that the stream is done with, the first that was freed first: one,
// and half of the others if `with_half`.
Vector<Kept> SmallPool::take_complete_pages(Shard& shard, std::uint64_t at_least, std::uint64_t complete,
                                            bool with_half) {
  const CacheGuard guard(shard);
  std::optional<std::uint64_t> pages = shard.pages.least_from(at_least);
  while (pages && shard.pages.of(*pages).front().number > complete) pages = shard.pages.least_from(*pages + 1);
  if (!pages) return {};
  const KeptList& kept = shard.pages.of(*pages);
  const std::size_t most = with_half ? 1 + (kept.size() - 1) / 2 : 1;
  std::size_t count = 1;
  while (count < most && kept[count].number <= complete) ++count;
  Vector<Kept> taken = shard.take_oldest_pages(*pages, count);
  for (const Kept& each : taken) leave_hand(shard, each);
  note(shard);
  return taken;
}

bool SmallPool::recall_pages_of(Shard& shard, std::uint64_t complete, Bytes size, const Caller& caller) {
  Shard* const own = caller.own() ? &shard_of(*caller.timeline) : nullptr;
  const Vector<Kept> taken = take_complete_pages(shard, size / page_size_, complete, own != nullptr);
  if (taken.empty()) return false;
  pool_.deallocate(taken.front().region, {});
  const auto others = std::span(taken).subspan(1);
  for (const Kept& other : others) {
    const Bytes bytes = round_up(other.region->tenant.requested, page_size_);
    pool_.pass_on(other.region, {bytes, bytes, pool_.page_alignment()}, caller);
  }
  if (others.empty()) return true;
  const CacheGuard guard(*own);
  for (const Kept& other : others) {
    const Bytes bytes = other.region->tenant.requested;
    own->tally.was_none(bytes, other.region->range.size);
    own->keep_complete_pages(other.region, bytes / page_size_);
    enter(*other.region, bytes, *own);
  }
  note(*own);
  return true;
}

bool SmallPool::recall_extents_of(Shard& shard, std::uint64_t complete, const Caller& caller) {
  const std::uint64_t page_units = page_size_ / kUnit;
  Vector<Extent*> taken;
  {
    const Bytes share = caller.timeline == nullptr ? 0 : share_of(shard_of(*caller.timeline));
    const CacheGuard guard(shard);
    const std::uint64_t wanted = std::max<std::uint64_t>(share / page_size_, 1);
    std::uint64_t looked_at = 0;
    if (shard.has_many_loose()) part_free_pages(shard);
    shard.extents.for_each_from(page_units, [&](Extent* extent) VPMM_REQUIRES(cache_lock) {
      if (extent->is_free() && extent->units >= page_units && extent->number <= complete) taken.push_back(extent);
      return taken.size() < 2 * wanted && ++looked_at < kMostExtentsLookedAt;
    });
    taken.resize(std::min<std::uint64_t>(wanted, (taken.size() + 1) / 2));
    for (Extent* extent : taken) shard.detach(extent);
    note(shard);
  }
  for (Extent* extent : taken) end_extent(extent, {});
  return !taken.empty();
}

// Note [Free pages of extents in use]
// A stream whose runs may cross pages wants pages side by side, and what the pool has for one that went back is rarely
// that. So free pages of an extent that is otherwise in use stay where they are until they are a quarter of what the
// stream has, or somebody needs everything.

void SmallPool::part_free_pages(Shard& shard) {
  Vector<Extent*> several;
  shard.extents.for_each_from(shard.page_units, [&](Extent* extent) VPMM_REQUIRES(cache_lock) {
    if (extent->units > shard.page_units && !extent->is_free()) several.push_back(extent);
    return true;
  });
  for (Extent* extent : several)
    shard.part_free_pages(extent, [&]() VPMM_REQUIRES(pool_lock) { return extents_.take(); });
}

// The index counts them as allocated until the pool has them back.
void SmallPool::leave_hand(Shard& shard, const Kept& pages) {
  shard.tally.ended_none(pages.region->tenant.requested, pages.region->range.size);
  if (PageEntry* entry = directory_.at(pages.region->range.begin)) entry->leave();
}

// Note [What leaves a hand is stamped as it was freed]
// Not later: an event that was recorded since the free proves it.
void SmallPool::recall(Shard& shard, FreePages which) {
  Vector<Kept> pages;
  Vector<std::pair<Extent*, std::uint64_t>> free;  // and their numbers
  std::optional<time::TimelineId> of_timeline;
  {
    const CacheGuard guard(shard);
    of_timeline = shard.timeline;
    for (SlabList& list : shard.open)
      if (list.first != nullptr && list.first->is_empty()) shard.end_slab(list.first);
    if (which == FreePages::all || shard.has_many_loose()) part_free_pages(shard);
    if (shard.kept_bytes.load(std::memory_order_relaxed) == 0) return;
    shard.extents.for_each([&](Extent* extent) VPMM_REQUIRES(cache_lock) {
      if (extent->is_free()) free.emplace_back(extent, extent->number);
    });
    for (auto size = shard.pages.least_from(0); size; size = shard.pages.least_from(*size + 1)) {
      const KeptList& freed = shard.pages.of(*size);
      pages.insert(pages.end(), freed.begin(), freed.end());
    }
    for (const auto& [extent, number] : free) shard.detach(extent);
    for (const Kept& kept : pages) {
      shard.leave(kept);
      leave_hand(shard, kept);
    }
    shard.pages.clear();
    if (shard.timeline) shard.wants_attention.store(true, std::memory_order_relaxed);
    note(shard);
  }
  time::Timeline* const timeline = of_timeline ? timelines_.find(*of_timeline) : nullptr;
  std::uint64_t latest = 0;
  Bytes bytes = 0;
  const auto stamp_of = [&](std::uint64_t number) VPMM_REQUIRES(pool_lock) {
    if (number == 0) return time::Stamp{};
    if (timeline != nullptr) return time::Stamp({timeline->id, number});
    return shard.unproven ? timelines_.reduce(time::Stamp(*shard.unproven)) : time::Stamp{};
  };
  for (const Kept& kept : pages) {
    latest = std::max(latest, kept.number);
    bytes += kept.region->range.size;
  }
  for (const auto& [extent, number] : free) {
    latest = std::max(latest, number);
    bytes += extent->units * kUnit;
  }
  if (timeline != nullptr) timelines_.claim(*timeline, latest, bytes);
  for (const auto& [extent, number] : free) end_extent(extent, stamp_of(number));
  for (const Kept& kept : pages) pool_.deallocate(kept.region, stamp_of(kept.number));
}

void SmallPool::want_events(const time::Timeline* except) {
  const std::uint64_t count = misses_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (except == nullptr) return;
  const auto found = by_timeline_.find(except->id);
  if (found == by_timeline_.end()) return;
  const CacheGuard guard(*found->second);
  found->second->pacing.miss(count);
}

void SmallPool::retire_idle() {
  for (auto it = by_timeline_.begin(); it != by_timeline_.end();) {
    Shard& shard = *it->second;
    bool is_idle = false;
    {
      const CacheGuard guard(shard);
      is_idle = shard.activity == shard.activity_seen;
      shard.activity_seen = shard.activity;
    }
    time::Timeline* timeline = timelines_.find(it->first);
    const bool is_over = timeline == nullptr || timeline->is_over;
    if (timeline != nullptr && timeline->is_over)
      shard.unproven = timelines_.next(timelines_.every_stream(), shard.kept_bytes.load(std::memory_order_relaxed));
    if (is_over) end_shard(shard);
    if (is_idle || is_over) recall(shard, FreePages::all);
    retire_if_empty(shard);
    if (is_over && timeline != nullptr) timeline->in_hand = nullptr;
    it = is_over ? by_timeline_.erase(it) : std::next(it);
  }
  stream_count_.store(by_timeline_.size(), std::memory_order_relaxed);
}

// Note [In hand at a reset]
// Others reset the context, and nobody who frees into a hand asks whether they did. So by the time it is noticed, work
// of the new context may use what was freed: by a stream with a handle that is used again, for one. What the shard has,
// and what its last blocks leave later, waits for an event behind all that is queued by then.

// No call finds it any more: its stream's context is gone, or nothing was left to do.
void SmallPool::end_shard(Shard& shard) {
  const CacheGuard guard(shard);
  shard.stream.store(0, std::memory_order_relaxed);
  shard.handle.store(kNoHandle, std::memory_order_relaxed);
  shard.timeline.reset();
}

// One that ended serves another stream when nothing live is left in it.
void SmallPool::retire_if_empty(Shard& shard) {
  const CacheGuard guard(shard);
  if (shard.is_unused || shard.timeline || &shard == any_ || shard.extent_count != 0) return;
  while (Slab* const slab = shard.spare_slabs) {
    shard.spare_slabs = slab->next;
    slab->next = nullptr;
    slab->set_shard(nullptr);  // as with extents
    slabs_.give_back(slab);
  }
  slab_count_ -= std::exchange(shard.slab_count, 0);
  shard.is_unused = true;
  unused_shards_.push_back(&shard);
}

// --- figures -------------------------------------------------------------------------------------------------------

Tally SmallPool::tally() {
  Tally sum = pages_;
  sum.requested_high = sum.requested;
  for (Shard& shard : shards_) {
    const CacheGuard guard(shard);
    sum.requested += shard.tally.requested;
    sum.allocated += shard.tally.allocated;
    sum.allocations += shard.tally.allocations;
    sum.deallocations += shard.tally.deallocations;
    sum.requested_high += shard.tally.requested_high;
  }
  return sum;
}

Bytes SmallPool::take_peak(const Caller& caller) {
  const auto found = caller.timeline == nullptr ? by_timeline_.end() : by_timeline_.find(caller.timeline->id);
  if (found != by_timeline_.end()) {
    const CacheGuard guard(*found->second);
    note_peak(*found->second);
  }
  const Bytes now = pool_.requested_bytes() + static_cast<Bytes>(pages_.requested + requested_noted_);
  return std::max(std::exchange(peak_, 0), now);
}

Bytes SmallPool::take_peak_everywhere() {
  const Bytes high = high_everywhere();
  return std::max(std::exchange(peak_, 0), high);
}

Bytes SmallPool::high_everywhere() {
  std::int64_t high = pages_.requested;
  for (Shard& shard : shards_) {
    const CacheGuard guard(shard);
    high += std::exchange(shard.tally.requested_high, shard.tally.requested);
    note(shard);
  }
  return pool_.requested_bytes() + static_cast<Bytes>(high);
}

void SmallPool::note(Shard& shard) {
  requested_noted_ += shard.tally.requested - std::exchange(shard.requested_noted, shard.tally.requested);
  const Bytes kept = shard.kept_bytes.load(std::memory_order_relaxed);
  kept_noted_ += kept - std::exchange(shard.kept_noted, kept);
  pool_.set_kept_bytes(kept_noted_);
}

// Before something of the shard ends through the pool's lock.
void SmallPool::note_peak(Shard& shard) {
  note(shard);
  const std::int64_t above = std::exchange(shard.tally.requested_high, shard.tally.requested) - shard.tally.requested;
  const std::int64_t high = pages_.requested + requested_noted_ + above;
  peak_ = std::max(peak_, pool_.requested_bytes() + static_cast<Bytes>(high));
}

Bytes SmallPool::kept_pages_bytes() const {
  Bytes bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.kept_pages_bytes.load(std::memory_order_relaxed);
  return bytes;
}

// Without a shard's lock, so while others call it is about what they have.
Bytes SmallPool::idle_in_arenas_bytes() const {
  std::int64_t idle = -pages_.allocated - static_cast<std::int64_t>(kept_pages_bytes());
  for (const Shard& shard : shards_) idle -= shard.tally_now().allocated_now();
  return static_cast<Bytes>(std::max<std::int64_t>(0, idle));
}

HashMap<const Region*, SmallPool::Live> SmallPool::live_by_page() const {
  HashMap<const Region*, Live> pages;
  for (const Extent* extent : extents_.all()) {
    Shard* const shard = extent->shard();
    if (shard == nullptr) continue;
    const CacheGuard guard(*shard);
    for_each_live(*extent, [&](DevicePtr begin, Bytes requested) {
      Live& page = pages[extent->arena->pages[extent->arena->page_of(begin)]];
      ++page.allocations;
      page.requested += requested;
    });
  }
  return pages;
}

// What the pool's index calls allocated, less what is.
Bytes SmallPool::idle_bytes() { return static_cast<Bytes>(-tally().allocated); }

Bytes SmallPool::pending_bytes(time::TimelineId timeline) const {
  const auto found = waiting_on_.find(timeline);
  return (found == waiting_on_.end() ? 0 : found->second) + spans_.pending_bytes(timeline);
}

}  // namespace vpmm::small
