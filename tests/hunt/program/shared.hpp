// SPDX-License-Identifier: Apache-2.0
// hunt: an object in memory that a process shares with its children.
#pragma once

#include <sys/mman.h>

#include <new>

namespace vpmm::hunt {

template <typename T>
class InShared {
 public:
  InShared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    object_ = new (memory_) T;
  }
  ~InShared() { munmap(memory_, sizeof(T)); }
  InShared(const InShared&) = delete;
  InShared& operator=(const InShared&) = delete;
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  void* memory_;
  T* object_ = nullptr;
};

}  // namespace vpmm::hunt
