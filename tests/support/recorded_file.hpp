// SPDX-License-Identifier: Apache-2.0
// tests: all that is in a recording.
#pragma once

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "observe/recording_reader.hpp"

namespace vpmm::test {

struct RecordedFile {
  nlohmann::json header;
  nlohmann::json definitions = nlohmann::json::object();  // all tables together
  nlohmann::json end;                                     // null: it has none
  std::vector<observe::RecordedEvent> events;
  std::string error;  // of the blocks; empty: none

  std::string text(std::uint64_t number) const {
    return definitions.value("strings", nlohmann::json::object())
        .value(std::to_string(number), "?");
  }
  std::size_t count(observe::RecordedKind kind) const {
    std::size_t count = 0;
    for (const auto& event : events)
      count += event.kind == static_cast<std::uint16_t>(kind) ? 1 : 0;
    return count;
  }
  // The first one; a kind of 0: there is none.
  observe::RecordedEvent first(observe::RecordedKind kind) const {
    for (const auto& event : events)
      if (event.kind == static_cast<std::uint16_t>(kind)) return event;
    return {};
  }
};

inline RecordedFile read_recorded(const std::string& path) {
  RecordedFile file;
  auto input = observe::GzipInput::open(path);
  if (!input) return file.error = input.error().message, file;
  observe::BlockReader blocks(path, std::move(input).value());
  while (true) {
    auto block = blocks.next();
    if (!block) return file.error = block.error().message, file;
    if (!block.value()) return file;
    const auto& [kind, bytes] = *block.value();
    if (kind == observe::BlockKind::header) file.header = nlohmann::json::parse(bytes);
    if (kind == observe::BlockKind::end) file.end = nlohmann::json::parse(bytes);
    if (kind == observe::BlockKind::definitions)
      file.definitions.merge_patch(nlohmann::json::parse(bytes));
    if (kind != observe::BlockKind::events) continue;
    const std::size_t before = file.events.size();
    file.events.resize(before + bytes.size() / sizeof(observe::RecordedEvent));
    std::memcpy(file.events.data() + before, bytes.data(), bytes.size());
  }
}

// What is wrong with the order of allocations and frees; empty: nothing. Every free follows its
// allocation, and nothing is allocated over what lives.
inline std::string order_fault(const RecordedFile& file) {
  std::map<std::uint64_t, std::uint64_t> live;  // begin: end
  for (std::size_t i = 0; i < file.events.size(); ++i) {
    const observe::RecordedEvent& event = file.events[i];
    const auto kind = static_cast<observe::RecordedKind>(event.kind);
    const std::string where = "event " + std::to_string(i) + " at " + std::to_string(event.address);
    if (kind == observe::RecordedKind::free && live.erase(event.address) == 0)
      return where + " frees what is not live";
    if (kind != observe::RecordedKind::allocate && kind != observe::RecordedKind::live) continue;
    const auto next = live.lower_bound(event.address);
    if (next != live.end() && next->first < event.address + event.bytes)
      return where + " lies over what follows";
    if (next != live.begin() && std::prev(next)->second > event.address)
      return where + " lies over what precedes";
    live[event.address] = event.address + event.bytes;
  }
  return {};
}

}  // namespace vpmm::test
