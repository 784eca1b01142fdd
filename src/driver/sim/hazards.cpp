// SPDX-License-Identifier: Apache-2.0
// driver/sim: rules of the hazard checker and upkeep of its records.
#include "driver/sim/hazards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace vpmm::driver::sim {
namespace {

constexpr std::size_t kHazardsKept = 100;
constexpr std::size_t kStreamNamesKept = 16;
constexpr std::uint64_t kFirstCollect = 1 << 16;

const char* to_string(MemoryAccess::Kind kind) {
  return kind == MemoryAccess::Kind::read ? "read" : "write";
}

}  // namespace

HazardChecker::HazardChecker(std::uint64_t max_records, const VectorClock& host)
    : max_records_(max_records), host_(host), next_collect_(std::min(kFirstCollect, max_records)) {
  intern("allocate");
  intern("deallocate");
}

void HazardChecker::add(Shadow& shadow) {
  shadow.index = shadows_.size();
  shadows_.push_back(&shadow);
}

void HazardChecker::remove(Shadow& shadow) {
  shadow.visit_all([this](Segments& segments) {
    for (const ShadowSegment& segment : segments) records_ -= segment.records();
  });
  shadows_[shadow.index] = shadows_.back();
  shadows_[shadow.index]->index = shadow.index;
  shadows_.pop_back();
}

template <typename Update>
void HazardChecker::change(const AccessPiece& piece, Shadow::Cover cover, Update&& update) {
  const DevicePtr chunk_begin = piece.range.begin - piece.offset;
  piece.shadow.visit(
      piece.offset, piece.offset + piece.range.size, cover,
      [&](Segments& segments, Bytes origin, std::uint32_t begin, std::uint32_t end) {
        const DevicePtr page = chunk_begin + origin;
        auto update_segment = [&](ShadowSegment& segment) {
          update(segment, AddressRange{page + segment.begin, segment.end - segment.begin});
        };
        replace(segments, begin, end, piece.shadow.blank(), update_segment);
      });
  collect_if_due();
}

// Cuts the segments at `begin` and `end`, fills gaps with blank ones, updates all in between.
template <typename Update>
void HazardChecker::replace(Segments& segments, std::uint32_t begin, std::uint32_t end,
                            TouchRight blank, Update& update) {
  const auto first =
      std::partition_point(segments.begin(), segments.end(),
                           [begin](const ShadowSegment& segment) { return segment.end <= begin; });
  if (first != segments.end() && first->begin == begin && first->end == end) {
    records_ -= first->records();
    update(*first);
    records_ += first->records();
    return;
  }
  scratch_.clear();
  auto next = first;
  if (next != segments.end() && next->begin < begin) {
    scratch_.push_back(*next);
    scratch_.back().end = begin;
  }
  for (std::uint32_t at = begin; at < end;) {
    ShadowSegment piece;
    const bool is_gap = next == segments.end() || next->begin > at;
    if (is_gap) {
      piece.owner = blank;
      piece.end = next == segments.end() ? end : std::min(end, next->begin);
    } else {
      piece = *next;
      piece.end = std::min(end, next->end);
    }
    piece.begin = at;
    at = piece.end;
    update(piece);
    append(std::move(piece));
    if (is_gap) continue;
    if (next->end > end) {
      scratch_.push_back(*next);
      scratch_.back().begin = end;
    }
    ++next;
  }
  splice(segments, first, next);
}

void HazardChecker::append(ShadowSegment&& segment) {
  if (!scratch_.empty() && scratch_.back().same_history(segment)) {
    scratch_.back().end = segment.end;
  } else {
    scratch_.push_back(std::move(segment));
  }
}

// Puts the scratch segments in the place of [first, last).
void HazardChecker::splice(Segments& segments, Segments::iterator first, Segments::iterator last) {
  for (auto old = first; old != last; ++old) records_ -= old->records();
  for (const ShadowSegment& segment : scratch_) records_ += segment.records();
  const auto old_count = static_cast<std::size_t>(last - first);
  const std::size_t common = std::min(old_count, scratch_.size());
  const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>(common);
  const auto out = std::move(scratch_.begin(), middle, first);
  if (old_count > common) {
    segments.erase(out, last);
  } else {
    segments.insert(out, std::make_move_iterator(middle), std::make_move_iterator(scratch_.end()));
  }
}

void HazardChecker::access(const AccessPiece& piece, MemoryAccess::Kind kind, const Actor& actor) {
  const bool is_write = kind == MemoryAccess::Kind::write;
  const auto cover = is_write ? Shadow::Cover::whole : Shadow::Cover::as_is;
  change(piece, cover, [&](ShadowSegment& segment, AddressRange range) {
    if (!owned(segment, piece, range, actor)) return;
    if (is_write) {
      check_order(segment, range, actor, "write");
      segment.write = actor.at;
      segment.read = Position{};
      segment.more_reads.clear();
      return;
    }
    if (!ordered(segment.write, actor))
      report_unordered(segment.write, "write", range, actor, "read");
    add_read(segment, actor);
  });
}

void HazardChecker::allocate(const AccessPiece& piece, Allocator allocator, const Actor& actor) {
  const bool observed = allocator == Allocator::observed;
  if (observed) piece.shadow.set_annotated();
  const std::uint64_t base = observed ? to_integer(piece.range.begin) - piece.offset : 0;
  change(piece, Shadow::Cover::whole, [&](ShadowSegment& segment, AddressRange range) {
    if (observed && segment.owner == TouchRight::allocated) {
      report(Hazard::Kind::unordered_accesses, range, segment.write, actor.at,
             "memory that is still allocated", describe(actor.at, ""),
             "the earlier allocation must be deallocated before its memory is handed out again");
    } else {
      check_order(segment, range, actor, "");
    }
    segment.owner = observed ? TouchRight::allocated : TouchRight::driver;
    segment.base = base;
    segment.write = actor.at;
    segment.read = Position{};
    segment.more_reads.clear();
  });
}

void HazardChecker::deallocate(const AccessPiece& piece, const Actor& actor) {
  change(piece, Shadow::Cover::whole, [&](ShadowSegment& segment, AddressRange range) {
    check_order(segment, range, actor, "");
    segment.owner = TouchRight::freed;
    segment.base = 0;
    segment.write = actor.at;
    segment.read = Position{};
    segment.more_reads.clear();
  });
}

void HazardChecker::deallocate_after_all(const AccessPiece& piece) {
  change(piece, Shadow::Cover::whole, [](ShadowSegment& segment, AddressRange) {
    segment.owner = TouchRight::freed;
    segment.base = 0;
  });
}

void HazardChecker::deallocate_in_capture(const AccessPiece& piece) {
  change(piece, Shadow::Cover::whole, [](ShadowSegment& segment, AddressRange) {
    if (segment.owner == TouchRight::allocated) segment.owner = TouchRight::captured;
  });
}

// Tells if the accessor may touch this memory; otherwise reports.
bool HazardChecker::owned(const ShadowSegment& segment, const AccessPiece& piece,
                          AddressRange range, const Actor& actor) {
  const char* use = "use";
  switch (segment.owner) {
    case TouchRight::none:
      if (!piece.shadow.annotated()) return true;
      report(Hazard::Kind::use_before_allocate, range, Position{}, actor.at,
             "no allocation of this memory", describe(actor.at, use),
             "the memory must be allocated before it is used");
      return false;
    case TouchRight::freed:
      report(Hazard::Kind::use_after_free, range, segment.write, actor.at,
             segment.write.what == kDeallocateName ? describe(segment.write, "") : "deallocate",
             describe(actor.at, use),
             "the use must be queued, and ordered, before the deallocation");
      return false;
    case TouchRight::allocated:
    case TouchRight::captured:
      if (segment.base == to_integer(piece.range.begin) - piece.offset) return true;
      report(Hazard::Kind::use_after_free, range, segment.write, actor.at,
             fmt::format("the memory moved: its owner got it at {:#x}",
                         segment.base + piece.offset + (range.begin - piece.range.begin)),
             describe(actor.at, use), "only the address that was handed out last may be used");
      return false;
    case TouchRight::driver: return true;
  }
  return true;
}

void HazardChecker::check_order(const ShadowSegment& segment, AddressRange range,
                                const Actor& actor, std::string_view verb) {
  if (!ordered(segment.write, actor))
    return report_unordered(segment.write, "write", range, actor, verb);
  if (!ordered(segment.read, actor))
    return report_unordered(segment.read, "read", range, actor, verb);
  for (const Position& read : segment.more_reads) {
    if (!ordered(read, actor)) return report_unordered(read, "read", range, actor, verb);
  }
}

void HazardChecker::report_unordered(const Position& earlier, std::string_view earlier_verb,
                                     AddressRange range, const Actor& actor,
                                     std::string_view verb) {
  auto kind = Hazard::Kind::unordered_accesses;
  if (earlier.what == kAllocateName) kind = Hazard::Kind::use_before_allocate;
  if (actor.at.what == kDeallocateName) kind = Hazard::Kind::use_after_free;
  if (actor.at.what == kAllocateName) kind = Hazard::Kind::unordered_accesses;
  const bool earlier_is_annotation =
      earlier.what == kAllocateName || earlier.what == kDeallocateName;
  report(kind, range, earlier, actor.at,
         describe(earlier, earlier_is_annotation ? "" : earlier_verb), describe(actor.at, verb),
         fmt::format("{} must wait for {}: by stream order, an event or the host",
                     describe_place(actor.at), describe_place(earlier)));
}

void HazardChecker::add_read(ShadowSegment& segment, const Actor& actor) {
  // A read that is ordered before this one adds nothing: an order after this one covers both.
  auto& more = segment.more_reads;
  more.erase(std::remove_if(more.begin(), more.end(),
                            [&](const Position& read) { return ordered(read, actor); }),
             more.end());
  if (ordered(segment.read, actor)) {
    segment.read = actor.at;
  } else {
    more.push_back(actor.at);
  }
}

void HazardChecker::unmapped_access(AddressRange range, MemoryAccess::Kind kind,
                                    const Actor& actor) {
  report(Hazard::Kind::unmapped_access, range, Position{}, actor.at,
         "no mapping that this device may access", describe(actor.at, to_string(kind)),
         "the address must be mapped and accessible before work that uses it is queued");
}

void HazardChecker::unmapped_annotation(AddressRange range, const Actor& actor) {
  report(Hazard::Kind::unmapped_access, range, Position{}, actor.at, "no mapping at this address",
         describe(actor.at, ""), "memory must be mapped while it is handed out");
}

void HazardChecker::unmapped_too_early(AddressRange range, const Position& use, const Actor& host) {
  report(Hazard::Kind::unmapped_too_early, range, use, host.at, describe(use, "use"),
         describe(host.at, ""),
         fmt::format("the host must see {} complete before it unmaps", describe_place(use)));
}

void HazardChecker::report(Hazard::Kind kind, AddressRange range, const Position& first,
                           const Position& second, std::string first_text, std::string second_text,
                           std::string missing) {
  const std::pair pair{first, second};
  if (count_ != 0 && kind == last_kind_ && pair == last_pair_) return;
  last_kind_ = kind;
  last_pair_ = pair;
  ++count_;
  if (hazards_.size() >= kHazardsKept) return;
  hazards_.push_back(
      {kind, range, std::move(first_text), std::move(second_text), std::move(missing)});
}

NameId HazardChecker::intern(std::string_view name) {
  if (const auto found = name_ids_.find(name); found != name_ids_.end()) return found->second;
  const NameId id{static_cast<std::uint32_t>(names_.size())};
  names_.emplace_back(name);
  name_ids_.emplace(name, id);
  return id;
}

void HazardChecker::name_stream(Slot slot, std::uint64_t first, StreamId id) {
  if (slot >= stream_names_.size()) stream_names_.resize(slot + std::size_t{1});
  auto& names = stream_names_[slot];
  if (names.size() == kStreamNamesKept) names.erase(names.begin());
  names.push_back({first, id});
}

std::string HazardChecker::describe(const Position& position, std::string_view verb) const {
  const std::string& name = names_[static_cast<std::size_t>(position.what)];
  const auto by = verb.empty() ? name : fmt::format("{} by {}", verb, name);
  return fmt::format("{} ({})", by, describe_place(position));
}

std::string HazardChecker::describe_place(const Position& position) const {
  if (position.slot == kHostSlot) return "the host";
  const StreamName* stream = nullptr;
  if (position.slot < stream_names_.size()) {
    for (const StreamName& name : stream_names_[position.slot]) {
      if (name.first <= position.n) stream = &name;
    }
  }
  if (stream == nullptr) return "a stream of the past";
  return fmt::format("operation {} of stream {}", position.n - stream->first + 1,
                     static_cast<std::uint64_t>(stream->id));
}

void HazardChecker::collect_if_due() {
  if (records_ <= next_collect_) return;
  collect();
  // Leaving a quarter free keeps collections rare: each looks at every record.
  if (records_ > max_records_ / 4 * 3) coarsen();
  next_collect_ = std::max(kFirstCollect, 2 * records_);
  if (records_ < max_records_) next_collect_ = std::min(next_collect_, max_records_);
}

void HazardChecker::collect() {
  records_ = 0;
  for (Shadow* shadow : shadows_) {
    shadow->visit_all([&](Segments& segments) {
      for (ShadowSegment& segment : segments) forget_what_the_host_knows(segment);
      merge_neighbours(segments, shadow->blank());
      for (const ShadowSegment& segment : segments) records_ += segment.records();
    });
  }
}

// Forgets pending accesses, chunk by chunk, until half of the bound is free; keeps ownership.
void HazardChecker::coarsen() {
  for (std::size_t tried = 0; tried < shadows_.size() && records_ > max_records_ / 2; ++tried) {
    next_coarsened_ = (next_coarsened_ + 1) % shadows_.size();
    Shadow& shadow = *shadows_[next_coarsened_];
    shadow.visit_all([&](Segments& segments) {
      for (ShadowSegment& segment : segments) {
        records_ -= segment.records();
        if (segment.write.exists()) ++dropped_;
        if (segment.read.exists()) dropped_ += segment.records();
        segment.write = segment.read = Position{};
        segment.more_reads.clear();
      }
      merge_neighbours(segments, shadow.blank());
      for (const ShadowSegment& segment : segments) records_ += segment.records();
    });
  }
}

void HazardChecker::forget_what_the_host_knows(ShadowSegment& segment) const {
  auto known = [this](const Position& position) { return host_.covers(position.slot, position.n); };
  if (known(segment.write)) segment.write = Position{};
  segment.more_reads.erase(
      std::remove_if(segment.more_reads.begin(), segment.more_reads.end(), known),
      segment.more_reads.end());
  if (!known(segment.read)) return;
  segment.read = Position{};
  if (segment.more_reads.empty()) return;
  segment.read = segment.more_reads.back();
  segment.more_reads.pop_back();
}

void HazardChecker::merge_neighbours(Segments& segments, TouchRight blank) {
  auto out = segments.begin();
  for (auto in = segments.begin(); in != segments.end(); ++in) {
    if (in->owner == blank && !in->write.exists() && !in->read.exists()) continue;
    if (out != segments.begin() && std::prev(out)->end == in->begin &&
        std::prev(out)->same_history(*in)) {
      std::prev(out)->end = in->end;
      continue;
    }
    if (out != in) *out = std::move(*in);
    ++out;
  }
  segments.erase(out, segments.end());
}

}  // namespace vpmm::driver::sim
