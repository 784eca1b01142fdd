// SPDX-License-Identifier: Apache-2.0
// pool: meaning of VPMM_PREFER and VPMM_CHUNK_MAX: memory spent to spare driver calls.
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
// calls, and the idle part of a partly used chunk cannot move (docs/design/chunk-policy.md).
struct Tuning {
  // Use of memory that other streams still use, behind a wait of the GPU, before growth.
  enum class Waiting {
    never,          // the pool grows instead
    before_moves,   // before anything is moved or created
    before_growth,  // when complete memory does not suffice, and before anything is created
  };
  enum class Order {
    smallest_first,  // large ranges stay whole, for requests of their size
    oldest_first,    // as the specification has it
  };

  enum class Choice {
    by_use,    // Notes [Own memory first] and [Shared pages go low]
    smallest,  // whichever stream may use it, as the specification has it
  };

  Bytes page_size{};
  Bytes grain{};      // unit of placement; pages are whole grains
  Bytes chunk_max{};  // a power of two of pages
  Bytes chunk_least{};
  Bytes chunk_share = 1;  // least chunk = mapped bytes / chunk_share
  Bytes growth_permille = 0;
  Waiting waiting = Waiting::never;
  Order order = Order::smallest_first;
  Choice choice = Choice::by_use;
  bool delays_growth = false;
  const char* name = "";

  // Alignment of every page: the largest power of two that divides page_size.
  Bytes page_alignment() const { return page_size & (~page_size + 1); }
  // Least alignment of allocations.
  Bytes grain_alignment() const { return grain & (~grain + 1); }
  // Bytes of a new chunk: Note [Size of a chunk]. `mapped`: by the pool; `all`: that it has or may
  // have.
  Bytes chunk_size(Bytes request, Bytes mapped, Bytes all) const;
  // Chunks of `chunk` bytes for at least `bytes`, cut to size only if `room` is too small; nullopt:
  // too small even so.
  std::optional<Vector<Bytes>> chunks_for(Bytes bytes, Bytes chunk, Bytes room) const;
};

Tuning tuning_of(const settings::Config& config, Bytes page_size);

}  // namespace vpmm::pool
