// SPDX-License-Identifier: Apache-2.0
// region: files regions to be found by size, pending number, age, address and touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/page_unit.hpp"
#include "region/ordered_list.hpp"
#include "region/region.hpp"
#include "region/size_index.hpp"
#include "region/timeline_files.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

// Files a region by its fields alone:
//   hole       by size
//   free       by age; by size among the complete, the single-part ones of its timeline, or the
//              two-part ones; by sequence under the timeline of each part of its stamp
//   zombie     by age; by sequence under the timeline of each part of its stamp
//   allocated  at its first page
// and sums up each state. So validate() can compare the files with the regions.
class Catalogue {
 public:
  explicit Catalogue(Bytes page_size)
      : unit_(page_size),
        holes_(unit_),
        complete_by_size_(unit_),
        two_part_by_size_(unit_),
        timelines_(unit_) {}

  const PageUnit& unit() const { return unit_; }

  // From file() to unfile() only fields that no search reads may change.
  void file(Region* region) {
    enlist(region);
    enter(region);
  }
  void unfile(Region* region) {
    leave(region);
    delist(region);
  }

  // Halves of file() and unfile(). By age and sequence: enlist() and delist(). The rest: enter()
  // and leave(). A free region or zombie that left but is listed may be cut, or united with a
  // neighbour, and enter again.
  void enlist(Region* region);
  void delist(Region* region);
  void enter(Region* region);
  void leave(Region* region);

  // Lists `behind`, cut from the end of `region`, a free region or zombie.
  void enlist_behind(Region* region, Region* behind);
  // Lists `front` for two free neighbours that become one, with the stamp and age of both, and
  // delists `back`. Requires: neither entered.
  void unite(Region* front, Region* back);

  Region* smallest_hole(Bytes size, Bytes alignment) const {
    return holes_.first_fit(size, alignment).region;
  }
  void for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const;
  Region* best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                   bool own_first) const;
  Region* lowest_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const;
  void for_each_fit(Bytes size, std::optional<time::TimelineId> own, bool own_first,
                    FunctionRef<bool(Region*)> visit) const;

  const OrderedList<AgeLinks>& free_by_age() const { return free_by_age_; }
  const OrderedList<AgeLinks>& zombies() const { return zombies_; }
  const TimelineFiles& timelines() const { return timelines_; }

  Bytes bytes(RegionState state) const { return sums_[static_cast<std::size_t>(state)].bytes; }
  std::uint64_t count(RegionState state) const {
    return sums_[static_cast<std::size_t>(state)].count;
  }
  Bytes pending_bytes() const { return pending_bytes_; }
  Bytes requested_bytes() const { return requested_bytes_; }
  Bytes largest_free() const;

  // Difference between the files and `regions`, if these are all regions; empty if equal.
  std::string difference(const Vector<const Region*>& regions) const;

 private:
  struct StateSum {
    Bytes bytes = 0;
    std::uint64_t count = 0;
    friend bool operator==(const StateSum&, const StateSum&) = default;
  };

  // List of a state's regions by age; null: the state has none.
  OrderedList<AgeLinks>* list_of(RegionState state);
  void enter_free(Region* region);
  void leave_free(Region* region);
  void flip_free(const Region& region);
  SizeIndex& free_by_size(const Region& region);

  std::string size_difference(const Vector<const Region*>& regions) const;
  std::string sum_difference(const Vector<const Region*>& regions) const;
  std::string place_difference(const Vector<const Region*>& regions) const;

  PageUnit unit_;
  SizeIndex holes_;
  SizeIndex complete_by_size_;
  SizeIndex two_part_by_size_;
  OrderedList<AgeLinks> free_by_age_;
  OrderedList<AgeLinks> zombies_;
  TimelineFiles timelines_;
  std::array<StateSum, 5> sums_{};
  Bytes pending_bytes_ = 0;
  Bytes requested_bytes_ = 0;
};

}  // namespace vpmm::region
