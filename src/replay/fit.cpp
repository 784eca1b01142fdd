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

  // An allocator that needs all that it holds with memory to spare fails on a step less, and the
  // search is over. Another fits there: what it held need not be tried.
  Result<SmallestGpu> run(Bytes first_guess) {
    const Bytes guess =
        std::min(std::max(round_up(first_guess, page_), most_failing_ + page_), largest_);
    const Bytes below = round_down(std::max(guess, resolution_) - resolution_, page_);
    if (below > most_failing_) VPMM_TRY(look_at(below));
    if (least_fitting_ > guess) VPMM_TRY(find_what_fits(guess));
    while (least_fitting_ > most_failing_ + resolution_) {
      VPMM_TRY(look_at(most_failing_ + round_up((least_fitting_ - most_failing_) / 2, page_)));
    }
    return SmallestGpu{least_fitting_, replays_};
  }

 private:
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
