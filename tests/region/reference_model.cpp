// SPDX-License-Identifier: Apache-2.0
// region tests: the naive region index.
#include "region/reference_model.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace vpmm::region {
namespace {

// Whether `count` pages fit behind some page of `span` whose number from kStart's zero is a
// multiple of `alignment`.
bool fits_in(PageSpan span, std::uint64_t count, std::uint64_t alignment) {
  for (std::uint64_t at = span.first; at + count <= span.first + span.count; ++at)
    if (to_integer(page(at)) % (alignment * kPage) == 0) return true;
  return false;
}

template <typename Usable>
std::optional<PageSpan> smallest(const Vector<ModelRegion>& regions, std::uint64_t count,
                                 std::uint64_t alignment, const Usable& usable) {
  std::optional<PageSpan> best;
  for (const ModelRegion& region : regions) {
    if (!usable(region) || !fits_in(region.span, count, alignment)) continue;
    if (!best || region.span.count < best->count) best = region.span;
  }
  return best;
}

bool is_own(const ModelRegion& region, std::optional<time::TimelineId> own) {
  return region.state == RegionState::free && own && region.parts.size() == 1 &&
         region.parts.contains(*own);
}
bool is_complete(const ModelRegion& region) {
  return region.state == RegionState::free && region.parts.empty();
}
bool is_usable(const ModelRegion& region, std::optional<time::TimelineId> own) {
  return is_complete(region) || is_own(region, own);
}

Vector<PageSpan> in_order(Vector<PageSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const PageSpan& a, const PageSpan& b) {
    return std::pair(a.count, a.first) < std::pair(b.count, b.first);
  });
  return spans;
}

}  // namespace

Parts parts_of(const time::Stamp& stamp) {
  Parts parts;
  for (const time::StampPart& part : stamp.parts()) parts[part.timeline] = part.sequence;
  return parts;
}

ReferenceModel::ReferenceModel(const Vector<PageSpan>& reservations) {
  for (const PageSpan& span : reservations) reserve(span);
}

void ReferenceModel::reserve(PageSpan span) {
  ++last_id_;
  for (std::uint64_t at = span.first; at < span.first + span.count; ++at)
    pages_[at] = Page{last_id_, last_id_, {}};
}

void ReferenceModel::unreserve(PageSpan span) {
  for (std::uint64_t at = span.first; at < span.first + span.count; ++at) pages_.erase(at);
}

bool ReferenceModel::is_reservation(PageSpan span) const {
  const auto goes_on = [this](std::uint64_t a, std::uint64_t b) {
    return pages_.contains(b) && one_reservation(a, b);
  };
  const std::uint64_t last = span.first + span.count - 1;
  return one_reservation(span.first, last) && !goes_on(last, last + 1) &&
         !goes_on(span.first, span.first - 1);
}

template <typename Change>
void ReferenceModel::change(std::uint64_t page, const Change& change) {
  const std::uint64_t id = pages_.at(page).id;
  for (auto& [number, each] : pages_)
    if (each.id == id) change(each.what);
}

void ReferenceModel::renumber(std::uint64_t first, std::uint64_t end) {
  ++last_id_;
  for (std::uint64_t at = first; at < end; ++at) pages_.at(at).id = last_id_;
}

void ReferenceModel::cut(PageSpan part) {
  const std::uint64_t whole = pages_.at(part.first).id;
  std::uint64_t end = part.first + part.count;
  renumber(part.first, end);
  const std::uint64_t behind = end;
  while (pages_.contains(end) && pages_.at(end).id == whole) ++end;
  renumber(behind, end);
}

bool ReferenceModel::merge_once() {
  if (pages_.empty()) return false;
  for (auto here = pages_.begin(), next = std::next(here); next != pages_.end(); here = next++) {
    const ModelRegion a = here->second.what;
    const ModelRegion b = next->second.what;
    if (here->second.id == next->second.id || !one_reservation(here->first, next->first) ||
        a.state != b.state)
      continue;
    if (a.state != RegionState::hole && a.state != RegionState::free) continue;
    if (a.parts.size() != b.parts.size() || a.parts.size() > 1) continue;
    if (!a.parts.empty() && a.parts.begin()->first != b.parts.begin()->first) continue;
    const std::uint64_t gone = next->second.id;
    for (auto& [number, each] : pages_)
      if (each.id == gone) each.id = here->second.id;
    change(here->first, [&](ModelRegion& region) {
      region.parts = std::max(a.parts, b.parts);
      region.age = std::min(a.age, b.age);
    });
    return true;
  }
  return false;
}

void ReferenceModel::merge() {
  while (merge_once()) {
  }
}

void ReferenceModel::allocate(PageSpan part, Bytes requested) {
  cut(part);
  attach_allocated(part.first, requested);
}

void ReferenceModel::release(std::uint64_t page, const Parts& parts) { attach_free(page, parts); }

void ReferenceModel::detach(PageSpan part) {
  cut(part);
  change(part.first, [](ModelRegion& region) { region.state = RegionState::in_flight; });
}

void ReferenceModel::attach_free(std::uint64_t page, const Parts& parts) {
  const std::uint64_t age = ++last_age_;
  change(page, [&](ModelRegion& region) { region = {{}, RegionState::free, parts, age, 0}; });
  merge();
}

void ReferenceModel::take_back(std::uint64_t page) {
  change(page, [](ModelRegion& region) { region.state = RegionState::free; });
  merge();
}

void ReferenceModel::attach_hole(std::uint64_t page) {
  change(page, [](ModelRegion& region) { region = {}; });
  merge();
}

void ReferenceModel::attach_zombie(std::uint64_t page, const Parts& parts) {
  const std::uint64_t age = ++last_age_;
  change(page, [&](ModelRegion& region) { region = {{}, RegionState::zombie, parts, age, 0}; });
}

void ReferenceModel::attach_allocated(std::uint64_t page, Bytes requested) {
  change(page, [&](ModelRegion& region) {
    region = {{}, RegionState::allocated, {}, 0, requested};
  });
}

void ReferenceModel::split(std::uint64_t at) {
  const std::uint64_t id = pages_.at(at).id;
  std::uint64_t end = at;
  while (pages_.contains(end) && pages_.at(end).id == id) ++end;
  renumber(at, end);
}

void ReferenceModel::join(std::uint64_t at) {
  const Page front = pages_.at(at - 1);
  const Page back = pages_.at(at);
  for (auto& [number, each] : pages_)
    if (each.id == back.id) each = front;
  change(at, [&](ModelRegion& region) { region.age = std::min(front.what.age, back.what.age); });
}

void ReferenceModel::advance(time::TimelineId timeline, std::uint64_t sequence) {
  for (auto& [number, each] : pages_) {
    if (each.what.state == RegionState::in_flight) continue;
    const auto part = each.what.parts.find(timeline);
    if (part != each.what.parts.end() && part->second <= sequence) each.what.parts.erase(part);
  }
  merge();
}

Vector<ModelRegion> ReferenceModel::regions() const {
  Vector<ModelRegion> all;
  std::uint64_t id = 0;
  for (const auto& [number, each] : pages_) {
    if (each.id != id) {
      all.push_back(each.what);
      all.back().span = {number, 0};
    }
    ++all.back().span.count;
    id = each.id;
  }
  return all;
}

bool ReferenceModel::one_reservation(std::uint64_t a, std::uint64_t b) const {
  return pages_.at(a).reservation == pages_.at(b).reservation;
}

std::optional<PageSpan> ReferenceModel::best_fit(std::uint64_t count, std::uint64_t alignment,
                                                 std::optional<time::TimelineId> own) const {
  return smallest(regions(), count, alignment,
                  [&](const ModelRegion& region) { return is_usable(region, own); });
}

std::optional<PageSpan> ReferenceModel::best_own_fit(std::uint64_t count, std::uint64_t alignment,
                                                     std::optional<time::TimelineId> own) const {
  const std::optional<PageSpan> pending = smallest(
      regions(), count, alignment, [&](const ModelRegion& region) { return is_own(region, own); });
  return pending ? pending : smallest(regions(), count, alignment, is_complete);
}

std::optional<PageSpan> ReferenceModel::lowest_fit(std::uint64_t count, std::uint64_t alignment,
                                                   std::optional<time::TimelineId> own) const {
  for (const ModelRegion& region : regions())
    if (is_usable(region, own) && fits_in(region.span, count, alignment)) return region.span;
  return std::nullopt;
}

Vector<PageSpan> ReferenceModel::holes(std::uint64_t count) const {
  Vector<PageSpan> all;
  for (const ModelRegion& region : regions())
    if (region.state == RegionState::hole && region.span.count >= count) all.push_back(region.span);
  return in_order(std::move(all));
}

Vector<PageSpan> ReferenceModel::fits(std::uint64_t count, std::optional<time::TimelineId> own,
                                      bool own_first) const {
  Vector<PageSpan> first;
  Vector<PageSpan> all;
  for (const ModelRegion& region : regions()) {
    if (!is_usable(region, own) || region.span.count < count) continue;
    (own_first && is_own(region, own) ? first : all).push_back(region.span);
  }
  first = in_order(std::move(first));
  all = in_order(std::move(all));
  first.insert(first.end(), all.begin(), all.end());
  return first;
}

std::optional<PageSpan> ReferenceModel::smallest_hole(std::uint64_t count,
                                                      std::uint64_t alignment) const {
  return smallest(regions(), count, alignment,
                  [](const ModelRegion& region) { return region.state == RegionState::hole; });
}

Vector<Vector<PageSpan>> ReferenceModel::runs() const {
  Vector<Vector<PageSpan>> all;
  Vector<PageSpan> run;
  const auto close = [&] {
    if (run.size() >= 2) all.push_back(run);
    run.clear();
  };
  for (const ModelRegion& region : regions()) {
    const std::uint64_t first = region.span.first;
    const bool touches = !run.empty() && run.back().first + run.back().count == first &&
                         one_reservation(first - 1, first);
    if (!touches || region.state != RegionState::free) close();
    if (region.state == RegionState::free) run.push_back(region.span);
  }
  close();
  return all;
}

Vector<PageSpan> ReferenceModel::by_age(RegionState state) const {
  Vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> order;
  for (const ModelRegion& region : regions())
    if (region.state == state) order.emplace_back(region.age, region.span.first, region.span.count);
  std::sort(order.begin(), order.end());
  Vector<PageSpan> spans;
  for (const auto& [age, first, count] : order) spans.push_back({first, count});
  return spans;
}

std::string ReferenceModel::picture() const {
  std::string text;
  for (const ModelRegion& region : regions()) {
    const std::uint64_t behind = region.span.first + region.span.count;
    const bool last = !pages_.contains(behind) || !one_reservation(behind - 1, behind);
    if (last && region.state == RegionState::hole) continue;
    const std::map<RegionState, std::string> signs{{RegionState::hole, "*"},
                                                   {RegionState::free, "-"},
                                                   {RegionState::allocated, ""},
                                                   {RegionState::zombie, "~"},
                                                   {RegionState::in_flight, "#"}};
    text += "[" + signs.at(region.state) + std::to_string(region.span.count) + "]";
  }
  return text;
}

}  // namespace vpmm::region
