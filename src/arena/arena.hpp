// arena: memory of the pool that one user keeps together: which parts are live, and which free
// block serves whom.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "arena/block.hpp"
#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "time/stamp.hpp"

namespace vpmm::arena {

// Pure bookkeeping: no driver, no lock, no clock. A broken precondition aborts with the picture of
// the arena.
//
// Note [Who may have a free block]
// The stream that freed it, at once: the stream itself is the order. Others when its stamp is
// complete, unless the arena is pinned: launches of a graph use the block at any time, and no stamp
// says when. What other streams may still use, or nobody knows who, waits: it serves nobody before
// its stamp is complete, and then first of all the stream that it was allocated for.
//
// Invariants (validate() checks them all):
// - the blocks of a stretch tile it without gap or overlap;
// - no two free neighbours could be one: of one key, neither of them waiting, with at most two
// streams in their stamps;
// - every free block stands in the search structure, as it is;
// - the sums are the sums of the blocks.
class Arena {
 public:
  // No split: every allocation has a stretch of its own.
  enum class Splitting { yes, no };
  Arena(Bytes page_size, Splitting splitting) : page_size_(page_size), splitting_(splitting) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // --- looking ---
  struct Wish {
    Bytes size = 0;       // a multiple of kGrain
    Bytes alignment = 0;  // a power of two
    StreamKey key{};
  };
  // Requests of half a page and less share pages, and stay out of larger free blocks, which would
  // never be whole again. `everywhere`: where memory is short.
  enum class Reach { by_size, everywhere };
  // Where `wish` fits: the smallest block that may serve it, the lowest among equals, and
  // neighbours side by side where no block alone is enough. None: nowhere.
  std::optional<AddressRange> find(const Wish& wish, Reach room) const;
  bool is_free(AddressRange part) const;              // inside one stretch, and nothing live in it
  const ArenaBlock* block_around(DevicePtr p) const;  // live or free; null: of no stretch
  const Stretch* stretch_around(DevicePtr p) const;   // null: none
  // Whether a block that waits would serve `key` once its stamp is complete, or others' would.
  bool has_pending_for(StreamKey key) const;
  void for_each_live(FunctionRef<void(const ArenaBlock&)> visit) const;  // by address
  void for_each_block_in(AddressRange stretch, FunctionRef<void(const ArenaBlock&)> visit) const;
  void for_each_stretch(FunctionRef<void(const Stretch&)> visit) const;
  const Stretch* idle_stretch() const;  // the lowest without a live block; null: none
  // What must have finished before the whole of a stretch that is idle may be anybody's. None: more
  // than a stamp holds.
  std::optional<time::Stamp> stamp_of(const Stretch& idle) const;
  bool is_used_by(StreamKey key) const;

  // --- changing ---
  // The whole of it is free, complete, and for `key` first.
  void add(AddressRange stretch, StreamKey key);
  // Requires: nothing in it is live.
  void remove(const Stretch& idle);
  // Requires: is_free(part), and whole grains.
  const ArenaBlock& take(AddressRange part, const BlockUse& use);
  struct End {
    StreamKey key{};
    time::Stamp stamp;
    bool is_waiting = false;
  };
  // Of a live block; it merges with its neighbours.
  void end(DevicePtr begin, const End& end);
  // False: it was noted already.
  bool record_use(DevicePtr begin, time::TimelineId timeline);
  // `reduce`: a stamp without its parts that are complete. What waits no longer is free for its
  // own.
  void refresh(FunctionRef<time::Stamp(const time::Stamp&)> reduce);
  // The same stream under another key.
  void rename(StreamKey from, StreamKey to);
  // Streams are gone: what is complete, and what is live, is nobody's in particular.
  void forget_streams();
  void pin() { is_pinned_ = true; }
  bool is_pinned() const { return is_pinned_; }
  bool splits() const { return splitting_ == Splitting::yes; }

  // --- figures ---
  Bytes held_bytes() const { return held_; }            // of its stretches
  Bytes allocated_bytes() const { return allocated_; }  // of live blocks
  std::uint64_t live() const { return live_; }
  std::size_t stretches() const { return stretches_.size(); }
  // Of free blocks whose stamp `reduce` does not make complete.
  Bytes pending_bytes(FunctionRef<time::Stamp(const time::Stamp&)> reduce) const;

  // The first broken invariant as text; empty when all hold.
  std::string validate() const;
  // "[4][-6] [1][~2]" in units of `unit`: live, free, waiting; a space between stretches.
  std::string picture(Bytes unit) const;

 private:
  using Blocks = Map<DevicePtr, ArenaBlock>;
  struct SortKey {
    bool is_waiting = false;
    StreamKey key{};
    Bytes size = 0;
    DevicePtr begin{};
    friend auto operator<=>(const SortKey&, const SortKey&) = default;
  };
  static SortKey place_of(const ArenaBlock& block) {
    return {block.is_waiting, block.key, block.range.size, block.range.begin};
  }
  static std::optional<time::Stamp> joined(const time::Stamp& a, const time::Stamp& b);
  static bool can_merge(const ArenaBlock& front, const ArenaBlock& back);
  static std::optional<AddressRange> fit_in(AddressRange free, const Wish& wish);

  bool may_serve(const ArenaBlock& block, StreamKey key) const;
  bool is_in_room(const ArenaBlock& block, Bytes size, Bytes wanted, Reach room) const;
  std::optional<AddressRange> in_block(const ArenaBlock& block, const Wish& wish, Reach room) const;
  std::optional<AddressRange> best_of(StreamKey owner, const Wish& wish, Reach room) const;
  std::optional<AddressRange> best_complete(const Wish& wish, Reach room) const;
  std::optional<AddressRange> best_run(const Wish& wish, Reach room) const;

  Blocks::const_iterator around(DevicePtr p) const;  // end(): none
  Blocks::iterator around(DevicePtr p);
  Blocks::iterator split(Blocks::iterator block, DevicePtr at);  // returns the back
  Blocks::iterator merge(Blocks::iterator block);  // with both neighbours; returns what it is then
  void absorb_next(Blocks::iterator block);
  // `change` of a free block that stays where it is.
  template <typename Change>
  void refile(ArenaBlock& block, Change&& change);

  Bytes page_size_;
  Splitting splitting_;
  bool is_pinned_ = false;
  Map<DevicePtr, Stretch> stretches_;
  Blocks blocks_;
  Set<SortKey> free_;  // those that wait last
  Bytes held_ = 0;
  Bytes allocated_ = 0;
  Bytes idle_ = 0;
  std::uint64_t live_ = 0;
};

}  // namespace vpmm::arena
