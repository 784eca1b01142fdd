// pool: where in a free range a request is put, so that few chunks are left partly in use.
#pragma once

#include <cstdint>

#include "pool/chunk_policy.hpp"
#include "region/region.hpp"
#include "vm/chunk_table.hpp"

namespace vpmm::pool {

// Note [A chunk partly in use pins its rest]
// A chunk moves, and is given back, whole. What is free in a chunk that is partly in use waits where it is for a
// request that fits, so every allocation that begins or ends inside an idle chunk costs footprint later. Which end of a
// range a request takes is free of charge.

// What both have; of no size where they have nothing.
AddressRange overlap(const AddressRange& a, const AddressRange& b);

// By how much an allocation of `part` in the free range `free` changes the free bytes of chunks partly in use.
std::int64_t pinned_by(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part);

// A place in a free range and what it pins.
struct Place {
  region::Region* free = nullptr;
  DevicePtr begin{};
  std::int64_t pinned = 0;
};

// The place in `free` that pins least of those that `where` allows; the lowest among equals.
// Requires: `size` bytes at `alignment` fit; `where` is not the front.
Place best_place(const vm::ChunkTable& chunks, region::Region* free, Bytes size, Bytes alignment, Placement where);

// An idle chunk and where, from its beginning, it is cut so that the rest of it stays idle.
struct Cut {
  vm::Mapping chunk;
  Bytes at = 0;
};

// Of the chunks inside the free range `free` that an allocation of `part` would break at one of its ends, the one of
// which most is left, if that is at least `least`. A chunk in which `part` both begins and ends is cut only where one
// of them is a border of it. Cuts are whole pages, and of chunks of 256 MiB at most.
std::optional<Cut> best_cut(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part,
                            Bytes page_size, Bytes least);

}  // namespace vpmm::pool
