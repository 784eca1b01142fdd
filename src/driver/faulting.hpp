// SPDX-License-Identifier: Apache-2.0
// driver: decorator that makes chosen calls fail, so that tests can sweep a fault over a whole run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "driver/forwarding.hpp"

namespace vpmm::driver {

// Results that a caller of `call` must survive, with a sticky one where possible. Empty: a failure
// needs no test of its own (a plain query at start-up).
std::vector<CuResult> errors_that_matter(Call call);

struct FaultPlan {
  enum class Repeat { once, from_then_on };

  std::vector<Call> calls;  // calls that count; empty: all for which errors_that_matter() is not
                            // empty
  std::uint64_t nth = 1;    // number of the first failing one, from 1 since set_plan
  CuResult result = CuResult::out_of_memory;
  Repeat repeat = Repeat::once;
};

// A failed call never reaches the inner driver. After a sticky result, every call that can fail
// gives it, against any plan, as in a broken context. event_query gives not_ready once at most, for
// an endless one means a hung GPU. Thread-safe.
//
// A sweep: for n = 1, 2, ...: set_plan with nth = n, run the scenario, stop when fired() is 0.
class FaultingDriver final : public ForwardingDriver {
 public:
  explicit FaultingDriver(Driver& inner) : ForwardingDriver(inner) {}

  void set_plan(FaultPlan plan) VPMM_EXCLUDES(mutex_);  // resets counts and a broken context
  void clear_plan() VPMM_EXCLUDES(mutex_);              // ends all faults; counts stay readable
  std::uint64_t counted() const
      VPMM_EXCLUDES(mutex_);  // calls that matched the plan, failed ones included
  std::uint64_t fired() const VPMM_EXCLUDES(mutex_);

 private:
  std::optional<CuResult> before(Call call) override VPMM_EXCLUDES(mutex_);
  std::optional<CuResult> decide(Call call) VPMM_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::optional<FaultPlan> plan_ VPMM_GUARDED_BY(mutex_);
  std::optional<CuResult> broken_by_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t counted_ VPMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t fired_ VPMM_GUARDED_BY(mutex_) = 0;
};

}  // namespace vpmm::driver
