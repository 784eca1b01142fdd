// SPDX-License-Identifier: Apache-2.0
// base: places where tests hold a thread, so that a test can meet a race of two instructions.
#pragma once

#if defined(VPMM_TEST_HOOKS)

#include <atomic>

namespace vpmm {

// Called with the name of the place; null: no hold.
using RaceWindow = void (*)(const char* name);
inline std::atomic<RaceWindow> race_window{nullptr};

}  // namespace vpmm

#define VPMM_RACE_WINDOW(name)                                                               \
  do {                                                                                       \
    if (const ::vpmm::RaceWindow hold = ::vpmm::race_window.load(std::memory_order_acquire); \
        hold != nullptr)                                                                     \
      hold(name);                                                                            \
  } while (false)

#else

#define VPMM_RACE_WINDOW(name) static_cast<void>(0)

#endif
