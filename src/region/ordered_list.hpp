// SPDX-License-Identifier: Apache-2.0
// region: regions in ascending order of a number; nearly always the largest is added.
#pragma once

#include <cstdint>

#include "base/host_memory.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// Ages and sequence numbers ascend, so nearly every region belongs at the end of its list; a list
// linked through the regions takes and loses one in a few writes. The few regions with an old
// number stand beside the list in a tree, as stragglers; the order covers both.
//
// Links::of(region): the region's link in this list. Among equal numbers the lowest address comes
// first. A listed region may change its address if it passes none with the same number.
template <typename Links>
class OrderedList {
 public:
  bool empty() const { return first_ == nullptr && stragglers_.empty(); }

  void add(Region* region, std::uint64_t number) {
    Links::of(*region) = {nullptr, nullptr, number};
    if (last_ == nullptr || is_before(last_, region))
      link_behind(last_, region);
    else
      stragglers_.insert(region);
  }

  // Adds `region`, cut from the end of `place`, with the number of `place`.
  void add_behind(Region* place, Region* region) {
    Links::of(*region) = {nullptr, nullptr, Links::of(*place).number};
    if (is_straggler(place))
      stragglers_.insert(region);
    else
      link_behind(place, region);
  }

  void remove(Region* region) {
    if (is_straggler(region)) {
      stragglers_.erase(region);
      return;
    }
    const ListLink& link = Links::of(*region);
    (link.previous == nullptr ? first_ : Links::of(*link.previous).next) = link.next;
    (link.next == nullptr ? last_ : Links::of(*link.next).previous) = link.previous;
  }

  // Puts `region` in the place of `other`, with its number. Requires: `region` is unlisted and
  // touches `other` from the front.
  void replace(Region* other, Region* region) {
    if (is_straggler(other)) {
      stragglers_.erase(other);
      add(region, Links::of(*other).number);
      return;
    }
    const ListLink& link = Links::of(*region) = Links::of(*other);
    (link.previous == nullptr ? first_ : Links::of(*link.previous).next) = region;
    (link.next == nullptr ? last_ : Links::of(*link.next).previous) = region;
  }

  // Null if empty.
  Region* front() const {
    if (stragglers_.empty()) return first_;
    Region* const straggler = *stragglers_.begin();
    return first_ == nullptr || is_before(straggler, first_) ? straggler : first_;
  }

  // Visits the regions in order until `visit` returns false. `visit` must not change the list.
  template <typename Visit>
  void visit_in_order(const Visit& visit) const {
    auto straggler = stragglers_.begin();
    for (Region* region = first_; region != nullptr; region = Links::of(*region).next) {
      for (; straggler != stragglers_.end() && is_before(*straggler, region); ++straggler)
        if (!visit(*straggler)) return;
      if (!visit(region)) return;
    }
    for (; straggler != stragglers_.end(); ++straggler)
      if (!visit(*straggler)) return;
  }

  bool is_sound() const {
    const Region* before = nullptr;
    for (const Region* region = first_; region != nullptr; region = Links::of(*region).next) {
      if (Links::of(*region).previous != before ||
          (before != nullptr && !is_before(before, region)))
        return false;
      before = region;
    }
    if (last_ != before) return false;
    before = nullptr;
    for (const Region* region : stragglers_) {
      if (!is_straggler(region) || (before != nullptr && !is_before(before, region))) return false;
      before = region;
    }
    return true;
  }

 private:
  static bool is_before(const Region* a, const Region* b) {
    const std::uint64_t number_a = Links::of(*a).number;
    const std::uint64_t number_b = Links::of(*b).number;
    return number_a != number_b ? number_a < number_b : a->range.begin < b->range.begin;
  }
  struct Before {
    bool operator()(const Region* a, const Region* b) const { return is_before(a, b); }
  };

  // Requires: listed.
  bool is_straggler(const Region* region) const {
    return Links::of(*region).previous == nullptr && first_ != region;
  }

  void link_behind(Region* place, Region* region) {
    ListLink& link = Links::of(*region);
    link.previous = place;
    link.next = place == nullptr ? first_ : Links::of(*place).next;
    (link.previous == nullptr ? first_ : Links::of(*place).next) = region;
    (link.next == nullptr ? last_ : Links::of(*link.next).previous) = region;
  }

  Region* first_ = nullptr;
  Region* last_ = nullptr;
  Set<Region*, Before> stragglers_;  // linked to none
};

struct AgeLinks {
  static ListLink& of(Region& region) { return region.by_age; }
  static const ListLink& of(const Region& region) { return region.by_age; }
};

template <int Part>
struct SequenceLinks {
  static ListLink& of(Region& region) { return region.parts[Part].by_sequence; }
  static const ListLink& of(const Region& region) { return region.parts[Part].by_sequence; }
};

}  // namespace vpmm::region
