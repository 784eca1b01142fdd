// replay: the smallest GPU on which a trace runs.
#pragma once

#include <functional>
#include <optional>

#include "replay/replay.hpp"

namespace vpmm::replay {

// What a pool may need beyond what lives, whatever lives: the memory that it keeps for small
// requests, mostly.
constexpr Bytes kFitAllowance = 64 * kMiB;

// Replays the trace anew on a GPU of this capacity, and may stop at the first refusal.
using ReplayAt = std::function<Result<ReplayResult>(Bytes capacity)>;

// `roomy` is the result of the same replay on a GPU of capacity `largest`. None: an allocation was
// refused even there.
//
// Bisection, to a thousandth of roomy.peak_rounded_bytes or a page, whichever is more: a GPU that
// is smaller than peak_live_bytes does not fit, the one that is found does, and one that is smaller
// than it by that much does not. What an allocator does depends on what is free, so a size in
// between, or even one beyond it, may be an exception.
Result<std::optional<Fit>> find_fit(const ReplayResult& roomy, Bytes largest,
                                    const ReplayAt& replay_at);

}  // namespace vpmm::replay
