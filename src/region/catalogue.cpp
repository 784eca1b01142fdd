// SPDX-License-Identifier: Apache-2.0
// region: files regions and finds them again.
#include "region/catalogue.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/function_ref.hpp"

namespace vpmm::region {
namespace {

const Fit& smaller(const Fit& a, const Fit& b) {
  if (a.region == nullptr || b.region == nullptr) return a.region == nullptr ? b : a;
  if (a.size != b.size) return a.size < b.size ? a : b;
  return a.begin < b.begin ? a : b;
}

bool is_fit(const Fit& fit, Bytes size, Bytes alignment) {
  return fit.region == nullptr || aligned_start({fit.begin, fit.size}, size, alignment);
}

void add_part(TimelineFile& file, int part, Region* region, std::uint64_t sequence) {
  region->parts[part].file = &file;
  if (part == 0)
    file.first_parts.add(region, sequence);
  else
    file.second_parts.add(region, sequence);
}

void remove_part(Region* region, int part) {
  TimelineFile& file = *std::exchange(region->parts[part].file, nullptr);
  if (part == 0)
    file.first_parts.remove(region);
  else
    file.second_parts.remove(region);
}

// Puts `region` in the place of `other` in the list of its part.
void replace_part(Region* other, int part, Region* region) {
  TimelineFile& file = *std::exchange(other->parts[part].file, nullptr);
  region->parts[part].file = &file;
  if (part == 0)
    file.first_parts.replace(other, region);
  else
    file.second_parts.replace(other, region);
}

// Part of a single-part region that is filed.
int filed_part(const Region& region) { return region.parts[0].file != nullptr ? 0 : 1; }

}  // namespace

std::uint64_t TimelineFile::sequence_of(const Region& region) const {
  return region.parts[region.parts[0].file == this ? 0 : 1].by_sequence.number;
}

Region* TimelineFile::oldest() const {
  Region* const first = first_parts.front();
  Region* const second = second_parts.front();
  if (first == nullptr || second == nullptr) return first == nullptr ? second : first;
  return first->parts[0].by_sequence.number <= second->parts[1].by_sequence.number ? first : second;
}

// --- by age and sequence ---

OrderedList<AgeLinks>* Catalogue::list_of(RegionState state) {
  switch (state) {
    case RegionState::free: return &free_by_age_;
    case RegionState::zombie: return &zombies_;
    default: return nullptr;
  }
}

void Catalogue::enlist(Region* region) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->add(region, region->age);
  enlist_parts(region);
}

void Catalogue::delist(Region* region) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->remove(region);
  delist_parts(region);
}

void Catalogue::enlist_parts(Region* region) {
  int next = 0;
  for (const time::StampPart& part : region->stamp.parts())
    add_part(timeline_file(part.timeline), next++, region, part.sequence);
}

void Catalogue::delist_parts(Region* region) {
  for (int part = 0; part < 2; ++part)
    if (region->parts[part].file != nullptr) remove_part(region, part);
}

void Catalogue::enlist_behind(Region* region, Region* behind) {
  OrderedList<AgeLinks>* const list = list_of(region->state);
  if (list == nullptr) return;
  list->add_behind(region, behind);
  for (int part = 0; part < 2; ++part) behind->parts[part].file = region->parts[part].file;
  if (TimelineFile* const file = region->parts[0].file)
    file->first_parts.add_behind(region, behind);
  if (TimelineFile* const file = region->parts[1].file)
    file->second_parts.add_behind(region, behind);
}

void Catalogue::unite(Region* front, Region* back) {
  if (back->age < front->age) {
    front->age = back->age;
    free_by_age_.remove(front);
    free_by_age_.replace(back, front);
  } else {
    free_by_age_.remove(back);
  }
  if (!front->stamp.is_complete()) unite_parts(front, back);
}

// Keeps the later number. Requires: both single-part on one timeline.
void Catalogue::unite_parts(Region* front, Region* back) {
  const int part = filed_part(*back);
  if (back->stamp.parts().front().sequence <= front->stamp.parts().front().sequence) {
    remove_part(back, part);
    return;
  }
  front->stamp = back->stamp;
  remove_part(front, filed_part(*front));
  replace_part(back, part, front);
}

void Catalogue::drop_part(Region* region, time::TimelineId timeline) {
  for (int part = 0; part < 2; ++part) {
    const TimelineFile* const file = region->parts[part].file;
    if (file == nullptr || file->timeline != timeline) continue;
    region->stamp = region->stamp.without(timeline, region->parts[part].by_sequence.number);
    remove_part(region, part);
  }
}

// --- by all else ---

void Catalogue::enter(Region* region) {
  StateSum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes += region->range.size;
  ++sum.count;
  switch (region->state) {
    case RegionState::hole: holes_.add(region); break;
    case RegionState::free: enter_free(region); break;
    case RegionState::allocated:
      requested_bytes_ += region->owner.requested;
      region->reservation->table.add_owner(first_page(*region), region);
      break;
    case RegionState::zombie: break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::leave(Region* region) {
  StateSum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes -= region->range.size;
  --sum.count;
  switch (region->state) {
    case RegionState::hole: holes_.remove(region); break;
    case RegionState::free: leave_free(region); break;
    case RegionState::allocated:
      requested_bytes_ -= region->owner.requested;
      region->reservation->table.remove_owner(first_page(*region));
      break;
    case RegionState::zombie: break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::enter_free(Region* region) {
  free_by_size(*region).add(region);
  flip_free(*region);
  if (region->stamp.is_complete()) return;
  pending_bytes_ += region->range.size;
  for (const auto& part : region->parts)
    if (part.file != nullptr) part.file->pending_bytes += region->range.size;
}

void Catalogue::leave_free(Region* region) {
  free_by_size(*region).remove(region);
  flip_free(*region);
  if (region->stamp.is_complete()) return;
  pending_bytes_ -= region->range.size;
  for (const auto& part : region->parts)
    if (part.file != nullptr) part.file->pending_bytes -= region->range.size;
}

void Catalogue::flip_free(const Region& region) {
  const std::uint64_t first = first_page(region);
  region.reservation->table.flip_free(first, first + unit_.pages(region.range.size));
}

SizeIndex& Catalogue::free_by_size(const Region& region) {
  if (region.stamp.is_complete()) return complete_by_size_;
  if (region.stamp.is_single()) return region.parts[filed_part(region)].file->single_by_size;
  return two_part_by_size_;
}

std::uint64_t Catalogue::first_page(const Region& region) const {
  return unit_.pages(region.range.begin - region.reservation->range.begin);
}

TimelineFile& Catalogue::timeline_file(time::TimelineId timeline) {
  if (last_file_ != nullptr && last_file_->timeline == timeline) return *last_file_;
  if (const auto found = timelines_.find(timeline); found != timelines_.end())
    return *(last_file_ = &found->second);
  if (timelines_.size() >= drop_empty_at_) {
    std::erase_if(timelines_, [](const auto& entry) { return entry.second.empty(); });
    drop_empty_at_ = std::max<std::size_t>(16, 2 * timelines_.size());
  }
  const auto [made, is_new] = timelines_.try_emplace(timeline, timeline, unit_);
  return *(last_file_ = &made->second);
}

const TimelineFile* Catalogue::find(time::TimelineId timeline) const {
  if (last_file_ != nullptr && last_file_->timeline == timeline) return last_file_;
  const auto found = timelines_.find(timeline);
  return found == timelines_.end() ? nullptr : &found->second;
}

// --- neighbours ---

bool Catalogue::touches_free_before(const Region& region) const {
  return region.reservation->table.free_ends_at(first_page(region));
}

bool Catalogue::touches_free_behind(const Region& region) const {
  return region.reservation->table.free_begins_at(first_page(region) +
                                                  unit_.pages(region.range.size));
}

void Catalogue::add_junction(Region* behind) {
  PageTable& table = behind->reservation->table;
  if (table.is_junction(first_page(*behind))) return;
  if (!table.has_junctions()) joined_.insert(behind->reservation);
  table.add_junction(first_page(*behind), behind);
  ++junctions_;
}

void Catalogue::remove_junction(Reservation& reservation, DevicePtr border) {
  const std::uint64_t page = unit_.pages(border - reservation.range.begin);
  if (!reservation.table.is_junction(page)) return;
  reservation.table.remove_junction(page);
  --junctions_;
  if (!reservation.table.has_junctions()) joined_.erase(&reservation);
}

const SizeIndex& Catalogue::single_on(time::TimelineId timeline) const {
  const TimelineFile* const file = find(timeline);
  return file == nullptr ? no_sizes_ : file->single_by_size;
}

void Catalogue::visit_junctions(FunctionRef<std::optional<DevicePtr>(Region* behind)> visit) const {
  for (const Reservation* reservation : joined_) {
    const PageTable& table = reservation->table;
    Region* behind = table.first_behind_junction(0);
    while (behind != nullptr) {
      const std::optional<DevicePtr> next = visit(behind);
      if (!next) return;
      behind = table.first_behind_junction(unit_.pages(*next - reservation->range.begin));
    }
  }
}

// --- looking ---

// Takes the smallest region that is large enough: nearly always it has the alignment.
Region* Catalogue::best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own,
                            bool own_first) const {
  const TimelineFile* const file = own ? find(*own) : nullptr;
  const SizeIndex& pending = file == nullptr ? no_sizes_ : file->single_by_size;
  if (own_first) {
    const Fit fit = pending.first_fit(size, alignment);
    return fit.region != nullptr ? fit.region : complete_by_size_.first_fit(size, alignment).region;
  }
  const Fit smallest = smaller(complete_by_size_.at_least(size), pending.at_least(size));
  if (is_fit(smallest, size, alignment)) return smallest.region;
  return smaller(complete_by_size_.first_fit(size, alignment), pending.first_fit(size, alignment))
      .region;
}

Region* Catalogue::lowest_fit(Bytes size, Bytes alignment,
                              std::optional<time::TimelineId> own) const {
  const TimelineFile* const file = own ? find(*own) : nullptr;
  const Fit complete = complete_by_size_.lowest_fit(size, alignment);
  const Fit pending = file == nullptr ? Fit{} : file->single_by_size.lowest_fit(size, alignment);
  if (complete.region == nullptr || pending.region == nullptr)
    return complete.region == nullptr ? pending.region : complete.region;
  return complete.begin < pending.begin ? complete.region : pending.region;
}

void Catalogue::for_each_hole(Bytes size, FunctionRef<bool(Region*)> visit) const {
  for (SizeIndex::Ascent holes(holes_, size); holes.region() != nullptr; holes.next())
    if (!visit(holes.region())) return;
}

void Catalogue::for_each_fit(Bytes size, std::optional<time::TimelineId> own, bool own_first,
                             FunctionRef<bool(Region*)> visit) const {
  const TimelineFile* const file = own ? find(*own) : nullptr;
  SizeIndex::Ascent complete(complete_by_size_, size);
  SizeIndex::Ascent pending(file == nullptr ? no_sizes_ : file->single_by_size, size);
  for (;;) {
    Region* const a = complete.region();
    Region* const b = pending.region();
    if (a == nullptr && b == nullptr) return;
    const bool is_a = b == nullptr || (a != nullptr && !own_first &&
                                       std::pair(a->range.size, a->range.begin) <
                                           std::pair(b->range.size, b->range.begin));
    if (!visit(is_a ? a : b)) return;
    (is_a ? complete : pending).next();
  }
}

Region* Catalogue::waiting_for(time::TimelineId timeline, std::uint64_t sequence) const {
  const TimelineFile* const file = find(timeline);
  Region* const oldest = file == nullptr ? nullptr : file->oldest();
  return oldest != nullptr && file->sequence_of(*oldest) <= sequence ? oldest : nullptr;
}

Bytes Catalogue::pending_bytes(time::TimelineId timeline) const {
  const TimelineFile* const file = find(timeline);
  return file == nullptr ? 0 : file->pending_bytes;
}

Bytes Catalogue::largest_free() const {
  Bytes result = std::max(complete_by_size_.largest(), two_part_by_size_.largest());
  for (const auto& [timeline, file] : timelines_)
    result = std::max(result, file.single_by_size.largest());
  return result;
}

}  // namespace vpmm::region
