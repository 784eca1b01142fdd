// SPDX-License-Identifier: Apache-2.0
// guard: sentences about guarded allocations.
#pragma once

#include <cstdint>
#include <string>

#include "guard/guarded.hpp"

namespace vpmm::guard {

// "4000 bytes at 0x..., allocated on stream 5 with the tag "cache", freed on stream 5"
std::string describe(const Block& block) noexcept;

// The device's log names the begin of the 4 KiB around an access.
constexpr Bytes kLoggedStep = 4096;

// Sentences about `address`: the allocation that holds it, or ends before it or begins behind it,
// and the newest ones if none is near.
std::string explain(const Guarded& guarded, DevicePtr address, std::uint64_t now_ns)
    VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::guard
