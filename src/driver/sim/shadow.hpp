// SPDX-License-Identifier: Apache-2.0
// driver/sim: records of the hazard checker about the bytes of one chunk, allocated on touch.
//
// Sorted, disjoint segments at byte resolution, in pages of 2 MiB; a page with many segments is cut
// into leaves of 64 KiB, so that an insertion never moves more than a few kilobytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.hpp"
#include "driver/sim/vector_clock.hpp"

namespace vpmm::driver::sim {

enum class NameId : std::uint32_t {};

// One operation: the n-th of its actor. n == 0: none.
struct Position {
  std::uint64_t n = 0;
  Slot slot = kHostSlot;
  NameId what{};
  bool exists() const { return n != 0; }
  friend bool operator==(const Position&, const Position&) = default;
};

// Right to touch a byte, by annotations.
enum class TouchRight : std::uint8_t {
  none,       // no annotation
  driver,     // handed out by the driver itself (mem_alloc, mem_alloc_from_pool_async)
  allocated,  // handed out by an observed allocator
  captured,   // freed on a capturing stream: launches of the graph still use it
  freed,
};

// Bytes [begin, end) of a page with one history. All accesses before `write` are ordered before it.
struct ShadowSegment {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  TouchRight owner = TouchRight::none;
  std::uint64_t base = 0;  // allocated: address minus chunk offset, under which the owner got it
  Position write;          // the last write, allocation or deallocation
  Position read;           // a read since then
  std::vector<Position> more_reads;  // further ones, unordered with `read`

  bool same_history(const ShadowSegment& other) const {
    return owner == other.owner && base == other.base && write == other.write &&
           read == other.read && more_reads == other.more_reads;
  }
  std::uint64_t records() const { return 1 + more_reads.size(); }
};
using Segments = std::vector<ShadowSegment>;

class Shadow {
 public:
  static constexpr Bytes kPageSize = 2 * kMiB;
  static constexpr Bytes kLeafSize = 64 * kKiB;
  static constexpr std::size_t kLeavesPerPage = kPageSize / kLeafSize;
  static constexpr std::size_t kSegmentsPerPage = 64;  // more: the page is cut into leaves

  Shadow(Bytes size, TouchRight blank)
      : pages_((size + kPageSize - 1) / kPageSize), blank_(blank) {}

  // Ownership of bytes without a segment.
  TouchRight blank() const { return blank_; }
  bool annotated() const { return annotated_; }
  void set_annotated() { annotated_ = true; }

  // View of a fully covered page: as it is, or as one leaf (for changes that leave one segment
  // behind anyway).
  enum class Cover { as_is, whole };
  // Calls f(segments, origin, begin, end): `origin` is the page's offset in the chunk, the rest
  // relative to it.
  template <typename F>
  void visit(Bytes begin, Bytes end, Cover cover, F&& f) {
    for (std::size_t i = begin / kPageSize; i < pages_.size() && i * kPageSize < end; ++i) {
      const Bytes origin = i * kPageSize;
      const auto from = static_cast<std::uint32_t>(begin > origin ? begin - origin : 0);
      const auto to =
          static_cast<std::uint32_t>(end - origin < kPageSize ? end - origin : kPageSize);
      Page& page = pages_[i];
      if (page.leaves && cover == Cover::whole && from == 0 && to == kPageSize) page.join();
      if (page.leaves) {
        visit_leaves(*page.leaves, origin, from, to, f);
        continue;
      }
      f(page.segments, origin, from, to);
      if (page.segments.size() > kSegmentsPerPage) page.split();
    }
  }
  // Calls f(segments) for every list; joins pages that became small again.
  template <typename F>
  void visit_all(F&& f) {
    for (Page& page : pages_) {
      if (!page.leaves) {
        if (!page.segments.empty()) f(page.segments);
        continue;
      }
      std::size_t left = 0;
      for (Segments& leaf : *page.leaves) {
        f(leaf);
        left += leaf.size();
      }
      if (left <= kSegmentsPerPage / 2) page.join();
    }
  }

  // Place in the checker's list of shadows; kept by the checker.
  std::size_t index = 0;

 private:
  using Leaves = std::array<Segments, kLeavesPerPage>;
  // The leaves hold the page's segments if `leaves` is set, else `segments`.
  struct Page {
    Segments segments;
    std::unique_ptr<Leaves> leaves;
    void split();
    void join();
  };
  template <typename F>
  static void visit_leaves(Leaves& leaves, Bytes origin, std::uint32_t from, std::uint32_t to,
                           F& f) {
    constexpr auto kLeaf = static_cast<std::uint32_t>(kLeafSize);
    for (std::uint32_t leaf = from / kLeaf; leaf < kLeavesPerPage && leaf * kLeaf < to; ++leaf) {
      const std::uint32_t leaf_begin = leaf * kLeaf;
      f(leaves[leaf], origin, from > leaf_begin ? from : leaf_begin,
        to < leaf_begin + kLeaf ? to : leaf_begin + kLeaf);
    }
  }

  std::vector<Page> pages_;
  TouchRight blank_;
  bool annotated_ = false;  // an observed allocator uses this chunk alone
};

}  // namespace vpmm::driver::sim
