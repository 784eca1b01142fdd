// SPDX-License-Identifier: Apache-2.0
// judge: a naive allocator beside the pool: owners of memory, sums over it, and the refusals that a
// pool may make.
//
// It is told of each result and names the promise that the result breaks. It knows no chunk,
// stream, cache or plan, and keeps one list, so that it is right at a glance.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/bytes.hpp"
#include "base/result.hpp"
#include "observe/statistics.hpp"
#include "report/layout.hpp"

namespace vpmm::judge {

// Conditions of the promise of a pool.
struct Terms {
  Bytes page = 0;
  bool is_own = true;           // all memory is the pool's, none the driver's stream-ordered pool's
  bool is_exact = true;         // the pool may map as often as it likes
  bool has_own_chunks = false;  // every allocation: it is rounded to whole pages
};

// A function that returns text describes a broken promise; empty: all are kept.
class Reference {
 public:
  enum class State {
    live,
    deferred,  // freed, but the pool may not have carried that out
    held,      // freed, but a graph may use it at any time, so the pool may count it as live
    pending,   // freed, and the GPU may still use it
  };
  struct Block {
    std::uint64_t id = 0;
    std::size_t pool = 0;
    AddressRange range;
    std::uint64_t graph = 0;  // it was allocated in the capture of this one, which exists; 0: none
    std::uint64_t arena = 0;  // 0: none
    State state = State::live;
    std::uint64_t held_by = 0;  // graph
    bool was_graphs = false;    // which is destroyed, but the pool may not know
    bool is_kept = false;       // freed, and another process holds it
    bool is_asleep = false;     // suspended: it has an address and no memory
  };
  struct Refused {
    std::size_t pool = 0;
    Bytes bytes = 0;                           // whole pages
    bool may_wait = true;                      // for the GPU: no stream captures
    std::vector<Vector<AddressRange>> chunks;  // of each pool
    std::vector<Vector<AddressRange>> kept;    // of each pool: free, and it cannot be given away
    // That may have been in chunks of what was made with it, also by callbacks, and freed.
    Bytes trapped_before = 0;
  };

  Reference(const Terms& terms, std::size_t pools, Bytes gpu_bytes, std::optional<Bytes> capacity);

  // --- events ---
  std::string hand_out(const Block& made, Bytes alignment);
  std::string refuse(const Refused& refused, const Error& error);
  void count_refusal(std::size_t pool) { ++counts_[pool].refusals; }  // by no fault of memory
  // `graph`: of the capture in which it is freed; 0: none.
  void give_back(std::uint64_t id, State state, std::uint64_t graph);
  void keep(std::uint64_t id);  // before give_back(): another process holds it
  void end_keeping(std::uint64_t id);
  void lose(std::uint64_t id);       // with its context
  void let_go(std::uint64_t graph);  // that is destroyed
  void settle(std::size_t pool);     // the GPU is idle, and the pool knows
  void set_capacity(std::size_t pool, std::optional<Bytes> bytes, Bytes mapped);
  void set_used_by_others(Bytes bytes) { used_by_others_ = bytes; }
  void grow_arena(std::size_t pool, std::uint64_t arena, AddressRange stretch);
  void shrink_arena(AddressRange part);                    // of a stretch, or all of it
  void put_to_sleep(std::uint64_t arena, bool is_asleep);  // its memory is suspended
  void pin_around(DevicePtr ptr);                          // the arena that it is in, if any
  void pin_arena(std::uint64_t arena) { pinned_.insert(arena); }
  // No two allocations share a stretch of it, and one may have up to twice its bytes.
  void keep_whole(std::uint64_t arena) { whole_.insert(arena); }
  // Which is `id` of its blocks. Its graphs are not launched any more.
  void release_arena(std::uint64_t id, std::uint64_t arena);
  // Of many allocations one was refused, so those before it were made and freed; in the capture of
  // `graph` (else 0) they stay the graph's, and after a fault their frees may be deferred. Only the
  // pool knows their number.
  enum class Undo { at_once, perhaps_deferred };
  void undo_many(std::size_t pool, std::uint64_t graph, Undo undo, const observe::Statistics& said);
  // A call failed in the middle, and only the pool knows how often it tried.
  void lose_count(std::size_t pool) { counts_[pool].is_lost = true; }

  // --- comparisons ---
  std::string compare(std::size_t pool, const observe::Statistics& said);
  std::string compare(std::size_t pool, const report::Layout& said) const;
  std::string compare_events(std::size_t pool, std::uint64_t allocated, std::uint64_t freed) const;
  std::string compare_free_memory(std::size_t pool, Bytes free, Bytes total) const;
  std::uint64_t judged() const { return judged_; }  // refusals whose need was reckoned

 private:
  struct Counts {
    std::uint64_t allocations = 0;
    std::uint64_t deallocations = 0;
    std::uint64_t refusals = 0;
    bool is_lost = false;
  };
  struct Stretch {
    std::size_t pool = 0;
    std::uint64_t arena = 0;
    AddressRange memory;
    bool is_asleep = false;
  };
  struct Sum {
    std::uint64_t count = 0;
    Bytes bytes = 0;
    void add(const Block& block) { ++count, bytes += block.range.size; }
  };
  Sum live(std::size_t pool) const;
  Sum open_frees(std::size_t pool) const;
  std::string compare_counts(std::size_t pool, const observe::Statistics& said);
  using Is = std::function<bool(const Block&)>;
  void cut_out(AddressRange range);
  static bool excludes(const Block& other, const Block& made);
  enum class Extent { requested, rounded };
  void add_whole_stretches(Vector<AddressRange>& ranges, const Is& is,
                           std::optional<std::size_t> pool) const;
  Bytes pages_of(const Is& is, Extent extent, std::optional<std::size_t> pool) const;
  Bytes chunks_of(const Is& is, std::size_t pool, const Refused& refused) const;
  Vector<AddressRange> ranges_of(const Is& is, Extent extent,
                                 std::optional<std::size_t> pool) const;
  Bytes limit(std::size_t pool) const;
  Bytes most_mapped(std::size_t pool) const;
  bool has_unknown(std::size_t pool) const;  // memory of graphs
  bool may_all_be_asked(std::size_t pool) const;

  const Terms terms_;
  const Bytes gpu_bytes_;
  Bytes used_by_others_ = 0;
  std::vector<Block> blocks_;  // in order of their making
  std::vector<Stretch> stretches_;
  std::set<std::uint64_t> pinned_;  // arenas
  std::set<std::uint64_t> whole_;   // likewise
  struct Undone {
    std::size_t pool = 0;
    std::uint64_t graph = 0;  // that owns it; 0: none
    bool stays = false;
  };
  std::vector<Undone> undone_;  // memory that only the pool knows, until it is settled
  std::vector<std::optional<Bytes>> capacity_;
  std::vector<Bytes> most_mapped_;  // when the capacity became less
  std::vector<Counts> counts_;
  std::uint64_t judged_ = 0;
};

}  // namespace vpmm::judge
