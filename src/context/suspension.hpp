// SPDX-License-Identifier: Apache-2.0
// context: suspends and resumes memory by tag or arena.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/callback_list.hpp"
#include "context/entrance.hpp"
#include "context/limits.hpp"
#include "context/parts.hpp"
#include "context/shortages.hpp"
#include "context/suspended_contents.hpp"

namespace vpmm::context {

// Run without a lock: before the first memory of the tag is suspended, and after the last is back.
// before_unmap returns false to refuse. Either may be empty.
struct SuspendHooks {
  std::uint32_t tag = 0;
  std::function<bool(int device, std::uint32_t tag)> before_unmap;
  std::function<void(int device, std::uint32_t tag)> after_map;
};
enum class TagState { live, suspended, discarded, changing };
struct TagAmounts {
  Bytes live = 0;       // requested
  Bytes held = 0;       // by arenas
  Bytes suspended = 0;  // part of held
};
struct TagInfo {
  TagOptions options;
  std::optional<Bytes> limit;
  TagState state = TagState::live;
  TagAmounts amounts;
  Bytes of_library = 0;  // live memory that the library of this name asked for
  Bytes host_bytes = 0;
};

// Note [Suspend and resume]
// A call first marks its arenas, so that no other call changes their stretches; then it works
// without the lock, and at last it publishes. Suspending: hooks, wait for the GPU, copy to the
// host, unmap. Resuming: memory for all stretches, as requests get it; map at the old addresses,
// copy back, hooks. Everything that can fail for want of memory comes before the first change.
class Suspension {
 public:
  Suspension(Parts& parts, Entrance& entrance, Limits& limits, Shortages& shortages)
      : parts_(parts),
        device_(parts.device),
        residency_(parts.arenas.residency()),
        entrance_(entrance),
        limits_(limits),
        shortages_(shortages),
        contents_(parts) {}

  // --- tags ---
  // unsupported: there is no virtual memory pool.
  Result<void> make_suspendable(std::uint32_t tag, TagOptions options);
  Result<void> enter(std::uint32_t tag, TagScope scope);
  Result<void> leave(std::uint32_t tag, TagScope scope);  // invalid_argument: not entered
  TagScopes::Entered entered() const;
  Vector<std::uint32_t> suspendable_tags() const;
  // With live memory, of itself or of a library of its name, with a limit, or suspendable;
  // ascending.
  Vector<std::uint32_t> all_tags() const;
  TagInfo info(std::uint32_t tag) const;
  // Called before memory of the tag is unmapped, in order, and after it is back, in reverse order.
  std::uint64_t add_hooks(SuspendHooks hooks) { return hooks_.add(std::move(hooks)); }
  bool remove_hooks(std::uint64_t id) { return hooks_.remove(id); }

  // --- all arenas of a tag, or of all suspendable tags for 0; or one arena ---
  Result<void> suspend(std::uint32_t tag, const SuspendHow& how);
  Result<void> suspend(pool::ArenaId arena, const SuspendHow& how);
  Result<void> resume(std::uint32_t tag, const ResumeHow& how);
  Result<void> resume(pool::ArenaId arena, const ResumeHow& how);
  // Provides the host memory for copies of what the tag's arenas with backup have now.
  Result<void> prepare(std::uint32_t tag);
  // invalid_pointer: not in live memory.
  Result<bool> is_suspended(DevicePtr ptr) const;
  // Where a range inside one allocation is on the host: suspended, or with a kept copy.
  Result<std::byte*> host_copy(AddressRange part) const;

  // Drops all host memory. Requires: the device's context is current, and no call is in progress.
  void release_host_memory() VPMM_REQUIRES(pool_lock) { contents_.release(); }

 private:
  using Residence = arena::Residence;
  struct Sleeper;
  using Ids = SuspendedContents::Ids;
  using Refills = Vector<pool::Suspender::Refill>;
  Result<Ids> arenas_of(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  bool is_all_back(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  Result<Ids> select(const Ids& all, Residence now) const VPMM_REQUIRES(pool_lock);
  // `find`: returns the arenas of the call, under the lock.
  template <typename Find>
  Result<void> suspend_found(Find&& find, const SuspendHow& how);
  template <typename Find>
  Result<void> resume_once(Find&& find, const ResumeHow& how, pool::Request& whole,
                           Set<std::uint32_t>& tags);
  template <typename Find>
  Result<void> resume_found(Find&& find, const ResumeHow& how);
  // These drop the lock; other calls leave the arenas alone.
  Result<void> suspend_all(const Ids& ids, const SuspendHow& how, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  Result<void> resume_all(const Ids& ids, const ResumeHow& how, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  Vector<Sleeper> sleepers_of(const Ids& ids) VPMM_REQUIRES(pool_lock);
  Result<Refills> memory_for(const Vector<Sleeper>& sleepers, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  void give_back(const Refills& refills) VPMM_REQUIRES(pool_lock);
  Result<void> may_suspend(const Ids& ids) VPMM_REQUIRES(pool_lock);
  Result<void> wait_for_uses(const Ids& ids, const SuspendHow& how, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  // --- hooks ---
  Result<void> call_before_unmap(const Set<std::uint32_t>& tags);
  bool is_told(std::uint32_t tag, std::uint64_t number) const;
  void note_told(std::uint32_t tag, std::uint64_t number);
  // Erases tags with memory that is not back. Returns hooks of the others that were told, and
  // forgets that.
  Vector<std::uint64_t> take_told(Set<std::uint32_t>& tags);
  void tell_of_released();
  void call_after_map(const Set<std::uint32_t>& tags, const Vector<std::uint64_t>* wanted);

  Parts& parts_;
  Device& device_;
  arena::Residency& residency_;
  Entrance& entrance_;
  Limits& limits_;
  Shortages& shortages_;
  SuspendedContents contents_;
  CallbackList<SuspendHooks> hooks_;  // has its own lock
  // Note [Hooks that were told]
  // The tags and numbers of hooks whose before_unmap was called, and after_map was not yet. The
  // arenas of a tag may sleep one by one, by several threads, and hooks may come meanwhile: each is
  // told before the first suspend that it sees, and once. A resume tells them of the end if every
  // arena of the tag is back, also one that finds nothing asleep: what slept may be released.
  Set<std::pair<std::uint32_t, std::uint64_t>> told_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
