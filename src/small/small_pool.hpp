// small: requests below a page: blocks and spans cut from pages of the pool, cached by the streams that use them.
//
// Reads top-down as arenas (of pages of the pool), segments (stretches of units in them, each of one stream), slabs and
// spans (cut from a segment) and caches (what a stream has cached). Free segments keep stamps as the pool's ranges do,
// so memory moves between streams in the same way; a block or span that other streams used waits for its stamp here.
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
#include "small/pagemap.hpp"
#include "small/segment.hpp"
#include "small/slab.hpp"
#include "small/stream_cache.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// A block or span that was live when somebody looked.
struct Allocation {
  AddressRange range;
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream, or its context is gone
  StreamCache* cache = nullptr;
  Slab* slab = nullptr;  // null: a span
  Segment* segment = nullptr;
  std::uint64_t index = 0;  // of the block in the slab, or of the span's first unit in the segment
};

// Note [Who ends an allocation may free it]
// Warm calls of other threads take a cache's lock alone. So what was found live is live only as long as that lock is
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
    bool caches_pages = true;  // whole pages may stay in a stream's cache
  };
  // `driver`: for its clock, and for whoever observes memory.
  SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines, const Serving& serving);

  // What the first request would find missing.
  void prepare() VPMM_REQUIRES(pool_lock);
  static bool can_cut(Bytes page_size) { return is_multiple(page_size, kUnit) && page_size >= kLeastPage; }
  // Who serves a request of an ordinary stream, by its size. The one place where that is decided. Any thread, without a
  // lock.
  enum class Server { blocks, spans, pages, driver_pool };
  Server server_of(Bytes bytes, Bytes alignment) const {
    // What most requests are, and no page that is cut is smaller.
    if (bytes <= kLargestBlock && alignment <= kGrain && below_a_page_ == BelowAPage::cut) return Server::blocks;
    if (bytes >= page_size_) return Server::pages;
    if (below_a_page_ == BelowAPage::driver_pool) return alignment <= kGrain ? Server::driver_pool : Server::pages;
    if (below_a_page_ == BelowAPage::whole_pages || !is_below_a_page(bytes, alignment, page_size_))
      return Server::pages;
    return bytes <= kLargestBlock ? Server::blocks : Server::spans;
  }
  static bool is_below_a_page(Bytes bytes, Bytes alignment, Bytes page_size) {
    return std::max(span_units(bytes) * kUnit, alignment) < page_size;
  }

  // --- warm calls: any thread, no lock but the cache's (warm_calls.cpp) ---
  using Stream = std::optional<driver::StreamHandle>;
  // Where a stream's calls look first: its cache, if it is still in service for the stream with this id.
  struct Client {
    StreamCache* cache = nullptr;  // null: the call takes the pool's lock
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
    Content content;                      // a slab, a segment or whole pages
    StreamCache* cache = nullptr;         // whose it is; null: not known
    const PagemapEntry* entry = nullptr;  // of the page
  };
  Location locate(DevicePtr p) const;
  static bool is_arena(const region::Region& page);
  static bool is_cached(const region::Region& region) { return holder_of(region) != nullptr && !is_arena(region); }
  // Streams that record_use named for it.
  const Vector<time::TimelineId>& other_uses(const Allocation& allocation) const VPMM_REQUIRES(pool_lock);
  // Of the live allocation around `p`. False: nothing live is there.
  bool record_use(const region::Region& page, DevicePtr p, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. None: no live allocation begins there.
  std::optional<Allocation> end(const region::Region& page, DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // What end() gave. May be used again on its own stream at once if nothing but that stream's work is in `stamp`,
  // otherwise once the stamp is complete.
  void deallocate(const Allocation& ended, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);

  // What `timeline` has cached; found or begun.
  StreamCache& cache_of(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // The same for users that name no stream: all that is cached there is complete.
  StreamCache& any_stream_cache() { return *any_; }
  // An allocation of whole pages, for frees that take no lock. `requested`: what its present user asked for.
  void enlist(region::Region& pages, Bytes requested, StreamCache& cache) VPMM_REQUIRES(pool_lock);
  // Of an allocation of whole pages, listed or not. False: its cache keeps it, so it is not live.
  bool record_use(region::Region& pages, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. The pool's to free from then on.
  bool end(const region::Region& pages) VPMM_REQUIRES(pool_lock);
  Bytes requested_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);

  // Takes back what caches keep and nobody uses. True: something came back.
  bool flush() VPMM_REQUIRES(pool_lock);
  // What the caller's own cache keeps, or else, where it is worth their trouble, what all others do: for whole pages,
  // or for parts of them.
  bool flush_for_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool flush_for_parts(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // One allocation of whole pages of the caller's own that is large enough, if it keeps one: the rest stays cached.
  bool flush_one(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // The same of another stream's, which is known to be done with it, or whole pages that it cut; more than one where
  // that saves calls (Note [Half is stolen]).
  bool steal(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Somebody missed: for a while the frees of every stream but this are worth an event.
  void want_events(const time::Timeline* except) VPMM_REQUIRES(pool_lock);
  // How often that happened. Any thread, without a lock.
  std::uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  // That have a cache. Any thread, without a lock.
  std::uint64_t stream_count() const { return stream_count_.load(std::memory_order_relaxed); }
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // StreamCaches whose streams are idle give back what they keep; those of retired timelines end.
  void retire_idle() VPMM_REQUIRES(pool_lock);

  Tally tally() VPMM_REQUIRES(pool_lock);  // of all caches
  // Most bytes that users of pages and parts of pages asked for at once since the last such call. Of other streams than
  // the caller's, what they had at the end of their own last call through the pool's lock counts, and when the last of
  // their allocations was freed by others; `everywhere`, all of it does, which takes every cache's lock.
  Bytes take_peak(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Bytes take_peak_everywhere() VPMM_REQUIRES(pool_lock);
  Bytes peak_noted() const VPMM_REQUIRES(pool_lock) { return peak_; }  // so far since the last such call
  Bytes idle_bytes() VPMM_REQUIRES(pool_lock);                         // in arenas or kept, and nobody's
  Bytes cached_pages_bytes() const VPMM_REQUIRES(pool_lock);           // allocations of whole pages that caches keep
  Bytes idle_in_arenas_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) { return waiting_bytes_ + units_.pending_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock);
  Bytes arena_bytes() const VPMM_REQUIRES(pool_lock) { return page_count_ * page_size_; }
  std::uint64_t most_live() const VPMM_REQUIRES(pool_lock);  // blocks and spans there can be without a call here
  // Blocks and spans that are live, by the page of the pool in which they begin. Pages without any are left out.
  struct Live {
    std::uint64_t allocations = 0;
    Bytes requested = 0;
  };
  HashMap<const region::Region*, Live> live_by_page() const VPMM_REQUIRES(pool_lock);
  std::string validate() VPMM_REQUIRES(pool_lock);

 private:
  Freed put(const Location& at, DevicePtr ptr, const Stream& stream) VPMM_REQUIRES(cache_lock);
  Freed put_pages(StreamCache& cache, const PagemapEntry& entry, region::Region& region, DevicePtr ptr,
                  const Stream& stream) VPMM_REQUIRES(cache_lock);
  Freed note_free(StreamCache& cache, AddressRange range, const Stream& stream) VPMM_REQUIRES(cache_lock);
  // A block (index: in the slab) or units of a span that ended and may not be used again yet.
  struct Waiting {
    StreamCache* cache = nullptr;
    Slab* slab = nullptr;
    std::uint64_t index = 0;
    DevicePtr begin{};
    Bytes bytes = 0;
    time::Stamp stamp;
  };
  StreamCache& cache_for(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  DevicePtr take_block(std::size_t slab_class, Bytes requested, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  DevicePtr take_span(Bytes requested, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool take_segments(std::uint64_t units, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  static Bytes share_of(const StreamCache& cache);  // of what there is, for its stream at a time
  bool take_whole_pages(Bytes least, StreamCache& cache, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  Segment* cut_segment(region::Region* free, AddressRange range, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void cut_units(region::Region* free, AddressRange range, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void part_free_pages(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock);
  AddressRange within_a_page(AddressRange room, Bytes least, Bytes most) const VPMM_REQUIRES(pool_lock);
  void provide_slabs(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  void end_segment(Segment* segment, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);
  bool give_pages(region::Region* free) VPMM_REQUIRES(pool_lock);
  void give_idle_pages() VPMM_REQUIRES(pool_lock);
  bool flush_for(const pool::Caller& caller, Bytes worth) VPMM_REQUIRES(pool_lock);
  Vector<Cached> take_complete_pages(StreamCache& cache, std::uint64_t at_least, std::uint64_t complete, bool with_half)
      VPMM_REQUIRES(pool_lock);
  bool steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool steal_segments(StreamCache& cache, std::uint64_t complete, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Of a segment that is in use otherwise: they leave it only where there are many of them, or all do.
  enum class FreePages { where_many, all };
  bool flush(FreePages which) VPMM_REQUIRES(pool_lock);
  void flush(StreamCache& cache, FreePages which) VPMM_REQUIRES(pool_lock);
  void end_cache(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  void retire_if_empty(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  void leave_cache(StreamCache& cache, const Cached& pages) VPMM_REQUIRES(pool_lock, cache_lock);
  void note(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock);
  void note_peak(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock);
  Bytes high_everywhere() VPMM_REQUIRES(pool_lock);
  Bytes given_back_bytes() const VPMM_REQUIRES(pool_lock) {
    return units_.bytes(region::RegionState::free) + pool_.idle_bytes();
  }
  void wait_for(const Waiting& waiting) VPMM_REQUIRES(pool_lock);
  void set_free(const Waiting& waiting, std::uint64_t number) VPMM_REQUIRES(pool_lock, cache_lock);
  void count_reference(std::optional<time::TimelineId> timeline, int change) VPMM_REQUIRES(pool_lock);
  void forget_uses(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Arena& arena_at(DevicePtr p) const VPMM_REQUIRES(pool_lock);
  static StreamCache* cache_at(const Arena& arena, DevicePtr p) VPMM_REQUIRES(pool_lock);
  static Segment* segment_at(const Arena& arena, DevicePtr p, const StreamCache& cache) VPMM_REQUIRES(cache_lock);
  static Segment* pages_until(const Arena& arena, DevicePtr end, const StreamCache& cache)
      VPMM_REQUIRES(pool_lock, cache_lock);
  static std::optional<Allocation> live_at(const Arena& arena, DevicePtr p, StreamCache& cache)
      VPMM_REQUIRES(pool_lock, cache_lock);
  StreamCache* lister_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);
  void enter(region::Region& pages, Bytes requested, StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock);
  Arena& arena_around(DevicePtr page) VPMM_REQUIRES(pool_lock);
  std::string validate_arenas() const VPMM_REQUIRES(pool_lock);
  std::string validate_cache(StreamCache& cache, const Vector<const Segment*>& segments) const VPMM_REQUIRES(pool_lock);
  std::string validate_segments(const StreamCache& cache, const Vector<const Segment*>& segments) const
      VPMM_REQUIRES(pool_lock, cache_lock);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  driver::Driver& driver_;
  driver::MemoryObserver* const observer_;
  const BelowAPage below_a_page_;
  const bool caches_pages_;
  const region::PageUnit page_unit_;
  const Bytes page_size_;
  Pagemap pagemap_;  // read without a lock, so that nothing that changes stands on its lines
  alignas(kCacheLine) region::RegionIndex units_ VPMM_GUARDED_BY(pool_lock);  // of the arenas
  StableStore<Arena> arenas_ VPMM_GUARDED_BY(pool_lock);
  StableBytes unit_tables_ VPMM_GUARDED_BY(pool_lock);  // of the arenas
  Map<DevicePtr, Arena*> arena_by_begin_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t page_count_ VPMM_GUARDED_BY(pool_lock) = 0;  // in arenas
  StableStore<Segment> segments_ VPMM_GUARDED_BY(pool_lock);
  StableStore<Slab> slabs_ VPMM_GUARDED_BY(pool_lock);
  Deque<StreamCache> caches_ VPMM_GUARDED_BY(pool_lock);
  Vector<StreamCache*> unused_caches_ VPMM_GUARDED_BY(pool_lock);
  HashMap<time::TimelineId, StreamCache*> by_timeline_ VPMM_GUARDED_BY(pool_lock);
  StreamCache* any_ = nullptr;  // memory of users that name no stream
  Map<time::StampPart, Vector<Waiting>, bool (*)(const time::StampPart&, const time::StampPart&)> waiting_
      VPMM_GUARDED_BY(pool_lock);
  Map<time::TimelineId, Bytes> waiting_on_ VPMM_GUARDED_BY(pool_lock);  // bytes that wait for a timeline
  Bytes waiting_bytes_ VPMM_GUARDED_BY(pool_lock) = 0;
  Map<DevicePtr, Vector<time::TimelineId>> uses_ VPMM_GUARDED_BY(pool_lock);
  // Arenas, which the pool's index counts as allocations of a user, and pages that changed theirs.
  Tally pages_ VPMM_GUARDED_BY(pool_lock);
  std::int64_t requested_noted_ VPMM_GUARDED_BY(pool_lock) =
      0;                                               // sum over caches of what was last seen of their tallies
  Bytes cached_noted_ VPMM_GUARDED_BY(pool_lock) = 0;  // likewise, of their `cached_bytes`
  Bytes peak_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t slab_count_ VPMM_GUARDED_BY(pool_lock) = 0;     // of all caches, spare ones too
  std::uint64_t segment_units_ VPMM_GUARDED_BY(pool_lock) = 0;  // of all segments
  // Every free looks at these, so nothing else is written on their line.
  alignas(kCacheLine) std::atomic<std::uint64_t> misses_{0};
  std::atomic<std::uint64_t> stream_count_{0};
};

inline SmallPool::Location SmallPool::locate(DevicePtr p) const {
  const Pagemap::Place place = pagemap_.find(p);
  if (place.entry == nullptr) return {};
  const Content content = place.entry->content();
  if (content.region() != nullptr) return {content, place.entry->cache(), place.entry};
  Content inside = content;
  Bytes offset = place.offset;
  if (content.arena() != nullptr) {
    const std::atomic<Content>* const units = place.entry->unit_contents();
    if (units == nullptr) return {};
    inside = content_in(units[place.offset / kUnit]);
    offset %= kUnit;
  }
  if (const Slab* const slab = inside.slab()) {
    // Of many slabs every line is a miss: this one shall come beside that of the slab itself.
    const std::uint64_t index = kShapes[inside.slab_class()].index_of(inside.unit() * kUnit + offset);
    __builtin_prefetch(slab->place_of_slack(index));
    return {inside, slab->cache(), place.entry};
  }
  if (const Segment* const segment = inside.segment()) return {inside, segment->cache(), place.entry};
  return {};
}

}  // namespace vpmm::small
