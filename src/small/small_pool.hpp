// small: requests below a page: blocks and runs cut from pages of the pool, in hand of the streams that use them.
//
// Reads top-down as arenas (pages of the pool), spans (runs of units in them), slabs (equal blocks in a span) and
// shards (what a stream has in hand). Spans keep stamps as the pool's ranges do, so memory moves between streams in the
// same way; a block that other streams used waits for its stamp here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/stable_store.hpp"
#include "pool/pool.hpp"
#include "region/region_index.hpp"
#include "small/directory.hpp"
#include "small/shard.hpp"
#include "small/slab.hpp"
#include "time/timelines.hpp"

namespace vpmm::small {

// A live block or run.
struct Allocation {
  AddressRange range;
  Bytes requested = 0;
  std::optional<time::TimelineId> timeline;  // of the allocating stream; none: any-stream, or its context is gone
  Arena* arena = nullptr;
  Slab* slab = nullptr;  // null: a run
  std::uint64_t index = 0;
  region::Region* run = nullptr;
};

// Holds: every method runs under the context's lock, unless it says otherwise. Methods that take it may drop it.
class SmallPool {
 public:
  // `prove` has an event stand for everything that was freed, and finds out what is complete by now, telling advance().
  // True: something is.
  SmallPool(pool::Pool& pool, time::Timelines& timelines, std::function<bool()> prove);

  static bool can_cut(Bytes page_size) { return is_multiple(page_size, kUnit) && page_size >= kLeastPage; }
  // Whether a request is served here rather than by whole pages. Requires: can_cut(page_size).
  static bool serves(Bytes bytes, Bytes alignment, Bytes page_size);

  // Memory that work queued on the caller's stream after the call may use.
  Result<DevicePtr> allocate(MutexLock& lock, Bytes bytes, Bytes alignment, const pool::Caller& caller);
  // The live allocation around `p`, in a page of the pool that is_arena(); none: nothing live is there.
  std::optional<Allocation> find(const region::Region& page, DevicePtr p) const;
  static bool is_arena(const region::Region& page);
  static bool is_kept(const region::Region& region) { return holder_of(region) != nullptr && !is_arena(region); }
  // Streams that record_use named for it.
  const std::vector<time::TimelineId>& other_uses(const Allocation& allocation) const;
  void record_use(const Allocation& allocation, time::Timeline& timeline);
  // Ends it. May be used again on its own stream at once if nothing but that stream's work is in `stamp`, otherwise
  // once the stamp is complete.
  void deallocate(const Allocation& allocation, const time::Stamp& stamp);

  // What `timeline` has in hand; found or begun.
  Shard& shard_of(time::Timeline& timeline);
  // An allocation of whole pages, for frees that take no lock. `requested`: what its present user asked for.
  void enlist(const region::Region& pages, Bytes requested);
  void delist(const region::Region& pages);
  Bytes requested_of(const region::Region& pages) const;
  Directory& directory() { return directory_; }

  // Takes back what shards keep and nobody uses. True: something came back.
  bool recall();
  void recall(Shard& shard);
  // The same for one allocation of the caller's own that is large enough, if it keeps one: the rest stays in hand.
  bool recall_one(const pool::Caller& caller, Bytes size);
  // Somebody missed: for a while every stream's frees are worth an event.
  void want_events(const time::Timeline* except);
  void advance(const std::vector<time::StampPart>& done);
  // Shards whose streams are idle give back what they keep; those of retired timelines end.
  void retire_idle();

  Tally tally();             // of all shards
  std::int64_t take_high();  // most bytes requested since it was last called, over all shards; begins anew
  Bytes idle_bytes();        // in arenas or kept, and nobody's
  Bytes kept_in_arenas_bytes() { return idle_bytes() - kept_pages_bytes(); }
  Bytes kept_pages_bytes();  // of these, allocations of whole pages that shards keep
  Bytes pending_bytes() const { return waiting_bytes_ + spans_.pending_bytes(); }
  Bytes pending_bytes(time::TimelineId timeline) const;
  Bytes arena_bytes() const { return arena_count_ * page_size_; }
  std::uint64_t most_live() const { return most_live_; }  // blocks and runs there can be without a new slab
  std::string validate();

 private:
  struct Waiting {
    Slab* slab = nullptr;
    std::uint64_t index = 0;
    time::Stamp stamp;
  };
  Shard& shard_for(const pool::Caller& caller);
  DevicePtr take_block(std::size_t slab_class, Bytes requested, const pool::Caller& caller);
  DevicePtr take_run(std::uint64_t units, Bytes requested, Bytes alignment, const pool::Caller& caller);
  region::Region* take_span(Bytes bytes, Bytes alignment, const pool::Caller& caller);
  Result<void> take_arena(MutexLock& lock, const pool::Caller& caller);
  Slab* make_slab(region::Region* span, std::size_t slab_class, Shard& shard);
  void end_slab(Slab* slab, const time::Stamp& stamp);
  void end_run(region::Region* run, const time::Stamp& stamp);
  void give_span(region::Region* span, const time::Stamp& stamp);
  bool give_arena_if_idle(region::Region* free);
  static void end_shard(Shard& shard);
  void leave_hand(Shard& shard, const Kept& pages);
  void wait_for(const Waiting& waiting);
  void set_free(const Waiting& waiting);
  void count_tenant(std::optional<time::TimelineId> timeline, int change);
  void forget_uses(const Allocation& allocation);
  Arena& arena_at(DevicePtr p) const;
  std::string validate_shard(Shard& shard);

  pool::Pool& pool_;
  time::Timelines& timelines_;
  const std::function<bool()> prove_;
  const Bytes page_size_;
  Directory directory_;
  region::RegionIndex spans_;
  StableStore<Arena> arenas_;
  StableBytes unit_tables_;  // of the arenas
  std::uint64_t arena_count_ = 0;
  StableStore<Slab> slabs_;
  std::deque<Shard> shards_;
  std::vector<Shard*> unused_shards_;
  std::unordered_map<time::TimelineId, Shard*> by_timeline_;
  Shard* any_ = nullptr;  // memory of users that name no stream
  std::map<time::StampPart, std::vector<Waiting>, bool (*)(const time::StampPart&, const time::StampPart&)> waiting_;
  std::map<time::TimelineId, Bytes> waiting_on_;  // bytes that wait for a timeline
  Bytes waiting_bytes_ = 0;
  std::map<DevicePtr, std::vector<time::TimelineId>> uses_;
  Tally pages_;  // arenas, which the pool's index counts as allocations of a user, and pages that changed theirs
  std::uint64_t most_live_ = 0;
};

}  // namespace vpmm::small
