// SPDX-License-Identifier: Apache-2.0
// base: callbacks of users that may be removed while other threads run them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/scope_exit.hpp"

namespace vpmm {

// Any thread. Callbacks run without the list's lock, and may change the list.
template <typename Callback>
class CallbackList {
 public:
  // Sets the callback without a number, called first; empty: none. Does not wait for calls in
  // progress.
  void set(Callback callback) {
    std::shared_ptr<Listed> entry;
    if (callback) entry = std::make_shared<Listed>(Listed{std::move(callback)});
    const MutexLock lock(mutex_);
    if (entry)
      entries_[kUnnumbered] = std::move(entry);
    else
      entries_.erase(kUnnumbered);
  }

  // Adds a callback behind all others. Returns its number, never used again.
  std::uint64_t add(Callback callback) {
    auto entry = std::make_shared<Listed>(Listed{std::move(callback)});
    const MutexLock lock(mutex_);
    entries_.emplace(last_ + 1, std::move(entry));
    return ++last_;
  }

  // Waits for calls on other threads. Returns false if the number is unknown.
  bool remove(std::uint64_t id) {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (id == kUnnumbered || found == entries_.end()) return false;
    const std::shared_ptr<Listed> entry = found->second;
    entries_.erase(found);
    ended_.wait(lock, [&] { return !entry->has_call_of_others(); });
    return true;
  }

  // Calls `each(number, callback)` for each in turn until one returns true. Returns false if none
  // did. Passes exceptions.
  template <typename Each>
  bool visit(Each&& each) {
    for (std::uint64_t next = kUnnumbered;;) {
      std::shared_ptr<Listed> entry;
      CallInProgress call{std::this_thread::get_id()};
      {
        const MutexLock lock(mutex_);
        const auto found = entries_.lower_bound(next);
        if (found == entries_.end()) return false;
        next = found->first + 1;
        entry = found->second;
        call.next = std::exchange(entry->calls, &call);
      }
      const ScopeExit end_call([&] { end(*entry, call); });
      if (each(next - 1, std::as_const(entry->callback))) return true;
    }
  }

 private:
  // On the stack of its thread.
  struct CallInProgress {
    std::thread::id thread;
    CallInProgress* next = nullptr;
  };
  struct Listed {
    Callback callback;
    CallInProgress* calls = nullptr;
    bool has_call_of_others() const {
      for (const CallInProgress* call = calls; call != nullptr; call = call->next)
        if (call->thread != std::this_thread::get_id()) return true;
      return false;
    }
  };
  static constexpr std::uint64_t kUnnumbered = 0;

  void end(Listed& entry, const CallInProgress& call) {
    const MutexLock lock(mutex_);
    CallInProgress** link = &entry.calls;
    while (*link != &call) link = &(*link)->next;
    *link = call.next;
    ended_.notify_all();
  }

  Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Listed>> entries_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t last_ VPMM_GUARDED_BY(mutex_) = kUnnumbered;
  std::condition_variable_any ended_;
};

}  // namespace vpmm
