// SPDX-License-Identifier: Apache-2.0
// observe: live allocations of a recording, as in the file, and the choice of a sample.
#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/bytes.hpp"
#include "observe/recorded_event.hpp"

namespace vpmm::observe {

class LiveTable {
 public:
  // Chooses one allocation in `sample` for the file.
  explicit LiveTable(std::uint32_t sample) : sample_(std::max(sample, 1U)) {}

  // Called once per allocation.
  bool is_chosen(std::uint64_t address) {
    if (sample_ == 1) return true;
    const std::uint64_t mixed = (address ^ (++asked_ << 20)) * 0x9e3779b97f4a7c15ULL;
    return (mixed >> 32) % sample_ == 0;
  }
  std::optional<RecordedEvent> find(std::uint64_t address) const {
    const auto found = live_.find(address);
    return found == live_.end() ? std::nullopt : std::optional(found->second);
  }
  void insert(const RecordedEvent& allocation) {
    live_[allocation.address] = allocation;
    bytes_ += allocation.bytes;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }
  void erase(std::uint64_t address) {
    const auto found = live_.find(address);
    if (found == live_.end()) return;
    bytes_ -= found->second.bytes;
    live_.erase(found);
  }
  Bytes peak_bytes() const { return peak_bytes_; }

  // Returns the live allocations as `live` events, oldest first.
  std::vector<RecordedEvent> as_live_events() const {
    std::vector<RecordedEvent> events;
    events.reserve(live_.size());
    for (const auto& [address, allocation] : live_) events.push_back(allocation);
    for (RecordedEvent& event : events) event.kind = static_cast<std::uint16_t>(RecordedKind::live);
    std::sort(events.begin(), events.end(), [](const RecordedEvent& a, const RecordedEvent& b) {
      return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.address < b.address;
    });
    return events;
  }

 private:
  const std::uint32_t sample_;
  std::uint64_t asked_ = 0;
  std::unordered_map<std::uint64_t, RecordedEvent> live_;
  Bytes bytes_ = 0;  // = sum of live_
  Bytes peak_bytes_ = 0;
};

}  // namespace vpmm::observe
