// SPDX-License-Identifier: Apache-2.0
// region: regions of one size, ordered by address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_memory.hpp"
#include "region/aligned_start.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// Heap with four children a node: adding or removing any region moves about two entries, at any
// size; only removing the lowest moves one per level. Region::size_place is a region's place.
// The root lies in the heap itself, so that a heap of one region, the usual case, is a single cache
// line.
class AddressHeap {
 public:
  struct Entry {
    DevicePtr begin{};
    Region* region = nullptr;
  };

  bool empty() const { return root_.region == nullptr; }
  // Requires: not empty.
  const Entry& lowest() const { return root_; }

  void add(Region* region) {
    const Entry added{region->range.begin, region};
    if (empty()) {
      put(0, added);
      return;
    }
    rest_.push_back(added);
    rise(rest_.size(), added);
  }

  void remove(const Region* region) {
    const std::size_t place = region->size_place;
    if (rest_.empty()) {
      root_ = {};
      return;
    }
    const Entry moved = rest_.back();
    rest_.pop_back();
    if (place > rest_.size()) return;
    if (place > 0 && moved.begin < at((place - 1) / kChildren).begin)
      rise(place, moved);
    else
      sink(place, moved);
  }

  // Lowest region of `size` bytes in which `wanted` bytes at `alignment` fit; null if none.
  Region* lowest_fitting(Bytes size, Bytes wanted, Bytes alignment) const {
    const Entry* best = nullptr;
    if (!empty()) search(0, size, wanted, alignment, best);
    return best == nullptr ? nullptr : best->region;
  }

  // Checks that each region knows its place and lies above its parent.
  bool is_sound() const {
    for (std::size_t place = 0; place < count(); ++place) {
      const Entry& entry = at(place);
      if (entry.region->size_place != place || entry.region->range.begin != entry.begin)
        return false;
      if (place > 0 && at((place - 1) / kChildren).begin >= entry.begin) return false;
    }
    return true;
  }
  std::size_t size() const { return count(); }
  // Place 0 has the lowest; the others are unordered.
  const Entry& entry(std::size_t place) const { return at(place); }
  template <typename Visit>
  void visit(const Visit& visit) const {
    for (std::size_t place = 0; place < count(); ++place) visit(at(place).region);
  }

 private:
  static constexpr std::size_t kChildren = 4;

  std::size_t count() const { return empty() ? 0 : 1 + rest_.size(); }
  const Entry& at(std::size_t place) const { return place == 0 ? root_ : rest_[place - 1]; }

  void put(std::size_t place, const Entry& entry) {
    (place == 0 ? root_ : rest_[place - 1]) = entry;
    entry.region->size_place = static_cast<std::uint32_t>(place);
  }

  // Puts `entry` at the vacant `place`, or above.
  void rise(std::size_t place, const Entry entry) {
    while (place > 0) {
      const std::size_t parent = (place - 1) / kChildren;
      if (at(parent).begin < entry.begin) break;
      put(place, at(parent));
      place = parent;
    }
    put(place, entry);
  }

  // Puts `entry` at the vacant `place`, or below.
  void sink(std::size_t place, const Entry entry) {
    for (;;) {
      const std::size_t first = place * kChildren + 1;
      if (first >= count()) break;
      const std::size_t end = first + kChildren < count() ? first + kChildren : count();
      std::size_t lowest = first;
      for (std::size_t child = first + 1; child < end; ++child)
        if (at(child).begin < at(lowest).begin) lowest = child;
      if (entry.begin < at(lowest).begin) break;
      put(place, at(lowest));
      place = lowest;
    }
    put(place, entry);
  }

  // Looks below a node only while no lower entry was found and the node itself does not fit.
  void search(std::size_t place, Bytes size, Bytes wanted, Bytes alignment,
              const Entry*& best) const {
    const Entry& here = at(place);
    if (best != nullptr && best->begin < here.begin) return;
    if (aligned_start({here.begin, size}, wanted, alignment)) {
      best = &here;
      return;
    }
    const std::size_t first = place * kChildren + 1;
    for (std::size_t child = first; child < first + kChildren && child < count(); ++child)
      search(child, size, wanted, alignment, best);
  }

  Entry root_;          // region null: empty heap
  Vector<Entry> rest_;  // place n lies at n - 1; its children at 4n + 1 to 4n + 4
};

}  // namespace vpmm::region
