// SPDX-License-Identifier: Apache-2.0
// ipc: handle that represents memory outside of its process.
#pragma once

#include "driver/types.hpp"
#include "ipc/token.hpp"

namespace vpmm::ipc {

enum class TokenKind : std::uint32_t {
  legacy = 1,  // plain driver memory: the token is a CUipcMemHandle
  pool = 2,
};

struct IpcHandle {
  TokenKind kind = TokenKind::pool;
  TokenBytes token{};
  Bytes size = 0;         // of the memory
  Bytes offset = 0;       // of the memory in its allocation
  driver::Uuid device{};  // home of the memory; all 0: unknown
};

}  // namespace vpmm::ipc
