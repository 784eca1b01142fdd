// SPDX-License-Identifier: Apache-2.0
// driver/sim: stream captures in progress and the graphs they make.
//
// State and its bookkeeping only; machine_captures.cpp refuses calls. Single-threaded: the
// machine's lock is held.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "driver/sim/timeline.hpp"
#include "driver/sim/vector_clock.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

struct Graph {
  std::vector<Work> nodes;  // in the order of capture, and of every launch
  std::vector<UserObjectHandle> user_objects;
};

struct CaptureMember {
  Slot slot = 0;
  // Captured operations per stream that this stream is ordered after; its own entry counts its own.
  VectorClock clock;
};

struct Capture {
  CaptureId id{};
  CaptureMode mode = CaptureMode::global;
  std::uint64_t thread = 0;
  DeviceOrdinal device = 0;
  Slot origin = 0;
  bool invalidated = false;
  GraphHandle graph{};
  std::vector<CaptureMember> members;  // the first is the origin

  CaptureMember* find(Slot slot) {
    for (CaptureMember& member : members) {
      if (member.slot == slot) return &member;
    }
    return nullptr;
  }
  // Tells if the origin has waited again for every stream drawn in.
  bool joined() const {
    for (const CaptureMember& member : members) {
      if (!members.front().clock.covers(member.slot, member.clock.at(member.slot))) return false;
    }
    return true;
  }
};

class CaptureTable {
 public:
  bool none() const { return captures_.empty(); }
  Capture& begin(Capture capture) { return captures_.emplace_back(std::move(capture)); }
  void end(const Capture& capture) {
    captures_.remove_if([&](const Capture& c) { return c.id == capture.id; });
  }
  Capture* of_stream(Slot slot) {
    for (Capture& capture : captures_) {
      if (capture.find(slot) != nullptr) return &capture;
    }
    return nullptr;
  }
  Capture* by_id(CaptureId id) {
    for (Capture& capture : captures_) {
      if (capture.id == id) return &capture;
    }
    return nullptr;
  }
  template <typename F>
  void for_each_valid(F&& f) {
    for (Capture& capture : captures_) {
      if (!capture.invalidated) f(capture);
    }
  }
  void end_all(DeviceOrdinal device) {
    captures_.remove_if([device](const Capture& c) { return c.device == device; });
  }
  CaptureId next_id() { return CaptureId{next_id_++}; }

 private:
  std::list<Capture> captures_;
  std::uint64_t next_id_ = 1;
};

}  // namespace vpmm::driver::sim
