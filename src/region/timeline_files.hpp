// SPDX-License-Identifier: Apache-2.0
// region: files regions under the timelines that their stamps name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/host_memory.hpp"
#include "base/page_unit.hpp"
#include "region/ordered_list.hpp"
#include "region/region.hpp"
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

// Files free regions and zombies by sequence under the timeline of each part of their stamp.
class TimelineFiles {
 public:
  explicit TimelineFiles(const PageUnit& unit) : unit_(unit), no_sizes_(unit) {}

  void enlist(Region* region);
  // Sizes of the free regions with this as their only part; empty without a timeline.
  const SizeIndex& single_on(std::optional<time::TimelineId> timeline) const;
  // Free region or zombie that waits for a number up to `sequence` of `timeline`; null if none.
  Region* waiting_for(time::TimelineId timeline, std::uint64_t sequence) const;
  Bytes pending_bytes(time::TimelineId timeline) const;
  Bytes largest_single() const;

  // Difference between the files and `regions`, if these are all regions; empty if equal.
  std::string difference(const Vector<const Region*>& regions) const;

 private:
  TimelineFile& of(time::TimelineId timeline);
  const TimelineFile* find(time::TimelineId timeline) const;

  PageUnit unit_;
  SizeIndex no_sizes_;  // always empty: for a timeline without a file
  // Files without pending regions stay, so that an allocate and free loop does not make one each
  // time; they are dropped when the table has doubled since, so that files of past streams do not
  // pile up.
  HashMap<time::TimelineId, TimelineFile> files_;
  std::size_t drop_empty_at_ = 16;
  TimelineFile* last_ = nullptr;  // the last one asked for, mostly asked for next
};

// --- of a region that is listed ---

// The part of a single-part region that is filed.
inline int filed_part(const Region& region) { return region.parts[0].file != nullptr ? 0 : 1; }
void delist_parts(Region* region);
// Lists `behind`, cut from the end of `region`.
void enlist_parts_behind(Region* region, Region* behind);
// Keeps the later number, for `front`, and delists `back`. Requires: both single-part on one
// timeline.
void unite_parts(Region* front, Region* back);
// Takes the part on `timeline` from the stamp and the list. Requires: not entered.
void drop_part(Region* region, time::TimelineId timeline);

}  // namespace vpmm::region
