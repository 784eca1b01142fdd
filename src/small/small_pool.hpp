// small: requests below a page: blocks and runs cut from pages of the pool, in hand of the streams that use them.
//
// Reads top-down as arenas (of pages of the pool), extents (stretches of units in them, each of one stream), slabs and
// runs (cut from an extent) and shards (what a stream has in hand). Free extents keep stamps as the pool's ranges do,
// so memory moves between streams in the same way; a block or run that other streams used waits for its stamp here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/host_memory.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/stable_store.hpp"
#include "driver/driver.hpp"
#include "pool/pool.hpp"
#include "region/page_unit.hpp"
#include "region/region_index.hpp"
#include "small/directory.hpp"
#include "small/extent.hpp"
#include "small/shard.hpp"
#include "small/slab.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// A block or run that was live when somebody looked.
struct Allocation {
  AddressRange range;
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream, or its context is gone
  Shard* shard = nullptr;
  Slab* slab = nullptr;  // null: a run
  Extent* extent = nullptr;
  std::uint64_t index = 0;  // of the block in the slab, or of the run's first unit in the extent
};

// Note [Who ends an allocation may free it]
// Warm calls of other threads take a shard's lock alone. So what was found live is live only as long as that lock is
// held, and what is done with it afterwards begins with a look under the same hold: end() finds an allocation live and
// takes it out of what is live, in one; only who is told that it did goes on to free it. Two threads that free the same
// memory at once are thus told apart: the second changes nothing.

// It calls nobody above it, and drops no lock.
class SmallPool {
 public:
  // What is served how. `below_a_page`: requests below a page.
  enum class BelowAPage { cut, whole_pages, driver_pool };
  struct Serving {
    BelowAPage below_a_page = BelowAPage::cut;
    bool keeps_pages = true;  // whole pages may stay in a stream's cache
  };
  // `driver`: for its clock, and for whoever observes memory.
  SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines, const Serving& serving);

  // What the first request would find missing.
  void prepare() VPMM_REQUIRES(pool_lock);
  static bool can_cut(Bytes page_size) { return is_multiple(page_size, kUnit) && page_size >= kLeastPage; }
  // Who serves a request of an ordinary stream, by its size. The one place where that is decided. Any thread, without a
  // lock.
  enum class Server { blocks, runs, pages, driver_pool };
  Server server_of(Bytes bytes, Bytes alignment) const {
    // What most requests are, and no page that is cut is smaller.
    if (bytes <= kLargestBlock && alignment <= kGrain && below_a_page_ == BelowAPage::cut) return Server::blocks;
    if (bytes >= page_size_) return Server::pages;
    if (below_a_page_ == BelowAPage::driver_pool) return alignment <= kGrain ? Server::driver_pool : Server::pages;
    if (below_a_page_ == BelowAPage::whole_pages || !is_below_a_page(bytes, alignment, page_size_))
      return Server::pages;
    return bytes <= kLargestBlock ? Server::blocks : Server::runs;
  }
  static bool is_below_a_page(Bytes bytes, Bytes alignment, Bytes page_size) {
    return std::max(run_units(bytes) * kUnit, alignment) < page_size;
  }

  // --- warm calls: any thread, no lock but the cache's (warm_calls.cpp) ---
  using Stream = std::optional<driver::StreamHandle>;
  // Where a stream's calls look first: its cache, if it is still in service for the stream with this id.
  struct Client {
    Shard* shard = nullptr;  // null: the call takes the pool's lock
    driver::StreamId id{};
    Stream stream;  // none: any-stream
  };
  bool may_be_cached(Bytes bytes, Bytes alignment) const {
    return bytes <= kMostPages * page_size_ && alignment <= kGrain && (alignment & (alignment - 1)) == 0;
  }
  // What the cache has; null: nothing, or the stream is asked to come to the pool's lock. Requires: may_be_cached().
  DevicePtr try_allocate(const Client& client, Bytes bytes);
  // Into the cache, if it is a live allocation of that very stream. Where an event is due it is in the cache, too, and
  // the stream's call is to record one.
  enum class Freed { no, not_known, yes, yes_and_event_is_due };
  Freed try_free(const Client& client, DevicePtr ptr);
  // By the handle alone; `not_known`: it says nothing of this memory.
  Freed try_free_by_handle(DevicePtr ptr, driver::StreamHandle stream);

  // Memory that work queued on the caller's stream after the call may use, from pages that are cut already; null: it
  // needs another page.
  DevicePtr take(Bytes bytes, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The page to ask the pool for where take() found nothing for a request of `bytes`.
  pool::PageRequest page_for(Bytes bytes) const;
  // Whether another page is to be cut at once: one can be had without a mapping, and little of what is cut already lies
  // idle. Otherwise, and before something would be mapped, what streams keep comes back first.
  bool should_cut_page(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Of the pool, in answer to page_for(). Throws std::bad_alloc, and has given it back, where there is no host memory.
  void cut_page(const pool::Placed& page, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // For the rest of the caller's share, pages that lie idle: nothing is mapped for it.
  void cut_more_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The live allocation around `p`, in a page of the pool that is_arena(); none: nothing live is there. As it was at
  // some time during the call.
  std::optional<Allocation> find(const region::Region& page, DevicePtr p) const VPMM_REQUIRES(pool_lock);
  // What an address belongs to, as far as it can be told without the pool's lock. Any thread, without a lock: of a live
  // allocation the answer stands, of anything else it may be anything.
  struct Location {
    Owner owner;                       // a slab, an extent or whole pages
    Shard* shard = nullptr;            // whose it is; null: not known
    const PageEntry* entry = nullptr;  // of the page
  };
  Location locate(DevicePtr p) const;
  static bool is_arena(const region::Region& page);
  static bool is_kept(const region::Region& region) { return holder_of(region) != nullptr && !is_arena(region); }
  // Streams that record_use named for it.
  const Vector<time::TimelineId>& other_uses(const Allocation& allocation) const VPMM_REQUIRES(pool_lock);
  // Of the live allocation around `p`. False: nothing live is there.
  bool record_use(const region::Region& page, DevicePtr p, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. None: no live allocation begins there.
  std::optional<Allocation> end(const region::Region& page, DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // What end() gave. May be used again on its own stream at once if nothing but that stream's work is in `stamp`,
  // otherwise once the stamp is complete.
  void deallocate(const Allocation& ended, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);

  // What `timeline` has in hand; found or begun.
  Shard& shard_of(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // The same for users that name no stream: all that is in hand there is complete.
  Shard& any_stream_shard() { return *any_; }
  // An allocation of whole pages, for frees that take no lock. `requested`: what its present user asked for.
  void enlist(region::Region& pages, Bytes requested, Shard& shard) VPMM_REQUIRES(pool_lock);
  // Of an allocation of whole pages, listed or not. False: its shard keeps it, so it is not live.
  bool record_use(region::Region& pages, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. The pool's to free from then on.
  bool end(const region::Region& pages) VPMM_REQUIRES(pool_lock);
  Bytes requested_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);

  // Takes back what shards keep and nobody uses. True: something came back.
  bool recall() VPMM_REQUIRES(pool_lock);
  // What the caller's own shard keeps, or else, where it is worth their trouble, what all others do: for whole pages,
  // or for parts of them.
  bool recall_for_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool recall_for_parts(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // One allocation of whole pages of the caller's own that is large enough, if it keeps one: the rest stays in hand.
  bool recall_one(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // The same of another stream's, which is known to be done with it, or whole pages that it cut; more than one where
  // that saves calls (Note [Who takes one takes half]).
  bool recall_from_others(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Somebody missed: for a while the frees of every stream but this are worth an event.
  void want_events(const time::Timeline* except) VPMM_REQUIRES(pool_lock);
  // How often that happened. Any thread, without a lock.
  std::uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  // That have a shard. Any thread, without a lock.
  std::uint64_t stream_count() const { return stream_count_.load(std::memory_order_relaxed); }
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // Shards whose streams are idle give back what they keep; those of retired timelines end.
  void retire_idle() VPMM_REQUIRES(pool_lock);

  Tally tally() VPMM_REQUIRES(pool_lock);  // of all shards
  // Most bytes that users of pages and parts of pages asked for at once since the last such call. Of other streams than
  // the caller's, what they had at the end of their own last call through the pool's lock counts, and when the last of
  // their allocations was freed by others; `everywhere`, all of it does, which takes every shard's lock.
  Bytes take_peak(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Bytes take_peak_everywhere() VPMM_REQUIRES(pool_lock);
  Bytes peak_noted() const VPMM_REQUIRES(pool_lock) { return peak_; }  // so far since the last such call
  Bytes idle_bytes() VPMM_REQUIRES(pool_lock);                         // in arenas or kept, and nobody's
  Bytes kept_pages_bytes() const VPMM_REQUIRES(pool_lock);             // allocations of whole pages that shards keep
  Bytes idle_in_arenas_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) { return waiting_bytes_ + spans_.pending_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock);
  Bytes arena_bytes() const VPMM_REQUIRES(pool_lock) { return page_count_ * page_size_; }
  std::uint64_t most_live() const VPMM_REQUIRES(pool_lock);  // blocks and runs there can be without a call here
  // Blocks and runs that are live, by the page of the pool in which they begin. Pages without any are left out.
  struct Live {
    std::uint64_t allocations = 0;
    Bytes requested = 0;
  };
  HashMap<const region::Region*, Live> live_by_page() const VPMM_REQUIRES(pool_lock);
  std::string validate() VPMM_REQUIRES(pool_lock);

 private:
  Freed cache(const Location& at, DevicePtr ptr, const Stream& stream) VPMM_REQUIRES(cache_lock);
  Freed cache_pages(Shard& shard, const PageEntry& entry, region::Region& region, DevicePtr ptr, const Stream& stream)
      VPMM_REQUIRES(cache_lock);
  Freed note_free(Shard& shard, AddressRange range, const Stream& stream) VPMM_REQUIRES(cache_lock);
  // A block (index: in the slab) or units of a run that ended and may not be used again yet.
  struct Waiting {
    Shard* shard = nullptr;
    Slab* slab = nullptr;
    std::uint64_t index = 0;
    DevicePtr begin{};
    Bytes bytes = 0;
    time::Stamp stamp;
  };
  Shard& shard_for(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  DevicePtr take_block(std::size_t slab_class, Bytes requested, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  DevicePtr take_run(Bytes requested, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool take_extents(std::uint64_t units, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  static Bytes share_of(const Shard& shard);  // of what there is, for its stream at a time
  bool take_whole_pages(Bytes least, Shard& shard, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Extent* cut_extent(region::Region* free, AddressRange range, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void cut_span(region::Region* free, AddressRange range, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void part_free_pages(Shard& shard) VPMM_REQUIRES(pool_lock, cache_lock);
  AddressRange within_a_page(AddressRange room, Bytes least, Bytes most) const VPMM_REQUIRES(pool_lock);
  void provide_slabs(Shard& shard) VPMM_REQUIRES(pool_lock);
  void end_extent(Extent* extent, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  bool give_pages(region::Region* free) VPMM_REQUIRES(pool_lock);
  void give_idle_pages() VPMM_REQUIRES(pool_lock);
  bool recall_for(const pool::Caller& caller, Bytes worth) VPMM_REQUIRES(pool_lock);
  Vector<Kept> take_complete_pages(Shard& shard, std::uint64_t at_least, std::uint64_t complete, bool with_half)
      VPMM_REQUIRES(pool_lock);
  bool recall_pages_of(Shard& shard, std::uint64_t complete, Bytes size, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool recall_extents_of(Shard& shard, std::uint64_t complete, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Of an extent that is in use otherwise: they leave it only where there are many of them, or all do.
  enum class FreePages { where_many, all };
  bool recall(FreePages which) VPMM_REQUIRES(pool_lock);
  void recall(Shard& shard, FreePages which) VPMM_REQUIRES(pool_lock);
  void end_shard(Shard& shard) VPMM_REQUIRES(pool_lock);
  void retire_if_empty(Shard& shard) VPMM_REQUIRES(pool_lock);
  void leave_hand(Shard& shard, const Kept& pages) VPMM_REQUIRES(pool_lock, cache_lock);
  void note(Shard& shard) VPMM_REQUIRES(pool_lock, cache_lock);
  void note_peak(Shard& shard) VPMM_REQUIRES(pool_lock, cache_lock);
  Bytes high_everywhere() VPMM_REQUIRES(pool_lock);
  Bytes given_back_bytes() const VPMM_REQUIRES(pool_lock) {
    return spans_.bytes(region::RegionState::free) + pool_.idle_bytes();
  }
  void wait_for(const Waiting& waiting) VPMM_REQUIRES(pool_lock);
  void set_free(const Waiting& waiting, std::uint64_t number) VPMM_REQUIRES(pool_lock, cache_lock);
  void count_tenant(std::optional<time::TimelineId> timeline, int change) VPMM_REQUIRES(pool_lock);
  void forget_uses(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Arena& arena_at(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  static Shard* shard_at(const Arena& arena, DevicePtr p) VPMM_REQUIRES(pool_lock);
  static Extent* extent_at(const Arena& arena, DevicePtr p, const Shard& shard) VPMM_REQUIRES(cache_lock);
  static Extent* pages_until(const Arena& arena, DevicePtr end, const Shard& shard)
      VPMM_REQUIRES(pool_lock, cache_lock);
  static std::optional<Allocation> live_at(const Arena& arena, DevicePtr p, Shard& shard)
      VPMM_REQUIRES(pool_lock, cache_lock);
  Shard* lister_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);
  void enter(region::Region& pages, Bytes requested, Shard& shard) VPMM_REQUIRES(pool_lock, cache_lock);
  Arena& arena_around(DevicePtr page) VPMM_REQUIRES(pool_lock);
  std::string validate_arenas() const VPMM_REQUIRES(pool_lock);
  std::string validate_shard(Shard& shard, const Vector<const Extent*>& extents) const VPMM_REQUIRES(pool_lock);
  std::string validate_extents(const Shard& shard, const Vector<const Extent*>& extents) const
      VPMM_REQUIRES(pool_lock, cache_lock);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  driver::Driver& driver_;
  driver::MemoryObserver* const observer_;
  const BelowAPage below_a_page_;
  const bool keeps_pages_;
  const region::PageUnit page_unit_;
  const Bytes page_size_;
  Directory directory_;  // read without a lock, so that nothing that changes stands on its lines
  alignas(kCacheLine) region::RegionIndex spans_ VPMM_GUARDED_BY(pool_lock);  // of the arenas
  StableStore<Arena> arenas_ VPMM_GUARDED_BY(pool_lock);
  StableBytes unit_tables_ VPMM_GUARDED_BY(pool_lock);  // of the arenas
  Map<DevicePtr, Arena*> arena_by_begin_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t page_count_ VPMM_GUARDED_BY(pool_lock) = 0;  // in arenas
  StableStore<Extent> extents_ VPMM_GUARDED_BY(pool_lock);
  StableStore<Slab> slabs_ VPMM_GUARDED_BY(pool_lock);
  Deque<Shard> shards_ VPMM_GUARDED_BY(pool_lock);
  Vector<Shard*> unused_shards_ VPMM_GUARDED_BY(pool_lock);
  HashMap<time::TimelineId, Shard*> by_timeline_ VPMM_GUARDED_BY(pool_lock);
  Shard* any_ = nullptr;  // memory of users that name no stream
  Map<time::StampPart, Vector<Waiting>, bool (*)(const time::StampPart&, const time::StampPart&)> waiting_
      VPMM_GUARDED_BY(pool_lock);
  Map<time::TimelineId, Bytes> waiting_on_ VPMM_GUARDED_BY(pool_lock);  // bytes that wait for a timeline
  Bytes waiting_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
  Map<DevicePtr, Vector<time::TimelineId>> uses_ VPMM_GUARDED_BY(pool_lock);
  // Arenas, which the pool's index counts as allocations of a user, and pages that changed theirs.
  Tally pages_ VPMM_GUARDED_BY(pool_lock);
  std::int64_t requested_noted_ VPMM_GUARDED_BY(pool_lock) =
      0;                                             // sum over shards of what was last seen of their tallies
  Bytes kept_noted_ VPMM_GUARDED_BY(pool_lock) = 0;  // likewise, of their `kept_bytes`
  Bytes peak_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t slab_count_ VPMM_GUARDED_BY(pool_lock) = 0;    // of all shards, spare ones too
  std::uint64_t extent_units_ VPMM_GUARDED_BY(pool_lock) = 0;  // of all extents
  // Every free looks at these, so nothing else is written on their line.
  alignas(kCacheLine) std::atomic<std::uint64_t> misses_{0};
  std::atomic<std::uint64_t> stream_count_{0};
};

inline SmallPool::Location SmallPool::locate(DevicePtr p) const {
  const Directory::Place place = directory_.find(p);
  if (place.entry == nullptr) return {};
  const Owner owner = place.entry->owner();
  if (owner.region() != nullptr) return {owner, place.entry->shard(), place.entry};
  Owner inside = owner;
  Bytes offset = place.offset;
  if (owner.arena() != nullptr) {
    const std::atomic<Owner>* const units = place.entry->unit_owners();
    if (units == nullptr) return {};
    inside = owner_in(units[place.offset / kUnit]);
    offset %= kUnit;
  }
  if (const Slab* const slab = inside.slab()) {
    // Of many slabs every line is a miss: this one shall come beside that of the slab itself.
    const std::uint64_t index = kShapes[inside.slab_class()].index_of(inside.unit() * kUnit + offset);
    __builtin_prefetch(slab->place_of_slack(index));
    return {inside, slab->shard(), place.entry};
  }
  if (const Extent* const extent = inside.extent()) return {inside, extent->shard(), place.entry};
  return {};
}

}  // namespace vpmm::small
