// context: who is asked for memory before a request fails.
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
// May free memory of the pool (it runs without any lock). Returns true: try again.
using OutOfMemoryCallback = std::function<bool(const OutOfMemory&)>;

// Any thread. Has a lock of its own, which is not held while a callback runs.
class OutOfMemoryCallbacks {
 public:
  // The one that is asked first, and that has no number; none: there is no such. A call in progress
  // is not waited for.
  void set(OutOfMemoryCallback callback);
  // The number of this one, which is asked after all that are there; no other ever has it.
  std::uint64_t add(OutOfMemoryCallback callback);
  // False: there is none with this number. Once it has returned, only a callback that called it may
  // still run.
  bool remove(std::uint64_t id);
  // Asks each in turn until one says that it helped. False: none did. Passes on what a callback
  // throws.
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
