// SPDX-License-Identifier: Apache-2.0
// ipc: messages between exporter and importer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/token.hpp"

namespace vpmm::ipc {

// Note [How memory is opened]
// The importer connects to the socket of the token's process and sends open(number, token), with a
// number of its own. The exporter refuses, or leases the memory, grants, and sends the chunks'
// descriptors in batches. The importer maps a batch while the next one is made, and acknowledges
// it; at most kMostInFlight descriptors are unacknowledged. When its work on the GPU is done it
// sends close(number), and the lease ends. One connection serves all memory shared by two
// processes.
enum class MessageKind : std::uint16_t {
  open = 1,      // to the exporter: token
  granted = 2,   // to the importer: chunks, bytes, offset, device
  refused = 3,   // to the importer: status, text; also in the middle of the batches
  batch = 4,     // to the importer: count, sizes, and as many descriptors
  received = 5,  // to the exporter: count
  close = 6,     // to the exporter
};

constexpr std::size_t kMostInFlight = 32;  // descriptors
constexpr std::size_t kBatch = 4;          // so that mapping begins while others are exported

// One layout for all kinds: every message has this size, so a shorter one is foreign. Magic number
// and version have this place in every version.
struct Message {
  static constexpr std::uint32_t kMagic = 0x6370696D;  // "mipc"
  static constexpr std::uint16_t kVersion = 1;
  static constexpr std::size_t kTextSize = 400;

  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  MessageKind kind{};
  std::uint64_t number = 0;  // of the opening
  TokenBytes token{};
  std::uint32_t status = 0;  // ErrorCode
  std::uint32_t count = 0;   // descriptors of the batch, or of all batches received
  std::uint64_t chunks = 0;  // of the opening
  std::uint64_t bytes = 0;   // of all chunks
  std::uint64_t offset = 0;  // of the memory, from the begin of the first chunk
  driver::Uuid device{};
  std::array<std::uint64_t, kMostInFlight> sizes{};  // of the chunks in this batch
  std::array<char, kTextSize> text{};                // ends with a zero

  void say(std::string_view why) { why.copy(text.data(), kTextSize - 1); }
  std::string said() const { return {text.begin(), std::find(text.begin(), text.end(), '\0')}; }
};

}  // namespace vpmm::ipc
