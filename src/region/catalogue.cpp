// region: filing regions and finding them again.
#include "region/catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"

namespace vpmm::region {
namespace {

void add(Ranking& ranking, std::uint64_t number, Region* region) {
  ranking.emplace(std::pair{number, region->range.begin}, region);
}

void remove(Ranking& ranking, std::uint64_t number, const Region* region) {
  const auto removed = ranking.erase({number, region->range.begin});
  VPMM_CHECK(removed == 1, fmt::format("region at {:#x} was not filed", to_integer(region->range.begin)));
}

// The smallest region in which `size` bytes at `alignment` fit. With an alignment that the addresses have anyway the
// first candidate fits; otherwise none of size + alignment or more is passed over.
Region* first_fit(const Ranking& by_size, Bytes size, Bytes alignment) {
  for (auto it = by_size.lower_bound({size, DevicePtr{}}); it != by_size.end(); ++it)
    if (aligned_start(it->second->range, size, alignment)) return it->second;
  return nullptr;
}

Region* smaller(Region* a, Region* b) {
  if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
  const std::pair key_a{a->range.size, a->range.begin};
  const std::pair key_b{b->range.size, b->range.begin};
  return key_a < key_b ? a : b;
}

Bytes largest(const Ranking& by_size) { return by_size.empty() ? 0 : by_size.rbegin()->first.first; }

bool is_free(const Region* region) { return region != nullptr && region->state == RegionState::free; }

}  // namespace

std::optional<DevicePtr> aligned_start(const AddressRange& range, Bytes size, Bytes alignment) {
  const DevicePtr start = align_up(range.begin, alignment);
  if (start > range.end() || range.end() - start < size) return std::nullopt;
  return start;
}

void Catalogue::file(Region* region) {
  Sum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes += region->range.size;
  ++sum.count;
  switch (region->state) {
    case RegionState::hole: add(holes_, region->range.size, region); break;
    case RegionState::free: file_free(region); break;
    case RegionState::allocated: requested_bytes_ += region->tenant.requested; break;
    case RegionState::zombie:
      add(zombies_, region->age, region);
      file_parts(region);
      break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::unfile(Region* region) {
  Sum& sum = sums_[static_cast<std::size_t>(region->state)];
  sum.bytes -= region->range.size;
  --sum.count;
  switch (region->state) {
    case RegionState::hole: remove(holes_, region->range.size, region); break;
    case RegionState::free: unfile_free(region); break;
    case RegionState::allocated: requested_bytes_ -= region->tenant.requested; break;
    case RegionState::zombie:
      remove(zombies_, region->age, region);
      unfile_parts(region);
      break;
    case RegionState::in_flight: break;
  }
}

void Catalogue::file_free(Region* region) {
  add(free_by_size(region->stamp), region->range.size, region);
  add(free_by_age_, region->age, region);
  file_parts(region);
  if (!region->stamp.is_complete()) pending_bytes_ += region->range.size;
  if (is_free(region->next)) junctions_.emplace(region->range.begin, region);
  if (is_free(region->previous)) junctions_.emplace(region->previous->range.begin, region->previous);
}

void Catalogue::unfile_free(Region* region) {
  remove(free_by_size(region->stamp), region->range.size, region);
  remove(free_by_age_, region->age, region);
  unfile_parts(region);
  if (!region->stamp.is_complete()) pending_bytes_ -= region->range.size;
  junctions_.erase(region->range.begin);
  if (is_free(region->previous)) junctions_.erase(region->previous->range.begin);
}

void Catalogue::file_parts(Region* region) {
  for (const time::StampPart& part : region->stamp.parts()) {
    TimelineFile& file = timeline_file(part.timeline);
    add(file.by_sequence, part.sequence, region);
    if (is_free(region)) file.pending_bytes += region->range.size;
  }
}

void Catalogue::unfile_parts(Region* region) {
  for (const time::StampPart& part : region->stamp.parts()) {
    TimelineFile& file = timeline_file(part.timeline);
    remove(file.by_sequence, part.sequence, region);
    if (is_free(region)) file.pending_bytes -= region->range.size;
  }
}

Ranking& Catalogue::free_by_size(const time::Stamp& stamp) {
  if (stamp.is_complete()) return complete_by_size_;
  if (stamp.is_single()) return timeline_file(stamp.parts().front().timeline).single_by_size;
  return two_part_by_size_;
}

Catalogue::TimelineFile& Catalogue::timeline_file(time::TimelineId timeline) {
  if (const auto found = timelines_.find(timeline); found != timelines_.end()) return found->second;
  if (timelines_.size() >= drop_empty_at_) {
    std::erase_if(timelines_, [](const auto& entry) { return entry.second.empty(); });
    drop_empty_at_ = std::max<std::size_t>(16, 2 * timelines_.size());
  }
  return timelines_[timeline];
}

const Catalogue::TimelineFile* Catalogue::find(time::TimelineId timeline) const {
  const auto found = timelines_.find(timeline);
  return found == timelines_.end() ? nullptr : &found->second;
}

Region* Catalogue::smallest_hole(Bytes size, Bytes alignment) const { return first_fit(holes_, size, alignment); }

Region* Catalogue::best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const {
  Region* const complete = first_fit(complete_by_size_, size, alignment);
  const TimelineFile* const file = own ? find(*own) : nullptr;
  return file == nullptr ? complete : smaller(complete, first_fit(file->single_by_size, size, alignment));
}

Region* Catalogue::waiting_for(time::TimelineId timeline, std::uint64_t sequence) const {
  const TimelineFile* const file = find(timeline);
  if (file == nullptr || file->empty()) return nullptr;
  const auto oldest = file->by_sequence.begin();
  return oldest->first.first <= sequence ? oldest->second : nullptr;
}

std::optional<std::uint64_t> Catalogue::oldest_pending(time::TimelineId timeline) const {
  const TimelineFile* const file = find(timeline);
  if (file == nullptr || file->empty()) return std::nullopt;
  return file->by_sequence.begin()->first.first;
}

Bytes Catalogue::pending_bytes(time::TimelineId timeline) const {
  const TimelineFile* const file = find(timeline);
  return file == nullptr ? 0 : file->pending_bytes;
}

Bytes Catalogue::largest_free() const {
  Bytes result = std::max(largest(complete_by_size_), largest(two_part_by_size_));
  for (const auto& [timeline, file] : timelines_) result = std::max(result, largest(file.single_by_size));
  return result;
}

std::string Catalogue::difference(const Catalogue& expected) const {
  if (holes_ != expected.holes_) return "holes by size are not the holes";
  if (complete_by_size_ != expected.complete_by_size_) return "complete free regions by size are not those regions";
  if (two_part_by_size_ != expected.two_part_by_size_) return "two-part free regions by size are not those regions";
  if (free_by_age_ != expected.free_by_age_) return "free regions by age are not the free regions";
  if (zombies_ != expected.zombies_) return "zombies by age are not the zombies";
  if (junctions_ != expected.junctions_) return "junctions are not the places where free regions touch";
  if (sums_ != expected.sums_) return "sums by state are not the sums of the regions";
  if (pending_bytes_ != expected.pending_bytes_) return "pending bytes are not the sum of pending regions";
  if (requested_bytes_ != expected.requested_bytes_) return "requested bytes are not the sum over allocated regions";
  return timeline_difference(expected);
}

std::string Catalogue::timeline_difference(const Catalogue& expected) const {
  const TimelineFile nothing;
  const auto differs = [&nothing](const Catalogue& a, const Catalogue& b) -> std::optional<time::TimelineId> {
    for (const auto& [timeline, file] : a.timelines_) {
      const TimelineFile* const other = b.find(timeline);
      if (file != (other == nullptr ? nothing : *other)) return timeline;
    }
    return std::nullopt;
  };
  auto timeline = differs(*this, expected);
  if (!timeline) timeline = differs(expected, *this);
  if (!timeline) return "";
  return fmt::format("regions filed under timeline {} are not those with a part on it",
                     static_cast<std::uint64_t>(*timeline));
}

}  // namespace vpmm::region
