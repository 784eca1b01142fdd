// SPDX-License-Identifier: Apache-2.0
// observe: events and blocks of a recording's file (docs/reference/recording.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace vpmm::observe {

enum class RecordedKind : std::uint16_t {
  none = 0,  // of a place in the queue: void
  allocate = 1,
  free = 2,
  allocate_failed = 3,
  record_use = 4,
  map = 5,
  unmap = 6,
  move = 7,
  trim = 8,
  pause = 9,
  out_of_memory = 10,
  mark = 11,
  arena_grow = 12,
  arena_shrink = 13,
  live = 14,
  driver = 15,
  sample = 16,
  suspend = 17,
  resume = 18,
};
constexpr std::uint16_t kLastRecordedKind = 18;

constexpr std::uint32_t kNoRecordedStream = 0xffffffff;
// Flag of allocate_failed: an invalid request, or a pool that could not work; more memory would not
// have helped.
constexpr std::uint16_t kNotForWantOfMemory = 1;

struct RecordedEvent {
  std::uint64_t time_ns = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
  std::uint32_t stream = kNoRecordedStream;
  std::uint32_t thread = 0;
  std::uint32_t tag = 0;
  std::uint32_t stack = 0;
  std::uint64_t arena = 0;
  std::uint16_t kind = 0;
  std::uint16_t flags = 0;
  std::uint32_t device = 0;
};
static_assert(sizeof(RecordedEvent) == 64 && std::is_trivially_copyable_v<RecordedEvent>);
static_assert(offsetof(RecordedEvent, stream) == 32 && offsetof(RecordedEvent, arena) == 48 &&
              offsetof(RecordedEvent, kind) == 56 && offsetof(RecordedEvent, device) == 60);

enum class BlockKind : std::uint32_t { header = 1, definitions = 2, events = 3, end = 4 };

struct BlockHeader {
  std::uint32_t magic = 0;
  std::uint32_t kind = 0;
  std::uint32_t stored = 0;
  std::uint32_t decompressed = 0;
  std::uint32_t crc = 0;  // of the stored bytes
};
static_assert(sizeof(BlockHeader) == 20);

constexpr std::string_view kRecordingMagic = "VPMMREC\x01";
constexpr std::uint32_t kBlockMagic = 0x42525056;  // "VPRB"
constexpr std::size_t kLargestBlock = std::size_t{16} << 20;
constexpr std::size_t kEventsPerBlock = std::size_t{1} << 16;

}  // namespace vpmm::observe
