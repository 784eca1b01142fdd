// SPDX-License-Identifier: Apache-2.0
// ipc tests: operator new of this binary, which fails when it is told to.
#include "ipc/memory.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace vpmm::ipc_test {
namespace {

constinit std::atomic<std::int64_t> until_failure{0};  // 0: none fails
constinit std::atomic<std::uint64_t> too_large{0};     // 0: nothing is
constinit std::atomic<std::uint64_t> failures{0};
constinit std::atomic<bool> is_for_others{false};
constinit std::atomic<bool> is_for_good{false};
constinit thread_local int spared = 0;

bool is_to_fail(std::size_t size) {
  if (too_large != 0 && size >= too_large && spared == 0) return true;
  if (until_failure.load(std::memory_order_relaxed) <= 0 || spared != 0) return false;
  if ((gettid() != getpid()) != is_for_others) return false;
  if (until_failure.fetch_sub(1) != 1) return false;
  if (is_for_good) until_failure = 1;
  ++failures;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) {
  void* const made =
      is_to_fail(size) ? nullptr
      : alignment == 0
          ? std::malloc(size == 0 ? 1 : size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

void* allocate_or_null(std::size_t size, std::size_t alignment) noexcept {
  try {
    return allocate(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void fail_allocation(std::uint64_t nth, Of of, Repeat repeat) {
  failures = 0;
  is_for_others = of == Of::others;
  is_for_good = repeat == Repeat::from_then_on;
  until_failure = static_cast<std::int64_t>(nth);
}

void fail_large_allocations(std::uint64_t bytes) { too_large = bytes; }

std::uint64_t stop_failing() {
  until_failure = 0;
  return failures;
}

std::optional<driver::CuResult> SparedDriver::before(driver::Call) {
  ++spared;
  return std::nullopt;
}

void SparedDriver::after(driver::Call, driver::CuResult, std::uint64_t) { --spared; }

}  // namespace vpmm::ipc_test

void* operator new(std::size_t size) { return vpmm::ipc_test::allocate(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return vpmm::ipc_test::allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return vpmm::ipc_test::allocate_or_null(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return vpmm::ipc_test::allocate_or_null(size, 0);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
