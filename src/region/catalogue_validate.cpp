// SPDX-License-Identifier: Apache-2.0
// region: compares the files with the regions.
#include <fmt/format.h>

#include <algorithm>

#include "base/host_memory.hpp"

#include "region/catalogue.hpp"
#include "region/junctions.hpp"
#include "region/reservation.hpp"

namespace vpmm::region {
namespace {

using Regions = Vector<const Region*>;

template <typename Number, typename Admits>
Ranking ranked(const Regions& regions, const Number& number, const Admits& admits) {
  Ranking all;
  for (const Region* region : regions)
    if (admits(*region)) all.push_back({number(*region), region->range.begin, region});
  std::sort(all.begin(), all.end());
  return all;
}

template <typename Admits>
bool holds(const SizeIndex& index, const Regions& regions, const Admits& admits) {
  return index.is_sound() &&
         index.ranking() ==
             ranked(
                 regions, [](const Region& region) { return region.range.size; }, admits);
}

template <typename Links>
Ranking ranking_of(const OrderedList<Links>& list) {
  Ranking all;
  list.visit_in_order([&](const Region* region) {
    all.push_back({Links::of(*region).number, region->range.begin, region});
    return true;
  });
  return all;
}

bool holds(const OrderedList<AgeLinks>& list, const Regions& regions, RegionState state) {
  const auto is_listed = [&](const Region& region) { return region.state == state; };
  return list.is_sound() &&
         ranking_of(list) ==
             ranked(
                 regions, [](const Region& region) { return region.age(); }, is_listed);
}

struct Expected {
  Ranking by_sequence;
  Regions singles;
  Bytes pending_bytes = 0;
};

Map<time::TimelineId, Expected> expected_files(const Regions& regions) {
  Map<time::TimelineId, Expected> files;
  for (const Region* region : regions) {
    if (!has_stamp(region->state)) continue;
    for (const time::StampPart& part : region->stamp.parts()) {
      Expected& file = files[part.timeline];
      file.by_sequence.push_back({part.sequence, region->range.begin, region});
      if (!is_free(region)) continue;
      file.pending_bytes += region->range.size;
      if (region->stamp.is_single()) file.singles.push_back(region);
    }
  }
  for (auto& [timeline, file] : files) std::sort(file.by_sequence.begin(), file.by_sequence.end());
  return files;
}

bool holds(const TimelineFile& file, const Expected& expected) {
  if (!file.first_parts.is_sound() || !file.second_parts.is_sound()) return false;
  Ranking by_sequence = ranking_of(file.first_parts);
  const Ranking second = ranking_of(file.second_parts);
  by_sequence.insert(by_sequence.end(), second.begin(), second.end());
  std::sort(by_sequence.begin(), by_sequence.end());
  return by_sequence == expected.by_sequence && file.pending_bytes == expected.pending_bytes &&
         holds(file.single_by_size, expected.singles, [](const Region&) { return true; });
}

}  // namespace

std::string Catalogue::difference(const Regions& regions) const {
  if (auto found = size_difference(regions); !found.empty()) return found;
  if (!holds(free_by_age_, regions, RegionState::free))
    return "free regions by age are not the free regions";
  if (!holds(zombies_, regions, RegionState::zombie)) return "zombies by age are not the zombies";
  if (auto found = place_difference(regions); !found.empty()) return found;
  if (auto found = sum_difference(regions); !found.empty()) return found;
  return timelines_.difference(regions);
}

std::string Catalogue::size_difference(const Regions& regions) const {
  const auto is_hole = [](const Region& region) { return region.state == RegionState::hole; };
  const auto is_complete = [](const Region& region) {
    return is_free(&region) && region.stamp.is_complete();
  };
  const auto has_two_parts = [](const Region& region) {
    return is_free(&region) && region.stamp.parts().size() == 2;
  };
  if (!holds(holes_, regions, is_hole)) return "holes by size are not the holes";
  if (!holds(complete_by_size_, regions, is_complete))
    return "complete free regions by size are not those regions";
  if (!holds(two_part_by_size_, regions, has_two_parts))
    return "two-part free regions by size are not those regions";
  return "";
}

// Checks that every region due at its first page is entered there, and no other.
std::string Catalogue::place_difference(const Regions& regions) const {
  Map<const Reservation*, std::uint64_t> owners;
  Map<const Reservation*, std::uint64_t> junctions;
  for (const Region* region : regions) {
    const PageTable& table = region->reservation->table;
    const std::uint64_t page = first_page(*region, unit_);
    const bool is_owner = region->state == RegionState::allocated;
    const bool is_junction = is_free(region) && is_free(region->previous);
    if (is_owner) ++owners[region->reservation];
    if (is_junction) ++junctions[region->reservation];
    if (table.is_owned_from(page) != is_owner) return "owners are not the allocated regions";
    if (table.is_junction(page) != is_junction)
      return "junctions are not the places where free regions touch";
    const bool is_between = region->previous != nullptr;
    if (table.free_begins_at(page) != is_free(region) ||
        (is_between && table.free_ends_at(page) != is_free(region->previous)))
      return "borders of free regions are not those";
    if (table.entry(page) != (is_owner || is_junction ? region : nullptr))
      return fmt::format("what begins at {:#x} is not what is entered there",
                         to_integer(region->range.begin));
  }
  for (const Region* region : regions) {
    const PageTable& table = region->reservation->table;
    if (table.owners() != owners[region->reservation])
      return "owners are not the allocated regions";
    if (table.junctions() != junctions[region->reservation])
      return "junctions are not the places where free regions touch";
  }
  return "";
}

std::string Catalogue::sum_difference(const Regions& regions) const {
  std::array<StateSum, 5> sums{};
  Bytes pending = 0;
  Bytes requested = 0;
  for (const Region* region : regions) {
    StateSum& sum = sums[static_cast<std::size_t>(region->state)];
    sum.bytes += region->range.size;
    ++sum.count;
    if (is_free(region) && !region->stamp.is_complete()) pending += region->range.size;
    if (region->state == RegionState::allocated) requested += region->owner.requested;
  }
  if (sums_ != sums) return "sums by state are not the sums of the regions";
  if (pending_bytes_ != pending) return "pending bytes are not the sum of pending regions";
  if (requested_bytes_ != requested)
    return "requested bytes are not the sum over allocated regions";
  return "";
}

std::string TimelineFiles::difference(const Regions& regions) const {
  Map<time::TimelineId, Expected> expected = expected_files(regions);
  for (const auto& [timeline, file] : files_) expected.try_emplace(timeline);
  for (const auto& [timeline, wanted] : expected) {
    const TimelineFile* const file = find(timeline);
    if (file == nullptr || file->timeline != timeline || !holds(*file, wanted))
      return fmt::format("regions filed under timeline {} are not those with a part on it",
                         static_cast<std::uint64_t>(timeline));
  }
  return "";
}

std::string Junctions::difference(const Regions& regions) const {
  std::uint64_t count = 0;
  for (const Region* region : regions) {
    count += is_free(region) && is_free(region->previous);
    if (joined_.contains(region->reservation) != region->reservation->table.has_junctions())
      return "reservations with junctions are not those";
  }
  return count == count_ ? "" : "junctions are counted wrongly";
}

}  // namespace vpmm::region
