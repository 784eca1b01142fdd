// SPDX-License-Identifier: Apache-2.0
// report: events of a pool for listeners.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/address.hpp"
#include "driver/types.hpp"

namespace vpmm::report {

enum class EventKind : std::uint32_t {
  allocate,
  free,
  map,
  unmap,
  out_of_memory,
  record_use,
  trim,
  arena_grow,
  arena_shrink,
  suspend,
  resume
};
constexpr std::uint32_t kEventKinds = 11;

// A set of kinds, one bit for each.
using EventKinds = std::uint32_t;
constexpr EventKinds bit_of(EventKind kind) {
  return EventKinds{1} << static_cast<std::uint32_t>(kind);
}

struct ReportedEvent {
  EventKind kind{};
  DevicePtr ptr{};  // null: no address
  // allocate, free, record_use, out_of_memory: requested. map, unmap: of the chunk. trim: given
  // back. arena_grow, arena_shrink: of the stretch. suspend, resume: unmapped, mapped.
  Bytes bytes = 0;
  std::optional<driver::StreamHandle> stream;  // named by the call
  std::uint32_t tag = 0;
  std::uint64_t arena = 0;  // 0: none
  std::uint64_t time_ns = 0;
  driver::DeviceOrdinal device = 0;
};

// Runs under the pool's lock and must not call the pool. Exceptions are dropped.
using EventCallback = std::function<void(const ReportedEvent&)>;

}  // namespace vpmm::report
