// SPDX-License-Identifier: Apache-2.0
// base: scopes in which no host memory is taken or given back.
#pragma once

namespace vpmm {

// Such a scope of the thread, whose lock others spin for. Builds with test hooks check it
// (host_reserve); others have no code for it.
class NoHostMemory {
 public:
  NoHostMemory(const NoHostMemory&) = delete;
  NoHostMemory& operator=(const NoHostMemory&) = delete;
#if defined(VPMM_TEST_HOOKS)
  NoHostMemory() noexcept { ++scopes_; }
  ~NoHostMemory() { --scopes_; }
  static bool is_asked() noexcept { return scopes_ != 0; }

 private:
  inline static thread_local int scopes_ = 0;
#else
  NoHostMemory() noexcept = default;
  static bool is_asked() noexcept { return false; }
#endif
};

}  // namespace vpmm
