// SPDX-License-Identifier: Apache-2.0
// base: memory for many small objects that never move.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "base/host_memory.hpp"
#include "base/huge_block.hpp"

namespace vpmm {

// Bytes side by side in blocks of a huge page each, so that an access to one object of a million
// costs its own cache miss, but no walk of page tables. Freed with the store.
class StableBytes {
 public:
  // Returns zeroed bytes. Requires: size <= a huge page, alignment a power of two up to 4 KiB.
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
  std::size_t used_ = 0;  // of the last block
};

// Objects of one kind, reused. A returned object keeps its address and its value: a stale read
// still finds an object.
template <typename T>
class StableStore {
 public:
  StableStore() = default;
  ~StableStore() {
    for (T* object : all_) std::destroy_at(object);
  }
  StableStore(const StableStore&) = delete;
  StableStore& operator=(const StableStore&) = delete;

  // Returns an object given back, unchanged, or a new one.
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

  // Every object, also those given back.
  const Vector<T*>& all() const { return all_; }
  std::size_t count_in_use() const { return all_.size() - unused_.size(); }

 private:
  StableBytes bytes_;
  Vector<T*> all_;
  Vector<T*> unused_;
};

}  // namespace vpmm
