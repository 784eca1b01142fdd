// SPDX-License-Identifier: Apache-2.0
// arena: blocks of one arena: live blocks, and free blocks by the stream that they serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "arena/best_fit.hpp"
#include "arena/block_map.hpp"
#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "time/stamp.hpp"

namespace vpmm::arena {

// Pure bookkeeping: no driver, no lock, no clock. A broken precondition aborts with the picture of
// the arena.
//
// Note [Users of a free block]
// - The stream that freed it, at once: the stream is the order.
// - Other streams, once its stamp is complete. In a pinned arena: none, as launches of a graph use
// the block at any time.
// - After use by other or unknown streams the block waits: it serves no stream before its stamp is
// complete, then first the stream that it was allocated for.
//
// Invariants (validate() checks them all):
// - the blocks of a stretch tile it without gap or overlap;
// - no two free neighbours have one key, do not wait, and have together at most two streams in
// their stamps: they are one block;
// - every free block stands in the map of free blocks under order_of(block);
// - a merged arena has complete free blocks only, and no two of them are neighbours;
// - sums = sums over the blocks.
class Arena {
 public:
  Arena(Bytes page_size, Splitting splitting) : page_size_(page_size), splitting_(splitting) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // --- looking ---
  // Finds free memory for `wish`, which take() may take. Returns nullopt if none fits.
  std::optional<AddressRange> find(const Wish& wish, Reach reach) const;
  bool is_free(AddressRange part) const;              // inside one stretch, without live blocks
  const ArenaBlock* block_around(DevicePtr p) const;  // live or free; null: outside the arena
  const Stretch* stretch_around(DevicePtr p) const;   // null: outside the arena
  // Tells if neighbouring free blocks of `bytes` or more in all, of which one is incomplete, may
  // serve `key` once their stamps are complete.
  bool has_pending_for(StreamKey key, Bytes bytes) const;
  void for_each_live(FunctionRef<void(const ArenaBlock&)> visit) const;  // by address
  void for_each_block_in(AddressRange stretch, FunctionRef<void(const ArenaBlock&)> visit) const;
  void for_each_stretch(FunctionRef<void(const Stretch&)> visit) const;
  // Lowest stretch without live blocks that begins at `from` or behind. Null: none.
  const Stretch* idle_stretch(DevicePtr from = {}) const;
  // First run of free blocks that ends behind `from`, in a resident stretch with live blocks, as
  // long as possible. Empty: none.
  AddressRange free_run(DevicePtr from) const;
  // Joins the stamps of all blocks. Returns nullopt if they have more parts than a stamp holds.
  std::optional<time::Stamp> stamp_of(const Stretch& idle) const;
  bool is_used_by(StreamKey key) const;

  // --- changing ---
  // Adds one free, complete block, for `key` first.
  void add(AddressRange range, StreamKey key);
  // Requires: no live block.
  void remove(const Stretch& idle);
  // Makes two stretches of the one around `at`, where a free block is or any block begins.
  void divide(DevicePtr at);
  // Requires: is_free(part), whole grains.
  void take(AddressRange part, const BlockUse& use);
  struct End {
    StreamKey key{};
    time::Stamp stamp;
    bool is_waiting = false;
  };
  // Frees a live block; merges it with its neighbours.
  void end(DevicePtr begin, const End& end);
  // Returns false if the use was known.
  bool record_use(DevicePtr begin, time::TimelineId timeline);
  // Ends the waiting of blocks with complete stamps. `reduce` drops complete parts of a stamp.
  // Linear in blocks, unless the arena is merged.
  void refresh(FunctionRef<time::Stamp(const time::Stamp&)> reduce);
  // Replaces the key of a stream.
  void rename(StreamKey from, StreamKey to);
  // After the end of all streams: gives live and complete blocks the key kEverybody.
  void forget_streams();
  // `begin`: of a stretch.
  void set_suspended(DevicePtr begin, bool is_suspended) {
    map_.stretches.find(begin)->second.is_suspended = is_suspended;
  }
  void pin() { is_pinned_ = true; }
  bool is_pinned() const { return is_pinned_; }
  bool splits() const { return splitting_ != Splitting::no; }

  // --- figures ---
  Bytes held_bytes() const { return held_; }            // of stretches
  Bytes allocated_bytes() const { return allocated_; }  // of live blocks
  std::uint64_t live() const { return live_; }
  std::size_t stretches() const { return map_.stretches.size(); }
  // Bytes of free blocks with stamps that are incomplete after `reduce`.
  Bytes pending_bytes(FunctionRef<time::Stamp(const time::Stamp&)> reduce) const;

  // The first broken invariant as text; empty if all hold.
  std::string validate() const;
  // Formats "[4][-6] [1][~2]" in units of `unit`: live, free, waiting; a space between stretches.
  std::string picture(Bytes unit) const;

 private:
  using Blocks = BlockMap::Blocks;

  Blocks::iterator split(Blocks::iterator block, DevicePtr at);  // returns the back
  Blocks::iterator merge(Blocks::iterator block);  // with both neighbours; returns the result
  void absorb_next(Blocks::iterator block);
  bool is_merged(Blocks::iterator free) const;
  // Applies `change` to a free block, and files the block anew.
  template <typename Change>
  void refile(ArenaBlock& block, Change&& change);

  Bytes page_size_;
  Splitting splitting_;
  bool is_pinned_ = false;
  bool is_merged_ = true;  // may be false where it could be true
  BlockMap map_;
  Bytes held_ = 0;
  Bytes allocated_ = 0;
  Bytes idle_ = 0;
  std::uint64_t live_ = 0;
};

}  // namespace vpmm::arena
