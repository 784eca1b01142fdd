// ipc: file descriptors that belong to this process alone.
#pragma once

#include <utility>

#include "base/mutex.hpp"

namespace vpmm::ipc {

// Held while descriptors are made, listed or closed, and by fork().
extern Mutex descriptor_mutex;

// Note [Forked children close what they inherit]
// A child that kept the sockets of its parent would keep connections alive whose owner is dead, and
// one that kept the pool's chunks would keep their memory. So every descriptor of this room is made
// under one lock and listed; fork() takes that lock, and the child closes what is listed. Programs
// started by exec inherit none (close-on-exec).
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

  // Descriptors are made while one of these exists, by calls that do not block, and none is closed
  // meanwhile.
  class VPMM_THREAD_ATTRIBUTE(scoped_lockable) Making {
   public:
    Making() VPMM_THREAD_ATTRIBUTE(acquire_capability(descriptor_mutex));
    ~Making() VPMM_THREAD_ATTRIBUTE(release_capability());
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    // -1: an empty one, and errno stays. Needs no memory: what the kernel gave is never lost.
    Descriptor adopt(int file) noexcept VPMM_REQUIRES(descriptor_mutex);
  };

 private:
  explicit Descriptor(int file) : file_(file) {}
  int file_ = -1;
};

// Calls `forget` in every forked child, after its descriptors were closed; it may not take a lock.
// For each once.
void when_forked(void (*forget)());

}  // namespace vpmm::ipc
