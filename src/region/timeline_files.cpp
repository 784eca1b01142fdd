// SPDX-License-Identifier: Apache-2.0
// region: files regions by the parts of their stamps.
#include "region/timeline_files.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::region {
namespace {

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

void TimelineFiles::enlist(Region* region) {
  int next = 0;
  for (const time::StampPart& part : region->stamp.parts())
    add_part(of(part.timeline), next++, region, part.sequence);
}

TimelineFile& TimelineFiles::of(time::TimelineId timeline) {
  if (last_ != nullptr && last_->timeline == timeline) return *last_;
  if (const auto found = files_.find(timeline); found != files_.end())
    return *(last_ = &found->second);
  if (files_.size() >= drop_empty_at_) {
    std::erase_if(files_, [](const auto& entry) { return entry.second.empty(); });
    drop_empty_at_ = std::max<std::size_t>(16, 2 * files_.size());
  }
  const auto [made, is_new] = files_.try_emplace(timeline, timeline, unit_);
  return *(last_ = &made->second);
}

const TimelineFile* TimelineFiles::find(time::TimelineId timeline) const {
  if (last_ != nullptr && last_->timeline == timeline) return last_;
  const auto found = files_.find(timeline);
  return found == files_.end() ? nullptr : &found->second;
}

const SizeIndex& TimelineFiles::single_on(std::optional<time::TimelineId> timeline) const {
  const TimelineFile* const file = timeline ? find(*timeline) : nullptr;
  return file == nullptr ? no_sizes_ : file->single_by_size;
}

Region* TimelineFiles::waiting_for(time::TimelineId timeline, std::uint64_t sequence) const {
  const TimelineFile* const file = find(timeline);
  Region* const oldest = file == nullptr ? nullptr : file->oldest();
  return oldest != nullptr && file->sequence_of(*oldest) <= sequence ? oldest : nullptr;
}

Bytes TimelineFiles::pending_bytes(time::TimelineId timeline) const {
  const TimelineFile* const file = find(timeline);
  return file == nullptr ? 0 : file->pending_bytes;
}

Bytes TimelineFiles::largest_single() const {
  Bytes result = 0;
  for (const auto& [timeline, file] : files_)
    result = std::max(result, file.single_by_size.largest());
  return result;
}

// --- of a region that is listed ---

void delist_parts(Region* region) {
  for (int part = 0; part < 2; ++part)
    if (region->parts[part].file != nullptr) remove_part(region, part);
}

void enlist_parts_behind(Region* region, Region* behind) {
  behind->parts[0].file = region->parts[0].file;
  behind->parts[1].file = region->parts[1].file;
  if (TimelineFile* const file = region->parts[0].file)
    file->first_parts.add_behind(region, behind);
  if (TimelineFile* const file = region->parts[1].file)
    file->second_parts.add_behind(region, behind);
}

void unite_parts(Region* front, Region* back) {
  const int part = filed_part(*back);
  if (back->stamp.parts().front().sequence <= front->stamp.parts().front().sequence) {
    remove_part(back, part);
    return;
  }
  front->stamp = back->stamp;
  remove_part(front, filed_part(*front));
  replace_part(back, part, front);
}

void drop_part(Region* region, time::TimelineId timeline) {
  for (int part = 0; part < 2; ++part) {
    const TimelineFile* const file = region->parts[part].file;
    if (file == nullptr || file->timeline != timeline) continue;
    region->stamp = region->stamp.without(timeline, region->parts[part].by_sequence.number);
    remove_part(region, part);
  }
}

}  // namespace vpmm::region
