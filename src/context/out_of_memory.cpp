// SPDX-License-Identifier: Apache-2.0
// context: calls of out-of-memory callbacks, and their removal meanwhile.
#include "context/out_of_memory.hpp"

#include <utility>

#include "base/scope_exit.hpp"

namespace vpmm::context {

void OutOfMemoryCallbacks::set(OutOfMemoryCallback callback) {
  std::shared_ptr<CallbackEntry> entry;
  if (callback) entry = std::make_shared<CallbackEntry>(CallbackEntry{std::move(callback)});
  const MutexLock lock(mutex_);
  if (entry)
    entries_[kUnnumbered] = std::move(entry);
  else
    entries_.erase(kUnnumbered);
}

std::uint64_t OutOfMemoryCallbacks::add(OutOfMemoryCallback callback) {
  auto entry = std::make_shared<CallbackEntry>(CallbackEntry{std::move(callback)});
  const MutexLock lock(mutex_);
  entries_.emplace(last_ + 1, std::move(entry));
  return ++last_;
}

bool OutOfMemoryCallbacks::CallbackEntry::has_call_of_others() const {
  for (const CallInProgress* call = calls; call != nullptr; call = call->next)
    if (call->thread != std::this_thread::get_id()) return true;
  return false;
}

bool OutOfMemoryCallbacks::remove(std::uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (id == kUnnumbered || found == entries_.end()) return false;
  const std::shared_ptr<CallbackEntry> entry = found->second;
  entries_.erase(found);
  ended_.wait(lock, [&] { return !entry->has_call_of_others(); });
  return true;
}

bool OutOfMemoryCallbacks::ask(const OutOfMemory& event) {
  for (std::uint64_t next = kUnnumbered;;) {
    std::shared_ptr<CallbackEntry> entry;
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
    if (entry->function(event)) return true;
  }
}

void OutOfMemoryCallbacks::end(CallbackEntry& entry, const CallInProgress& call) {
  const MutexLock lock(mutex_);
  CallInProgress** link = &entry.calls;
  while (*link != &call) link = &(*link)->next;
  *link = call.next;
  ended_.notify_all();
}

}  // namespace vpmm::context
