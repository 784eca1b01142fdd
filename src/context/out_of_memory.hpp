// SPDX-License-Identifier: Apache-2.0
// context: callbacks that may find memory before a request fails.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "base/bytes.hpp"
#include "base/mutex.hpp"

namespace vpmm::context {

struct OutOfMemory {
  Bytes requested = 0;
  int device = 0;
};
// Runs without any lock, and may free memory of the pool. Returns true to try again.
using OutOfMemoryCallback = std::function<bool(const OutOfMemory&)>;

// Thread-safe, with an own lock, which is not held while a callback runs.
class OutOfMemoryCallbacks {
 public:
  // Sets the callback without a number, asked first; empty: none. Does not wait for calls in
  // progress.
  void set(OutOfMemoryCallback callback);
  // Adds a callback behind all others. Returns its number, never used again.
  std::uint64_t add(OutOfMemoryCallback callback);
  // Waits for calls on other threads. Returns false if the number is unknown.
  bool remove(std::uint64_t id);
  // Asks each in turn until one returns true. Returns false if none did. Passes exceptions of
  // callbacks.
  bool ask(const OutOfMemory& event);

 private:
  // A call in progress, on the stack of its thread.
  struct CallInProgress {
    std::thread::id thread;
    CallInProgress* next = nullptr;
  };
  struct CallbackEntry {
    OutOfMemoryCallback function;
    CallInProgress* calls = nullptr;
    bool has_call_of_others() const;
  };
  static constexpr std::uint64_t kUnnumbered = 0;
  void end(CallbackEntry& entry, const CallInProgress& call);

  Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<CallbackEntry>> entries_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t last_ VPMM_GUARDED_BY(mutex_) = kUnnumbered;
  std::condition_variable_any ended_;
};

}  // namespace vpmm::context
