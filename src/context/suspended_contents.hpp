// SPDX-License-Identifier: Apache-2.0
// context: copies contents of arenas to the host and back.
#pragma once

#include <optional>

#include "context/parts.hpp"
#include "host_copy/copier.hpp"

namespace vpmm::context {

struct SuspendHow {
  std::optional<bool> has_backup;  // nullopt: as the tag says
  bool keeps_host_copy = false;
  bool to_driver = false;
  // The stream behind which all uses are; nullopt: any stream of the device's context.
  std::optional<driver::StreamHandle> after;
};
struct ResumeHow {
  bool clears = false;      // memory without a host copy
  bool copies_back = true;  // false: drops the host copy
};

// Contents of arenas that are suspended, and host memory for them. Calls that take a lock drop it
// while they copy and take memory; the caller has marked the arenas as changing, or other calls are
// allowed to change them.
class SuspendedContents {
 public:
  using Ids = Vector<pool::ArenaId>;
  explicit SuspendedContents(Parts& parts)
      : parts_(parts), device_(parts.device), copier_(device_.driver) {}

  // Copies the live blocks of arenas with backup to the host.
  Result<void> copy_out(const Ids& ids, const SuspendHow& how, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  Result<void> copy_back(const Ids& ids, const ResumeHow& how, MutexLock& lock)
      VPMM_REQUIRES(pool_lock);
  // Takes the host memory for copies of what these arenas have now, and pins it if they are kept.
  Result<void> provide(const Ids& ids, MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Drops the contents of an arena; kept memory stays.
  void drop(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  bool keeps(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  // Drops copies of arenas that are gone.
  void drop_dead() VPMM_REQUIRES(pool_lock);
  // Drops all host memory. Requires: the device's context is current, and no call is in progress.
  void release() VPMM_REQUIRES(pool_lock);

 private:
  struct Copying;
  Result<void> take_memory(Vector<Copying>& copying, MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void enter(Vector<Copying>& copying, const SuspendHow& how) VPMM_REQUIRES(pool_lock);
  Result<void> fill(Vector<Copying>& copying, MutexLock& lock) VPMM_REQUIRES(pool_lock);
  void discard(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  const TagOptions* options_of(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  Bytes live_bytes(pool::ArenaId id) const VPMM_REQUIRES(pool_lock);
  Result<void> copy_pieces(const HostCopy& of, const Vector<host_copy::CopyPiece>& pieces,
                           host_copy::CopyTo to, const host_copy::CopyContext& context);
  void drop_copy(pool::ArenaId id) VPMM_REQUIRES(pool_lock);
  static Result<void> check_host(Bytes missing);
  host_copy::CopyContext gpu_context() const;

  Parts& parts_;
  Device& device_;
  host_copy::Copier copier_;  // has its own lock
};

}  // namespace vpmm::context
