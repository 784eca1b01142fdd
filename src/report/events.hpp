// report: the events of a pool, as listeners receive them.
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
  arena_shrink
};
constexpr std::uint32_t kEventKinds = 9;

// Some of the kinds, a bit for each.
using EventKinds = std::uint32_t;
constexpr EventKinds bit_of(EventKind kind) {
  return EventKinds{1} << static_cast<std::uint32_t>(kind);
}

struct ReportedEvent {
  EventKind kind{};
  DevicePtr ptr{};  // null: of no address
  // Allocate, free, record_use, out_of_memory: as asked for. Map, unmap: of the chunk. Trim: given
  // back. Arena_grow and arena_shrink: of the stretch.
  Bytes bytes = 0;
  std::optional<driver::StreamHandle> stream;  // that the call named; none: it named none
  std::uint32_t tag = 0;
  std::uint64_t arena = 0;  // 0: of no arena
  std::uint64_t time_ns = 0;
  driver::DeviceOrdinal device = 0;
};

// Runs under the pool's lock and must not call the pool. Exceptions are dropped.
using EventCallback = std::function<void(const ReportedEvent&)>;

}  // namespace vpmm::report
