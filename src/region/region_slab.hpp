// region: memory for region nodes; a node's address never changes while it is in use.
#pragma once

#include <deque>

#include "region/region.hpp"

namespace vpmm::region {

class RegionSlab {
 public:
  Region* make() {
    if (unused_ == nullptr) return &nodes_.emplace_back();
    Region* const node = unused_;
    unused_ = node->next;
    node->next = nullptr;
    return node;
  }

  void recycle(Region* node) {
    *node = Region{};
    node->next = unused_;
    unused_ = node;
  }

 private:
  std::deque<Region> nodes_;
  Region* unused_ = nullptr;  // chained by `next`, all other fields as new
};

}  // namespace vpmm::region
