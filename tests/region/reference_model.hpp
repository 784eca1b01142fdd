// SPDX-License-Identifier: Apache-2.0
// region tests: the region index said naively: a row of pages, every question answered by looking
// at all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "region/region_words.hpp"

namespace vpmm::region {

struct PageSpan {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  friend bool operator==(const PageSpan&, const PageSpan&) = default;
};

// The parts of a stamp by timeline.
using Parts = std::map<time::TimelineId, std::uint64_t>;
Parts parts_of(const time::Stamp& stamp);

struct ModelRegion {
  PageSpan span;
  RegionState state = RegionState::hole;
  Parts parts;            // all but holes and allocated
  std::uint64_t age = 0;  // all but holes and allocated
  Bytes requested = 0;    // allocated
  friend bool operator==(const ModelRegion&, const ModelRegion&) = default;
};

class ReferenceModel {
 public:
  explicit ReferenceModel(const Vector<PageSpan>& reservations);

  void reserve(PageSpan span);
  void unreserve(PageSpan span);
  void allocate(PageSpan part, Bytes requested);
  void release(std::uint64_t page, const Parts& parts);
  void detach(PageSpan part);
  void attach_free(std::uint64_t page, const Parts& parts);
  void take_back(std::uint64_t page);  // free again with the stamp and age it remembers
  void attach_hole(std::uint64_t page);
  void attach_zombie(std::uint64_t page, const Parts& parts);
  void attach_allocated(std::uint64_t page, Bytes requested);
  void split(std::uint64_t at);  // `at`: first page of the back
  void join(std::uint64_t at);   // `at`: first page of the back
  void advance(time::TimelineId timeline, std::uint64_t sequence);

  Vector<ModelRegion> regions() const;  // by address
  // Whether `span` is a reservation from end to end.
  bool is_reservation(PageSpan span) const;
  // Whether two neighbouring pages are of one reservation.
  bool one_reservation(std::uint64_t a, std::uint64_t b) const;
  std::optional<PageSpan> best_fit(std::uint64_t count, std::uint64_t alignment,
                                   std::optional<time::TimelineId> own) const;
  // The same, but of those that only `own` may use where there are some.
  std::optional<PageSpan> best_own_fit(std::uint64_t count, std::uint64_t alignment,
                                       std::optional<time::TimelineId> own) const;
  std::optional<PageSpan> lowest_fit(std::uint64_t count, std::uint64_t alignment,
                                     std::optional<time::TimelineId> own) const;
  std::optional<PageSpan> smallest_hole(std::uint64_t count, std::uint64_t alignment) const;
  Vector<PageSpan> holes(std::uint64_t count) const;  // of at least as many, by size and address
  // Of at least as many, what `own` may use, by size and address; `own_first`: its pending ones
  // first.
  Vector<PageSpan> fits(std::uint64_t count, std::optional<time::TimelineId> own,
                        bool own_first) const;
  Vector<Vector<PageSpan>> runs() const;
  Vector<PageSpan> by_age(RegionState state) const;
  std::string picture() const;

 private:
  struct Page {
    std::size_t reservation = 0;
    std::uint64_t id = 0;  // neighbouring pages of one id are one region
    ModelRegion what;      // without span
  };

  std::map<std::uint64_t, Page> pages_;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_age_ = 0;

  void cut(PageSpan part);
  void renumber(std::uint64_t first, std::uint64_t end);
  template <typename Change>
  void change(std::uint64_t page, const Change& change);
  void merge();
  bool merge_once();
};

}  // namespace vpmm::region
