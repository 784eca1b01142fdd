// region: how the partition of the address space changes.
#include "region/region_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.hpp"
#include "region/region_index_private.hpp"

namespace vpmm::region {
namespace {

// One region of the two, which must be mergeable: what is left to wait for, and since when it is free.
time::Stamp merged_stamp(const time::Stamp& a, const time::Stamp& b) {
  return a.is_complete() ? time::Stamp{} : time::Stamp{a.parts().front(), b.parts().front()};
}

// Calls `visit` for the regions of `ranking` in order until it returns false.
void visit_in_order(const Ranking& ranking, const std::function<bool(Region*)>& visit) {
  for (const auto& [key, region] : ranking)
    if (!visit(region)) return;
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

void RegionIndex::Private::file(Region* region) {
  catalogue.file(region);
  if (region->state != RegionState::allocated) return;
  Reservation& r = *region->reservation;
  r.owners.set((region->range.begin - r.range.begin) / page_size, region->range.size / page_size, region);
}

void RegionIndex::Private::unfile(Region* region) {
  catalogue.unfile(region);
  if (region->state != RegionState::allocated) return;
  Reservation& r = *region->reservation;
  r.owners.clear((region->range.begin - r.range.begin) / page_size, region->range.size / page_size);
}

Region* RegionIndex::Private::insert_before(Region* region, AddressRange range) {
  Region* const node = regions.make();
  node->range = range;
  node->state = region->state;
  node->stamp = region->stamp;
  node->age = region->age;
  node->reservation = region->reservation;
  node->previous = region->previous;
  node->next = region;
  (node->previous == nullptr ? node->reservation->first : node->previous->next) = node;
  region->previous = node;
  return node;
}

Region* RegionIndex::Private::insert_behind(Region* region, AddressRange range) {
  Region* const node = regions.make();
  node->range = range;
  node->state = region->state;
  node->stamp = region->stamp;
  node->age = region->age;
  node->reservation = region->reservation;
  node->previous = region;
  node->next = region->next;
  if (node->next != nullptr) node->next->previous = node;
  region->next = node;
  return node;
}

void RegionIndex::Private::absorb_next(Region* region) {
  Region* const gone = region->next;
  region->range.size += gone->range.size;
  region->age = std::min(region->age, gone->age);
  region->next = gone->next;
  if (region->next != nullptr) region->next->previous = region;
  regions.recycle(gone);
}

void RegionIndex::Private::cut(Region* region, AddressRange part, RegionState state) {
  unfile(region);
  const AddressRange whole = region->range;
  region->range = part;
  Region* front = nullptr;
  Region* back = nullptr;
  if (whole.begin < part.begin) front = insert_before(region, {whole.begin, part.begin - whole.begin});
  if (part.end() < whole.end()) back = insert_behind(region, {part.end(), whole.end() - part.end()});
  region->state = state;
  if (front != nullptr) file(front);
  if (back != nullptr) file(back);
}

Region* RegionIndex::Private::merge_and_file(Region* region) {
  Region* merged = region;
  if (Region* const previous = region->previous; previous != nullptr && mergeable(*previous, *region)) {
    unfile(previous);
    previous->stamp = merged_stamp(previous->stamp, region->stamp);
    absorb_next(previous);
    merged = previous;
  }
  if (Region* const next = merged->next; next != nullptr && mergeable(*merged, *next)) {
    unfile(next);
    merged->stamp = merged_stamp(merged->stamp, next->stamp);
    absorb_next(merged);
  }
  file(merged);
  return merged;
}

// --- address space ---

RegionIndex::RegionIndex(Bytes page_size) : page_size_(page_size), private_(std::make_unique<Private>(page_size)) {
  VPMM_CHECK(page_size > 0, "a page needs a size");
}

RegionIndex::~RegionIndex() = default;

void RegionIndex::add_reservation(AddressRange range) {
  VPMM_CHECK(!range.empty() && is_multiple(range.size, page_size_), fmt::format("{} bytes reserved", range.size));
  VPMM_CHECK(!private_->overlaps_reservation(range), fmt::format("{:#x} is reserved already", to_integer(range.begin)));
  Region* const hole = private_->regions.make();
  hole->range = range;
  const auto [added, is_new] = private_->reservations.try_emplace(range.begin, range, hole, range.size / page_size_);
  hole->reservation = &added->second;
  private_->file(hole);
}

void RegionIndex::remove_reservation(AddressRange range) {
  const auto found = private_->reservations.find(range.begin);
  VPMM_CHECK(found != private_->reservations.end() && found->second.range == range,
             fmt::format("{} bytes at {:#x} are no reservation", range.size, to_integer(range.begin)));
  Region* const only = found->second.first;
  const bool is_idle =
      only->state == RegionState::hole || (only->state == RegionState::free && only->stamp.is_complete());
  VPMM_CHECK(only->range == range && is_idle, picture());
  private_->unfile(only);
  private_->reservations.erase(found);
  private_->regions.recycle(only);
}

Region* RegionIndex::smallest_hole(Bytes size, Bytes alignment) const {
  return private_->catalogue.smallest_hole(size, alignment);
}

// --- looking ---

Region* RegionIndex::owner(DevicePtr p) const {
  const Reservation* const r = private_->find_reservation(p);
  return r == nullptr ? nullptr : r->owners.at((p - r->range.begin) / page_size_);
}

Region* RegionIndex::best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const {
  return private_->catalogue.best_fit(size, alignment, own);
}

std::optional<DevicePtr> RegionIndex::aligned_start(const Region& region, Bytes size, Bytes alignment) {
  return region::aligned_start(region.range, size, alignment);
}

void RegionIndex::for_each_run(const std::function<bool(const std::vector<Region*>& run)>& visit) const {
  const auto& junctions = private_->catalogue.junctions();
  std::vector<Region*> run;
  for (const auto& [begin, region] : junctions) {
    if (run.empty()) run.push_back(region);
    run.push_back(region->next);
    if (junctions.contains(region->next->range.begin)) continue;
    if (!visit(run)) return;
    run.clear();
  }
}

void RegionIndex::for_each_free_by_age(const std::function<bool(Region*)>& visit) const {
  visit_in_order(private_->catalogue.free_by_age(), visit);
}

void RegionIndex::for_each_zombie(const std::function<bool(Region*)>& visit) const {
  visit_in_order(private_->catalogue.zombies(), visit);
}

void RegionIndex::for_each(const std::function<void(const Region&)>& visit) const {
  for (const auto& [begin, reservation] : private_->reservations)
    for (const Region* region = reservation.first; region != nullptr; region = region->next) visit(*region);
}

// --- changing ---

Region* RegionIndex::allocate(Region* free, AddressRange part, Tenant tenant) {
  VPMM_CHECK(free->state == RegionState::free, picture());
  check_part(*free, part);
  private_->cut(free, part, RegionState::allocated);
  free->tenant = std::move(tenant);
  free->stamp = {};
  free->age = 0;
  private_->file(free);
  return free;
}

Region* RegionIndex::release(Region* allocated, time::Stamp stamp) {
  VPMM_CHECK(allocated->state == RegionState::allocated, picture());
  private_->unfile(allocated);
  allocated->state = RegionState::free;
  allocated->tenant = {};
  allocated->holder = nullptr;
  allocated->stamp = stamp;
  allocated->age = ++private_->last_age;
  return private_->merge_and_file(allocated);
}

Region* RegionIndex::detach(Region* region, AddressRange part) {
  VPMM_CHECK(
      region->state == RegionState::free || region->state == RegionState::hole || region->state == RegionState::zombie,
      picture());
  check_part(*region, part);
  private_->cut(region, part, RegionState::in_flight);
  private_->file(region);
  return region;
}

Region* RegionIndex::attach_free(Region* in_flight, time::Stamp stamp, std::optional<std::uint64_t> age) {
  land(in_flight, RegionState::free);
  in_flight->stamp = stamp;
  in_flight->age = age ? *age : ++private_->last_age;
  return private_->merge_and_file(in_flight);
}

Region* RegionIndex::attach_hole(Region* in_flight) {
  land(in_flight, RegionState::hole);
  return private_->merge_and_file(in_flight);
}

Region* RegionIndex::attach_zombie(Region* in_flight, time::Stamp stamp) {
  land(in_flight, RegionState::zombie);
  in_flight->stamp = stamp;
  in_flight->age = ++private_->last_age;
  private_->file(in_flight);
  return in_flight;
}

Region* RegionIndex::attach_allocated(Region* in_flight, Tenant tenant) {
  land(in_flight, RegionState::allocated);
  in_flight->tenant = std::move(tenant);
  private_->file(in_flight);
  return in_flight;
}

std::pair<Region*, Region*> RegionIndex::split_in_flight(Region* in_flight, DevicePtr at) {
  VPMM_CHECK(in_flight->state == RegionState::in_flight, picture());
  const AddressRange back{at, in_flight->range.end() - at};
  check_part(*in_flight, back);
  VPMM_CHECK(in_flight->range.begin < at, picture());
  private_->unfile(in_flight);
  in_flight->range.size -= back.size;
  private_->file(in_flight);
  Region* const behind = private_->insert_behind(in_flight, back);
  private_->file(behind);
  return {in_flight, behind};
}

Region* RegionIndex::join_in_flight(Region* front, Region* back) {
  VPMM_CHECK(front->state == RegionState::in_flight && back->state == RegionState::in_flight, picture());
  VPMM_CHECK(front->next == back, picture());
  private_->unfile(front);
  private_->unfile(back);
  private_->absorb_next(front);
  private_->file(front);
  return front;
}

void RegionIndex::advance(time::TimelineId timeline, std::uint64_t sequence) {
  // Each turn drops the one part it found, so there are as many turns as parts to drop. A merge never swallows a region
  // still to come: that one is pending on `timeline` up to `sequence`, which the merged region is not.
  while (Region* const region = private_->catalogue.waiting_for(timeline, sequence)) {
    private_->unfile(region);
    region->stamp = region->stamp.without(timeline, sequence);
    if (region->state == RegionState::free)
      private_->merge_and_file(region);
    else
      private_->file(region);
  }
}

void RegionIndex::check_part(const Region& region, AddressRange part) const {
  VPMM_CHECK(!part.empty() && region.range.contains(part), picture());
  VPMM_CHECK(is_multiple(part.size, page_size_) && is_multiple(part.begin - region.range.begin, page_size_), picture());
}

void RegionIndex::land(Region* in_flight, RegionState state) {
  VPMM_CHECK(in_flight->state == RegionState::in_flight, picture());
  private_->unfile(in_flight);
  in_flight->state = state;
  in_flight->stamp = {};
  in_flight->age = 0;
}

// --- figures ---

std::optional<std::uint64_t> RegionIndex::oldest_pending(time::TimelineId timeline) const {
  return private_->catalogue.oldest_pending(timeline);
}

Bytes RegionIndex::bytes(RegionState state) const { return private_->catalogue.bytes(state); }
std::uint64_t RegionIndex::count(RegionState state) const { return private_->catalogue.count(state); }
Bytes RegionIndex::pending_bytes() const { return private_->catalogue.pending_bytes(); }
Bytes RegionIndex::pending_bytes(time::TimelineId timeline) const {
  return private_->catalogue.pending_bytes(timeline);
}
Bytes RegionIndex::requested_bytes() const { return private_->catalogue.requested_bytes(); }
Bytes RegionIndex::largest_free() const { return private_->catalogue.largest_free(); }

}  // namespace vpmm::region
