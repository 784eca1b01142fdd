// SPDX-License-Identifier: Apache-2.0
// region tests: running one operation on the index and on the model, and comparing the two.
#include "region/region_operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace vpmm::region {
namespace {

AddressRange range(PageSpan span) { return pages(span.first, span.count); }
PageSpan span_of(const Region& region) {
  return {(region.range.begin - kStart) / kPage, region.range.size / kPage};
}
std::optional<PageSpan> span_of(const Region* region) {
  return region == nullptr ? std::nullopt : std::optional(span_of(*region));
}

char letter(time::TimelineId timeline) {
  return static_cast<char>('A' + static_cast<std::uint64_t>(timeline) - 1);
}

std::string code(const time::Stamp& stamp) {
  std::string inner;
  for (const time::StampPart& part : stamp.parts())
    inner +=
        fmt::format("{}{}, {}", inner.empty() ? "" : ", ", letter(part.timeline), part.sequence);
  return inner.empty() ? "complete()" : fmt::format("on({})", inner);
}

std::string code(PageSpan span) { return fmt::format("{{{}, {}}}", span.first, span.count); }

struct Printer {
  std::string operator()(const Reserve& o) const {
    return fmt::format("Reserve{{{}}}", code(o.span));
  }
  std::string operator()(const Unreserve& o) const {
    return fmt::format("Unreserve{{{}}}", code(o.span));
  }
  std::string operator()(const Allocate& o) const {
    return fmt::format("Allocate{{{}, {}}}", code(o.part), o.requested);
  }
  std::string operator()(const Release& o) const {
    return fmt::format("Release{{{}, {}}}", o.page, code(o.stamp));
  }
  std::string operator()(const Detach& o) const {
    return fmt::format("Detach{{{}}}", code(o.part));
  }
  std::string operator()(const AttachFree& o) const {
    return fmt::format("AttachFree{{{}, {}}}", o.page, code(o.stamp));
  }
  std::string operator()(const TakeBack& o) const { return fmt::format("TakeBack{{{}}}", o.page); }
  std::string operator()(const AttachHole& o) const {
    return fmt::format("AttachHole{{{}}}", o.page);
  }
  std::string operator()(const AttachZombie& o) const {
    return fmt::format("AttachZombie{{{}, {}}}", o.page, code(o.stamp));
  }
  std::string operator()(const AttachAllocated& o) const {
    return fmt::format("AttachAllocated{{{}, {}}}", o.page, o.requested);
  }
  std::string operator()(const Split& o) const { return fmt::format("Split{{{}}}", o.at); }
  std::string operator()(const Join& o) const { return fmt::format("Join{{{}}}", o.at); }
  std::string operator()(const Advance& o) const {
    return fmt::format("Advance{{{}, {}}}", letter(o.timeline), o.sequence);
  }
};

struct OnModel {
  ReferenceModel& model;
  void operator()(const Reserve& o) const { model.reserve(o.span); }
  void operator()(const Unreserve& o) const { model.unreserve(o.span); }
  void operator()(const Allocate& o) const { model.allocate(o.part, o.requested); }
  void operator()(const Release& o) const { model.release(o.page, parts_of(o.stamp)); }
  void operator()(const Detach& o) const { model.detach(o.part); }
  void operator()(const AttachFree& o) const { model.attach_free(o.page, parts_of(o.stamp)); }
  void operator()(const TakeBack& o) const { model.take_back(o.page); }
  void operator()(const AttachHole& o) const { model.attach_hole(o.page); }
  void operator()(const AttachZombie& o) const { model.attach_zombie(o.page, parts_of(o.stamp)); }
  void operator()(const AttachAllocated& o) const { model.attach_allocated(o.page, o.requested); }
  void operator()(const Split& o) const { model.split(o.at); }
  void operator()(const Join& o) const { model.join(o.at); }
  void operator()(const Advance& o) const { model.advance(o.timeline, o.sequence); }
};

// Each returns the region that the index returned.
struct OnIndex {
  RegionIndex& index;
  Region* at(std::uint64_t number) const { return region_at(index, number); }
  Region* operator()(const Reserve& o) const {
    index.add_reservation(range(o.span));
    return at(o.span.first);
  }
  Region* operator()(const Unreserve& o) const {
    index.remove_reservation(range(o.span));
    return nullptr;
  }
  Region* operator()(const Allocate& o) const {
    return index.allocate(at(o.part.first), range(o.part), Owner{o.requested, A, {}, 0});
  }
  Region* operator()(const Release& o) const {
    return index.release(index.allocated_around(page(o.page)), o.stamp);
  }
  Region* operator()(const Detach& o) const {
    return index.detach(at(o.part.first), range(o.part));
  }
  Region* operator()(const AttachFree& o) const { return index.attach_free(at(o.page), o.stamp); }
  Region* operator()(const TakeBack& o) const {
    Region* const region = at(o.page);
    return index.attach_free(region, region->stamp, region->age());
  }
  Region* operator()(const AttachHole& o) const { return index.attach_hole(at(o.page)); }
  Region* operator()(const AttachZombie& o) const {
    return index.attach_zombie(at(o.page), o.stamp);
  }
  Region* operator()(const AttachAllocated& o) const {
    return index.attach_allocated(at(o.page), Owner{o.requested, A, {}, 0});
  }
  Region* operator()(const Split& o) const {
    return index.split_in_flight(at(o.at), page(o.at)).second;
  }
  Region* operator()(const Join& o) const { return index.join(at(o.at - 1), at(o.at)); }
  Region* operator()(const Advance& o) const {
    index.advance(o.timeline, o.sequence);
    return nullptr;
  }
};

// A page that is in the region which the operation returns.
struct NamedPage {
  std::optional<std::uint64_t> operator()(const Advance&) const { return std::nullopt; }
  std::optional<std::uint64_t> operator()(const Unreserve&) const { return std::nullopt; }
  template <typename O>
  std::optional<std::uint64_t> operator()(const O& o) const {
    if constexpr (requires { o.span; })
      return o.span.first;
    else if constexpr (requires { o.part; })
      return o.part.first;
    else if constexpr (requires { o.at; })
      return o.at;
    else
      return o.page;
  }
};

std::string text(const Vector<PageSpan>& spans) {
  std::string all;
  for (const PageSpan& span : spans) all += code(span);
  return all;
}

// How the regions of a visit differ from those expected, whose groups stand by size and address; of
// a size only the lowest is promised to come first.
std::string order_difference(Vector<PageSpan> visited, const Vector<PageSpan>& expected) {
  if (visited.size() != expected.size())
    return "are " + text(visited) + " but expected " + text(expected);
  const auto at = [&](std::size_t place) {
    return visited.begin() + static_cast<std::ptrdiff_t>(place);
  };
  for (std::size_t first = 0, end = 0; first < expected.size(); first = end) {
    do ++end;
    while (end < expected.size() && expected[end].count == expected[first].count &&
           expected[end].first > expected[end - 1].first);
    std::sort(at(first + 1), at(end),
              [](const PageSpan& a, const PageSpan& b) { return a.first < b.first; });
  }
  return visited == expected ? "" : "are " + text(visited) + " but expected " + text(expected);
}

}  // namespace

std::string to_code(const Operation& operation) {
  return fmt::format("run({});", std::visit(Printer{}, operation));
}

Twins::Twins(const Vector<PageSpan>& reservations, Bytes unit)
    : reservations_(reservations), unit_(unit), model_(reservations), index_(unit) {
  for (const PageSpan& span : reservations) index_.add_reservation(range(span));
}

void Twins::run(const Operation& operation) {
  history_.push_back(operation);
  std::visit(OnModel{model_}, operation);
  const Region* const result = std::visit(OnIndex{index_}, operation);
  const std::optional<std::uint64_t> named = std::visit(NamedPage{}, operation);
  returned_the_named_ = !named || result == region_at(index_, *named);
}

std::string Twins::history() const {
  std::string all = "Twins twins({";
  for (const PageSpan& span : reservations_)
    all += (span == reservations_.front() ? "" : ", ") + code(span);
  all += fmt::format("}}, kPage / {});\n", kPage / unit_);
  for (const Operation& operation : history_) all += "twins." + to_code(operation) + "\n";
  return all;
}

std::string Twins::difference(const Question& fit) const {
  if (std::string broken = index_.validate(); !broken.empty()) return "validate(): " + broken;
  if (!returned_the_named_) return "the region returned is not the one asked for";
  if (index_.picture(kPage) != model_.picture())
    return fmt::format("picture {} but expected {}", index_.picture(kPage), model_.picture());
  if (std::string found = region_difference(); !found.empty()) return found;
  const Vector<ModelRegion> regions = model_.regions();
  if (std::string found = owner_difference(regions); !found.empty()) return found;
  if (std::string found = search_difference(fit); !found.empty()) return found;
  return figure_difference(regions);
}

std::string Twins::region_difference() const {
  Vector<ModelRegion> seen;
  index_.for_each([&](const Region& region) {
    seen.push_back(
        {span_of(region), region.state, parts_of(region.stamp), 0, region.owner.requested});
  });
  Vector<ModelRegion> expected = model_.regions();
  for (ModelRegion& region : expected) region.age = 0;  // only its order is promised
  for (std::size_t i = 0; i < std::min(seen.size(), expected.size()); ++i)
    if (!(seen[i] == expected[i]))
      return fmt::format("region at page {} differs", expected[i].span.first);
  return seen.size() == expected.size() ? "" : "not the same number of regions";
}

std::string Twins::owner_difference(const Vector<ModelRegion>& regions) const {
  for (const ModelRegion& region : regions) {
    for (std::uint64_t at = region.span.first; at < region.span.first + region.span.count; ++at) {
      const std::optional<PageSpan> owner =
          span_of(index_.allocated_around(page(at) + (kPage - 1)));
      const bool allocated = region.state == RegionState::allocated;
      if (owner != (allocated ? std::optional(region.span) : std::nullopt))
        return fmt::format("owner of page {} differs", at);
    }
  }
  return "";
}

std::string Twins::search_difference(const Question& fit) const {
  const Bytes size = fit.count * kPage;
  const Bytes alignment = fit.alignment * kPage;
  if (span_of(index_.best_fit(size, alignment, fit.own)) !=
      model_.best_fit(fit.count, fit.alignment, fit.own))
    return fmt::format("best fit of {} pages at {} differs", fit.count, fit.alignment);
  using First = RegionIndex::First;
  if (span_of(index_.best_fit(size, alignment, fit.own, First::own)) !=
      model_.best_own_fit(fit.count, fit.alignment, fit.own))
    return fmt::format("best fit of {} own pages at {} differs", fit.count, fit.alignment);
  if (span_of(index_.lowest_fit(size, alignment, fit.own)) !=
      model_.lowest_fit(fit.count, fit.alignment, fit.own))
    return fmt::format("lowest fit of {} pages at {} differs", fit.count, fit.alignment);
  Vector<PageSpan> visited;
  const auto visit = [&](Region* region) {
    visited.push_back(span_of(*region));
    return true;
  };
  for (const First first : {First::smaller, First::own}) {
    visited.clear();
    index_.for_each_fit(size, fit.own, first, visit);
    if (std::string found =
            order_difference(visited, model_.fits(fit.count, fit.own, first == First::own));
        !found.empty())
      return "fits " + found;
  }
  visited.clear();
  index_.for_each_hole(size, visit);
  if (std::string found = order_difference(visited, model_.holes(fit.count)); !found.empty())
    return "holes " + found;
  if (span_of(index_.smallest_hole(size, alignment)) !=
      model_.smallest_hole(fit.count, fit.alignment))
    return fmt::format("smallest hole of {} pages at {} differs", fit.count, fit.alignment);
  Vector<Vector<PageSpan>> runs;
  index_.for_each_run([&](const Vector<Region*>& run) {
    runs.emplace_back();
    for (const Region* region : run) runs.back().push_back(span_of(*region));
    return true;
  });
  if (runs != model_.runs()) return "runs differ";
  Vector<PageSpan> by_age;
  const auto collect = [&](Region* region) {
    by_age.push_back(span_of(*region));
    return true;
  };
  index_.for_each_free_by_age(collect);
  if (by_age != model_.by_age(RegionState::free)) return "free regions by age are " + text(by_age);
  by_age.clear();
  index_.for_each_zombie(collect);
  return by_age == model_.by_age(RegionState::zombie) ? "" : "zombies by age are " + text(by_age);
}

std::string Twins::figure_difference(const Vector<ModelRegion>& regions) const {
  std::array<Bytes, 5> bytes{};
  std::array<std::uint64_t, 5> counts{};
  std::map<time::TimelineId, Bytes> on_timeline;
  Bytes pending = 0;
  Bytes requested = 0;
  Bytes largest = 0;
  for (const ModelRegion& region : regions) {
    const Bytes size = region.span.count * kPage;
    bytes[static_cast<std::size_t>(region.state)] += size;
    ++counts[static_cast<std::size_t>(region.state)];
    requested += region.requested;
    if (region.state != RegionState::free) continue;
    largest = std::max(largest, size);
    if (!region.parts.empty()) pending += size;
    for (const auto& [timeline, sequence] : region.parts) on_timeline[timeline] += size;
  }
  for (std::size_t state = 0; state < bytes.size(); ++state) {
    if (index_.bytes(static_cast<RegionState>(state)) != bytes[state])
      return fmt::format("bytes of state {}", state);
    if (index_.count(static_cast<RegionState>(state)) != counts[state])
      return fmt::format("count of state {}", state);
  }
  for (const time::TimelineId timeline : {A, B, C}) {
    if (index_.pending_bytes(timeline) != on_timeline[timeline])
      return "pending bytes of a timeline differ";
  }
  if (index_.pending_bytes() != pending) return "pending bytes differ";
  if (index_.requested_bytes() != requested) return "requested bytes differ";
  return index_.largest_free() == largest ? "" : "largest free region differs";
}

}  // namespace vpmm::region
