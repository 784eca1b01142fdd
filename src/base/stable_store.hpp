// base: memory for many small objects that never move.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "base/host_memory.hpp"
#include "base/huge_block.hpp"

namespace vpmm {

// Bytes side by side in blocks of a huge page each, so that a look at one object of a million costs
// no walk of page tables beside the miss of its own line. All of it ends with the store.
class StableBytes {
 public:
  // Zeroed. Requires: size <= a huge page, alignment a power of two up to 4 KiB.
  void* take(std::size_t size, std::size_t alignment) {
    std::size_t at = (used_ + alignment - 1) / alignment * alignment;
    if (blocks_.empty() || at + size > blocks_.back().size()) {
      blocks_.emplace_back(HugeBlock::kHugePage);
      at = used_ = 0;
      if (size > blocks_.back().size()) throw std::bad_alloc();
    }
    used_ = at + size;
    return std::memset(static_cast<char*>(blocks_.back().begin()) + at, 0, size);
  }

 private:
  Vector<HugeBlock> blocks_;
  std::size_t used_ = 0;  // of the last
};

// Objects of one kind, used again. One that was given back keeps its address and its value: whoever
// still reads it by mistake reads an object.
template <typename T>
class StableStore {
 public:
  StableStore() = default;
  ~StableStore() {
    for (T* object : all_) std::destroy_at(object);
  }
  StableStore(const StableStore&) = delete;
  StableStore& operator=(const StableStore&) = delete;

  // One that was given back, as it was, or a new one.
  T* take() {
    if (!unused_.empty()) {
      T* const object = unused_.back();
      unused_.pop_back();
      return object;
    }
    all_.push_back(nullptr);
    try {
      unused_.reserve(all_.size());  // so that give_back() needs no memory
      all_.back() = std::construct_at(static_cast<T*>(bytes_.take(sizeof(T), alignof(T))));
    } catch (...) {
      all_.pop_back();
      throw;
    }
    return all_.back();
  }
  void give_back(T* object) noexcept { unused_.push_back(object); }

  // Every object there is, those given back too.
  const Vector<T*>& all() const { return all_; }

 private:
  StableBytes bytes_;
  Vector<T*> all_;
  Vector<T*> unused_;
};

}  // namespace vpmm
