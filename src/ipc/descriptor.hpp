// SPDX-License-Identifier: Apache-2.0
// ipc: file descriptors that belong to this process alone.
#pragma once

#include <utility>

#include "base/mutex.hpp"

namespace vpmm::ipc {

// Held while descriptors are made, listed or closed, and by fork(). Those of other processes, and
// connections, are closed without.
extern Mutex descriptor_mutex;

// Note [Forked children close what they inherit]
// In a child the sockets of its parent would keep connections of a dead owner alive, and the pool's
// chunks their memory. So every descriptor of this room is made under one lock and listed; fork()
// takes that lock, and the child closes the listed ones. A connection leaves the list before it is
// closed, so it is shut down first. Programs started by exec inherit none (close-on-exec).
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    file_ = std::exchange(other.file_, -1);
    return *this;
  }

  explicit operator bool() const { return file_ >= 0; }
  int get() const { return file_; }
  void reset() noexcept VPMM_EXCLUDES(descriptor_mutex);
  // Closes outside the lock, which others need: for a file whose sender decides how long that
  // lasts. A child forked meanwhile inherits the descriptor.
  void reset_unlocked() noexcept VPMM_EXCLUDES(descriptor_mutex);
  // The same for a connection, whose unread messages may hold such files. Shuts it down first, for
  // a child may inherit it.
  void hang_up() noexcept VPMM_EXCLUDES(descriptor_mutex);

  // Holds the lock while descriptors are made, by calls that do not block; no descriptor is closed
  // meanwhile.
  class VPMM_THREAD_ATTRIBUTE(scoped_lockable) Making {
   public:
    Making() VPMM_THREAD_ATTRIBUTE(acquire_capability(descriptor_mutex));
    ~Making() VPMM_THREAD_ATTRIBUTE(release_capability());
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    // Returns an owner; for -1 an empty one, with errno kept. Allocates no memory: no descriptor of
    // the kernel is lost. Closes a number that is too large for the list (EMFILE).
    Descriptor adopt(int file) noexcept VPMM_REQUIRES(descriptor_mutex);
  };

 private:
  explicit Descriptor(int file) : file_(file) {}
  int file_ = -1;
};

// Calls `forget` in every forked child, after its descriptors were closed; `forget` may not take a
// lock. A repeated registration has no effect.
void when_forked(void (*forget)());

}  // namespace vpmm::ipc
