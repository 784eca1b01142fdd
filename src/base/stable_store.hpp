// base: memory for many small objects that never move.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace vpmm {

// Bytes side by side in blocks of a huge page each, so that a look at one object of a million costs no walk of page
// tables beside the miss of its own line. All of it ends with the store.
class StableBytes {
 public:
  // Zeroed. Requires: size <= 2 MiB, alignment a power of two up to 4 KiB.
  void* take(std::size_t size, std::size_t alignment) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    if (blocks_.empty() || used_ + size > kBlock) add_block();
    void* const begin = static_cast<char*>(blocks_.back().get()) + used_;
    used_ += size;
    return std::memset(begin, 0, size);
  }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  static constexpr std::size_t kBlock = std::size_t{2} << 20;

  void add_block() {
    void* const block = std::aligned_alloc(kBlock, kBlock);
    if (block == nullptr) throw std::bad_alloc();
    blocks_.emplace_back(block);
    ::madvise(block, kBlock, MADV_HUGEPAGE);  // best effort
    used_ = 0;
  }

  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::size_t used_ = 0;
};

// Objects of one kind, used again. One that was given back keeps its address and its value: whoever still reads it by
// mistake reads an object.
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
    all_.push_back(std::construct_at(static_cast<T*>(bytes_.take(sizeof(T), alignof(T)))));
    return all_.back();
  }
  void give_back(T* object) { unused_.push_back(object); }

  // Every object there is, those given back too.
  const std::vector<T*>& all() const { return all_; }

 private:
  StableBytes bytes_;
  std::vector<T*> all_;
  std::vector<T*> unused_;
};

}  // namespace vpmm
