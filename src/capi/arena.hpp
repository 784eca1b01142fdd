// SPDX-License-Identifier: Apache-2.0
// capi: the struct vpmm_arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "capi/call.hpp"

// Name of an arena; the pool owns its memory.
struct vpmm_arena {
  vpmm::context::Context* context = nullptr;
  vpmm::pool::ArenaId id{};
  std::atomic<std::uint32_t> library{0};
};

namespace vpmm::capi {

// As with_pool(), on the pool of an arena.
template <typename Work>
vpmm_status with_arena(vpmm_arena* arena, Work&& work,
                       WhenEnding when_ending = WhenEnding::fail) noexcept {
  if (arena == nullptr) return fail(VPMM_ERROR_INVALID_ARGUMENT, "`arena` is null");
  return gated(when_ending, [&] { return work(*arena->context); });
}

}  // namespace vpmm::capi
