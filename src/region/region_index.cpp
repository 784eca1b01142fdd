// SPDX-License-Identifier: Apache-2.0
// region: changes the partition of the address space.
#include "region/region_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "region/region_index_private.hpp"

namespace vpmm::region {
namespace {

// Makes a node of the same state, stamp, age and reservation.
Region* make_like(RegionSlab& regions, const Region& region) {
  Region* const made = regions.make();
  made->state = region.state;
  made->stamp = region.stamp;
  made->by_age.number = region.age();
  made->reservation = region.reservation;
  return made;
}

}  // namespace

// --- the pieces ---

const Reservation* RegionIndex::Private::find_reservation(DevicePtr p) const {
  auto behind = reservations.upper_bound(p);
  if (behind == reservations.begin()) return nullptr;
  const Reservation& reservation = (--behind)->second;
  return reservation.range.contains(p) ? &reservation : nullptr;
}

bool RegionIndex::Private::overlaps_reservation(AddressRange range) const {
  const auto behind = reservations.lower_bound(range.begin);
  if (behind != reservations.end() && behind->second.range.overlaps(range)) return true;
  return behind != reservations.begin() && std::prev(behind)->second.range.overlaps(range);
}

bool RegionIndex::Private::is_part(const Region& region, AddressRange part) const {
  const PageUnit& unit = catalogue.unit();
  return !part.empty() && region.range.contains(part) && unit.is_whole(part.size) &&
         unit.is_whole(part.begin - region.range.begin);
}

Region* RegionIndex::Private::split_front(Region* region, DevicePtr at) {
  Region* const front = make_like(regions, *region);
  front->range = {region->range.begin, at - region->range.begin};
  region->range = {at, region->range.size - front->range.size};
  front->previous = region->previous;
  front->next = region;
  (front->previous == nullptr ? front->reservation->first : front->previous->next) = front;
  region->previous = front;
  return front;
}

Region* RegionIndex::Private::split_back(Region* region, DevicePtr at) {
  Region* const back = make_like(regions, *region);
  back->range = {at, region->range.end() - at};
  region->range.size -= back->range.size;
  back->previous = region;
  back->next = region->next;
  if (back->next != nullptr) back->next->previous = back;
  region->next = back;
  return back;
}

void RegionIndex::Private::absorb_next(Region* region) {
  Region* const gone = region->next;
  region->range.size += gone->range.size;
  region->next = gone->next;
  if (region->next != nullptr) region->next->previous = region;
  regions.recycle(gone);
}

Region* RegionIndex::Private::cut(Region* region, AddressRange part, RegionState state) {
  const AddressRange whole = region->range;
  const bool was_free = is_free(region);
  catalogue.leave(region);
  if (was_free && part.begin == whole.begin) junctions.remove(*region->reservation, whole.begin);
  if (was_free && part.end() == whole.end()) junctions.remove(*region->reservation, whole.end());
  Region* taken = region;
  if (part == whole) {
    catalogue.delist(region);
  } else if (part.begin == whole.begin) {
    taken = split_front(region, part.end());
    catalogue.enter(region);
  } else {
    taken = split_back(region, part.begin);
    catalogue.enter(region);
    if (part.end() < whole.end()) {
      Region* const rest = split_back(taken, part.end());
      catalogue.enlist_behind(region, rest);
      catalogue.enter(rest);
    }
  }
  taken->state = state;
  return taken;
}

Region* RegionIndex::Private::merge_holes_and_enter(Region* hole) {
  if (hole->next != nullptr && mergeable(*hole, *hole->next)) {
    catalogue.leave(hole->next);
    absorb_next(hole);
  }
  if (hole->previous != nullptr && mergeable(*hole->previous, *hole)) {
    hole = hole->previous;
    catalogue.leave(hole);
    absorb_next(hole);
  }
  catalogue.enter(hole);
  return hole;
}

void RegionIndex::Private::merge(Region* front) {
  junctions.remove(*front->reservation, front->range.end());
  catalogue.unite(front, front->next);
  absorb_next(front);
}

Region* RegionIndex::Private::merge_and_enter(Region* region) {
  if (junctions.touches_free_behind(*region)) {
    Region* const next = region->next;
    if (mergeable(*region, *next)) {
      catalogue.leave(next);
      merge(region);
    } else {
      junctions.add(next);
    }
  }
  if (junctions.touches_free_before(*region)) {
    Region* const previous = region->previous;
    if (mergeable(*previous, *region)) {
      catalogue.leave(previous);
      merge(previous);
      region = previous;
    } else {
      junctions.add(region);
    }
  }
  catalogue.enter(region);
  return region;
}

// --- address space ---

void RegionIndex::Private::land(Region* in_flight, RegionState state) {
  VPMM_CHECK(in_flight->state == RegionState::in_flight, "the region is not in flight");
  catalogue.unfile(in_flight);
  in_flight->state = state;
  in_flight->stamp = {};
  in_flight->by_age.number = 0;
}

RegionIndex::RegionIndex(Bytes page_size)
    : page_size_(page_size), private_(std::make_unique<Private>(page_size)) {
  VPMM_CHECK(page_size > 0, "a page needs a size");
}

RegionIndex::~RegionIndex() = default;

void RegionIndex::add_reservation(AddressRange range) {
  VPMM_CHECK(!range.empty() && private_->catalogue.unit().is_whole(range.size),
             fmt::format("{} bytes reserved", range.size));
  VPMM_CHECK(!private_->overlaps_reservation(range),
             fmt::format("{:#x} is reserved already", to_integer(range.begin)));
  Region* const hole = private_->regions.make();
  try {
    const std::uint64_t pages = private_->catalogue.unit().pages(range.size);
    hole->reservation =
        &private_->reservations.try_emplace(range.begin, range, hole, pages).first->second;
  } catch (...) {
    private_->regions.recycle(hole);  // no other state has changed
    throw;
  }
  hole->range = range;
  private_->catalogue.file(hole);
}

void RegionIndex::remove_reservation(AddressRange range) {
  const auto found = private_->reservations.find(range.begin);
  VPMM_CHECK(
      found != private_->reservations.end() && found->second.range == range,
      fmt::format("{} bytes at {:#x} are no reservation", range.size, to_integer(range.begin)));
  Region* const only = found->second.first;
  const bool is_idle = only->state == RegionState::hole ||
                       (only->state == RegionState::free && only->stamp.is_complete());
  VPMM_CHECK(only->range == range && is_idle, picture());
  private_->catalogue.unfile(only);
  private_->reservations.erase(found);
  private_->regions.recycle(only);
}

Region* RegionIndex::smallest_hole(Bytes size, Bytes alignment) const {
  return private_->catalogue.smallest_hole(size, alignment);
}

void RegionIndex::for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const {
  private_->catalogue.for_each_hole(size, visit);
}

Region* RegionIndex::hole_around(DevicePtr p) const {
  const Reservation* const r = private_->find_reservation(p);
  Region* region = r == nullptr ? nullptr : r->first;
  while (region != nullptr && !region->range.contains(p)) region = region->next;
  return region != nullptr && region->state == RegionState::hole ? region : nullptr;
}

// --- looking ---

Region* RegionIndex::allocated_around(DevicePtr p) const {
  const Reservation* const r = private_->find_reservation(p);
  if (r == nullptr) return nullptr;
  Region* const owner = r->table.owner(private_->catalogue.unit().pages(p - r->range.begin));
  return owner != nullptr && owner->range.contains(p) ? owner : nullptr;
}

Region* RegionIndex::best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                              First first) const {
  return private_->catalogue.best_fit(size, alignment, own, first == First::own);
}

Region* RegionIndex::lowest_fit(Bytes size, Bytes alignment,
                                std::optional<time::TimelineId> own) const {
  return private_->catalogue.lowest_fit(size, alignment, own);
}

void RegionIndex::for_each_fit(Bytes size, std::optional<time::TimelineId> own, First first,
                               FunctionRef<bool(Region*)> visit) const {
  private_->catalogue.for_each_fit(size, own, first == First::own, visit);
}

void RegionIndex::for_each_run(FunctionRef<bool(const Vector<Region*>& run)> visit) const {
  Vector<Region*> run;
  private_->junctions.visit([&](Region* behind) -> std::optional<DevicePtr> {
    run.assign({behind->previous});
    for (Region* region = behind; is_free(region); region = region->next) run.push_back(region);
    const DevicePtr end = run.back()->range.end();
    return visit(run) ? std::optional(end) : std::nullopt;
  });
}

bool RegionIndex::has_runs() const { return private_->junctions.count() > 0; }

void RegionIndex::for_each_run_with(time::TimelineId own,
                                    FunctionRef<bool(const Vector<Region*>& run)> visit) const {
  const SizeIndex& pending = private_->catalogue.timelines().single_on(own);
  if (private_->junctions.count() <= pending.count()) return for_each_run(visit);
  Vector<Region*> run;
  for (SizeIndex::Ascent own_regions(pending, 0); own_regions.region() != nullptr;
       own_regions.next()) {
    Region* first = own_regions.region();
    if (!is_free(first->previous) && !is_free(first->next)) continue;
    while (is_free(first->previous)) first = first->previous;
    run.clear();
    for (Region* region = first; is_free(region); region = region->next) run.push_back(region);
    if (!visit(run)) return;
  }
}

void RegionIndex::for_each_free_by_age(FunctionRef<bool(Region*)> visit) const {
  private_->catalogue.free_by_age().visit_in_order(visit);
}

void RegionIndex::for_each_zombie(FunctionRef<bool(Region*)> visit) const {
  private_->catalogue.zombies().visit_in_order(visit);
}

bool RegionIndex::has_zombies() const { return !private_->catalogue.zombies().empty(); }

void RegionIndex::for_each(FunctionRef<void(const Region&)> visit) const {
  for (const auto& [begin, reservation] : private_->reservations)
    for (const Region* region = reservation.first; region != nullptr; region = region->next)
      visit(*region);
}

// --- changing ---

Region* RegionIndex::allocate(Region* free, AddressRange part, Owner owner) {
  VPMM_CHECK(free->state == RegionState::free, picture());
  VPMM_CHECK(private_->is_part(*free, part), picture());
  Region* const taken = private_->cut(free, part, RegionState::allocated);
  taken->owner = std::move(owner);
  taken->stamp = {};
  private_->catalogue.file(taken);
  return taken;
}

void RegionIndex::hand_over(Region* allocated, Owner owner) {
  VPMM_CHECK(allocated->state == RegionState::allocated, picture());
  private_->catalogue.unfile(allocated);
  allocated->owner = std::move(owner);
  allocated->holder = nullptr;
  private_->catalogue.file(allocated);
}

Region* RegionIndex::split_allocated(Region* allocated, DevicePtr at) {
  VPMM_CHECK(allocated->state == RegionState::allocated, picture());
  VPMM_CHECK(allocated->range.begin < at && at < allocated->range.end(), picture());
  VPMM_CHECK(private_->is_part(*allocated, {at, allocated->range.end() - at}), picture());
  private_->catalogue.unfile(allocated);
  Region* const behind = private_->split_back(allocated, at);
  behind->owner = allocated->owner;
  allocated->owner.requested = std::min(allocated->owner.requested, allocated->range.size);
  behind->owner.requested -= allocated->owner.requested;
  private_->catalogue.file(allocated);
  private_->catalogue.file(behind);
  return behind;
}

Region* RegionIndex::release(Region* allocated, time::Stamp stamp) {
  VPMM_CHECK(allocated->state == RegionState::allocated, picture());
  private_->catalogue.unfile(allocated);
  allocated->state = RegionState::free;
  allocated->owner = {};
  allocated->holder = nullptr;
  allocated->has_own_chunks = false;
  allocated->is_suspended = false;
  allocated->stamp = stamp;
  allocated->by_age.number = ++private_->last_age;
  private_->catalogue.enlist(allocated);
  return private_->merge_and_enter(allocated);
}

Region* RegionIndex::detach(Region* region, AddressRange part) {
  VPMM_CHECK(region->state == RegionState::hole || has_stamp(region->state), picture());
  VPMM_CHECK(private_->is_part(*region, part), picture());
  Region* const taken = private_->cut(region, part, RegionState::in_flight);
  private_->catalogue.file(taken);
  return taken;
}

Region* RegionIndex::attach_free(Region* in_flight, time::Stamp stamp,
                                 std::optional<std::uint64_t> age) {
  private_->land(in_flight, RegionState::free);
  in_flight->stamp = stamp;
  in_flight->by_age.number = age ? *age : ++private_->last_age;
  private_->catalogue.enlist(in_flight);
  return private_->merge_and_enter(in_flight);
}

Region* RegionIndex::attach_hole(Region* in_flight) {
  private_->land(in_flight, RegionState::hole);
  return private_->merge_holes_and_enter(in_flight);
}

Region* RegionIndex::attach_zombie(Region* in_flight, time::Stamp stamp) {
  private_->land(in_flight, RegionState::zombie);
  in_flight->stamp = stamp;
  in_flight->by_age.number = ++private_->last_age;
  private_->catalogue.file(in_flight);
  return in_flight;
}

Region* RegionIndex::attach_allocated(Region* in_flight, Owner owner) {
  private_->land(in_flight, RegionState::allocated);
  in_flight->owner = std::move(owner);
  private_->catalogue.file(in_flight);
  return in_flight;
}

std::pair<Region*, Region*> RegionIndex::split_in_flight(Region* in_flight, DevicePtr at) {
  VPMM_CHECK(in_flight->state == RegionState::in_flight, picture());
  VPMM_CHECK(in_flight->range.begin < at && at < in_flight->range.end(), picture());
  VPMM_CHECK(private_->is_part(*in_flight, {at, in_flight->range.end() - at}), picture());
  private_->catalogue.unfile(in_flight);
  Region* const behind = private_->split_back(in_flight, at);
  private_->catalogue.file(in_flight);
  private_->catalogue.file(behind);
  return {in_flight, behind};
}

Region* RegionIndex::join(Region* front, Region* back) {
  VPMM_CHECK(front->state == RegionState::allocated || front->state == RegionState::in_flight,
             picture());
  VPMM_CHECK(front->state == back->state && front->next == back, picture());
  VPMM_CHECK(back->holder == nullptr, picture());
  private_->catalogue.unfile(front);
  private_->catalogue.unfile(back);
  if (front->state == RegionState::in_flight)
    front->by_age.number = std::min(front->age(), back->age());
  front->owner.requested += std::exchange(back->owner, {}).requested;
  front->has_own_chunks = front->has_own_chunks && back->has_own_chunks;
  back->has_own_chunks = false;
  private_->absorb_next(front);
  private_->catalogue.file(front);
  return front;
}

void RegionIndex::advance(time::TimelineId timeline, std::uint64_t sequence) {
  // Each turn drops the one part it found, so turns = parts to drop. A merge never swallows a
  // region still to come: such a region is pending on `timeline` up to `sequence`, and the merged
  // region is not.
  while (Region* const region = private_->catalogue.timelines().waiting_for(timeline, sequence)) {
    private_->catalogue.leave(region);
    drop_part(region, timeline);
    if (region->state == RegionState::free)
      private_->merge_and_enter(region);
    else
      private_->catalogue.enter(region);
  }
}

// --- figures ---

Bytes RegionIndex::bytes(RegionState state) const { return private_->catalogue.bytes(state); }
std::uint64_t RegionIndex::count(RegionState state) const {
  return private_->catalogue.count(state);
}
Bytes RegionIndex::pending_bytes() const { return private_->catalogue.pending_bytes(); }
Bytes RegionIndex::pending_bytes(time::TimelineId timeline) const {
  return private_->catalogue.timelines().pending_bytes(timeline);
}
Bytes RegionIndex::requested_bytes() const { return private_->catalogue.requested_bytes(); }
Bytes RegionIndex::largest_free() const { return private_->catalogue.largest_free(); }

}  // namespace vpmm::region
