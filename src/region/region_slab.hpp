// region: memory for region nodes; a node's address never changes while it is in use.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// A node that was just given back is the next to be taken: the caches still have it.
class RegionSlab {
 public:
  RegionSlab() = default;
  RegionSlab(const RegionSlab&) = delete;
  RegionSlab& operator=(const RegionSlab&) = delete;
  ~RegionSlab() {
    for (const Block& block : blocks_) {
      std::destroy_n(block.nodes, block.made);
      std::free(block.nodes);
    }
  }

  // A hole of no extent.
  Region* make() {
    if (unused_ == nullptr) return make_new();
    Region* const node = unused_;
    unused_ = node->next;
    node->next = nullptr;
    return node;
  }

  // Requires: in no file and not allocated, so that tenant, holder and places are as those of a new one.
  void recycle(Region* node) {
    node->range = {};
    node->previous = nullptr;
    node->next = unused_;
    node->reservation = nullptr;
    node->age = 0;
    node->state = RegionState::hole;
    node->stamp = {};
    unused_ = node;
  }

 private:
  struct Block {
    Region* nodes = nullptr;
    std::size_t size = 0;
    std::size_t made = 0;  // nodes[0, made) are constructed
  };
  static constexpr std::size_t kFirstBlock = 32;
  static constexpr std::size_t kLargestBlock = 2 * kMiB / sizeof(Region);  // a huge page
  static_assert(is_power_of_two(sizeof(Region)), "blocks are aligned to their size");

  Region* make_new() {
    if (blocks_.empty()) add_block(kFirstBlock);
    if (blocks_.back().made == blocks_.back().size) add_block(std::min(2 * blocks_.back().size, kLargestBlock));
    Block& block = blocks_.back();
    return std::construct_at(block.nodes + block.made++);
  }

  // Of very many nodes each one is a miss, and on small memory pages a second one for where its page is. Without huge
  // pages the advice does nothing.
  void add_block(std::size_t size) {
    const std::size_t bytes = size * sizeof(Region);
    void* const memory = std::aligned_alloc(bytes, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (size == kLargestBlock) static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
    blocks_.push_back({static_cast<Region*>(memory), size, 0});
  }

  Vector<Block> blocks_;
  Region* unused_ = nullptr;  // chained by `next`
};

}  // namespace vpmm::region
