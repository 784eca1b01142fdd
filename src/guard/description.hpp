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

// Sentences, and stacks of an allocation that they are about.
struct Paragraph {
  std::string text;
  std::uint32_t allocated_by = 0;  // 0: not known
  std::uint32_t freed_by = 0;
};

// About `address`: the allocation that holds it, or ends before it or begins behind it, and the
// newest ones if none is near.
Vector<Paragraph> explain(const Guarded& guarded, DevicePtr address, std::uint64_t now_ns)
    VPMM_REQUIRES(pool_lock);
// With the frames of the stacks, those of Python if there are any. Call without the pool's lock:
// symbols may need the loader's lock, and another thread with that lock may call the pool.
std::string with_stacks(const Vector<Paragraph>& paragraphs, const observe::StackTable& stacks);

}  // namespace vpmm::guard
