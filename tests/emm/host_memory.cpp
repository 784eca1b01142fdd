// SPDX-License-Identifier: Apache-2.0
// emm tests: an operator new that can be told to fail.
#include "emm/host_memory.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local bool has_none = false;
}  // namespace

void* operator new(std::size_t bytes) {
  void* const ptr = has_none ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (ptr == nullptr) throw std::bad_alloc();
  return ptr;
}
// Sanitizers have one of their own, whose memory is not for free().
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return has_none ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* ptr) noexcept { std::free(ptr); }
void operator delete(void* ptr, std::size_t) noexcept { std::free(ptr); }

namespace vpmm::emm_test {

NoHostMemory::NoHostMemory() { has_none = true; }
NoHostMemory::~NoHostMemory() { has_none = false; }

}  // namespace vpmm::emm_test
