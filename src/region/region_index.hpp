// SPDX-License-Identifier: Apache-2.0
// region: all regions of a pool: a partition of the reserved address space, searchable by size,
// stamp, age and address.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "region/aligned_start.hpp"
#include "region/region.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

// Pure bookkeeping: no driver, lock, clock or log. Sizes are whole pages, addresses whole pages
// from the begin of their reservation. A broken precondition aborts with the picture of the index.
//
// Stamps are taken as given: only advance() completes a number, and only for regions in the index
// at that moment. A part complete before its region came in is dropped by the next advance() that
// covers it.
//
// Use the region that a changing function returns: the one passed in may be the rest of a cut, and
// it, like free regions and holes beside it, may have merged and be gone. The rests of a cut are
// `previous` and `next` of the result.
//
// Invariants (validate() checks all):
// - the regions of a reservation, in list order, tile it without gap or overlap;
// - no two neighbouring free regions are both complete, or both single-part on one timeline; no two
//   neighbouring holes; regions of different reservations never merge;
// - every free region stands in exactly the search structures of its stamp;
// - junctions = borders between two touching free regions;
// - allocated_around(p) = the allocated region around p, null elsewhere;
// - sums by state = sums over the regions.
class RegionIndex {
 public:
  explicit RegionIndex(Bytes page_size);
  ~RegionIndex();
  RegionIndex(const RegionIndex&) = delete;
  RegionIndex& operator=(const RegionIndex&) = delete;

  // --- address space ---
  void add_reservation(AddressRange range);
  // Forgets a reservation that is one hole, or one complete free region, from end to end.
  void remove_reservation(AddressRange range);
  // Smallest hole in which `size` bytes at `alignment` fit; lowest address among equals. Null if
  // none.
  Region* smallest_hole(Bytes size, Bytes alignment) const;
  // Visits holes of at least `size` bytes by ascending size; `visit` returns false to stop and must
  // not change the index.
  void for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const;
  // Hole around `p`; null if none. Linear in the regions of the reservation.
  Region* hole_around(DevicePtr p) const;

  // --- looking ---
  // Allocated region around `p`; null if none. As fast as the search for its reservation.
  Region* allocated_around(DevicePtr p) const;
  // Order of regions usable by `own`: by size alone, or those pending on `own`, closed to other
  // streams, before all complete ones.
  enum class First { smaller, own };
  // Smallest region usable at once by `own` (nullopt: any-stream): complete, or single-part on
  // `own`. Lowest address among equals. Null if none.
  Region* best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                   First first = First::smaller) const;
  // The lowest of them, of any size. One step per size.
  Region* lowest_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const;
  // Visits the candidates of best_fit(), of any alignment, by ascending size, the lowest of each
  // size first; `visit` returns false to stop and must not change the index.
  void for_each_fit(Bytes size, std::optional<time::TimelineId> own, First first,
                    FunctionRef<bool(Region*)> visit) const;
  // Visits maximal runs of two or more adjacent free regions (kept apart by their stamps), by
  // address. `visit` returns false to stop; none of the visits below may change the index.
  void for_each_run(FunctionRef<bool(const Vector<Region*>& run)> visit) const;
  bool has_runs() const;
  // Same for at least every run with a region pending on `own` alone, unordered, perhaps more than
  // once. Elsewhere, memory that `own` may use without a wait is one region.
  void for_each_run_with(time::TimelineId own,
                         FunctionRef<bool(const Vector<Region*>& run)> visit) const;
  // Visits free regions, oldest first, by address among equals. `visit` returns false to stop.
  void for_each_free_by_age(FunctionRef<bool(Region*)> visit) const;
  // Visits zombies in the order they became zombies. `visit` returns false to stop.
  void for_each_zombie(FunctionRef<bool(Region*)> visit) const;
  bool has_zombies() const;
  void for_each(FunctionRef<void(const Region&)> visit) const;

  // --- changing ---
  // Cuts `part` out of a free region and gives it to `owner`. The rest keeps stamp and age.
  Region* allocate(Region* free, AddressRange part, Owner owner);
  // Gives an allocated region to `owner`, without a holder.
  void hand_over(Region* allocated, Owner owner);
  // Splits an allocated region at `at`; both parts keep the owner, and share the requested bytes.
  // Returns the back.
  Region* split_allocated(Region* allocated, DevicePtr at);
  // Frees an allocated region; merges with neighbours (later number, older age). Returns the
  // result.
  Region* release(Region* allocated, time::Stamp stamp);
  // Cuts `part` out of a free region, hole or zombie; the result is in flight, closed to others.
  // The rest stays as it was. The detached region keeps stamp and age: attach_free(r, r->stamp,
  // r->age()) restores it.
  Region* detach(Region* region, AddressRange part);
  // End a flight: the region takes the new state. Free regions and holes merge. Return the result.
  Region* attach_free(Region* in_flight, time::Stamp stamp,
                      std::optional<std::uint64_t> age = std::nullopt);
  Region* attach_hole(Region* in_flight);
  Region* attach_zombie(Region* in_flight, time::Stamp stamp);
  Region* attach_allocated(Region* in_flight, Owner owner);
  // Splits an in-flight region at `at`; returns {front, back}, both in flight.
  std::pair<Region*, Region*> split_in_flight(Region* in_flight, DevicePtr at);
  // Joins two neighbours, both in flight or both allocated, the back without a holder; keeps the
  // front's stamp or owner, the sum of the requested bytes, and the older age.
  Region* join(Region* front, Region* back);
  // Completes all numbers up to `sequence` of `timeline`: drops those parts from stamps, merges.
  void advance(time::TimelineId timeline, std::uint64_t sequence);

  // --- figures, all O(1) except largest_free ---
  Bytes bytes(RegionState state) const;
  std::uint64_t count(RegionState state) const;
  Bytes pending_bytes() const;                           // free and not complete
  Bytes pending_bytes(time::TimelineId timeline) const;  // free, with a part on this timeline
  Bytes requested_bytes() const;  // sum of owner.requested over allocated regions
  Bytes largest_free() const;

  // The first broken invariant as text; empty if all hold.
  std::string validate() const;
  // Formats "[4][-6][1][*10][~2]" in units of `in`, or pages, reservations concatenated, without
  // the hole at the end of each. Only holes and free regions are merged.
  std::string picture(std::optional<Bytes> in = std::nullopt) const;

 private:
  struct Private;

  Bytes page_size_;
  std::unique_ptr<Private> private_;
};

}  // namespace vpmm::region
