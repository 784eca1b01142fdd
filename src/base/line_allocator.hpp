// SPDX-License-Identifier: Apache-2.0
// base: memory in whole cache lines, for data that one thread writes often, so that others need not
// fetch it.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

#include "base/host_memory.hpp"

namespace vpmm {

constexpr std::size_t kCacheLine = 64;

// For containers of the standard library: an allocation shares no line with others.
template <typename T>
struct LineAllocator {
  // NOLINTNEXTLINE(readability-identifier-naming): the standard library asks for this name
  using value_type = T;

  LineAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): the standard library converts allocators
  LineAllocator(const LineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    void* const memory = host_reserve::take(bytes, kCacheLine);
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* begin, std::size_t) { host_reserve::give_back(begin, kCacheLine); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};

// Same for an array of numbers, where a container would be too large.
template <typename T>
struct LineDeleter {
  void operator()(T* begin) const { LineAllocator<T>().deallocate(begin, 0); }
};
template <typename T>
using LineArray = std::unique_ptr<T[], LineDeleter<T>>;
template <typename T>
LineArray<T> make_line_array(std::size_t count) {
  static_assert(std::is_trivial_v<T>);
  T* const begin = LineAllocator<T>().allocate(count);
  std::uninitialized_value_construct_n(begin, count);
  return LineArray<T>(begin);
}

}  // namespace vpmm
