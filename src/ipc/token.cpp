// SPDX-License-Identifier: Apache-2.0
// ipc: tokens as bytes and back, with a checksum.
#include "ipc/token.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <zlib.h>

#include <bit>
#include <cstddef>
#include <random>

namespace vpmm::ipc {
namespace {

constexpr std::uint32_t kMagic = 0x6D6D7076;  // "vpmm"
constexpr std::uint16_t kVersion = 1;

// Bytes as they lie in memory. Both processes run on one machine, so they share the byte order.
struct TokenLayout {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t unused = 0;
  Identity process{};
  std::uint64_t allocation = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;  // of all bytes before it
};
static_assert(sizeof(TokenLayout) == sizeof(TokenBytes));

// Detects damage, not forgery, of which a process of the same user has no need.
std::uint64_t checksum_of(const TokenLayout& layout) {
  return crc32(0, reinterpret_cast<const Bytef*>(&layout), offsetof(TokenLayout, checksum));
}

}  // namespace

Identity new_identity() {
  Identity identity{};
  if (getrandom(identity.data(), identity.size(), 0) == static_cast<ssize_t>(identity.size()))
    return identity;
  std::random_device dice;  // an old kernel
  for (std::uint8_t& byte : identity) byte = static_cast<std::uint8_t>(dice());
  return identity;
}

std::string to_hex(const Identity& identity) {
  std::string text;
  for (const std::uint8_t byte : identity) text += fmt::format("{:02x}", byte);
  return text;
}

TokenBytes encode(const Token& token) {
  TokenLayout layout;
  layout.process = token.process;
  layout.allocation = token.allocation;
  layout.generation = token.generation;
  layout.offset = token.offset;
  layout.size = token.size;
  layout.checksum = checksum_of(layout);
  return std::bit_cast<TokenBytes>(layout);
}

Result<Token> decode(const TokenBytes& bytes) {
  const auto layout = std::bit_cast<TokenLayout>(bytes);
  if (layout.magic != kMagic)
    return Error{ErrorCode::invalid_argument, "the 64 bytes are not an IPC token of vpmm"};
  if (layout.version != kVersion)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the IPC token is of version {}, and this library knows version {}",
                             layout.version, kVersion)};
  if (layout.unused != 0 || layout.checksum != checksum_of(layout))
    return Error{ErrorCode::invalid_argument, "the IPC token is damaged: its checksum is wrong"};
  return Token{layout.process, layout.allocation, layout.generation, layout.offset, layout.size};
}

}  // namespace vpmm::ipc
