// driver: a decorator that makes chosen calls fail, so that tests can sweep a fault over a whole
// run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "driver/forwarding.hpp"

namespace vpmm::driver {

// The results a caller of `call` must be able to survive, a sticky one among them where the call
// can meet it. Empty: a failure of this call has no story of its own (a plain query made at
// start-up).
std::vector<CuResult> errors_that_matter(Call call);

struct FaultPlan {
  enum class Repeat { once, from_then_on };

  std::vector<Call> calls;  // which calls count; empty: all for which errors_that_matter has some
  std::uint64_t nth = 1;    // the first of them that fails, counted from 1 since set_plan
  CuResult result = CuResult::out_of_memory;
  Repeat repeat = Repeat::once;
};

// A failed call never reaches the inner driver. Once a sticky result was given, every call that can
// fail gives it, whatever the plan says, as a broken context does. not_ready is no failure of
// event_query: it is given once at most, for a GPU that gives it for ever hangs. Thread-safe.
//
// A sweep: for n = 1, 2, ...: set_plan with nth = n, run the scenario, stop when fired() is 0.
class FaultingDriver final : public ForwardingDriver {
 public:
  explicit FaultingDriver(Driver& inner) : ForwardingDriver(inner) {}

  void set_plan(FaultPlan plan)
      VPMM_EXCLUDES(mutex_);                // counts start again; a broken context is whole again
  void clear_plan() VPMM_EXCLUDES(mutex_);  // nothing fails from now on; counts stay readable
  std::uint64_t counted() const
      VPMM_EXCLUDES(mutex_);  // calls that matched the plan, failed ones included
  std::uint64_t fired() const VPMM_EXCLUDES(mutex_);  // calls that were made to fail

 private:
  std::optional<CuResult> before(Call call) override VPMM_EXCLUDES(mutex_);
  std::optional<CuResult> decide(Call call) VPMM_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::optional<FaultPlan> plan_ VPMM_GUARDED_BY(mutex_);
  std::optional<CuResult> broken_by_ VPMM_GUARDED_BY(mutex_);  // the sticky result that was given
  std::uint64_t counted_ VPMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t fired_ VPMM_GUARDED_BY(mutex_) = 0;
};

}  // namespace vpmm::driver
