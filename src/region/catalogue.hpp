// region: where regions are filed so that they are found by size, by pending number, by age, and by touching each
// other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/address.hpp"
#include "region/region.hpp"
#include "time/stamp.hpp"

namespace vpmm::region {

// Regions in ascending order of a number (a size, an age or a sequence), lowest address first among equals.
using Ranking = std::map<std::pair<std::uint64_t, DevicePtr>, Region*>;

// Lowest aligned address in `range` with `size` bytes behind it; none if they do not fit.
std::optional<DevicePtr> aligned_start(const AddressRange& range, Bytes size, Bytes alignment);

// What a region is filed under follows from its fields alone:
//   hole       by size
//   free       by age; by size among the complete, among the single-part ones of its timeline, or among the two-part
//              ones; by sequence under the timeline of each part of its stamp; as a junction if the next is free too
//   zombie     by age; by sequence under the timeline of each part of its stamp
// and every state is summed up. So a catalogue filled anew from the regions equals this one: validate() does that.
class Catalogue {
 public:
  // The region's fields must stay as they are from file() to unfile(), except what no search depends on.
  void file(Region* region);
  void unfile(Region* region);

  Region* smallest_hole(Bytes size, Bytes alignment) const;
  Region* best_fit(Bytes size, Bytes alignment, std::optional<time::TimelineId> own) const;
  // A free region or zombie that waits for a number up to `sequence` of `timeline`; null when there is none.
  Region* waiting_for(time::TimelineId timeline, std::uint64_t sequence) const;
  std::optional<std::uint64_t> oldest_pending(time::TimelineId timeline) const;

  const Ranking& free_by_age() const { return free_by_age_; }
  const Ranking& zombies() const { return zombies_; }
  // Free regions whose next neighbour is free too, by address.
  const std::map<DevicePtr, Region*>& junctions() const { return junctions_; }

  Bytes bytes(RegionState state) const { return sums_[static_cast<std::size_t>(state)].bytes; }
  std::uint64_t count(RegionState state) const { return sums_[static_cast<std::size_t>(state)].count; }
  Bytes pending_bytes() const { return pending_bytes_; }
  Bytes pending_bytes(time::TimelineId timeline) const;
  Bytes requested_bytes() const { return requested_bytes_; }
  Bytes largest_free() const;

  // What is filed differently here and in `expected`, as text; empty when nothing is.
  std::string difference(const Catalogue& expected) const;

 private:
  struct Sum {
    Bytes bytes = 0;
    std::uint64_t count = 0;
    friend bool operator==(const Sum&, const Sum&) = default;
  };
  struct TimelineFile {
    Ranking by_sequence;                                // free regions and zombies with a part on this timeline
    Ranking single_by_size;                             // free regions of those whose only part it is
    Bytes pending_bytes = 0;                            // free regions in by_sequence
    bool empty() const { return by_sequence.empty(); }  // everything filed here stands in by_sequence
    friend bool operator==(const TimelineFile&, const TimelineFile&) = default;
  };

  void file_free(Region* region);
  void unfile_free(Region* region);
  void file_parts(Region* region);
  void unfile_parts(Region* region);
  Ranking& free_by_size(const time::Stamp& stamp);
  TimelineFile& timeline_file(time::TimelineId timeline);
  const TimelineFile* find(time::TimelineId timeline) const;
  std::string timeline_difference(const Catalogue& expected) const;

  Ranking holes_;
  Ranking complete_by_size_;
  Ranking two_part_by_size_;
  Ranking free_by_age_;
  Ranking zombies_;
  std::map<DevicePtr, Region*> junctions_;
  // Files of timelines with nothing pending stay, so that an allocate and free loop does not make one each time; they
  // are dropped when the table has doubled since, so that streams that are gone do not pile up.
  std::unordered_map<time::TimelineId, TimelineFile> timelines_;
  std::size_t drop_empty_at_ = 16;
  std::array<Sum, 5> sums_{};
  Bytes pending_bytes_ = 0;
  Bytes requested_bytes_ = 0;
};

}  // namespace vpmm::region
