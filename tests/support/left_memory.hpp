// SPDX-License-Identifier: Apache-2.0
// tests: host memory that the product leaves on purpose.
#pragma once

// gcc and clang say in different ways that memory is checked.
#if defined(__SANITIZE_ADDRESS__)
#define VPMM_LOOKS_FOR_LEAKS
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VPMM_LOOKS_FOR_LEAKS
#endif
#endif
#if defined(VPMM_LOOKS_FOR_LEAKS)
#include <sanitizer/lsan_interface.h>
#endif

namespace vpmm::test {

// What its thread allocates while it lives is no leak: the GPU may still copy from it, or CUDA does
// not tell that it is done with it.
class LeftMemory {
 public:
#if defined(VPMM_LOOKS_FOR_LEAKS)
  LeftMemory() { __lsan_disable(); }
  ~LeftMemory() { __lsan_enable(); }
#else
  LeftMemory() {}
  ~LeftMemory() {}
#endif
  LeftMemory(const LeftMemory&) = delete;
  LeftMemory& operator=(const LeftMemory&) = delete;
};

}  // namespace vpmm::test
