// SPDX-License-Identifier: Apache-2.0
// replay: bisection between a GPU that is too small and one that fits.
#include "replay/fit.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::replay {
namespace {

class Search {
 public:
  Search(const ReplayResult& roomy, Bytes largest, const ReplayAt& replay_at)
      : replay_at_(replay_at),
        page_(roomy.page_size),
        resolution_(std::max(page_, round_down(roomy.peak_rounded_bytes / 1000, page_))),
        largest_(largest),
        most_failing_(round_down(std::max<Bytes>(roomy.peak_live_bytes, 1) - 1, page_)),
        least_fitting_(largest) {}

  // A replay that fits runs to its end and costs most: the guess is replayed only if half way to it
  // is too little.
  Result<SmallestGpu> run(Bytes first_guess) {
    const Bytes guess =
        std::min(std::max(round_up(first_guess, page_), most_failing_ + page_), largest_);
    if (guess > most_failing_ + resolution_) VPMM_TRY(look_below(guess));
    if (least_fitting_ > guess) VPMM_TRY(find_what_fits(guess));
    while (least_fitting_ > most_failing_ + resolution_) VPMM_TRY(look_below(least_fitting_));
    return SmallestGpu{least_fitting_, replays_};
  }

 private:
  // Half way between what fails and `capacity`.
  Result<void> look_below(Bytes capacity) {
    return look_at(most_failing_ + round_up((capacity - most_failing_) / 2, page_));
  }

  // Steps up from the guess, doubling the step; the largest fits and is not replayed.
  Result<void> find_what_fits(Bytes guess) {
    for (Bytes step = resolution_; guess < largest_; guess += step, step *= 2) {
      VPMM_TRY(look_at(guess));
      if (least_fitting_ == guess) break;
    }
    return {};
  }

  Result<void> look_at(Bytes capacity) {
    ++replays_;
    VPMM_TRY_ASSIGN(const ReplayResult result, replay_at_(capacity));
    (result.failed_allocations == 0 ? least_fitting_ : most_failing_) = capacity;
    return {};
  }

  const ReplayAt& replay_at_;
  const Bytes page_;
  const Bytes resolution_;
  const Bytes largest_;
  Bytes most_failing_;   // a multiple of page_
  Bytes least_fitting_;  // > most_failing_
  std::size_t replays_ = 0;
};

}  // namespace

Result<std::optional<SmallestGpu>> find_fit(const ReplayResult& roomy, Bytes largest,
                                            const ReplayAt& replay_at) {
  if (roomy.failed_allocations != 0) return std::optional<SmallestGpu>();
  VPMM_TRY_ASSIGN(const SmallestGpu fit,
                  Search(roomy, largest, replay_at).run(roomy.peak_mapped_bytes));
  return std::optional(fit);
}

}  // namespace vpmm::replay
