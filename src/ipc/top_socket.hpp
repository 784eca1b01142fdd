// SPDX-License-Identifier: Apache-2.0
// ipc: socket at which a process tells its figures to `vpmm top`.
#pragma once

#include <functional>

#include "base/result.hpp"
#include "context/context.hpp"

namespace vpmm::ipc {

// Functions of the room above.
struct TopSource {
  // Visits the open pools; none is closed meanwhile.
  void (*for_each_pool)(const std::function<void(context::Context&)>& visit) = nullptr;
  const char* library = "";  // its version; lives for ever
};

// Makes the socket and its thread, once in a process, unless VPMM_TOP forbids it. Call at the
// opening of a pool. Never fails: an error is a message of level info, a wrong VPMM_TOP one of
// level warning, and the next call tries again. Any thread.
void answer_top(const TopSource& source) noexcept;

}  // namespace vpmm::ipc
