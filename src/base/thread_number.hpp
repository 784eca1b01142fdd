// SPDX-License-Identifier: Apache-2.0
// base: the system's number of a thread.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace vpmm {

namespace detail {
// Note [Thread-local variables]
[[gnu::tls_model("initial-exec")]] inline constinit thread_local std::uint32_t own_thread_number =
    0;
}  // namespace detail

// Asks the system once per thread; a forked child keeps the parent's number.
inline std::uint32_t thread_number() noexcept {
  if (detail::own_thread_number == 0)
    detail::own_thread_number = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return detail::own_thread_number;
}

}  // namespace vpmm
