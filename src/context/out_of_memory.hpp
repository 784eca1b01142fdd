// SPDX-License-Identifier: Apache-2.0
// context: callbacks that may find memory before a request fails.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.hpp"
#include "base/callback_list.hpp"

namespace vpmm::context {

struct OutOfMemory {
  Bytes requested = 0;
  int device = 0;
};
// Runs without any lock, and may free memory of the pool. Returns true to try again.
using OutOfMemoryCallback = std::function<bool(const OutOfMemory&)>;

class OutOfMemoryCallbacks : public CallbackList<OutOfMemoryCallback> {
 public:
  // Asks each in turn until one returns true. Returns false if none did. Passes exceptions of
  // callbacks.
  bool ask(const OutOfMemory& event) {
    return visit([&](std::uint64_t /*number*/, const OutOfMemoryCallback& callback) {
      return callback(event);
    });
  }
};

}  // namespace vpmm::context
