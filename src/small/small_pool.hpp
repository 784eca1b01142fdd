// small: requests below a page, and of a few pages where streams crowd: blocks and spans cut from
// pages of the pool, cached by the streams that use them.
//
// Reads top-down as arenas (of pages of the pool), segments (stretches of units in them, each of
// one stream), slabs and spans (cut from a segment) and caches (what a stream has cached). Free
// segments keep stamps as the pool's ranges do, so memory moves between streams in the same way; a
// block or span that other streams used waits for its stamp here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/page_unit.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "pool/pool.hpp"
#include "small/allocation.hpp"
#include "small/cut_pages.hpp"
#include "small/ledger.hpp"
#include "small/other_uses.hpp"
#include "small/pagemap.hpp"
#include "small/stream_cache.hpp"
#include "small/stream_caches.hpp"
#include "small/waiting_frees.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// Note [Who ends an allocation may free it]
// Warm calls of other threads take only a cache's lock. So an allocation that was found live stays
// live only while that lock is held. end() finds an allocation and ends it under one hold, and only
// the call that ended it goes on to free it. Of two threads that free the same memory at once, the
// second changes nothing.

// It calls nobody above it, and drops no lock.
class SmallPool {
 public:
  // What is served how. `below_a_page`: requests below a page.
  enum class BelowAPage { cut, whole_pages, driver_pool };
  struct Serving {
    BelowAPage below_a_page = BelowAPage::cut;
    bool caches_pages = true;  // whole pages may stay in a stream's cache
    bool proves_frees =
        false;  // so that others can wait for them: an event for each page that a stream frees
    std::uint32_t crowded_after =
        4;  // Note [Streams that crowd cut their own]; 0: from the beginning
  };
  // `driver`: for its clock, and for whoever observes memory.
  SmallPool(driver::Driver& driver, pool::Pool& pool, time::Timelines& timelines,
            const Serving& serving);

  // The pool's lock, which calls that would wait for it heed. Before any other thread calls.
  void heed(const Mutex& lock) { lock_ = &lock; }
  // What the first request would find missing.
  void prepare() VPMM_REQUIRES(pool_lock);
  static bool can_cut(Bytes page_size) {
    return is_multiple(page_size, kUnit) && page_size >= kLeastPage;
  }
  // Who serves a request of an ordinary stream, by its size. The one place where that is decided.
  // Any thread, without a lock.
  enum class Server { blocks, spans, pages, driver_pool };
  Server server_of(Bytes bytes, Bytes alignment) const {
    // What most requests are, and no page that is cut is smaller.
    if (bytes <= kLargestBlock && alignment <= kGrain && serving_.below_a_page == BelowAPage::cut)
      return Server::blocks;
    if (bytes >= page_unit_.bytes()) return Server::pages;
    if (serving_.below_a_page == BelowAPage::driver_pool)
      return alignment <= kGrain ? Server::driver_pool : Server::pages;
    if (serving_.below_a_page == BelowAPage::whole_pages ||
        !is_below_a_page(bytes, alignment, page_unit_.bytes()))
      return Server::pages;
    return bytes <= kLargestBlock ? Server::blocks : Server::spans;
  }
  static bool is_below_a_page(Bytes bytes, Bytes alignment, Bytes page_size) {
    return std::max(span_units(bytes) * kUnit, alignment) < page_size;
  }

  // --- warm calls: any thread, no lock but the cache's (warm_calls.cpp) ---
  using Stream = std::optional<driver::StreamHandle>;
  // Where a stream's calls look first: its cache, if it is still in service for the stream with
  // this id.
  struct Client {
    StreamCache* cache = nullptr;  // null: the call takes the pool's lock
    driver::StreamId id{};
    Stream stream;  // none: any-stream
  };
  bool may_be_cached(Bytes bytes, Bytes alignment) const {
    return bytes <= page_sizes_.most() && alignment <= kGrain && (alignment & (alignment - 1)) == 0;
  }
  // What a request takes of the pool's memory.
  Bytes taken_for(Bytes bytes) const;
  // The same for a request of a page and more, or that is to be served as one.
  Bytes size_of_pages(Bytes bytes) const { return page_sizes_.rounded(bytes); }
  // What the cache has; null: nothing, or the stream is asked to come to the pool's lock. Requires:
  // may_be_cached().
  DevicePtr try_allocate(const Client& client, Bytes bytes);
  // Into the cache, if it is a live allocation of that very stream. Where an event is due it is in
  // the cache, too, and the stream's call is to record one.
  enum class Freed { no, not_known, yes, yes_and_event_is_due };
  Freed try_free(const Client& client, DevicePtr ptr);
  // By the handle alone; `not_known`: it says nothing of this memory.
  Freed try_free_by_handle(DevicePtr ptr, driver::StreamHandle stream);

  // Whether a request of a page and more is cut like a smaller one. Note [Streams that crowd cut
  // their own]
  bool cuts_pages_for(const pool::Caller& caller, Bytes bytes, Bytes alignment)
      VPMM_REQUIRES(pool_lock);
  // Memory that work queued on the caller's stream after the call may use, from pages that are cut
  // already; null: it needs more of them.
  DevicePtr take(Bytes bytes, Bytes alignment, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // The pages to ask the pool for where take() found nothing for so many bytes.
  pool::PageRequest next_pages(Bytes bytes) const;
  // Whether they are to be cut at once: they can be had without a mapping, and little of what is
  // cut already lies idle. Otherwise, and before something would be mapped, what streams keep comes
  // back first.
  bool should_cut(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // Of the pool, in answer to next_pages(). Throws std::bad_alloc, and has given back what it has
  // not cut, where there is no host memory.
  void cut(const pool::Placed& pages, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // For the rest of the caller's share, as many again and again that lie idle: nothing is mapped
  // for it.
  void cut_more(const pool::PageRequest& pages, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // The live allocation around `p`, in a page of the pool that is_arena(); none: nothing live is
  // there. As it was at some time during the call.
  std::optional<Allocation> find(const region::Region& page, DevicePtr p) const
      VPMM_REQUIRES(pool_lock);
  // What an address belongs to, as far as it can be told without the pool's lock. Any thread,
  // without a lock: of a live allocation the answer stands, of anything else it may be anything.
  struct Location {
    Content content;                      // a slab, a segment or whole pages
    StreamCache* cache = nullptr;         // whose it is; null: not known
    const PagemapEntry* entry = nullptr;  // of the page
  };
  Location locate(DevicePtr p) const;
  static bool is_arena(const region::Region& page);
  static bool is_cached(const region::Region& region) {
    return holder_of(region) != nullptr && !is_arena(region);
  }
  // Streams that record_use named for it.
  const Vector<time::TimelineId>& other_uses(const Allocation& allocation) const
      VPMM_REQUIRES(pool_lock) {
    return uses_.of(allocation.range.begin);
  }
  // Of the live allocation around `p`. False: nothing live is there.
  bool record_use(const region::Region& page, DevicePtr p, time::Timeline& timeline)
      VPMM_REQUIRES(pool_lock);
  // No warm call ends it any more. Requires: a live allocation begins there.
  void free_through_lock(const region::Region& page, DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. None: no live allocation begins there.
  std::optional<Allocation> end(const region::Region& page, DevicePtr begin)
      VPMM_REQUIRES(pool_lock);
  // What end() gave. May be used again on its own stream at once if nothing but that stream's work
  // is in `stamp`, otherwise once the stamp is complete.
  void deallocate(const Allocation& ended, const time::Stamp& stamp) VPMM_REQUIRES(pool_lock);

  // What `timeline` has cached; found or begun.
  StreamCache& cache_of(time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    return caches_.of(timeline);
  }
  // The same for users that name no stream: all that is cached there is complete.
  StreamCache& any_stream_cache() { return caches_.any(); }
  // An allocation of whole pages, for frees that take no lock. `requested`: what its present user
  // asked for.
  void enlist(region::Region& pages, Bytes requested, StreamCache& cache) VPMM_REQUIRES(pool_lock);
  // Of an allocation of whole pages, listed or not. False: its cache keeps it, so it is not live.
  bool record_use(region::Region& pages, time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Note [Who ends an allocation may free it]. The pool's to free from then on.
  bool end(const region::Region& pages) VPMM_REQUIRES(pool_lock);
  Bytes requested_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);

  // An allocation of the pool that is no user's: an arena of the program divides it. What users
  // have of it, they begin and end there; here it is only counted.
  void stretch_begins(const region::Region& pages) VPMM_REQUIRES(pool_lock) {
    ledger_.stretch_begins(pages.owner.requested, pages.range.size);
  }
  void stretch_ends(const region::Region& pages) VPMM_REQUIRES(pool_lock) {
    ledger_.stretch_ends(pages.owner.requested, pages.range.size);
  }
  void block_begins(Bytes requested, Bytes size) VPMM_REQUIRES(pool_lock) {
    ledger_.block_begins(requested, size);
  }
  void block_ends(Bytes requested, Bytes size) VPMM_REQUIRES(pool_lock) {
    ledger_.block_ends(requested, size);
  }

  // What caches keep, as it was at some time during the call.
  Bytes cached_bytes() const VPMM_REQUIRES(pool_lock);
  // With what users have, rounded up, and what waits to come back to a cache: warm calls do not
  // change it.
  Bytes live_and_cached_bytes() const VPMM_REQUIRES(pool_lock);
  // All that caches keep comes back. True: something did.
  bool flush() VPMM_REQUIRES(pool_lock);
  // Note [Streams that work side by side]
  // Each of them keeps what it freed for its own next requests. If one takes it from another, the
  // other soon comes for it: every such call takes the pool's lock, and a call that waits for it
  // may sleep. So as far as early growth goes, a request that caches serve gets new memory instead.
  bool may_grow_instead(const pool::PageRequest& request, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  // What the caller's own cache keeps comes back, or else, if it is enough, what all others keep:
  // for whole pages, or for parts of pages.
  bool flush_for_pages(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool flush_for_parts(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // What the caller's stream keeps of whole pages comes back before a request that no cache serves:
  // what is cached is missing where the best fit is looked for, so larger ranges would be cut
  // instead.
  void give_back_before(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // One allocation of whole pages of the caller's own that is large enough, if it keeps one: the
  // rest stays cached.
  bool flush_one(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // The same of another stream's, which is known to be done with it, or whole pages that it cut;
  // more than one where that saves calls (Note [Half is stolen]).
  bool steal(const pool::Caller& caller, Bytes size) VPMM_REQUIRES(pool_lock);
  // Somebody missed: for a while the frees of every stream but this are worth an event.
  void want_events(const time::Timeline* except) VPMM_REQUIRES(pool_lock) {
    caches_.want_events(except);
  }
  void advance(const Vector<time::StampPart>& done) VPMM_REQUIRES(pool_lock);
  // Caches of streams whose context is gone give back what they keep, and end.
  void retire_dead() VPMM_REQUIRES(pool_lock);

  // --- many streams (Note [Many streams keep a bounded amount]) ---
  // While there are many, what caches keep is within its bound after the call.
  void bound_caches(bool are_many, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool are_caches_bounded() const { return caches_.are_bounded(); }
  // Whether its stream has not called since this was asked last. One that is idle for long gives
  // back what it keeps.
  bool is_idle(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // All that its stream keeps.
  void give_back(const time::Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Its cache ends: it is about to be forgotten.
  void retire(time::Timeline& timeline) VPMM_REQUIRES(pool_lock);

  // --- figures: sums are read without the locks of caches, so they are those of about now while
  // others call ---
  Tally tally() const VPMM_REQUIRES(pool_lock);  // of all caches
  // Of what arenas divide.
  Tally tally_of_stretches() const VPMM_REQUIRES(pool_lock) { return ledger_.of_stretches(); }
  std::uint64_t stream_count() const { return caches_.stream_count(); }
  // The numbers (address / page size) of the pages that are cut and in use. Looks at each slab and
  // span.
  Set<Bytes> used_pages() const VPMM_REQUIRES(pool_lock);
  Bytes cached_pages_bytes() const VPMM_REQUIRES(pool_lock) { return caches_.cached_pages_bytes(); }
  Bytes idle_in_arenas_bytes() const VPMM_REQUIRES(pool_lock);
  Bytes pending_bytes() const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes() + cut_pages_.pending_bytes();
  }
  Bytes pending_bytes(time::TimelineId timeline) const VPMM_REQUIRES(pool_lock) {
    return waiting_.bytes(timeline) + cut_pages_.pending_bytes(timeline);
  }
  Bytes arena_bytes() const VPMM_REQUIRES(pool_lock) { return cut_pages_.bytes(); }
  std::uint64_t most_live() const
      VPMM_REQUIRES(pool_lock);  // blocks and spans there can be without a call here
  // Blocks and spans that are live, by the page of the pool in which they begin, and what was asked
  // for of each page. Pages without any are left out.
  struct Live {
    std::uint64_t allocations = 0;
    Bytes requested = 0;
  };
  HashMap<const region::Region*, Live> live_by_page() const VPMM_REQUIRES(pool_lock);
  // What the pages that are cut are divided into: all of them, in no order, neighbours that are not
  // live joined.
  struct Part {
    AddressRange range;
    bool is_live = false;
    Bytes requested = 0;                       // live: by its user
    std::optional<time::TimelineId> timeline;  // of the stream that uses it or keeps it
    bool is_kept = false;  // not live: some stream keeps it for its own next requests
    time::Stamp stamp{};   // not live and not kept
  };
  void for_each_part(FunctionRef<void(const Part&)> visit) const VPMM_REQUIRES(pool_lock);
  std::string validate() VPMM_REQUIRES(pool_lock);

 private:
  Freed put(const Location& at, DevicePtr ptr, const Stream& stream) VPMM_REQUIRES(cache_lock);
  Freed put_pages(StreamCache& cache, const PagemapEntry& entry, region::Region& region,
                  DevicePtr ptr, const Stream& stream) VPMM_REQUIRES(cache_lock);
  Freed note_free(StreamCache& cache, AddressRange range, const Stream& stream)
      VPMM_REQUIRES(cache_lock);
  Bytes page_size() const { return page_unit_.bytes(); }
  DevicePtr take_block(std::size_t slab_class, Bytes requested, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  DevicePtr take_span(Bytes requested, Bytes alignment, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  bool take_segments(std::uint64_t units, StreamCache& cache, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  static Bytes share_of(const StreamCache& cache);  // of what there is, for its stream at a time
  bool take_whole_pages(Bytes least, StreamCache& cache, const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);
  void part_free_pages(StreamCache& cache) VPMM_REQUIRES(pool_lock, cache_lock);
  // `number`: of the free that ended it; 0: it is complete.
  void set_free(const Allocation& ended, std::uint64_t number) VPMM_REQUIRES(pool_lock, cache_lock);
  bool flush_for(const pool::Caller& caller, Bytes worth) VPMM_REQUIRES(pool_lock);
  void give_back_pages(const pool::Caller& caller)
      VPMM_REQUIRES(pool_lock);  // all whole pages that its stream keeps
  Vector<Cached> take_complete_pages(StreamCache& cache, Bytes at_least, std::uint64_t complete,
                                     bool with_half) VPMM_REQUIRES(pool_lock);
  bool steal_pages(StreamCache& cache, std::uint64_t complete, Bytes size,
                   const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Segments of whole pages, `size` at least.
  bool steal_segments(StreamCache& cache, std::uint64_t complete, Bytes size,
                      const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Of a segment that is in use otherwise: they leave it only where there are many of them, or all
  // do.
  enum class FreePages { where_many, all };
  bool flush(FreePages which) VPMM_REQUIRES(pool_lock);
  void flush(StreamCache& cache, FreePages which) VPMM_REQUIRES(pool_lock);
  void leave_cache(StreamCache& cache, const Cached& pages) VPMM_REQUIRES(pool_lock, cache_lock);
  bool is_left_alone(const StreamCache& cache) const VPMM_REQUIRES(pool_lock);
  Bytes most_allowed() const VPMM_REQUIRES(pool_lock);
  void bound(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  void take_back(StreamCache& cache) VPMM_REQUIRES(pool_lock);
  Bytes given_back_bytes() const VPMM_REQUIRES(pool_lock) {
    return cut_pages_.free_bytes() + pool_.idle_bytes();
  }
  StreamCache* lister_of(const region::Region& pages) const VPMM_REQUIRES(pool_lock);
  bool is_crowded(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  bool is_crowded(const StreamCache& cache) const VPMM_REQUIRES(cache_lock) {
    return cuts_pages_ && (cache.alone < kAlone || serving_.crowded_after == 0);
  }
  void comes_to_lock(StreamCache& cache) const VPMM_REQUIRES(cache_lock);
  void enter(region::Region& pages, Bytes requested, StreamCache& cache)
      VPMM_REQUIRES(pool_lock, cache_lock);
  std::string validate_pages(const StreamCache& cache) const VPMM_REQUIRES(pool_lock, cache_lock);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  driver::Driver& driver_;
  driver::MemoryObserver* const observer_;
  const Serving serving_;
  const Mutex* lock_ = nullptr;  // null: nobody waits for it
  const bool cuts_pages_;        // a page and more, for streams that crowd
  const PageUnit page_unit_;
  const PageSizes page_sizes_;
  Pagemap pagemap_;  // read without a lock, so that nothing that changes stands on its lines
  alignas(kCacheLine) Ledger ledger_;
  CutPages cut_pages_;
  StreamCaches caches_;
  std::size_t turn_ VPMM_GUARDED_BY(pool_lock) =
      0;  // which cache is the next to give back what it was allowed
  WaitingFrees waiting_;
  OtherUses uses_;
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
    const std::uint64_t index =
        kShapes[inside.slab_class()].index_of(inside.unit() * kUnit + offset);
    __builtin_prefetch(slab->place_of_slack(index));
    return {inside, slab->cache(), place.entry};
  }
  if (const Segment* const segment = inside.segment())
    return {inside, segment->cache(), place.entry};
  return {};
}

}  // namespace vpmm::small
