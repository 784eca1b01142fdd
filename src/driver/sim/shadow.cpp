// SPDX-License-Identifier: Apache-2.0
// driver/sim: cuts pages of a shadow into leaves and back.
#include "driver/sim/shadow.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::driver::sim {

void Shadow::Page::split() {
  leaves = std::make_unique<Leaves>();
  constexpr auto kLeaf = static_cast<std::uint32_t>(kLeafSize);
  for (const ShadowSegment& segment : segments) {
    for (std::uint32_t begin = segment.begin; begin < segment.end;) {
      const std::uint32_t leaf = begin / kLeaf;
      ShadowSegment piece = segment;
      piece.begin = begin;
      piece.end = std::min(segment.end, (leaf + 1) * kLeaf);
      begin = piece.end;
      (*leaves)[leaf].push_back(std::move(piece));
    }
  }
  segments = Segments{};
}

void Shadow::Page::join() {
  for (Segments& leaf : *leaves) {
    for (ShadowSegment& segment : leaf) {
      if (!segments.empty() && segments.back().end == segment.begin &&
          segments.back().same_history(segment)) {
        segments.back().end = segment.end;
      } else {
        segments.push_back(std::move(segment));
      }
    }
  }
  leaves.reset();
}

}  // namespace vpmm::driver::sim
