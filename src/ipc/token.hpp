// ipc: the 64 bytes that name memory to other processes.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "driver/types.hpp"

namespace vpmm::ipc {

// Of a process, drawn at random: a number of a process is used again, and is another one in another
// container.
using Identity = std::array<std::uint8_t, 16>;
Identity new_identity();
std::string to_hex(const Identity& identity);

// As long as a CUipcMemHandle, and never one by accident.
using TokenBytes = driver::IpcMemHandle;

// Memory of a pool: who to ask for it, and what to ask for.
struct Token {
  Identity process{};
  std::uint64_t allocation = 0;  // its address in that process
  std::uint64_t generation =
      0;             // which of all that were exported; never the same again in that process
  Bytes offset = 0;  // of the memory in the allocation
  Bytes size = 0;
  friend bool operator==(const Token&, const Token&) = default;
};

// Every byte is set, so tokens may be compared as bytes.
TokenBytes encode(const Token& token);
// invalid_argument: the bytes are no token, are one of another version, or were damaged on the way.
Result<Token> decode(const TokenBytes& bytes);

}  // namespace vpmm::ipc
