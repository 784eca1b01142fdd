// SPDX-License-Identifier: Apache-2.0
// region: memory for region nodes; a node's address is fixed while in use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/huge_block.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// Reuses the node given back last: it is still in the caches.
class RegionSlab {
 public:
  RegionSlab() = default;
  RegionSlab(const RegionSlab&) = delete;
  RegionSlab& operator=(const RegionSlab&) = delete;
  ~RegionSlab() {
    for (const NodeBlock& block : blocks_) std::destroy_n(block.nodes(), block.made);
  }

  // Makes a hole without reservation; the caller sets its range.
  Region* make() {
    if (unused_ == nullptr) return make_new();
    Region* const node = unused_;
    unused_ = node->next;
    node->next = nullptr;
    return node;
  }

  // Requires: in no file and not allocated, so that owner, holder and places are as those of a new
  // node.
  void recycle(Region* node) {
    node->previous = nullptr;
    node->next = unused_;
    node->reservation = nullptr;
    node->by_age.number = 0;
    node->state = RegionState::hole;
    node->stamp = {};
    unused_ = node;
  }

 private:
  struct NodeBlock {
    explicit NodeBlock(std::size_t bytes) : memory(bytes) {}
    Region* nodes() const { return static_cast<Region*>(memory.begin()); }
    bool is_full() const { return (made + 1) * sizeof(Region) > memory.size(); }

    HugeBlock memory;
    std::size_t made = 0;  // nodes()[0, made) are constructed
  };
  static constexpr std::size_t kFirstBlock = 32 * sizeof(Region);
  static_assert(is_power_of_two(sizeof(Region)), "blocks are aligned to their size");

  Region* make_new() {
    if (blocks_.empty()) blocks_.emplace_back(kFirstBlock);
    if (blocks_.back().is_full())
      blocks_.emplace_back(std::min(2 * blocks_.back().memory.size(), HugeBlock::kHugePage));
    NodeBlock& block = blocks_.back();
    return std::construct_at(block.nodes() + block.made++);
  }

  Vector<NodeBlock> blocks_;
  Region* unused_ = nullptr;  // chained by `next`
};

}  // namespace vpmm::region
