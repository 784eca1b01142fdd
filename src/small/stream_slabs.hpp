// SPDX-License-Identifier: Apache-2.0
// small: the slabs of one stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "small/page_run.hpp"
#include "small/slab.hpp"
#include "small/stream_segments.hpp"

namespace vpmm::small {

// Slabs cut from units of the stream's segments, and for each class the list of those with a free
// block. In a list of several slabs, none is empty.
class StreamSlabs {
 public:
  explicit StreamSlabs(StreamSegments& segments) : segments_(segments) {}

  Bytes empty_bytes() const {
    return empty_units_.now() * kUnit;
  }  // without a live block. Any thread, without a lock
  // Least size of the next slab of the class.
  SlabSize least(std::size_t slab_class) const VPMM_REQUIRES(cache_lock) {
    return least_slab(kShapes[slab_class], units_[slab_class]);
  }

  // Takes a block of the class; null if none is cached.
  DevicePtr take(std::size_t slab_class, Bytes requested, StreamCache* owner)
      VPMM_REQUIRES(cache_lock) {
    SlabList& list = open_[slab_class];
    Slab* const slab = list.first != nullptr ? list.first : cut(slab_class, owner);
    if (slab == nullptr) return {};
    if (slab->is_empty()) empty_units_.add(-std::uint64_t{slab->units});
    const std::uint64_t index = slab->take_first();
    if (slab->is_full()) list.remove(slab);
    slab->slack[index] = static_cast<std::uint16_t>(slab->block_bytes() - requested);
    return slab->block(index);
  }
  // Makes the block free.
  void give(Slab* slab, std::uint64_t index) VPMM_REQUIRES(cache_lock) {
    const bool was_full = slab->is_full();
    slab->give(index);
    SlabList& list = open_[slab->slab_class];
    if (was_full) {
      if (list.first != nullptr && list.first->is_empty()) end(list.first);
      list.push(slab);
    }
    if (!slab->is_empty()) return;
    empty_units_.add(slab->units);
    // The only one stays, because an allocate and free loop would cut it anew each time.
    if (slab->next != nullptr || slab->previous != nullptr) end(slab);
  }
  // Turns slabs without a live block into units of their segments.
  void end_empty() VPMM_REQUIRES(cache_lock) {
    for (SlabList& list : open_)
      if (list.first != nullptr && list.first->is_empty()) end(list.first);
  }

  // --- records of slabs that are not cut yet ---
  bool has_spare() const VPMM_REQUIRES(cache_lock) { return spare_ != nullptr; }
  void add_spare(Slab* slab) VPMM_REQUIRES(cache_lock) { slab->next = std::exchange(spare_, slab); }
  Slab* take_spare() VPMM_REQUIRES(cache_lock) { return std::exchange(spare_, spare_->next); }

  // The first broken invariant as text; empty when all hold.
  std::string validate(const StreamCache* owner) const VPMM_REQUIRES(cache_lock);

 private:
  // Cuts another slab; null without units or without a spare record.
  Slab* cut(std::size_t slab_class, StreamCache* owner) VPMM_REQUIRES(cache_lock) {
    if (spare_ == nullptr) return nullptr;
    SlabSize size = slab_size(kShapes[slab_class], units_[slab_class], segments_.page_units());
    SegmentLists::Found found = segments_.find(size.units);
    if (found.segment == nullptr) {
      size = least(slab_class);
      found = segments_.find(size.units);
    }
    if (found.segment == nullptr) return nullptr;
    Segment* const segment = found.segment;
    Slab* const slab = take_spare();
    slab->slab_class = static_cast<std::uint8_t>(slab_class);
    slab->units = static_cast<std::uint16_t>(size.units);
    slab->blocks = static_cast<std::uint16_t>(size.blocks);
    slab->set_all_free();
    slab->set_cache(owner);
    slab->segment = segment;
    slab->begin = segment->at(segments_.take(*segment, found.place));
    units_[slab_class] += size.units;
    segment->run->set_content(*slab);
    open_[slab_class].push(slab);
    empty_units_.add(size.units);
    return slab;
  }
  void end(Slab* slab) VPMM_REQUIRES(cache_lock) {
    empty_units_.add(-std::uint64_t{slab->units});
    open_[slab->slab_class].remove(slab);
    Segment& segment = *slab->segment;
    units_[slab->slab_class] -= slab->units;
    segment.run->set_content(slab->begin, slab->units, segment);
    segments_.give(segment, segment.unit_of(slab->begin), slab->units, slab->number);
    add_spare(slab);
  }

  StreamSegments& segments_;
  std::array<SlabList, kSlabClasses> open_ VPMM_GUARDED_BY(cache_lock){};
  std::array<std::uint64_t, kSlabClasses> units_
      VPMM_GUARDED_BY(cache_lock){};                   // in slabs of the class
  Slab* spare_ VPMM_GUARDED_BY(cache_lock) = nullptr;  // linked by `next`
  Sum empty_units_;
};

}  // namespace vpmm::small
