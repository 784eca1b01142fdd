// SPDX-License-Identifier: Apache-2.0
// region: files regions to be found by size, pending number, age, address and touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/page_unit.hpp"
#include "region/ordered_list.hpp"
#include "region/region.hpp"
#include "region/reservation.hpp"
#include "region/size_index.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

// Free regions and zombies with a part of their stamp on one timeline.
struct TimelineFile {
  TimelineFile(time::TimelineId id, const PageUnit& unit) : timeline(id), single_by_size(unit) {}

  bool empty() const { return first_parts.empty() && second_parts.empty(); }
  Region* oldest() const;
  std::uint64_t sequence_of(const Region& region) const;

  time::TimelineId timeline;
  OrderedList<SequenceLinks<0>> first_parts;   // those with Region::parts[0] here, by sequence
  OrderedList<SequenceLinks<1>> second_parts;  // those with Region::parts[1] here, by sequence
  SizeIndex single_by_size;                    // free regions with this as their only part
  Bytes pending_bytes = 0;                     // of the free regions here
};

// Files a region by its fields alone:
//   hole       by size
//   free       by age; by size among the complete, the single-part ones of its timeline, or the
//              two-part ones; by sequence under the timeline of each part of its stamp
//   zombie     by age; by sequence under the timeline of each part of its stamp
//   allocated  at its first page
// and sums up each state. Junctions, the borders between touching free regions, follow from
// neighbours. So validate() can compare the files with the regions.
class Catalogue {
 public:
  explicit Catalogue(Bytes page_size)
      : unit_(page_size),
        holes_(unit_),
        complete_by_size_(unit_),
        two_part_by_size_(unit_),
        no_sizes_(unit_) {}

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
  // Takes the part on `timeline` from the stamp and the list. Requires: listed, not entered.
  void drop_part(Region* region, time::TimelineId timeline);

  // Tells if an entered free region ends at the begin, or begins at the end, of `region`.
  bool touches_free_before(const Region& region) const;
  bool touches_free_behind(const Region& region) const;
  // Files or removes the border between two neighbours; no effect if done already.
  void add_junction(Region* behind);
  void remove_junction(Reservation& reservation, DevicePtr border);

  Region* smallest_hole(Bytes size, Bytes alignment) const {
    return holes_.first_fit(size, alignment).region;
  }
  void for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const;
  Region* best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                   bool own_first) const;
  Region* lowest_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const;
  void for_each_fit(Bytes size, std::optional<time::TimelineId> own, bool own_first,
                    FunctionRef<bool(Region*)> visit) const;
  // Free region or zombie that waits for a number up to `sequence` of `timeline`; null if none.
  Region* waiting_for(time::TimelineId timeline, std::uint64_t sequence) const;

  const OrderedList<AgeLinks>& free_by_age() const { return free_by_age_; }
  const OrderedList<AgeLinks>& zombies() const { return zombies_; }
  // Visits the regions behind junctions, by address; `visit` returns the address to go on from, or
  // nullopt to stop.
  void visit_junctions(FunctionRef<std::optional<DevicePtr>(Region* behind)> visit) const;
  std::uint64_t junctions() const { return junctions_; }
  const SizeIndex& single_on(time::TimelineId timeline) const;

  Bytes bytes(RegionState state) const { return sums_[static_cast<std::size_t>(state)].bytes; }
  std::uint64_t count(RegionState state) const {
    return sums_[static_cast<std::size_t>(state)].count;
  }
  Bytes pending_bytes() const { return pending_bytes_; }
  Bytes pending_bytes(time::TimelineId timeline) const;
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
  struct ByAddress {
    bool operator()(const Reservation* a, const Reservation* b) const {
      return a->range.begin < b->range.begin;
    }
  };

  // List of a state's regions by age; null: the state has none.
  OrderedList<AgeLinks>* list_of(RegionState state);
  void enlist_parts(Region* region);
  void delist_parts(Region* region);
  void unite_parts(Region* front, Region* back);
  void enter_free(Region* region);
  void leave_free(Region* region);
  void flip_free(const Region& region);
  SizeIndex& free_by_size(const Region& region);
  std::uint64_t first_page(const Region& region) const;
  TimelineFile& timeline_file(time::TimelineId timeline);
  const TimelineFile* find(time::TimelineId timeline) const;

  std::string size_difference(const Vector<const Region*>& regions) const;
  std::string sum_difference(const Vector<const Region*>& regions) const;
  std::string timeline_difference(const Vector<const Region*>& regions) const;
  std::string place_difference(const Vector<const Region*>& regions) const;

  PageUnit unit_;
  SizeIndex holes_;
  SizeIndex complete_by_size_;
  SizeIndex two_part_by_size_;
  SizeIndex no_sizes_;  // always empty: for a timeline without a file
  OrderedList<AgeLinks> free_by_age_;
  OrderedList<AgeLinks> zombies_;
  Set<Reservation*, ByAddress> joined_;
  // Files without pending regions stay, so that an allocate and free loop does not make one each
  // time; they are dropped when the table has doubled since, so that files of past streams do not
  // pile up.
  HashMap<time::TimelineId, TimelineFile> timelines_;
  std::size_t drop_empty_at_ = 16;
  std::uint64_t junctions_ = 0;
  TimelineFile* last_file_ = nullptr;  // the last one asked for, mostly asked for next
  std::array<StateSum, 5> sums_{};
  Bytes pending_bytes_ = 0;
  Bytes requested_bytes_ = 0;
};

}  // namespace vpmm::region
