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

// Pure bookkeeping: no driver, no lock, no clock, no log. All sizes are whole pages, all addresses
// whole pages from the beginning of their reservation. A broken precondition aborts with the
// picture of the index.
//
// A stamp is taken as it is given: only advance() tells the index that a number is complete, and
// only of what is in the index at that moment. A part that was complete before it came in is
// dropped by the next advance() that covers it.
//
// Go on with the region that a changing function returns: the one passed in may be what a cut left
// over, and it, like free regions and holes next to it, may have become part of another and be
// gone. What a cut leaves over is found as `previous` and `next` of the result.
//
// Invariants (validate() checks them all):
// - the regions of a reservation, in list order, tile it without gap or overlap;
// - no two neighbouring free regions could be one: both complete, or both single-part on one
// timeline;
//   no two neighbouring holes; regions of different reservations never merge;
// - every free region stands in exactly the search structures its stamp calls for;
// - junctions are the places where two free regions touch;
// - allocated_around(p) is the allocated region around p, for every p of an allocated region, and
// null elsewhere;
// - the sums by state are the sums of the regions.
class RegionIndex {
 public:
  explicit RegionIndex(Bytes page_size);
  ~RegionIndex();
  RegionIndex(const RegionIndex&) = delete;
  RegionIndex& operator=(const RegionIndex&) = delete;

  // --- address space ---
  void add_reservation(AddressRange range);  // becomes one hole
  // Forgets a reservation that is one hole, or one complete free region, from end to end.
  void remove_reservation(AddressRange range);
  // Smallest hole in which `size` bytes at `alignment` fit; lowest address among equals.
  Region* smallest_hole(Bytes size, Bytes alignment) const;
  // Visits holes of at least `size` bytes in ascending order of size; `visit` returns false to stop
  // and must not change the index.
  void for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const;
  // The hole around `p`, in as many steps as there are regions in its reservation; null: there is
  // none.
  Region* hole_around(DevicePtr p) const;

  // --- looking ---
  // The allocated region around `p`, as fast as its reservation is found among the others; null
  // when there is none.
  Region* allocated_around(DevicePtr p) const;
  // Which of two regions comes first that `own` may use: the smaller one, whatever it is, or those
  // that are pending on `own`, so that nobody else may use them yet, before all that are complete.
  enum class First { smaller, own };
  // Smallest region fit for immediate use by `own` (a timeline, or none for any-stream): complete
  // ones and those single-part on `own`. Among equals the lowest address.
  Region* best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                   First first = First::smaller) const;
  // The lowest of them, whatever their sizes, in as many steps as there are sizes.
  Region* lowest_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const;
  // Visits the regions among which best_fit() chooses (whatever alignment), in ascending order of
  // size, the lowest of each size first; `visit` returns false to stop and must not change the
  // index.
  void for_each_fit(Bytes size, std::optional<time::TimelineId> own, First first,
                    FunctionRef<bool(Region*)> visit) const;
  // Where an aligned allocation of `size` would start in `region`; none if it does not fit.
  static std::optional<DevicePtr> aligned_start(const Region& region, Bytes size, Bytes alignment) {
    return region::aligned_start(region.range, size, alignment);
  }
  // Maximal runs of two or more adjacent free regions (that are not one because of their stamps),
  // by address. `visit` returns false to stop; none of the visits below may change the index.
  void for_each_run(FunctionRef<bool(const Vector<Region*>& run)> visit) const;
  bool has_runs() const;
  // The same of those with a region that is pending on `own` alone, in any order, and perhaps more
  // than once; others may be visited, too. What `own` may use without a wait is one region
  // everywhere else.
  void for_each_run_with(time::TimelineId own,
                         FunctionRef<bool(const Vector<Region*>& run)> visit) const;
  // Free regions, oldest first, by address among equals. `visit` returns false to stop.
  void for_each_free_by_age(FunctionRef<bool(Region*)> visit) const;
  // Zombies in the order they became zombies. `visit` returns false to stop.
  void for_each_zombie(FunctionRef<bool(Region*)> visit) const;
  // Every region in ascending address order, over all reservations.
  void for_each(FunctionRef<void(const Region&)> visit) const;

  // --- changing ---
  // Cuts `part` out of a free region and gives it to `owner`. What is left keeps stamp and age.
  Region* allocate(Region* free, AddressRange part, Owner owner);
  // Another's from now on, without a holder.
  void hand_over(Region* allocated, Owner owner);
  // Splits an allocated region at `at`: each part is its owner's, who asked for all of it. Returns
  // the back.
  Region* split_allocated(Region* allocated, DevicePtr at);
  // Frees an allocated region; merges with neighbours (the later number, the older age). Returns
  // the result.
  Region* release(Region* allocated, time::Stamp stamp);
  // Cuts `part` out of a free region, hole or zombie; the result is in flight and nobody else's.
  // What is left stays as it was. The detached region remembers stamp and age, so attach_free(r,
  // r->stamp, r->age) takes it back.
  Region* detach(Region* region, AddressRange part);
  // Ends of a flight: the in-flight region becomes what it now is. Free regions and holes merge;
  // the result is returned.
  Region* attach_free(Region* in_flight, time::Stamp stamp,
                      std::optional<std::uint64_t> age = std::nullopt);
  Region* attach_hole(Region* in_flight);
  Region* attach_zombie(Region* in_flight, time::Stamp stamp);
  Region* attach_allocated(Region* in_flight, Owner owner);
  // Splits an in-flight region at `at`; returns {front, back}, both in flight.
  std::pair<Region*, Region*> split_in_flight(Region* in_flight, DevicePtr at);
  // Joins two neighbouring in-flight regions into one, which remembers the front's stamp and the
  // older age.
  Region* join_in_flight(Region* front, Region* back);
  // All numbers up to `sequence` of `timeline` are complete: drops those parts from stamps, merges.
  void advance(time::TimelineId timeline, std::uint64_t sequence);

  // --- figures, all O(1) except largest_free ---
  Bytes bytes(RegionState state) const;
  std::uint64_t count(RegionState state) const;
  Bytes pending_bytes() const;                           // free and not complete
  Bytes pending_bytes(time::TimelineId timeline) const;  // free, with a part on this timeline
  Bytes requested_bytes() const;  // sum over allocated regions of what users asked for
  Bytes largest_free() const;

  // The first broken invariant as text; empty when all hold.
  std::string validate() const;
  // "[4][-6][1][*10][~2]" in units of `unit` (none: pages), reservations concatenated; the hole at
  // the very end of each reservation is left out. All but holes and free regions stand one by one.
  std::string picture(Bytes unit) const;
  std::string picture() const { return picture(page_size_); }

 private:
  struct Private;

  void check_part(const Region& region, AddressRange part) const;
  // Takes an in-flight region out of the air; it is `state` now, but not filed.
  void land(Region* in_flight, RegionState state);

  Bytes page_size_;
  std::unique_ptr<Private> private_;
};

}  // namespace vpmm::region
