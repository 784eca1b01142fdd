// SPDX-License-Identifier: Apache-2.0
// arena: the smallest free memory of an arena that may serve a request.
#pragma once

#include <optional>

#include "arena/block_map.hpp"

namespace vpmm::arena {

// no: every allocation has a stretch of its own. small: those of kLargePages pages and more have,
// as far as no other stretch fits to a 32nd, and smaller ones leave their stretches whole.
enum class Splitting { yes, no, small };

struct Wish {
  Bytes size = 0;       // a multiple of kGrain
  Bytes alignment = 0;  // a power of two
  StreamKey key{};
};

// by_size: requests of up to half a page share pages and leave larger free blocks whole.
// everywhere: for a shortage of memory.
enum class Reach { by_size, everywhere };

struct Rules {
  Splitting splitting;
  bool is_pinned;
  bool is_merged;  // no free blocks are neighbours
  Reach reach;
};

// A search in blocks that outlive it. Changes nothing.
class BestFit {
 public:
  BestFit(const BlockMap& map, Bytes page_size, const Rules& rules)
      : map_(map), page_size_(page_size), rules_(rules) {}

  // Finds the smallest block that may serve `wish`; lowest address among equals. If no block is
  // large enough, a run of neighbours. Returns nullopt if none fits.
  std::optional<AddressRange> find(const Wish& wish) const;

 private:
  static std::optional<AddressRange> fit_in(AddressRange free, const Wish& wish);
  bool may_serve(const ArenaBlock& block, StreamKey key) const;
  bool is_in_reach(const ArenaBlock& block, Bytes size, Bytes wanted) const;
  std::optional<AddressRange> in_block(const ArenaBlock& block, const Wish& wish) const;
  std::optional<AddressRange> best_of(StreamKey owner, const Wish& wish) const;
  std::optional<AddressRange> best_complete(const Wish& wish) const;
  std::optional<AddressRange> best_run(const Wish& wish) const;

  const BlockMap& map_;
  const Bytes page_size_;
  const Rules rules_;
};

}  // namespace vpmm::arena
