// SPDX-License-Identifier: Apache-2.0
// base: memory of the process for the library's own structures, with a reserve for calls that have
// begun.
//
// Note [Host memory in reserve]
// A call that has made half of its changes cannot stop because `operator new` fails: an allocation
// would be lost, or given twice. So the containers of the rooms take their memory here. If the
// process has none left, it comes from a reserve set aside when the library was loaded; a call is
// promised its whole need *before it changes anything* (HostPromise), or fails with
// host_out_of_memory. Memory of the reserve returns to it. Only read-only operations with a need
// that grows with the pool (dumps, validate()) may take more and fail on the way.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vpmm {

// Most bytes of one call, beyond those it asks for itself.
constexpr std::size_t kHostReserve = std::size_t{512} << 10;

// Promises `bytes` of the reserve during its life; concurrent promises add up. Any thread; takes a
// lock for a few instructions if the process is out of memory, or many calls come at once.
class [[nodiscard]] HostPromise {
 public:
  explicit HostPromise(std::size_t bytes = kHostReserve) noexcept;
  ~HostPromise();
  HostPromise(const HostPromise&) = delete;
  HostPromise& operator=(const HostPromise&) = delete;
  // False: neither the reserve nor the process has them.
  bool is_kept() const { return bytes_ != 0; }

 private:
  std::size_t bytes_;  // 0: not promised
};

namespace host_reserve {
// Takes memory from the process, else from the reserve; null: both are exhausted. Requires:
// `alignment` is a power of two <= 4096.
void* take(std::size_t bytes, std::size_t alignment) noexcept;
void give_back(void* memory, std::size_t alignment) noexcept;
// Bytes of the reserve in use; 0 unless the process ran out of memory.
std::size_t used() noexcept;
}  // namespace host_reserve

template <typename T>
struct HostAllocator {
  // NOLINTNEXTLINE(readability-identifier-naming): the standard library asks for this name
  using value_type = T;

  HostAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): the standard library converts allocators
  HostAllocator(const HostAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    void* const memory = count > std::size_t(-1) / sizeof(T)
                             ? nullptr
                             : host_reserve::take(count * sizeof(T), alignof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* begin, std::size_t) noexcept { host_reserve::give_back(begin, alignof(T)); }
  friend bool operator==(const HostAllocator&, const HostAllocator&) { return true; }
};

template <typename T>
using Vector = std::vector<T, HostAllocator<T>>;
template <typename T>
using Deque = std::deque<T, HostAllocator<T>>;
template <typename Key, typename Value, typename Less = std::less<Key>>
using Map = std::map<Key, Value, Less, HostAllocator<std::pair<const Key, Value>>>;
template <typename Key, typename Less = std::less<Key>>
using Set = std::set<Key, Less, HostAllocator<Key>>;
template <typename Key, typename Value>
using HashMap = std::unordered_map<Key, Value, std::hash<Key>, std::equal_to<Key>,
                                   HostAllocator<std::pair<const Key, Value>>>;

// Base of classes made with `new`, std::make_unique or the like.
struct FromHostMemory {
  static void* operator new(std::size_t bytes) {
    if (void* const memory = host_reserve::take(bytes, alignof(std::max_align_t))) return memory;
    throw std::bad_alloc();
  }
  static void operator delete(void* memory) noexcept {
    host_reserve::give_back(memory, alignof(std::max_align_t));
  }
};

}  // namespace vpmm
