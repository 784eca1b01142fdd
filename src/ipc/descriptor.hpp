// ipc: file descriptors that belong to this process alone.
#pragma once

#include <utility>

namespace vpmm::ipc {

// Note [Forked children close what they inherit]
// A child that kept the sockets of its parent would keep connections alive whose owner is dead, and one that kept the
// pool's chunks would keep their memory. So every descriptor of this room is made under one lock and listed; fork()
// takes that lock, and the child closes what is listed. Programs started by exec inherit none (close-on-exec).
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
  void reset() noexcept;

  // Descriptors are made while one of these exists, by calls that do not block, and none is closed meanwhile.
  class Making {
   public:
    Making();
    ~Making();
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    Descriptor adopt(int file);  // -1: an empty one; errno stays
  };

 private:
  explicit Descriptor(int file) : file_(file) {}
  int file_ = -1;
};

// Calls `forget` in every forked child, after its descriptors were closed; it may not take a lock. For each once.
void when_forked(void (*forget)());

}  // namespace vpmm::ipc
