// pool: what VPMM_PREFER and VPMM_CHUNK_MAX stand for: how much memory may be spent to spare driver
// calls.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "settings/config.hpp"

namespace vpmm::pool {

// Note [One knob]
// Memory buys time in two ways. A pool may grow although idle chunks could be moved (early growth,
// a share of the most that ever lived at once), and chunks may be large: each costs a few driver
// calls, and what is idle of a chunk that is used in part cannot move. docs/design/chunk-policy.md
// has the figures.
struct Tuning {
  // Whether memory that other streams still use is taken, behind a wait of the GPU, while new
  // memory is to be had.
  enum class Waiting {
    never,          // it grows
    before_moves,   // before anything is moved or created
    before_growth,  // when complete memory is not enough, and before anything is created
  };
  // From which free ranges idle chunks move first.
  enum class Order {
    smallest_first,  // large ones stay whole, for requests of their size
    oldest_first,    // as the specification has it
  };

  // Which free range a request takes.
  enum class Choice {
    by_use,    // Notes [Own memory first] and [Shared pages go low]
    smallest,  // whoever may use it, as the specification has it
  };

  Bytes page_size = 2 * kMiB;
  Bytes grain = 2 * kMiB;      // the unit of placement; pages are whole grains
  Bytes chunk_max = 2 * kMiB;  // a power of two of pages
  Bytes chunk_least = 2 * kMiB;
  Bytes chunk_share = 1;  // a chunk is at least this part of what is mapped
  Bytes growth_permille = 0;
  Waiting waiting = Waiting::never;
  Order order = Order::smallest_first;
  Choice choice = Choice::by_use;
  bool delays_growth = false;  // GrowDelay
  const char* name = "";

  // What every page is aligned to: the largest power of two that divides it.
  Bytes page_alignment() const { return page_size & (~page_size + 1); }
  // Of a new chunk for a request. `mapped`: by the pool. `all`: that it has or may have. Note [Size
  // of a chunk]
  Bytes chunk_size(Bytes request, Bytes mapped, Bytes all) const;
  // Chunks of `chunk` bytes for at least `bytes`, none of them cut to size unless `room` is too
  // small for it. None: `room` is too small.
  std::optional<Vector<Bytes>> chunks_for(Bytes bytes, Bytes chunk, Bytes room) const;
};

Tuning tuning_of(const settings::Config& config, Bytes page_size);

}  // namespace vpmm::pool
