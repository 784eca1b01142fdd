// SPDX-License-Identifier: Apache-2.0
// replay: the smallest GPU on which a trace runs.
#pragma once

#include <functional>
#include <optional>

#include "replay/replay.hpp"

namespace vpmm::replay {

// Need of a pool beyond live memory, at any size: mostly memory kept for small requests.
constexpr Bytes kFitAllowance = 64 * kMiB;

// Replays the trace anew on a GPU of this capacity, and may stop at the first refusal and leave
// contents unchecked.
using ReplayAt = std::function<Result<ReplayResult>(Bytes capacity)>;

// `roomy`: result of the same replay on a GPU of capacity `largest`. nullopt: an allocation was
// refused even there.
//
// Bisects to a thousandth of roomy.peak_rounded_bytes or a page, whichever is more: the result
// fits, one smaller by that much does not, nor does a GPU below peak_live_bytes. An allocator's
// choices depend on free memory, so a size in between, or even beyond, may be an exception.
Result<std::optional<SmallestGpu>> find_fit(const ReplayResult& roomy, Bytes largest,
                                            const ReplayAt& replay_at);

}  // namespace vpmm::replay
