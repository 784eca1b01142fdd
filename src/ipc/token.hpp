// SPDX-License-Identifier: Apache-2.0
// ipc: 64 bytes that name memory to other processes.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "driver/types.hpp"

namespace vpmm::ipc {

// Random number of a process: process ids are reused, and differ between containers.
using Identity = std::array<std::uint8_t, 16>;
Identity new_identity();
std::string to_hex(const Identity& identity);

// As long as a CUipcMemHandle, and never one by accident.
using TokenBytes = driver::IpcMemHandle;

// Names memory of a pool, and the process that exports it.
struct Token {
  Identity process{};
  std::uint64_t allocation = 0;  // its address in that process
  std::uint64_t generation = 0;  // number of the share; never reused in that process
  Bytes offset = 0;              // of the memory in the allocation
  Bytes size = 0;
  friend bool operator==(const Token&, const Token&) = default;
};

// Sets every byte, so tokens may be compared as bytes.
TokenBytes encode(const Token& token);
// invalid_argument: no token, another version, or a wrong checksum.
Result<Token> decode(const TokenBytes& bytes);

}  // namespace vpmm::ipc
