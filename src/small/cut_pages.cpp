// SPDX-License-Identifier: Apache-2.0
// small: pages of the pool are cut, and go back when everything in them is free.
#include "small/cut_pages.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "small/allocation.hpp"

namespace vpmm::small {

using pool::Caller;
using region::Region;

namespace {

// Note [A segment is as complete as what it was cut from]
// The source may still be pending on the caller's stream. Its sequence number keeps the segment
// from leaving the cache as complete, even unused. 0: complete.
std::uint64_t number_of(const Region& free) {
  return free.stamp.is_complete() ? 0 : free.stamp.parts().front().sequence;
}

}  // namespace

// --- pages

// Several pages lie in one run.
pool::PageRequest CutPages::next_pages(Bytes bytes) const {
  const Bytes pages =
      bytes <= page_size_ ? 1 : (span_units(bytes) * kUnit + page_size_ - 1) / page_size_;
  return {pages * page_size_, pages * page_size_,
          std::bit_ceil(pages) * pool_.memory().page_alignment(), true};
}

// Note [The rest of a page is as complete as the page was]
// The pool's memory may still be pending on the caller's stream. The rest then gets a number of
// that stream taken now, after the waits that the pool queued.
void CutPages::add(const pool::Placed& pages, const Caller& caller) {
  const time::Stamp stamp =
      pages.is_complete ? time::Stamp{} : time::Stamp(caller.timeline->next(0));
  Region* rest = pool_.memory().index.allocated_around(pages.begin);
  pool_.disown(rest);
  const ScopeExit give_back([&]() VPMM_REQUIRES(pool_lock) {  // short of host memory
    if (rest != nullptr) pool_.deallocate(rest, stamp);
  });
  while (rest != nullptr) {
    run_around(rest->range.begin);
    Region* const page = rest;
    rest = page->range.size > page_size_ ? pool_.divide(page, page->range.begin + page_size_)
                                         : nullptr;
    add_page(page, stamp);
  }
}

void CutPages::add_page(Region* page, const time::Stamp& stamp) {
  const DevicePtr begin = page->range.begin;
  PageRun& run = run_around(begin);
  const std::size_t at = run.page_of(begin);
  run.pages[at] = page;
  set_run_in(*page, run);
  if (run.entries != nullptr) run.entries[at].enter(run, at);
  ledger_.page_is_cut(page_size_);
  Region* const flying = units_.detach(units_.hole_around(begin), {begin, page_size_});
  units_.attach_free(flying, stamp);
}

// Found or begun.
PageRun& CutPages::run_around(DevicePtr page) {
  if (const auto after = run_by_begin_.upper_bound(page); after != run_by_begin_.begin())
    if (PageRun* const run = std::prev(after)->second; run->range.contains(page)) return *run;
  const Vector<AddressRange>& reservations = pool_.memory().reservations;
  const auto reservation =
      std::find_if(reservations.begin(), reservations.end(),
                   [&](const AddressRange& range) { return range.contains(page); });
  VPMM_CHECK(reservation != reservations.end(), units_.picture());
  const bool is_alone = pool_.memory().pages_stand_alone();
  const Bytes most = (is_alone ? 1 : kMostRunPages) * page_size_;
  const DevicePtr whole = is_alone ? page : align_down(page, most);
  const DevicePtr begin = std::max(whole, reservation->begin);
  PageRun* const run = runs_.take();
  ScopeExit give_back([&]() VPMM_REQUIRES(pool_lock) {  // it keeps its table
    run_by_begin_.erase(begin);
    runs_.give_back(run);
  });
  if (run->contents == nullptr)
    run->contents = static_cast<std::atomic<Content>*>(unit_tables_.take(
        static_cast<std::size_t>(most / kUnit) * sizeof(std::atomic<Content>), kCacheLine));
  run->range = {begin, std::min(whole + most, reservation->end()) - begin};
  run->page_size = page_size_;
  pagemap_.cover(*reservation);
  run->entries = pagemap_.at(begin);
  run_by_begin_.emplace(begin, run);
  units_.add_reservation(run->range);
  give_back.dismiss();
  return *run;
}

PageRun& CutPages::run_at(DevicePtr p) const {
  const Region* const page = pool_.memory().index.allocated_around(p);
  PageRun* const run = page == nullptr ? nullptr : run_in(*page);
  VPMM_CHECK(run != nullptr, message_of("no page that is cut around {:#x}", to_integer(p)));
  return *run;
}

void CutPages::give_idle_pages() {
  while (Region* free = units_.best_fit(page_size_, pool_.memory().page_alignment(), std::nullopt))
    give_pages(free);
}

// Gives the whole pages in `free` back to the pool.
void CutPages::give_pages(Region* free) {
  PageRun& run = run_at(free->range.begin);
  const Bytes first = round_up(free->range.begin - run.range.begin, page_size_);
  const Bytes end = round_down(free->range.end() - run.range.begin, page_size_);
  if (first >= end) return;
  const time::Stamp stamp = timelines_.reduce(free->stamp);
  const Region* const hole =
      units_.attach_hole(units_.detach(free, {run.range.begin + first, end - first}));
  const bool is_last = hole->range == run.range;
  for (Bytes at = first; at < end; at += page_size_) {
    const auto page = static_cast<std::size_t>(at / page_size_);
    if (run.entries != nullptr) run.entries[page].leave();
    Region* const region = std::exchange(run.pages[page], nullptr);
    pool_.deallocate(region, stamp);
    ledger_.page_goes_back(page_size_);
  }
  if (!is_last) return;
  units_.remove_reservation(run.range);
  run_by_begin_.erase(run.range.begin);
  runs_.give_back(&run);
}

// --- units

void CutPages::for_each_free(FunctionRef<void(const Region&)> visit) const {
  units_.for_each([&](const Region& region) {
    if (region.state == region::RegionState::free) visit(region);
  });
}

CutPages::FreePart CutPages::find(Bytes least, Bytes most, Bytes alignment,
                                  const Caller& caller) const {
  Region* const free = units_.best_fit(least, alignment, caller.own());
  if (free == nullptr) return {};
  const AddressRange range = free->range;
  DevicePtr begin = *region::aligned_start(free->range, least, alignment);
  const PageRun& run = run_at(begin);
  const DevicePtr border = run.range.begin + (run.page_of(begin) + 1) * page_size_;
  Bytes room = std::min(range.end(), border) - begin;
  if (room < least) {  // so it reaches beyond the border
    const Bytes behind = std::min(range.end() - border, page_size_);
    if (behind >= least) begin = border;
    room = std::max(behind, least);
  }
  return {free, {begin, std::min(room, most)}, number_of(*free)};
}

CutPages::FreePart CutPages::find_aligned(Bytes size, Bytes alignment, const Caller& caller) const {
  Region* const free = units_.best_fit(size, alignment, caller.own());
  if (free == nullptr) return {};
  return {free, {*region::aligned_start(free->range, size, alignment), size}, number_of(*free)};
}

CutPages::FreePart CutPages::find_pages(Bytes least, const Caller& caller) const {
  FreePart room =
      find_aligned(round_up(least, page_size_), pool_.memory().page_alignment(), caller);
  if (room.free != nullptr)
    room.part.size = round_down(room.free->range.end() - room.part.begin, page_size_);
  return room;
}

Segment* CutPages::cut(const FreePart& room, const Caller& caller) {
  Segment* const segment = segments_.take();
  try {
    take_units(room, caller);
  } catch (...) {
    segments_.give_back(segment);
    throw;
  }
  segment->enter(run_at(room.part.begin), room.part);
  return segment;
}

void CutPages::take_units(const FreePart& room, const Caller& caller) {
  region::Owner owner;
  if (caller.timeline != nullptr) owner.timeline = caller.timeline->id;
  const std::optional<time::TimelineId> timeline = owner.timeline;
  units_.allocate(room.free, room.part, std::move(owner));
  time::count_references(timelines_, timeline, {}, +1);
}

Segment* CutPages::pages_until(DevicePtr end, StreamCache& cache) const {
  const PageRun& run = run_at(end);
  if (run.range.begin == end || run.pages[run.page_of(end) - 1] == nullptr) return nullptr;
  Segment* segment = nullptr;
  {
    // Other threads of the stream end slabs and cut them elsewhere. Its segments stay the same as
    // long as the pool's lock is held.
    const CacheGuard guard(cache);
    segment = segment_at(run, end - kUnit, cache);
  }
  const auto is_border = [&](DevicePtr p) { return is_multiple(p - run.range.begin, page_size_); };
  const bool has_pages =
      segment != nullptr && segment->range().end() == end && is_border(segment->begin);
  return has_pages ? segment : nullptr;
}

void CutPages::end(Segment* segment, const time::Stamp& stamp) {
  segment->leave();
  const AddressRange range = segment->range();
  segments_.give_back(segment);
  const auto split_at = [&](DevicePtr p) VPMM_REQUIRES(pool_lock) {
    Region* const part = units_.allocated_around(p);
    if (part == nullptr || part->range.begin == p) return;
    time::count_references(timelines_, part->owner.timeline, {}, +1);
    units_.split_allocated(part, p);
  };
  split_at(range.begin);
  split_at(range.end());
  for (DevicePtr at = range.begin; at < range.end();) {
    Region* const part = units_.allocated_around(at);
    at = part->range.end();
    time::count_references(timelines_, part->owner.timeline, {}, -1);
    give_pages(units_.release(part, timelines_.reduce(stamp)));
  }
}

}  // namespace vpmm::small
