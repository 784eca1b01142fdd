// SPDX-License-Identifier: Apache-2.0
// tests: a listener that keeps what it was told, and holds each event against those before it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "context/context.hpp"

namespace vpmm::test {

using report::EventKind;
using report::ReportedEvent;

constexpr report::EventKinds kEveryKind = (report::EventKinds{1} << report::kEventKinds) - 1;

// From a pool that has nothing yet. A chunk is at one place; what is allocated lies in chunks, or
// in memory that an arena was given, and is freed as it was allocated. Where it hears of arenas:
// what is allocated in one lies in a stretch that it has, and nothing else does; a stretch comes
// and goes with nothing live in it. Stretches are unmapped before a suspend and mapped before a
// resume, and nothing else comes in between.
class EventLog {
 public:
  explicit EventLog(context::Context& pool, report::EventKinds kinds = kEveryKind)
      : pool_(pool),
        hears_of_arenas_((kinds & report::bit_of(EventKind::arena_grow)) != 0),
        hears_of_suspends_((kinds & report::bit_of(EventKind::suspend)) != 0) {
    id_ = pool.reports().add_event_callback(kinds,
                                            [this](const ReportedEvent& event) { note(event); });
  }
  ~EventLog() { EXPECT_TRUE(pool_.reports().remove_event_callback(id_).ok()); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  std::uint64_t id() const { return id_; }
  const std::vector<ReportedEvent>& events() const { return events_; }
  std::vector<ReportedEvent> of(EventKind kind) const {
    std::vector<ReportedEvent> found;
    for (const ReportedEvent& event : events_)
      if (event.kind == kind) found.push_back(event);
    return found;
  }
  std::vector<EventKind> kinds() const {
    std::vector<EventKind> kinds;
    for (const ReportedEvent& event : events_) kinds.push_back(event.kind);
    return kinds;
  }
  void clear() { events_.clear(); }  // what is mapped and live stays known

  const std::map<DevicePtr, Bytes>& chunks() const { return chunks_; }
  const std::map<DevicePtr, Bytes>& live() const { return live_; }
  const std::map<DevicePtr, Bytes>& stretches() const { return stretches_; }  // of all arenas
  Bytes mapped_bytes() const {
    Bytes sum = 0;
    for (const auto& [begin, bytes] : chunks_) sum += bytes;
    return sum;
  }

 private:
  void note(const ReportedEvent& event) {
    events_.push_back(event);
    EXPECT_GE(event.time_ns, last_ns_);
    last_ns_ = event.time_ns;
    if (event.kind != EventKind::map && event.kind != EventKind::unmap &&
        event.kind != EventKind::suspend) {
      EXPECT_TRUE(leaving_.empty()) << "unmapped without a suspend";
    }
    switch (event.kind) {
      case EventKind::map:
        EXPECT_FALSE(is_any_mapped({event.ptr, event.bytes})) << "mapped twice";
        chunks_[event.ptr] = event.bytes;
        break;
      case EventKind::unmap:
        EXPECT_EQ(chunks_.count(event.ptr) == 0 ? 0 : chunks_[event.ptr], event.bytes)
            << "no such chunk";
        chunks_.erase(event.ptr);
        if (const auto owner = around(stretches_, event.ptr);
            hears_of_suspends_ && owner != stretches_.end()) {
          EXPECT_TRUE((AddressRange{owner->first, owner->second}.contains(
              AddressRange{event.ptr, event.bytes})));
          leaving_[arenas_.at(owner->first)] += event.bytes;
          break;
        }
        EXPECT_FALSE(is_any_live({event.ptr, event.bytes})) << "unmapped before it was freed";
        EXPECT_FALSE(has_any(stretches_, {event.ptr, event.bytes})) << "unmapped, and an arena's";
        break;
      case EventKind::suspend:
        EXPECT_EQ(leaving_[event.arena], event.bytes) << "suspended, and not unmapped";
        leaving_.erase(event.arena);
        for (const auto& [begin, arena] : arenas_) {
          if (arena != event.arena) continue;
          EXPECT_FALSE(is_any_mapped({begin, stretches_.at(begin)})) << "suspended, and mapped";
        }
        break;
      case EventKind::resume:
        for (const auto& [begin, arena] : arenas_) {
          if (arena != event.arena) continue;
          EXPECT_TRUE(is_mapped({begin, stretches_.at(begin)})) << "resumed, and not mapped";
        }
        break;
      case EventKind::allocate:
        expect_backed({event.ptr, event.bytes}, event.arena);
        EXPECT_FALSE(is_any_live({event.ptr, event.bytes})) << "allocated twice";
        live_[event.ptr] = event.bytes;
        break;
      case EventKind::free:
        EXPECT_EQ(live_.count(event.ptr) == 0 ? 0 : live_[event.ptr], event.bytes)
            << "no such allocation";
        live_.erase(event.ptr);
        break;
      case EventKind::arena_grow:
        EXPECT_FALSE(is_any_live({event.ptr, event.bytes}))
            << "an arena's only after it was allocated";
        EXPECT_FALSE(has_any(stretches_, {event.ptr, event.bytes})) << "an arena's twice";
        EXPECT_TRUE(is_mapped({event.ptr, event.bytes}) || !is_any_mapped({event.ptr, event.bytes}))
            << "half mapped";
        stretches_[event.ptr] = event.bytes;
        arenas_[event.ptr] = event.arena;
        break;
      case EventKind::arena_shrink:
        EXPECT_FALSE(is_any_live({event.ptr, event.bytes})) << "given back before it was freed";
        cut_out({event.ptr, event.bytes}, event.arena);
        break;
      default: break;
    }
  }
  // A part may be given back, of a stretch or of what is left of one.
  void cut_out(AddressRange part, std::uint64_t arena) {
    const auto whole = around(stretches_, part.begin);
    if (whole == stretches_.end() || !AddressRange{whole->first, whole->second}.contains(part)) {
      ADD_FAILURE() << "no such stretch";
      return;
    }
    const AddressRange stretch{whole->first, whole->second};
    EXPECT_EQ(arenas_[stretch.begin], arena) << "of another arena";
    stretches_.erase(stretch.begin);
    arenas_.erase(stretch.begin);
    for (const AddressRange rest : {AddressRange{stretch.begin, part.begin - stretch.begin},
                                    AddressRange{part.end(), stretch.end() - part.end()}}) {
      if (rest.empty()) continue;
      stretches_[rest.begin] = rest.size;
      arenas_[rest.begin] = arena;
    }
  }
  void expect_backed(AddressRange range, std::uint64_t arena) const {
    const auto stretch = around(stretches_, range.begin);
    if (!hears_of_arenas_ || arena == 0) {
      EXPECT_TRUE(is_mapped(range)) << "allocated before it was mapped";
      EXPECT_FALSE(has_any(stretches_, range)) << "in an arena, which is not told";
      return;
    }
    if (stretch == stretches_.end()) {
      ADD_FAILURE() << "allocated before its arena had the stretch";
      return;
    }
    EXPECT_TRUE((AddressRange{stretch->first, stretch->second}.contains(range)))
        << "beyond its stretch";
    EXPECT_EQ(arenas_.at(stretch->first), arena);
  }
  static std::map<DevicePtr, Bytes>::const_iterator around(const std::map<DevicePtr, Bytes>& ranges,
                                                           DevicePtr p) {
    auto next = ranges.upper_bound(p);
    if (next == ranges.begin()) return ranges.end();
    --next;
    return AddressRange{next->first, next->second}.contains(p) ? next : ranges.end();
  }
  static bool has_any(const std::map<DevicePtr, Bytes>& ranges, AddressRange around) {
    auto next = ranges.lower_bound(around.end());
    if (next == ranges.begin()) return false;
    --next;
    return next->first + next->second > around.begin;
  }
  bool is_any_mapped(AddressRange range) const { return has_any(chunks_, range); }
  bool is_any_live(AddressRange range) const { return has_any(live_, range); }
  bool is_mapped(AddressRange range) const {
    auto chunk = chunks_.upper_bound(range.begin);
    if (chunk == chunks_.begin()) return false;
    DevicePtr reached = range.begin;
    for (--chunk; chunk != chunks_.end() && chunk->first <= reached && reached < range.end();
         ++chunk)
      reached = chunk->first + chunk->second;
    return reached >= range.end();
  }

  context::Context& pool_;
  const bool hears_of_arenas_;
  const bool hears_of_suspends_;
  std::uint64_t id_ = 0;
  std::vector<ReportedEvent> events_;
  std::uint64_t last_ns_ = 0;
  std::map<DevicePtr, Bytes> chunks_;
  std::map<DevicePtr, Bytes> live_;
  std::map<DevicePtr, Bytes> stretches_;
  std::map<DevicePtr, std::uint64_t> arenas_;  // of stretches
  std::map<std::uint64_t, Bytes> leaving_;     // by arena: unmapped, and not told as suspended yet
};

}  // namespace vpmm::test
