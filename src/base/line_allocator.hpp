// base: memory in whole cache lines, for what one thread writes all the time and others may not have to fetch.
#pragma once

#include <cstddef>
#include <new>

namespace vpmm {

constexpr std::size_t kCacheLine = 64;

// For containers of the standard library: what one of them allocates shares no line with anything else.
template <typename T>
struct LineAllocator {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard library asks for this name

  LineAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): the standard library converts allocators
  LineAllocator(const LineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return static_cast<T*>(::operator new (bytes, std::align_val_t{kCacheLine}));
  }
  void deallocate(T* begin, std::size_t) { ::operator delete (begin, std::align_val_t{kCacheLine}); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};

}  // namespace vpmm
