// pool: how much of the time calls may spend in pauses.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vpmm::pool {

// A twentieth of the time, and so much more at once as that saves in a second: programs need their pauses in bursts.
// Nanoseconds of any clock that does not go back. Holds: the context's lock.
class PauseBudget {
 public:
  static constexpr std::uint64_t kShare = 20;
  static constexpr std::uint64_t kAtOnceNs = 50'000'000;

  // One that has begun may go beyond it.
  bool allows_pause(std::uint64_t now_ns) const { return made_up_ns_ < now_ns + kShare * kAtOnceNs; }
  // What several calls share counts once. Requires: `end_ns` is not before that of the last call.
  void charge(std::uint64_t begin_ns, std::uint64_t end_ns) {
    const std::uint64_t from = std::max(begin_ns, charged_ns_);
    if (end_ns <= from) return;
    made_up_ns_ = std::max(made_up_ns_, from) + kShare * (end_ns - from);
    charged_ns_ = end_ns;
  }

 private:
  std::uint64_t charged_ns_ = 0;  // until then
  std::uint64_t made_up_ns_ = 0;  // when that will have been a twentieth of the time
};

}  // namespace vpmm::pool
